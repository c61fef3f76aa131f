// samite/decode/drafter_session.hpp: a DFlash drafter proposing blocks with a cache of context keys and values.
#pragma once
#include <span>
#include <vector>

#include <samite/mask/basic.hpp>
#include <samite/model/checkpoint.hpp>
#include <samite/model/drafter.hpp>

namespace samite {

/// What one layer's block slots see while decoding: query slots stand behind the cached context, which `offset` counts.
inline any_mask drafter_decoding_mask(const draft_layer& layer, const scalar& offset) {
  using namespace symbols;
  any_mask mask;
  if (layer.causal) mask = mask && kv <= q + offset;
  if (layer.window) {
    mask = mask && q + offset - kv < scalar(*layer.window);
    if (!layer.causal) mask = mask && kv - q - offset < scalar(*layer.window);
  }
  return mask;
}

struct drafter_session_options {
  index_t capacity = 1024;  // context tokens
  index_t chunk = 64;       // context rows of one call at most
};

/// Proposes blocks for one sequence. The cache holds context rows only; block rows are overwritten by the next call.
///
/// source  DFlash, arXiv:2602.06036, section 3.3; facts of the released loop: docs/decoding.md
class drafter_session {
 public:
  /// weights  the drafter's tensors, and the target's "target.embedding" and "target.head" [V,H], on the plan's device
  drafter_session(const drafter_config& config, const weight_map& weights, device target, dtype type, drafter_session_options options = {});
  drafter_session(const drafter_session&) = delete;

  /// Context rows in the cache.
  index_t length() const { return length_; }
  void reset() { length_ = 0; }

  /// Takes in the features of newly committed tokens and returns logits [n, V] f32 of the block's n slots.
  ///
  /// features   [m, C*H_t] rows of the tokens that follow those already held, on the host
  /// block_ids  the last known token, then mask tokens; n from 1 to block_size
  /// errors     E-DECODE-CAPACITY, E-DECODE-BLOCK
  tensor propose(const tensor& features, std::span<const std::int32_t> block_ids);

  /// Residual streams of the last call's layers and cached keys, for tests: row-major host tensors.
  tensor hidden() { return run_->output("hidden"); }
  tensor cached(const std::string& kind, index_t layer);

  const drafter_config& config() const { return config_; }
  /// Where the time went (executor::profile).
  std::string profile() const { return run_->profile(); }

 private:
  void run_step(const tensor& features, index_t first, index_t rows, std::span<const std::int32_t> block_ids);

  drafter_config config_;
  drafter_session_options options_;
  dtype type_;
  graph graph_;
  dim context_, block_, past_;
  scalar offset_ = 0;
  std::optional<executor> run_;
  std::map<std::string, tensor> caches_;
  index_t length_ = 0;
};

inline drafter_session::drafter_session(const drafter_config& config, const weight_map& weights, device target, dtype type, drafter_session_options options)
    : config_(config), options_(options), type_(type), context_(tokens(std::max<index_t>(0, std::min(options.chunk, options.capacity)), "m")), block_(tokens(config.block_size, "n")),
      past_(tokens(std::max<index_t>(0, options.capacity), "past")) {
  if (options_.capacity < 1 || options_.chunk < 1)
    raise("E-DECODE-CAPACITY", "drafter_session with capacity ", options_.capacity, " and chunk ", options_.chunk, "; both are token counts of at least 1");
  const index_t width = index_t(config_.target_layer_ids.size()) * config_.target_hidden;
  const value features = graph_.input("features", type_, {1, context_, width}), context_positions = graph_.input("context_positions", i32, {1, context_});
  const value block_ids = graph_.input("block_ids", i32, {1, block_}), block_positions = graph_.input("block_positions", i32, {1, block_});
  const drafter_weights w = declare_drafter(graph_, config_, type_, type_);
  const value embedding_table = graph_.parameter("target.embedding", type_, {config_.vocab_size, config_.target_hidden});
  const value head = graph_.parameter("target.head", type_, {config_.vocab_size, config_.target_hidden});
  drafter_options o;
  const shape rows = {1, options_.capacity + config_.block_size, config_.sizes.kv_heads, config_.sizes.head_dim};
  for (index_t i = 0; i < config_.layers(); ++i) {
    o.masks.push_back(drafter_decoding_mask(config_.layer_types[std::size_t(i)], offset_));
    o.caches.push_back({graph_.state("keys." + std::to_string(i), type_, rows), graph_.state("values." + std::to_string(i), type_, rows), past_});
  }
  const drafter_result result = drafter(fuse_features(features, w, config_), context_positions, embedding(embedding_table, block_ids), block_positions, w, config_, o);
  graph_.output("hidden", result.hidden);
  graph_.output("logits", let(drafter_logits(result.hidden, head, config_), {.type = f32, .label = "logits_f32"}));
  run_.emplace(make_plan(graph_, target));
  bind_weights(*run_, weights);
  for (index_t i = 0; i < config_.layers(); ++i)
    for (const char* kind : {"keys.", "values."}) {
      const std::string name = kind + std::to_string(i);
      caches_[name] = run_->device_backend().make_tensor(type_, capacities(rows));
      run_->bind(name, caches_[name]);
    }
}

inline void drafter_session::run_step(const tensor& features, index_t first, index_t rows, std::span<const std::int32_t> block_ids) {
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

inline tensor drafter_session::propose(const tensor& features, std::span<const std::int32_t> block_ids) {
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

inline tensor drafter_session::cached(const std::string& kind, index_t layer) { return caches_.at(kind + "." + std::to_string(layer)).to_host(); }

}  // namespace samite
