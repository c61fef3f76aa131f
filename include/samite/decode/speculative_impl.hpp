// samite/decode/speculative_impl.hpp: the decoding loops.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include <samite/core/random.hpp>
#include <samite/decode/sampling.hpp>
#include <samite/decode/speculative.hpp>

namespace samite {

namespace detail {

inline double seconds_since(std::chrono::steady_clock::time_point start) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }

inline void check_generation(const target_session& target, std::span<const std::int32_t> prompt, const generation_options& o) {
  if (prompt.empty()) raise("E-DECODE-PROMPT", "decoding: the prompt is empty; give at least one token");
  if (o.new_tokens < 0 || !(o.temperature >= 0) || std::isinf(o.temperature))
    raise("E-DECODE-PROMPT", "decoding: ", o.new_tokens, " new tokens at temperature ", o.temperature, "; both must be numbers of at least 0");
  check_positions("decoding", target.config(), index_t(prompt.size()) + o.new_tokens);
  if (target.length() != 0) raise("E-DECODE-PROMPT", "decoding: the target's cache holds ", target.length(), " tokens; crop(0) it before a new prompt");
}

/// The target's choice from one row of logits.
inline std::int32_t choose(generation& g, std::span<const float> logits, const generation_options& o, counted_random& random) {
  if (o.temperature > 0) return sample(distribution(logits, o.temperature), random);
  g.margins.push_back(top2_margin(logits));
  return most_likely(logits);
}

}  // namespace detail

SAMITE_IMPL generation generate_plain(target_session& target, std::span<const std::int32_t> prompt, const generation_options& o) {
  detail::check_generation(target, prompt, o);
  counted_random random(o.seed, 0x91a1, 0, o.sample);
  generation g;
  g.ids.assign(prompt.begin(), prompt.end());
  g.prompt_tokens = index_t(prompt.size());
  auto start = std::chrono::steady_clock::now();
  target_output out = target.read(prompt);
  g.prefill_seconds = detail::seconds_since(start);
  start = std::chrono::steady_clock::now();
  while (g.new_tokens() < o.new_tokens) {
    g.ids.push_back(detail::choose(g, detail::row_of(out.logits, out.logits.dims()[0] - 1), o, random));
    if (o.stop_id && g.ids.back() == *o.stop_id) break;
    if (g.new_tokens() == o.new_tokens) break;
    out = target.read({&g.ids.back(), 1});
    ++g.target_forwards;
  }
  g.seconds = detail::seconds_since(start);
  return g;
}

SAMITE_IMPL generation generate_speculative(target_session& target, drafter_session& draft, std::span<const std::int32_t> prompt, const generation_options& o) {
  detail::check_generation(target, prompt, o);
  const drafter_config& c = draft.config();
  if (c.vocab_size != target.config().vocab_size || c.target_hidden != target.config().sizes.hidden)
    raise("E-MODEL-CONFIG", "speculative decoding: the drafter was made for a target of hidden size ", c.target_hidden, " and ", c.vocab_size, " tokens, this one has ",
          target.config().sizes.hidden, " and ", target.config().vocab_size);
  if (c.target_layer_ids != target.taps())
    raise("E-MODEL-CONFIG", "speculative decoding: the drafter reads the target's layers ", c.target_layer_ids, " but the session returns ", target.taps(), "; set target_session_options::taps to the drafter's target_layer_ids");
  counted_random random(o.seed, 0x5bec, 0, o.sample);
  generation g;
  g.ids.assign(prompt.begin(), prompt.end());
  g.prompt_tokens = index_t(prompt.size());
  draft.reset();
  auto clock = std::chrono::steady_clock::now();
  target_output out = target.read(prompt);
  g.prefill_seconds = detail::seconds_since(clock);
  clock = std::chrono::steady_clock::now();
  const index_t limit = g.prompt_tokens + o.new_tokens;
  if (o.new_tokens > 0) g.ids.push_back(detail::choose(g, detail::row_of(out.logits, out.logits.dims()[0] - 1), o, random));
  bool stopped = o.stop_id && g.new_tokens() > 0 && g.ids.back() == *o.stop_id;
  tensor features = out.features;

  // `start` tokens are in the target's cache; the token at `start` is known but not in it.
  while (!stopped && index_t(g.ids.size()) < limit) {
    const index_t start = index_t(g.ids.size()) - 1, n = std::min(c.block_size, limit - start);
    std::vector<std::int32_t> block(std::size_t(n), std::int32_t(c.mask_token_id));
    block[0] = g.ids.back();
    std::vector<std::vector<double>> q;  // what each proposal was drawn from
    if (n > 1) {
      const auto drafting = std::chrono::steady_clock::now();
      const tensor logits = draft.propose(features, block);
      g.draft_seconds += detail::seconds_since(drafting);
      for (index_t k = 1; k < n; ++k) {
        const auto row = detail::row_of(logits, k);
        if (o.temperature > 0 && !o.argmax_proposals) {
          q.push_back(distribution(row, o.temperature));
          block[std::size_t(k)] = sample(q.back(), random);
        } else {
          block[std::size_t(k)] = most_likely(row);
          if (o.temperature > 0) q.emplace_back(std::size_t(c.vocab_size), 0.0), q.back()[std::size_t(block[std::size_t(k)])] = 1;
        }
      }
    }
    const auto verifying = std::chrono::steady_clock::now();
    out = target.read(block);
    g.verify_seconds += detail::seconds_since(verifying);
    ++g.target_forwards;
    g.blocks.push_back(block);

    index_t accepted = 0;
    std::int32_t bonus = 0;
    for (;; ++accepted) {
      const auto row = detail::row_of(out.logits, accepted);
      const bool last = accepted == n - 1;
      if (o.temperature > 0) {
        const std::vector<double> p = distribution(row, o.temperature);
        if (last) { bonus = sample(p, random); break; }
        bonus = block[std::size_t(accepted + 1)];
        if (!accept(bonus, p, q[std::size_t(accepted)], random)) break;
      } else {
        bonus = most_likely(row);
        g.margins.push_back(top2_margin(row));
        if (last || bonus != block[std::size_t(accepted + 1)]) break;
      }
    }
    // Accepted proposals and the bonus, cut at the length limit and after a stop token.
    index_t produced = 0;
    for (index_t k = 1; k <= accepted + 1 && index_t(g.ids.size()) < limit && !stopped; ++k) {
      g.ids.push_back(k <= accepted ? block[std::size_t(k)] : bonus);
      ++produced;
      stopped = o.stop_id && g.ids.back() == *o.stop_id;
    }
    g.produced.push_back(produced);
    target.crop(start + produced);
    const index_t width = out.features.dims()[1];
    features = tensor(out.features.type(), {produced, width});
    std::memcpy(features.raw(), out.features.raw(), features.bytes());
  }
  if (o.temperature == 0) g.margins.resize(std::size_t(std::min<index_t>(index_t(g.margins.size()), g.new_tokens())));
  g.seconds = detail::seconds_since(clock);
  return g;
}

}  // namespace samite
