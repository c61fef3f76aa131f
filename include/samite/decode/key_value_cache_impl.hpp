// samite/decode/key_value_cache_impl.hpp: declaring and binding caches.
#pragma once
#include <string>

#include <samite/decode/key_value_cache.hpp>

namespace samite {

SAMITE_IMPL std::vector<layer_cache> declare_caches(graph& g, const cache_sizes& n, const dim& length) {
  const shape rows = {n.sequences, n.capacity, n.heads.kv_heads, n.heads.head_dim};
  std::vector<layer_cache> caches;
  for (index_t i = 0; i < n.layers; ++i)
    caches.push_back({g.state("keys." + std::to_string(i), n.type, rows), g.state("values." + std::to_string(i), n.type, rows), length});
  return caches;
}

SAMITE_IMPL weight_map bind_caches(executor& run, const cache_sizes& n) {
  weight_map caches;
  for (index_t i = 0; i < n.layers; ++i)
    for (const char* kind : {"keys.", "values."}) {
      const std::string name = kind + std::to_string(i);
      caches[name] = run.device_backend().make_tensor(n.type, {n.sequences, n.capacity, n.heads.kv_heads, n.heads.head_dim});
      run.bind(name, caches[name]);
    }
  return caches;
}

SAMITE_IMPL void detail::check_session(const char* session, index_t capacity, index_t chunk) {
  if (capacity < 1 || chunk < 1)
    raise("E-DECODE-CAPACITY", session, " with capacity ", capacity, " and chunk ", chunk, "; both are token counts of at least 1");
}

}  // namespace samite
