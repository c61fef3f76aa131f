// samite/model/drafter.hpp: the DFlash drafter: a block of masked tokens filled in one pass from the target's features.
//
// source  DFlash, arXiv:2602.06036, section 3 (architecture) and its released checkpoints
#pragma once
#include <string>
#include <vector>

#include <samite/model/config.hpp>
#include <samite/model/decoder.hpp>
#include <samite/nn/decoder_layer.hpp>

namespace samite {

struct drafter_weights {
  value fc, hidden_norm, norm;
  std::vector<layer_weights> layers;
};

/// Declares every tensor of the checkpoint under its name. errors: E-MODEL-CONFIG if a layer's window is shorter than the block
drafter_weights declare_drafter(graph& g, const drafter_config& c, dtype stored, dtype used);

/// Context rows seen by every layer: hidden_norm(fc(features)). features [B,S,C*H_t]; returns [B,S,H].
value fuse_features(const value& features, const drafter_weights& w, const drafter_config& c);

struct drafter_result {
  value hidden;                // [B,M,H] after the final norm, M block slots
  std::vector<value> attended; // a layer's attention after its output projection
  std::vector<value> layers;   // residual stream after each layer
};

struct drafter_options {
  std::vector<any_mask> masks{};       // one a layer; q counts block slots, kv context rows and then block slots
  std::vector<layer_cache> caches{};   // decoding: context rows before this call, one a layer
};

/// The drafter's forward.
///
/// context            [B,S,H] from fuse_features;  context_positions [B,S] i32
/// block              [B,M,H] embeddings of the block tokens (target's table);  block_positions [B,M] i32
///
/// errors  E-MODEL-LAYERS unless there is a mask a layer, and a cache a layer or none
///
/// Context and block share the key and value projections; context rows take no input norm and have no queries.
drafter_result drafter(const value& context, const value& context_positions, const value& block, const value& block_positions, const drafter_weights& w,
                       const drafter_config& c, const drafter_options& options);

/// Logits of drafted slots by the target's head, with the config's optional multiplier and soft cap.
value drafter_logits(const value& hidden, const value& head, const drafter_config& c);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/model/drafter_impl.hpp>
#endif
