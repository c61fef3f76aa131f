// samite/decode/key_value_cache.hpp: keys and values that a session keeps between calls, as states of its graph.
#pragma once
#include <vector>

#include <samite/model/checkpoint.hpp>
#include <samite/model/decoder.hpp>

namespace samite {

/// Sizes of a session's caches: one pair [sequences, capacity, kv_heads, head_dim] a layer.
struct cache_sizes {
  index_t layers = 0, sequences = 1, capacity = 0;
  const layer_sizes& heads;
  dtype type = dtype::f32;
};

/// Declares the states "keys.N" and "values.N" of every layer. length: rows in use before a call
std::vector<layer_cache> declare_caches(graph& g, const cache_sizes& n, const dim& length);

/// Binds zeroed memory to them. returns  the tensors by the state's name
weight_map bind_caches(executor& run, const cache_sizes& n);

namespace detail {
/// Raises E-DECODE-CAPACITY unless both token counts are at least 1.
void check_session(const char* session, index_t capacity, index_t chunk);

/// The options, once they hold together: the lengths that are made from them need sound numbers.
template <class Options>
Options checked_session(const char* session, Options o) {
  check_session(session, o.capacity, o.chunk);
  return o;
}
}  // namespace detail
}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/decode/key_value_cache_impl.hpp>
#endif
