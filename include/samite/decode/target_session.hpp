// samite/decode/target_session.hpp: a frozen target reading one sequence with a key-value cache.
#pragma once
#include <span>
#include <vector>

#include <samite/model/checkpoint.hpp>
#include <samite/model/decoder.hpp>

namespace samite {

/// What the target says about the tokens of one call.
struct target_output {
  tensor logits;    // [n, V] f32, on the host
  tensor features;  // [n, C*H] taps side by side, on the host, dtype of the model
};

struct target_session_options {
  index_t capacity = 1024;         // tokens of one sequence, drafted ones included
  index_t chunk = 64;              // tokens of one call at most; longer ones are split
  std::vector<index_t> taps{};     // layers whose output is returned
};

/// One sequence in a target's cache. Tokens are appended by `read`; `crop` forgets the last ones, which is all that
/// rejecting drafted tokens takes.
///
/// threads  one thread at a time
class target_session {
 public:
  /// weights  on the plan's device and of dtype `type` (bind_weights)
  /// errors   E-DECODE-CAPACITY, E-MODEL-CONFIG for a tap that is no layer
  target_session(const decoder_config& config, const weight_map& weights, device target, dtype type, target_session_options options = {});
  target_session(const target_session&) = delete;

  /// Tokens whose keys and values are held.
  index_t length() const { return length_; }
  /// Keeps the first `length` tokens. errors: E-DECODE-CROP
  void crop(index_t length);
  /// Appends tokens. errors: E-DECODE-CAPACITY, E-RUN-INDEX for an id outside the vocabulary
  target_output read(std::span<const std::int32_t> ids);

  const decoder_config& config() const { return config_; }
  /// Layers whose output `read` returns.
  const std::vector<index_t>& taps() const { return options_.taps; }
  /// Where the time went (executor::profile).
  std::string profile() const { return run_->profile(); }

 private:
  decoder_config config_;
  target_session_options options_;
  dtype type_;
  graph graph_;
  dim tokens_, past_;
  scalar past_argument_ = 0;
  std::optional<executor> run_;
  index_t length_ = 0;
};

inline target_session::target_session(const decoder_config& config, const weight_map& weights, device target, dtype type, target_session_options options)
    : config_(config), options_(std::move(options)), type_(type), tokens_(tokens(std::max<index_t>(0, std::min(options_.chunk, options_.capacity)), "n")), past_(tokens(std::max<index_t>(0, options_.capacity), "past")) {
  using namespace symbols;
  if (options_.capacity < 1 || options_.chunk < 1)
    raise("E-DECODE-CAPACITY", "target_session with capacity ", options_.capacity, " and chunk ", options_.chunk, "; both are token counts of at least 1");
  const value ids = graph_.input("ids", i32, {1, tokens_}), positions = graph_.input("positions", i32, {1, tokens_});
  const decoder_weights w = declare_decoder(graph_, config_, type_, type_);
  decoder_options o{.mask = any_mask(kv <= q + past_argument_, "cached causal"), .taps = options_.taps};
  const shape rows = {1, options_.capacity, config_.sizes.kv_heads, config_.sizes.head_dim};
  for (index_t i = 0; i < config_.layers; ++i)
    o.caches.push_back({graph_.state("keys." + std::to_string(i), type_, rows), graph_.state("values." + std::to_string(i), type_, rows), past_});
  const decoder_result result = decoder(ids, positions, w, config_, o);
  graph_.output("logits", let(result.logits, {.type = f32, .label = "logits_f32"}));
  if (!result.taps.empty()) graph_.output("features", concat(result.taps, 2));
  run_.emplace(make_plan(graph_, target));
  bind_weights(*run_, weights);
  for (index_t i = 0; i < config_.layers; ++i)
    for (const char* kind : {"keys.", "values."}) run_->bind(kind + std::to_string(i), run_->device_backend().make_tensor(type_, capacities(rows)));
}

inline void target_session::crop(index_t length) {
  if (length < 0 || length > length_) raise("E-DECODE-CROP", "target_session::crop(", length, "): the cache holds ", length_, " tokens; a crop keeps 0 to that many");
  length_ = length;
}

inline target_output target_session::read(std::span<const std::int32_t> ids) {
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
