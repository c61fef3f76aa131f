// samite/decode/batch_impl.hpp: a target's graph for many sequences, and its loop.
#pragma once
#include <cmath>
#include <span>

#include <samite/decode/batch.hpp>
#include <samite/decode/sampling.hpp>

namespace samite {
namespace detail {

inline index_t checked_capacity(index_t capacity) {
  if (capacity < 1) raise("E-DECODE-CAPACITY", "batch_decoder with capacity ", capacity, "; it is a token count of at least 1");
  return capacity;
}

}  // namespace detail

SAMITE_IMPL batch_decoder::batch_decoder(const decoder_config& config, const weight_map& weights, device target, dtype type, index_t B, index_t capacity)
    : config_(config), B_(B), capacity_(detail::checked_capacity(capacity)), n_(tokens(capacity, "n")), past_(tokens(capacity, "past")) {
  using namespace symbols;
  const decoder_weights w = declare_decoder(graph_, config, type, type);
  const cache_sizes caches{.layers = config.layers, .sequences = B, .capacity = capacity, .heads = config.sizes, .type = type};
  const decoder_options o{.mask = any_mask(kv <= q + past_argument_, "cached causal"), .caches = declare_caches(graph_, caches, past_)};
  const decoder_result r = decoder(graph_.input("ids", i32, {B, n_}), graph_.input("positions", i32, {B, n_}), w, config, o);
  graph_.output("logits", let(r.logits, {.type = f32, .label = "logits_f32"}));
  run_.emplace(make_plan(graph_, target));
  bind_weights(*run_, weights);
  bind_caches(*run_, caches);
}

SAMITE_IMPL std::vector<std::vector<std::int32_t>> batch_decoder::generate(const std::vector<std::vector<std::int32_t>>& prompts, const batch_options& o) {
  if (index_t(prompts.size()) != B_ || B_ < 1 || prompts[0].empty()) raise("E-DECODE-PROMPT", "batch_decoder::generate: ", prompts.size(), " prompts; the decoder was made for ", B_, " that aren't empty");
  if (!o.temperatures.empty() && index_t(o.temperatures.size()) != B_) raise("E-DECODE-PROMPT", "batch_decoder::generate: ", o.temperatures.size(), " temperatures for ", B_, " prompts; give one each, or none for greedy decoding");
  for (const double t : o.temperatures)
    if (!(t >= 0) || std::isinf(t)) raise("E-DECODE-PROMPT", "batch_decoder::generate: a temperature is ", t, "; expected a number of at least 0");
  if (o.new_tokens < 0) raise("E-DECODE-PROMPT", "batch_decoder::generate: ", o.new_tokens, " new tokens; expected 0 or more");
  const std::size_t P = prompts[0].size();
  for (const auto& p : prompts)
    if (p.size() != P) raise("E-DECODE-PROMPT", "batch_decoder::generate: prompts of ", P, " and ", p.size(), " tokens; all must have one length");
  if (index_t(P) + o.new_tokens > capacity_) raise("E-DECODE-CAPACITY", "batch_decoder::generate: ", P, " + ", o.new_tokens, " tokens; the decoder was made for ", capacity_);
  check_positions("batch_decoder::generate", config_, index_t(P) + o.new_tokens);
  const index_t V = config_.vocab_size;
  std::vector<std::vector<std::int32_t>> ids = prompts;
  std::vector<counted_random> random;
  for (index_t b = 0; b < B_; ++b) random.emplace_back(o.seed, 0xba7c, o.epoch, std::uint32_t(b));
  index_t done = 0;
  for (index_t step = 0; step < o.new_tokens; ++step) {
    const index_t n = index_t(ids[0].size()) - done;
    tensor id(i32, {B_, n}), position(i32, {B_, n});
    for (index_t b = 0; b < B_; ++b)
      for (index_t i = 0; i < n; ++i) id.data<std::int32_t>()[b * n + i] = ids[std::size_t(b)][std::size_t(done + i)], position.data<std::int32_t>()[b * n + i] = std::int32_t(done + i);
    run_->bind("ids", id), run_->bind("positions", position);
    run_->set_length(past_, done);
    past_argument_.set(done);
    run_->step();
    const tensor logits = run_->output("logits");
    for (index_t b = 0; b < B_; ++b) {
      const std::span<const float> row(logits.data<float>() + (b * n + n - 1) * V, std::size_t(V));
      const double temperature = o.temperatures.empty() ? 0 : o.temperatures[std::size_t(b)];
      ids[std::size_t(b)].push_back(temperature > 0 ? sample(distribution(row, temperature), random[std::size_t(b)]) : most_likely(row));
    }
    done += n;
  }
  return ids;
}

}  // namespace samite
