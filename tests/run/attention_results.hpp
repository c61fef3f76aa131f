// tests/run/attention_results.hpp: attention and its gradients on one device, as numbers, and their comparison.
#pragma once
#include <doctest/doctest.h>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/ir/tensor_ops.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/testing/compare.hpp>

#include "support/gpu.hpp"

namespace samite_tests {

using namespace samite;
using testing::difference;
using testing::tolerance_of;

struct sizes {
  index_t B, H, G, Q, K, D, Dv;
};

/// out and lse; with `gradients` dQ, dK, dV and d_sink of a loss that weighs both, through a sink in each head.
inline named_numbers results(device where, dtype type, const sizes& s, const any_mask& mask, bool token_major, bool gradients = false, const any_score& score = {}) {
  graph g;
  const auto operand = [&](const char* name, index_t heads, index_t rows, index_t channels) {
    if (!token_major) return g.input(name, type, {s.B, heads, rows, channels});
    return transpose(g.input(name, type, {s.B, rows, heads, channels}), {0, 2, 1, 3});
  };
  const value Q = operand("Q", s.H, s.Q, s.D), K = operand("K", s.G, s.K, s.D), V = operand("V", s.G, s.K, s.Dv);
  attention_options options{.mask = mask, .score = score};
  if (gradients) options.sink = g.input("sink", f32, {s.H});
  const attention_result a = attention(Q, K, V, options);
  g.output("out", contiguous(a.out)), g.output("lse", a.lse);
  if (gradients) {
    const value d_out = operand("d_out", s.H, s.Q, s.Dv), d_lse = g.input("d_lse", f32, {s.B, s.H, s.Q, 1});
    const auto made = gradient(let(total(cast(a.out, f32) * cast(d_out, f32)) + total(a.lse * d_lse)), {Q, K, V, options.sink});
    const char* names[] = {"dQ", "dK", "dV", "d_sink"};
    for (std::size_t i = 0; i < 4; ++i) g.output(names[i], contiguous(made[i]));
  }
  const auto filled = [&](index_t heads, index_t rows, index_t channels, std::uint32_t purpose) {
    return random_tensor(type, token_major ? extents{s.B, rows, heads, channels} : extents{s.B, heads, rows, channels}, purpose);
  };
  named_tensors inputs{{"Q", filled(s.H, s.Q, s.D, 1)}, {"K", filled(s.G, s.K, s.D, 2)}, {"V", filled(s.G, s.K, s.Dv, 3)}};
  if (gradients) {
    inputs.emplace("sink", random_tensor(f32, {s.H}, 4)), inputs.emplace("d_out", filled(s.H, s.Q, s.Dv, 5));
    inputs.emplace("d_lse", random_tensor(f32, {s.B, s.H, s.Q, 1}, 6));
  }
  return run_on(g, where, inputs);
}

inline void check_equal(const named_numbers& found, const named_numbers& expected, dtype type, index_t terms) {
  CHECK(difference(found.at("out"), expected.at("out"), tolerance_of(type, 4)) == "");
  CHECK(difference(found.at("lse"), expected.at("lse"), tolerance_of(f32, terms, 8)) == "");
}

inline void check_gradients(const named_numbers& found, const named_numbers& expected, dtype type, index_t terms) {
  check_equal(found, expected, type, terms);
  for (const char* name : {"dQ", "dK", "dV"}) {
    CAPTURE(name);
    CHECK(difference(found.at(name), expected.at(name), tolerance_of(type, 4, magnitude_of(expected.at(name)))) == "");
  }
  CHECK(difference(found.at("d_sink"), expected.at("d_sink"), tolerance_of(type, 4, magnitude_of(expected.at("d_sink")))) == "");
}

}  // namespace samite_tests
