// samite/decode/target_session_impl.hpp: a target's graph with a cache, and its calls.
#pragma once
#include <algorithm>
#include <cstring>

#include <samite/decode/target_session.hpp>

namespace samite {

SAMITE_IMPL target_session::target_session(const decoder_config& config, const weight_map& weights, device target, dtype type, target_session_options options)
    : config_(config), options_(detail::checked_session("target_session", std::move(options))), type_(type), tokens_(tokens(std::min(options_.chunk, options_.capacity), "n")), past_(tokens(options_.capacity, "past")) {
  using namespace symbols;
  const value ids = graph_.input("ids", i32, {1, tokens_}), positions = graph_.input("positions", i32, {1, tokens_});
  const decoder_weights w = declare_decoder(graph_, config_, type_, type_);
  const cache_sizes caches{.layers = config_.layers, .capacity = options_.capacity, .heads = config_.sizes, .type = type_};
  const decoder_options o{.mask = any_mask(kv <= q + past_argument_, "cached causal"), .taps = options_.taps, .caches = declare_caches(graph_, caches, past_)};
  const decoder_result result = decoder(ids, positions, w, config_, o);
  graph_.output("logits", let(result.logits, {.type = f32, .label = "logits_f32"}));
  if (!result.taps.empty()) graph_.output("features", concat(result.taps, 2));
  run_.emplace(make_plan(graph_, target));
  bind_weights(*run_, weights);
  bind_caches(*run_, caches);
}

SAMITE_IMPL void target_session::crop(index_t length) {
  if (length < 0 || length > length_) raise("E-DECODE-CROP", "target_session::crop(", length, "): the cache holds ", length_, " tokens; a crop keeps 0 to that many");
  length_ = length;
}

SAMITE_IMPL target_output target_session::read(std::span<const std::int32_t> ids) {
  const index_t n = index_t(ids.size());
  if (n < 1 || length_ + n > options_.capacity)
    raise("E-DECODE-CAPACITY", "target_session::read of ", n, " tokens after ", length_, ": the session was made for ", options_.capacity, "; raise target_session_options::capacity");
  const index_t width = index_t(options_.taps.size()) * config_.sizes.hidden;
  target_output out{tensor(f32, {n, config_.vocab_size}), tensor(type_, {n, width})};
  const index_t chunk = tokens_.capacity();
  for (index_t begin = 0; begin < n; begin += chunk) {
    const index_t count = std::min(chunk, n - begin);
    tensor id(i32, {1, count}), position(i32, {1, count});
    for (index_t i = 0; i < count; ++i) id.data<std::int32_t>()[i] = ids[std::size_t(begin + i)], position.data<std::int32_t>()[i] = std::int32_t(length_ + i);
    run_->bind("ids", id), run_->bind("positions", position);
    run_->set_length(past_, length_);
    past_argument_.set(length_);
    run_->step();
    const tensor logits = run_->output("logits");
    std::memcpy(out.logits.raw() + std::size_t(begin * config_.vocab_size) * 4, logits.raw(), logits.bytes());
    if (width > 0) {
      const tensor features = run_->output("features");
      std::memcpy(out.features.raw() + std::size_t(begin * width) * size_of(type_), features.raw(), features.bytes());
    }
    length_ += count;
  }
  return out;
}

}  // namespace samite
