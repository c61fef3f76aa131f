// samite/decode/target_session.hpp: a frozen target reading one sequence with a key-value cache.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include <samite/decode/key_value_cache.hpp>

namespace samite {

namespace detail {
/// One row of logits [n, V].
inline std::span<const float> row_of(const tensor& logits, index_t row) {
  const index_t V = logits.dims()[1];
  return {logits.data<float>() + row * V, std::size_t(V)};
}
}  // namespace detail

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

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/decode/target_session_impl.hpp>
#endif
