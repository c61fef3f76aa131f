// samite/model/config.hpp: what config.json says of a target or a drafter.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include <samite/io/json.hpp>
#include <samite/nn/decoder_layer.hpp>

namespace samite {

/// A Qwen3-style dense decoder.
struct decoder_config {
  layer_sizes sizes;
  index_t vocab_size = 0, layers = 0, max_positions = 32768;  // tokens of one sequence
  double rope_theta = 1e6;
  bool tied = false;
};

/// One layer of a drafter: what its block slots see.
struct draft_layer {
  std::optional<index_t> window;  // tokens; none sees the whole context
  bool causal = false;            // inside the block
};

/// A DFlash drafter (checkpoints of the reference implementation, "DFlashDraftModel").
struct drafter_config {
  layer_sizes sizes;
  index_t vocab_size = 0, target_hidden = 0, block_size = 16, mask_token_id = 0, num_target_layers = 0, max_positions = 40960;
  std::vector<index_t> target_layer_ids;  // 0-based target layers whose output is tapped
  std::vector<draft_layer> layer_types;
  double rope_theta = 1e6, input_embedding_scale = 1, output_multiplier = 1, final_logit_softcapping = 0;

  index_t layers() const { return index_t(layer_types.size()); }
};

/// Target layers tapped by default: `count` ids spread from 1 to T - 3, rounded half to even; T / 2 for one.
///
/// errors  E-MODEL-CONFIG if T is too small for distinct ids
std::vector<index_t> default_target_layers(index_t count, index_t target_layers);

/// Reads config.json of a target. errors: E-MODEL-CONFIG, E-JSON-*
decoder_config read_decoder_config(const json_value& json, const std::string& path);
/// Reads config.json of a drafter: each draft key from `dflash_config` first, then from the top level.
///
/// errors  E-MODEL-CONFIG: unknown keys of dflash_config, features that are not served, layer_types that disagree with the
///         window settings, a window shorter than the block, taps outside the target, no rotary base
drafter_config read_drafter_config(const json_value& json, const std::string& path);

/// Raises E-MODEL-POSITIONS if a sequence of `length` tokens is longer than the model was made for (max_position_embeddings).
void check_positions(const char* operation, const decoder_config& config, index_t length);

/// config.json text, read back by the functions above and by the transformers library.
std::string to_json_text(const decoder_config& config);
std::string to_json_text(const drafter_config& config);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/model/config_impl.hpp>
#endif
