// samite/decode/speculative.hpp: plain and speculative decoding of one sequence.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include <samite/decode/drafter_session.hpp>
#include <samite/decode/target_session.hpp>

namespace samite {

struct generation_options {
  index_t new_tokens = 128;
  double temperature = 0;                  // 0: greedy
  std::optional<std::int32_t> stop_id{};
  std::uint64_t seed = 0;
  std::uint32_t sample = 0;                // number of the prompt: another stream of random numbers
  bool argmax_proposals = false;           // with a temperature: propose the drafter's most likely token instead of a sample
};

struct generation {
  std::vector<std::int32_t> ids;        // prompt and new tokens
  std::vector<index_t> produced;        // tokens committed in each verification round, bonus included
  std::vector<std::vector<std::int32_t>> blocks;  // what each round verified: last known token, then proposals
  std::vector<float> margins;           // top-2 margin of the target's logits at each greedy choice
  index_t prompt_tokens = 0, target_forwards = 0;  // forwards after the prefill
  double prefill_seconds = 0, seconds = 0;         // seconds without the prefill
  double draft_seconds = 0, verify_seconds = 0;    // of them, in the drafter and in the target

  index_t new_tokens() const { return index_t(ids.size()) - prompt_tokens; }
  /// Mean tokens per verification round, from 1 to the block size.
  double acceptance_length() const {
    index_t sum = 0;
    for (index_t n : produced) sum += n;
    return produced.empty() ? 0 : double(sum) / double(produced.size());
  }
};

/// One token per target forward: the reference that speculative output is compared with.
generation generate_plain(target_session& target, std::span<const std::int32_t> prompt, const generation_options& o = {});

/// Block drafting and verification. Greedy output equals plain greedy output; sampled output follows the same distribution.
///
/// errors  E-DECODE-*; E-MODEL-POSITIONS; E-MODEL-CONFIG if the drafter does not fit the target
/// source  DFlash, arXiv:2602.06036, section 3.3; acceptance: Leviathan et al. 2023, arXiv:2211.17192
generation generate_speculative(target_session& target, drafter_session& draft, std::span<const std::int32_t> prompt, const generation_options& o = {});

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/decode/speculative_impl.hpp>
#endif
