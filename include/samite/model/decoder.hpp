// samite/model/decoder.hpp: the Qwen3-style decoder that serves as frozen target.
#pragma once
#include <string>
#include <vector>

#include <samite/model/config.hpp>
#include <samite/nn/decoder_layer.hpp>

namespace samite {

struct decoder_weights {
  value embedding, norm, head;  // head is the embedding when tied
  std::vector<layer_weights> layers;
};

/// Declares every tensor of the checkpoint under its name.
///
/// stored  dtype of the parameters;  used  dtype that layers compute in
decoder_weights declare_decoder(graph& g, const decoder_config& c, dtype stored, dtype used);

/// Where a layer's keys and values come from: this call alone, or a cache that they are appended to.
struct layer_cache {
  value keys, values;  // states [1,capacity,G,D]; none without a cache
  dim length{0};       // rows in use before this call
};

struct decoder_result {
  value hidden;             // [B,S,H] after the final norm
  value logits;             // [B,S,V]
  std::vector<value> taps;  // residual stream after the asked layers, [B,S,H]
};

struct decoder_options {
  any_mask mask{};                // over (b, h, q, kv); q counts this call's tokens, kv cached ones first
  std::vector<index_t> taps{};    // 0-based layers whose output is wanted, in the order in which it is wanted
  std::vector<layer_cache> caches{};
};

/// Masks or caches come one a layer; a list of another length would leave layers without theirs.
void check_layer_parts(const char* model, const char* parts, std::size_t given, std::size_t layers);

/// The decoder's forward.
///
/// ids [B,S] i32, positions [B,S] i32 (absolute)
/// errors  E-MODEL-CONFIG for a tap that is no layer of this decoder, E-MODEL-LAYERS unless there is a cache a layer or none
/// source  Qwen3 technical report, arXiv:2505.09388, section 2; checkpoints of the transformers library
decoder_result decoder(const value& ids, const value& positions, const decoder_weights& w, const decoder_config& c, const decoder_options& options = {});

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/model/decoder_impl.hpp>
#endif
