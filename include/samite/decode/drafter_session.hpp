// samite/decode/drafter_session.hpp: a DFlash drafter proposing blocks with a cache of context keys and values.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <samite/decode/key_value_cache.hpp>
#include <samite/model/drafter.hpp>

namespace samite {

/// What one layer's block slots see while decoding: query slots stand behind the cached context, which `offset` counts.
///
/// The slots of the block are closer than any window (declare_drafter refuses others), as in the training mask.
any_mask drafter_decoding_mask(const draft_layer& layer, const scalar& offset);

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
  weight_map caches_;  // by state
  index_t length_ = 0;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/decode/drafter_session_impl.hpp>
#endif
