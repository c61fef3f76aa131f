// samite/decode/batch.hpp: plain decoding of many sequences at once, e.g. to let a target write its drafter's training text.
#pragma once
#include <optional>
#include <vector>

#include <samite/decode/key_value_cache.hpp>

namespace samite {

struct batch_options {
  index_t new_tokens = 128;
  std::vector<double> temperatures{};  // one a sequence; 0 is greedy; all greedy if empty
  std::uint64_t seed = 0;
  std::uint32_t epoch = 0;             // another epoch draws other random numbers
};

/// Decodes B prompts of one length side by side, one token of each per forward.
///
/// The graph is made once; `generate` may be called again with other prompts of the same shape.
/// threads  one thread at a time
class batch_decoder {
 public:
  /// capacity  tokens of one sequence, prompt included
  /// errors    E-DECODE-CAPACITY if it is below 1
  batch_decoder(const decoder_config& config, const weight_map& weights, device target, dtype type, index_t B, index_t capacity);
  batch_decoder(const batch_decoder&) = delete;

  /// Prompt and new tokens of each sequence. errors: E-DECODE-PROMPT, E-DECODE-CAPACITY, E-MODEL-POSITIONS
  std::vector<std::vector<std::int32_t>> generate(const std::vector<std::vector<std::int32_t>>& prompts, const batch_options& o);

 private:
  graph graph_;
  decoder_config config_;
  index_t B_, capacity_;
  dim n_, past_;
  scalar past_argument_ = 0;
  std::optional<executor> run_;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/decode/batch_impl.hpp>
#endif
