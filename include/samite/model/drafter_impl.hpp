// samite/model/drafter_impl.hpp: the DFlash drafter as a graph.
#pragma once
#include <samite/model/drafter.hpp>

namespace samite {

SAMITE_IMPL drafter_weights declare_drafter(graph& g, const drafter_config& c, dtype stored, dtype used) {
  // Trainers differ in whether a window also cuts the block itself; from block_size on they all mean the same.
  for (const draft_layer& layer : c.layer_types)
    if (layer.window && *layer.window < c.block_size)
      raise("E-MODEL-CONFIG", "drafter: a window of ", *layer.window, " tokens is shorter than a block of ", c.block_size, "; make the window at least as long as the block");
  const weight_scope w{g, "", stored, used};
  drafter_weights d;
  d.fc = w("fc.weight", {c.sizes.hidden, index_t(c.target_layer_ids.size()) * c.target_hidden});
  d.hidden_norm = w("hidden_norm.weight", {c.sizes.hidden});
  for (index_t i = 0; i < c.layers(); ++i) d.layers.push_back(declare_layer(w.in("layers." + std::to_string(i) + "."), c.sizes));
  d.norm = w("norm.weight", {c.sizes.hidden});
  return d;
}

SAMITE_IMPL value fuse_features(const value& features, const drafter_weights& w, const drafter_config& c) {
  return rms_norm(linear(features, w.fc, "fc"), w.hidden_norm, c.sizes.norm_eps, "hidden_norm");
}

SAMITE_IMPL drafter_result drafter(const value& context, const value& context_positions, const value& block, const value& block_positions, const drafter_weights& w,
                                   const drafter_config& c, const drafter_options& options) {
  const layer_sizes& n = c.sizes;
  check_layer_parts("drafter", "masks", options.masks.size(), w.layers.size());
  if (!options.caches.empty()) check_layer_parts("drafter", "caches", options.caches.size(), w.layers.size());
  const dtype type = block.type();
  const rope_angles context_angles = make_rope(context_positions, n.head_dim, c.rope_theta, type);
  const rope_angles block_angles = make_rope(block_positions, n.head_dim, c.rope_theta, type);
  value x = c.input_embedding_scale == 1 ? block : let(block * c.input_embedding_scale);
  drafter_result result;
  for (std::size_t i = 0; i < w.layers.size(); ++i) {
    const layer_weights& l = w.layers[i];
    const value u = rms_norm(x, l.input_norm, n.norm_eps, "attention_norm");
    value k = concat({project_keys(context, l, n, context_angles), project_keys(u, l, n, block_angles)}, 1);
    value v = concat({project_values(context, l, n), project_values(u, l, n)}, 1);
    if (!options.caches.empty()) {
      const layer_cache& cache = options.caches[i];
      k = append(cache.keys, k, 1, cache.length), v = append(cache.values, v, 1, cache.length);
    }
    const value attended = dense(attend(project_queries(u, l, n, block_angles), k, v, options.masks[i], "draft layer " + std::to_string(i)), l.o, "o");
    x = let(x + attended, {.label = "attention_residual"});
    result.attended.push_back(attended);
    x = feed_forward(x, l, n);
    result.layers.push_back(x);
  }
  result.hidden = rms_norm(x, w.norm, n.norm_eps, "final_norm");
  return result;
}

SAMITE_IMPL value drafter_logits(const value& hidden, const value& head, const drafter_config& c) {
  value logits = linear(hidden, head, "draft_lm_head");
  if (c.output_multiplier != 1) logits = let(logits * c.output_multiplier);
  if (c.final_logit_softcapping > 0) logits = let(c.final_logit_softcapping * tanh(logits / c.final_logit_softcapping));
  return logits;
}

}  // namespace samite
