#include <doctest/doctest.h>

#include <cmath>

#include <samite/decode/target_session.hpp>
#include <samite/mask/causal.hpp>

#include "support/raised.hpp"
#include "support/tiny_models.hpp"

using namespace samite;
using samite_tests::tensors_of;
using samite_tests::tiny_target;
using samite_tests::unlike;

namespace {

// Layer j adds 2^j to every channel: all channels are equal, so that their norm is 1, gate and up are 1, and the last projection
// is scaled to 2^j. Attention adds nothing.
decoder_config counting_config(index_t layers) {
  return tiny_target({.hidden = 8, .intermediate = 16, .heads = 2, .kv_heads = 1, .head_dim = 4}, 12, layers);
}

weight_map counting_weights(const decoder_config& c) {
  weight_map weights;
  for (const auto& [name, dims] : tensors_of(c)) {
    tensor t(f32, dims);
    float fill = 1;
    if (name.ends_with("o_proj.weight")) fill = 0;
    if (name.ends_with("gate_proj.weight") || name.ends_with("up_proj.weight")) fill = 1.0f / 8;
    if (name.ends_with("down_proj.weight")) fill = std::exp2(std::stof(name.substr(13))) / (16 / (1 + std::exp(-1.0f)));
    for (float& x : t.values<float>()) x = fill;
    weights[name] = t;
  }
  return weights;
}

}  // namespace

TEST_CASE("a tap is the residual stream after its layer, before the final norm, in the order that was asked for") {
  const decoder_config c = counting_config(6);
  target_session session(c, counting_weights(c), device::cpu(), f32, {.capacity = 8, .taps = {1, 4, 0, 5}});
  const target_output out = session.read(std::vector<std::int32_t>{3, 7, 1});
  REQUIRE(out.features.dims() == extents{3, 32});
  const double expected[] = {4, 32, 2, 64};  // 1 + sum of 2^j up to the tap
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t i = 0; i < 32; ++i) CHECK(double(out.features.data<float>()[r * 32 + i]) == doctest::Approx(expected[i / 8]).epsilon(1e-5));
}

TEST_CASE("a tap beyond the last layer is refused, not left out") {
  const decoder_config c = counting_config(3);
  CHECK(unlike("E-MODEL-CONFIG", {"layer 3", "0 to 2"}, [&] { target_session(c, counting_weights(c), device::cpu(), f32, {.capacity = 8, .taps = {1, 3}}); }) == "");
}

TEST_CASE("a tied head is the embedding and has no tensor of its own") {
  graph tied, separate;
  decoder_config c = counting_config(2);
  const decoder_weights w = declare_decoder(tied, c, f32, f32);
  CHECK(w.head == w.embedding);
  c.tied = false;
  declare_decoder(separate, c, f32, f32);
  CHECK(parameter_shapes(separate).size() == parameter_shapes(tied).size() + 1);
}
