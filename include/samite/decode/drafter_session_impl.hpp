// samite/decode/drafter_session_impl.hpp: a drafter's graph with a cache, and its calls.
#pragma once
#include <algorithm>
#include <cstring>

#include <samite/decode/drafter_session.hpp>
#include <samite/mask/basic.hpp>

namespace samite {

SAMITE_IMPL any_mask drafter_decoding_mask(const draft_layer& layer, const scalar& offset) {
  using namespace symbols;
  any_mask mask;
  if (layer.causal) mask = mask && kv <= q + offset;
  if (layer.window) mask = mask && q + offset - kv < scalar(*layer.window);
  return mask;
}

SAMITE_IMPL drafter_session::drafter_session(const drafter_config& config, const weight_map& weights, device target, dtype type, drafter_session_options options)
    : config_(config), options_(detail::checked_session("drafter_session", options)), type_(type), context_(tokens(std::min(options_.chunk, options_.capacity), "m")), block_(tokens(config.block_size, "n")),
      past_(tokens(options_.capacity, "past")) {
  const index_t width = index_t(config_.target_layer_ids.size()) * config_.target_hidden;
  const value features = graph_.input("features", type_, {1, context_, width}), context_positions = graph_.input("context_positions", i32, {1, context_});
  const value block_ids = graph_.input("block_ids", i32, {1, block_}), block_positions = graph_.input("block_positions", i32, {1, block_});
  const drafter_weights w = declare_drafter(graph_, config_, type_, type_);
  const value embedding_table = graph_.parameter("target.embedding", type_, {config_.vocab_size, config_.target_hidden});
  const value head = graph_.parameter("target.head", type_, {config_.vocab_size, config_.target_hidden});
  const cache_sizes caches{.layers = config_.layers(), .capacity = options_.capacity + config_.block_size, .heads = config_.sizes, .type = type_};
  drafter_options o{.masks = {}, .caches = declare_caches(graph_, caches, past_)};
  for (const draft_layer& layer : config_.layer_types) o.masks.push_back(drafter_decoding_mask(layer, offset_));
  const drafter_result result = drafter(fuse_features(features, w, config_), context_positions, embedding(embedding_table, block_ids), block_positions, w, config_, o);
  graph_.output("hidden", result.hidden);
  graph_.output("logits", let(drafter_logits(result.hidden, head, config_), {.type = f32, .label = "logits_f32"}));
  run_.emplace(make_plan(graph_, target));
  bind_weights(*run_, weights);
  caches_ = bind_caches(*run_, caches);
}

SAMITE_IMPL void drafter_session::run_step(const tensor& features, index_t first, index_t rows, std::span<const std::int32_t> block_ids) {
  const index_t n = index_t(block_ids.size()), width = features.dims()[1];
  tensor part(type_, {1, rows, width}), context_positions(i32, {1, rows}), ids(i32, {1, n}), positions(i32, {1, n});
  std::memcpy(part.raw(), features.raw() + std::size_t(first * width) * size_of(type_), part.bytes());
  for (index_t i = 0; i < rows; ++i) context_positions.data<std::int32_t>()[i] = std::int32_t(length_ + i);
  for (index_t i = 0; i < n; ++i) ids.data<std::int32_t>()[i] = block_ids[std::size_t(i)], positions.data<std::int32_t>()[i] = std::int32_t(length_ + rows + i);
  run_->bind("features", part), run_->bind("context_positions", context_positions);
  run_->bind("block_ids", ids), run_->bind("block_positions", positions);
  run_->set_length(past_, length_);
  offset_.set(length_ + rows);
  run_->step();
  length_ += rows;
}

SAMITE_IMPL tensor drafter_session::propose(const tensor& features, std::span<const std::int32_t> block_ids) {
  const index_t width = index_t(config_.target_layer_ids.size()) * config_.target_hidden;
  if (features.rank() != 2 || features.dims()[1] != width || features.type() != type_)
    raise("E-DECODE-BLOCK", "drafter_session::propose: features are ", name_of(features.type()), " ", features.dims(), "; expected ", name_of(type_), " [m,", width, "]");
  const index_t m = features.dims()[0], n = index_t(block_ids.size());
  if (n < 1 || n > config_.block_size) raise("E-DECODE-BLOCK", "drafter_session::propose: a block of ", n, " slots; this drafter was trained for 1 to ", config_.block_size);
  if (length_ + m > options_.capacity)
    raise("E-DECODE-CAPACITY", "drafter_session::propose: ", m, " context rows after ", length_, "; the session was made for ", options_.capacity, ", raise drafter_session_options::capacity");
  const index_t chunk = context_.capacity();
  index_t first = 0;
  do {  // all chunks but the last are run for their cache rows alone
    const index_t rows = std::min(chunk, m - first);
    run_step(features, first, rows, block_ids);
    first += rows;
  } while (first < m);
  return run_->output("logits").reshaped({n, config_.vocab_size});
}

SAMITE_IMPL tensor drafter_session::cached(const std::string& kind, index_t layer) { return caches_.at(kind + "." + std::to_string(layer)).to_host(); }

}  // namespace samite
