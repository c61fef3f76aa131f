// tests/support/tiny_models.hpp: targets that are small enough for a test.
#pragma once
#include <samite/model/checkpoint.hpp>
#include <samite/model/decoder.hpp>

namespace samite_tests {

using namespace samite;

inline decoder_config tiny_target(const layer_sizes& sizes, index_t vocab_size, index_t layers) {
  decoder_config c;
  c.sizes = sizes;
  c.vocab_size = vocab_size, c.layers = layers, c.rope_theta = 1e4, c.tied = true;
  return c;
}

inline std::vector<std::pair<std::string, extents>> tensors_of(const decoder_config& c) {
  graph g;
  declare_decoder(g, c, f32, f32);
  return parameter_shapes(g);
}

/// Random weights, large enough that layers matter.
inline weight_map random_weights(const decoder_config& c, std::uint64_t seed, double range) { return initial_weights(tensors_of(c), seed, range); }

}  // namespace samite_tests
