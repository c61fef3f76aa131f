// samite/model/decoder_impl.hpp: the Qwen3-style decoder as a graph.
#pragma once
#include <samite/model/decoder.hpp>

namespace samite {

SAMITE_IMPL decoder_weights declare_decoder(graph& g, const decoder_config& c, dtype stored, dtype used) {
  const weight_scope w{g, "", stored, used};
  decoder_weights d;
  d.embedding = w("model.embed_tokens.weight", {c.vocab_size, c.sizes.hidden});
  for (index_t i = 0; i < c.layers; ++i) d.layers.push_back(declare_layer(w.in("model.layers." + std::to_string(i) + "."), c.sizes));
  d.norm = w("model.norm.weight", {c.sizes.hidden});
  d.head = c.tied ? d.embedding : w("lm_head.weight", {c.vocab_size, c.sizes.hidden});
  return d;
}

SAMITE_IMPL void check_layer_parts(const char* model, const char* parts, std::size_t given, std::size_t layers) {
  if (given != layers) raise("E-MODEL-LAYERS", model, ": ", given, " ", parts, " for ", layers, " layers; give one a layer, in their order");
}

SAMITE_IMPL decoder_result decoder(const value& ids, const value& positions, const decoder_weights& w, const decoder_config& c, const decoder_options& options) {
  const layer_sizes& n = c.sizes;
  for (index_t tap : options.taps)
    if (tap < 0 || tap >= index_t(w.layers.size()))
      raise("E-MODEL-CONFIG", "decoder: the output of layer ", tap, " is asked for but the model has layers 0 to ", index_t(w.layers.size()) - 1, "; the drafter was made for another target");
  if (!options.caches.empty()) check_layer_parts("decoder", "caches", options.caches.size(), w.layers.size());
  value x = embedding(w.embedding, ids, "embed");
  const rope_angles angles = make_rope(positions, n.head_dim, c.rope_theta, x.type());
  decoder_result result;
  std::vector<value> streams;
  for (std::size_t i = 0; i < w.layers.size(); ++i) {
    const layer_weights& l = w.layers[i];
    const std::string name = "layer " + std::to_string(i);
    const value normed = rms_norm(x, l.input_norm, n.norm_eps, "attention_norm");
    value k = project_keys(normed, l, n, angles), v = project_values(normed, l, n);
    if (!options.caches.empty()) {
      const layer_cache& cache = options.caches[i];
      k = append(cache.keys, k, 1, cache.length), v = append(cache.values, v, 1, cache.length);
    }
    const value attended = attend(project_queries(normed, l, n, angles), k, v, options.mask, name);
    x = feed_forward(let(x + dense(attended, l.o, "o"), {.label = "attention_residual"}), l, n);
    streams.push_back(x);
  }
  for (index_t tap : options.taps) result.taps.push_back(streams[std::size_t(tap)]);
  result.hidden = rms_norm(x, w.norm, n.norm_eps, "final_norm");
  result.logits = linear(result.hidden, w.head, "lm_head");
  return result;
}

}  // namespace samite
