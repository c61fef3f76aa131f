#include <doctest/doctest.h>

#include <cmath>

#include <samite/nn/decoder_layer.hpp>

#include "support/drafters.hpp"

using namespace samite_tests;

namespace {

constexpr layer_sizes sizes{.hidden = 6, .intermediate = 10, .heads = 2, .kv_heads = 1, .head_dim = 4, .norm_eps = 1e-6, .attention_bias = true};

std::vector<double> row_times(const double* x, const std::vector<double>& w, std::size_t out, std::size_t in, const std::vector<double>& bias) {
  std::vector<double> y(out);
  for (std::size_t o = 0; o < out; ++o) {
    y[o] = bias.empty() ? 0 : bias[o];
    for (std::size_t i = 0; i < in; ++i) y[o] += x[i] * w[o * in + i];
  }
  return y;
}

}  // namespace

TEST_CASE("a layer declares the tensors of checkpoints: with biases on the attention's projections alone, if at all") {
  for (const bool bias : {false, true}) {
    graph g;
    layer_sizes n = sizes;
    n.attention_bias = bias;
    const layer_weights l = declare_layer({g, "layers.3."}, n);
    std::map<std::string, extents> found;
    for (const auto& [name, dims] : parameter_shapes(g)) found[name] = dims;
    CHECK(found.size() == (bias ? 15 : 11));
    CHECK(found.at("layers.3.self_attn.q_proj.weight") == extents{8, 6});
    CHECK(found.at("layers.3.self_attn.v_proj.weight") == extents{4, 6});
    CHECK(found.at("layers.3.self_attn.o_proj.weight") == extents{6, 8});
    CHECK(found.at("layers.3.self_attn.k_norm.weight") == extents{4});
    CHECK(found.at("layers.3.mlp.down_proj.weight") == extents{6, 10});
    for (const char* name : {"q", "k", "v", "o"}) CHECK(found.contains(concat_text("layers.3.self_attn.", name, "_proj.bias")) == bias);
    CHECK(bool(l.o.bias) == bias);
    CHECK_FALSE(l.gate.bias);
  }
}

TEST_CASE("parameters are kept in one dtype and used in another") {
  graph g;
  const layer_weights l = declare_layer({g, "", f32, bf16}, sizes);
  for (const value& p : g.parameters()) CHECK(p.type() == f32);
  CHECK(l.q.weight.type() == bf16);
  CHECK(l.v.bias.type() == bf16);
  CHECK(l.k_norm.type() == bf16);
}

TEST_CASE("queries and keys are projected, shifted by their bias, normalised by head and rotated; values are projected only") {
  graph g;
  const layer_weights l = declare_layer({g, "", f64, f64}, sizes);
  const value x = g.input("x", f64, {1, 3, 6}), positions = g.input("positions", i32, {1, 3});
  const rope_angles angles = make_rope(positions, 4, 1e4, f64);
  g.output("q", contiguous(project_queries(x, l, sizes, angles))), g.output("k", contiguous(project_keys(x, l, sizes, angles))), g.output("v", contiguous(project_values(x, l, sizes)));
  g.output("o", dense(g.input("attended", f64, {1, 3, 8}), l.o));
  g.output("ff", feed_forward(x, l, sizes));
  executor run(make_plan(g));
  std::map<std::string, std::vector<double>> w;
  unsigned seed = 1;
  for (const auto& [name, dims] : parameter_shapes(g)) {
    const tensor t = random_reals(f64, dims, seed++);
    run.bind(name, t), w[name] = to_doubles(t);
  }
  const tensor xt = random_reals(f64, {1, 3, 6}, 50, 2), at = random_reals(f64, {1, 3, 8}, 51);
  run.bind("x", xt), run.bind("attended", at), run.bind("positions", tensor::from<std::int32_t>(i32, {1, 3}, std::vector<std::int32_t>{0, 5, 9}));
  run.step();
  const double where[] = {0, 5, 9};
  for (const char kind : {'q', 'k', 'v'}) {
    CAPTURE(kind);
    const std::string name = std::string("self_attn.") + kind;
    const std::size_t heads = kind == 'q' ? 2 : 1;
    const auto found = to_doubles(run.output(std::string(1, kind)));
    for (std::size_t t = 0; t < 3; ++t) {
      std::vector<double> y = row_times(xt.data<double>() + t * 6, w.at(name + "_proj.weight"), heads * 4, 6, w.at(name + "_proj.bias"));
      for (std::size_t h = 0; h < heads && kind != 'v'; ++h) {
        double squares = 0, normed[4];
        for (std::size_t i = 0; i < 4; ++i) squares += y[h * 4 + i] * y[h * 4 + i];
        for (std::size_t i = 0; i < 4; ++i) normed[i] = y[h * 4 + i] / std::sqrt(squares / 4 + 1e-6) * w.at(name + "_norm.weight")[i];
        for (std::size_t i = 0; i < 2; ++i) {
          const double angle = where[t] * std::pow(1e4, -2.0 * double(i) / 4);
          y[h * 4 + i] = normed[i] * std::cos(angle) - normed[i + 2] * std::sin(angle);
          y[h * 4 + i + 2] = normed[i + 2] * std::cos(angle) + normed[i] * std::sin(angle);
        }
      }
      CHECK(largest_difference(y, {found.begin() + index_t(t * heads * 4), found.begin() + index_t((t + 1) * heads * 4)}) < 1e-12);
    }
  }
  const auto o = to_doubles(run.output("o")), ff = to_doubles(run.output("ff"));
  for (std::size_t t = 0; t < 3; ++t) {
    CHECK(largest_difference(row_times(at.data<double>() + t * 8, w.at("self_attn.o_proj.weight"), 6, 8, w.at("self_attn.o_proj.bias")), {o.begin() + index_t(t * 6), o.begin() + index_t(t * 6 + 6)}) < 1e-12);
    const double* in = xt.data<double>() + t * 6;
    double squares = 0, normed[6], inner[10];
    for (std::size_t i = 0; i < 6; ++i) squares += in[i] * in[i];
    for (std::size_t i = 0; i < 6; ++i) normed[i] = in[i] / std::sqrt(squares / 6 + 1e-6) * w.at("post_attention_layernorm.weight")[i];
    const auto gate = row_times(normed, w.at("mlp.gate_proj.weight"), 10, 6, {}), up = row_times(normed, w.at("mlp.up_proj.weight"), 10, 6, {});
    for (std::size_t i = 0; i < 10; ++i) inner[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    auto y = row_times(inner, w.at("mlp.down_proj.weight"), 6, 10, {});
    for (std::size_t i = 0; i < 6; ++i) y[i] += in[i];
    CHECK(largest_difference(y, {ff.begin() + index_t(t * 6), ff.begin() + index_t(t * 6 + 6)}) < 1e-12);
  }
}

TEST_CASE("attention over token-major heads: query head h reads key head h / group") {
  graph g;
  const value q = g.input("q", f64, {1, 2, 4, 3}), k = g.input("k", f64, {1, 5, 2, 3}), v = g.input("v", f64, {1, 5, 2, 3});
  g.output("y", attend(q, k, v, {}));
  executor run(make_plan(g));
  const tensor qt = random_reals(f64, {1, 2, 4, 3}, 1), kt = random_reals(f64, {1, 5, 2, 3}, 2), vt = random_reals(f64, {1, 5, 2, 3}, 3);
  run.bind("q", qt), run.bind("k", kt), run.bind("v", vt);
  run.step();
  const auto y = to_doubles(run.output("y"));
  REQUIRE(run.output("y").dims() == extents{1, 2, 12});
  for (std::size_t t = 0; t < 2; ++t)
    for (std::size_t h = 0; h < 4; ++h) {
      const std::size_t group = h / 2;
      double p[5], z = 0;
      for (std::size_t s = 0; s < 5; ++s) {
        double score = 0;
        for (std::size_t i = 0; i < 3; ++i) score += qt.data<double>()[(t * 4 + h) * 3 + i] * kt.data<double>()[(s * 2 + group) * 3 + i];
        z += p[s] = std::exp(score / std::sqrt(3.0));
      }
      for (std::size_t i = 0; i < 3; ++i) {
        double expected = 0;
        for (std::size_t s = 0; s < 5; ++s) expected += p[s] / z * vt.data<double>()[(s * 2 + group) * 3 + i];
        CHECK(y[t * 12 + h * 3 + i] == doctest::Approx(expected).epsilon(1e-12));
      }
    }
}
