#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/nn/layers.hpp>
#include <samite/run/executor.hpp>

#include "support/raised.hpp"

using namespace samite;

namespace {

using row = std::vector<double>;

constexpr index_t row_count = 3;

row inputs(index_t size, double phase) {
  row x;
  for (index_t i = 0; i < size; ++i) x.push_back(std::sin(1.7 * double(i) + phase) * 2);
  return x;
}

tensor tensor_of(dtype type, extents dims, const row& x) { return tensor::from<double>(f64, std::move(dims), x).to_dtype(type); }

row doubles(const tensor& t) {
  const tensor wide = t.to_dtype(f64);
  return {wide.values<double>().begin(), wide.values<double>().end()};
}

/// Builds y from x [3,C] and w [C] and compares each row with a plain function of the row's doubles.
void check_rows(const char* what, const std::function<value(value, value)>& build, const std::function<row(const row&, const row&)>& expected) {
  CAPTURE(what);
  for (const dtype type : {f64, f32})
    for (const index_t C : {1, 7, 64, 1000}) {
      CAPTURE(C);
      graph g;
      g.output("y", build(g.input("x", type, {row_count, C}), g.input("w", type, {C})));
      executor run(make_plan(g));
      const tensor xt = tensor_of(type, {row_count, C}, inputs(row_count * C, 0.3)), wt = tensor_of(type, {C}, inputs(C, 0.9));
      run.bind("x", xt), run.bind("w", wt);
      run.step();
      const row y = doubles(run.output("y")), x = doubles(xt), w = doubles(wt);
      const index_t columns = index_t(y.size()) / row_count;
      int wrong = 0;
      for (index_t r = 0; r < row_count; ++r) {
        const row e = expected(row(x.begin() + r * C, x.begin() + (r + 1) * C), w);
        REQUIRE(index_t(e.size()) == columns);
        for (index_t c = 0; c < columns; ++c) {
          const double error = std::fabs(y[std::size_t(r * columns + c)] - e[std::size_t(c)]);
          // Sums of up to 1000 terms of size 4, each rounded.
          wrong += !(error <= (type == f64 ? 1e-12 : 1e-4) * (1 + std::fabs(e[std::size_t(c)])));
        }
      }
      CHECK(wrong == 0);
    }
}

row each(const row& x, const row& w, const std::function<double(double, double)>& f) {
  row y;
  for (std::size_t i = 0; i < x.size(); ++i) y.push_back(f(x[i], w[i]));
  return y;
}
double total_of(const row& x) {
  double sum = 0;
  for (double v : x) sum += v;
  return sum;
}

}  // namespace

TEST_CASE("elementwise expressions agree with loops") {
  check_rows("arithmetic", [](value x, value w) { return let((x + w) * 2.0 - x / (w * w + 1.0) - -x); },
             [](const row& x, const row& w) { return each(x, w, [](double a, double b) { return (a + b) * 2 - a / (b * b + 1) + a; }); });
  check_rows("functions", [](value x, value w) { return let(exp(x) + log(abs(w) + 1.0) + sqrt(abs(x)) + rsqrt(abs(w) + 2.0) + tanh(x) + sin(x) * cos(w)); },
             [](const row& x, const row& w) {
               return each(x, w, [](double a, double b) { return std::exp(a) + std::log(std::fabs(b) + 1) + std::sqrt(std::fabs(a)) + 1 / std::sqrt(std::fabs(b) + 2) + std::tanh(a) + std::sin(a) * std::cos(b); });
             });
  check_rows("gates", [](value x, value w) { return let(silu(x) * sigmoid(w) + square(x)); },
             [](const row& x, const row& w) { return each(x, w, [](double a, double b) { return a / (1 + std::exp(-a)) / (1 + std::exp(-b)) + a * a; }); });
  check_rows("choices", [](value x, value w) { return let(select(x > w, min(x, 0.5), max(w, -0.25)) + select(x <= 0.0, 1.0, x)); },
             [](const row& x, const row& w) { return each(x, w, [](double a, double b) { return (a > b ? std::fmin(a, 0.5) : std::fmax(b, -0.25)) + (a <= 0 ? 1.0 : a); }); });
  check_rows("columns", [](value x, value) { return let(x + column() * 0.5 - columns() + select(equal(column(), 3), 10.0, 0.0)); },
             [](const row& x, const row&) {
               row y;
               for (std::size_t i = 0; i < x.size(); ++i) y.push_back(x[i] + 0.5 * double(i) - double(x.size()) + (i == 3 ? 10 : 0));
               return y;
             });
}

TEST_CASE("rolls read the row around its end, forwards and backwards") {
  for (const index_t shift : {1, -1, 3, 1003})
    check_rows("roll", [shift](value x, value) { return let(roll(x, shift) * 2.0); },
               [shift](const row& x, const row&) {
                 const index_t n = index_t(x.size());
                 row y;
                 for (index_t i = 0; i < n; ++i) y.push_back(2 * x[std::size_t(((i + shift) % n + n) % n)]);
                 return y;
               });
}

TEST_CASE("reductions agree with loops, chained ones too") {
  check_rows("sum", [](value x, value w) { return let(sum(x * w)); }, [](const row& x, const row& w) { return row{total_of(each(x, w, [](double a, double b) { return a * b; }))}; });
  check_rows("mean", [](value x, value) { return let(mean(x)); }, [](const row& x, const row&) { return row{total_of(x) / double(x.size())}; });
  check_rows("largest - smallest", [](value x, value) { return let(largest(x) - smallest(x)); },
             [](const row& x, const row&) { return row{*std::max_element(x.begin(), x.end()) - *std::min_element(x.begin(), x.end())}; });
  check_rows("softmax", [](value x, value) { return let(exp(x - largest(x)) / sum(exp(x - largest(x)))); },
             [](const row& x, const row& w) {
               const double total = total_of(each(x, w, [](double a, double) { return std::exp(a); }));
               return each(x, w, [&](double a, double) { return std::exp(a) / total; });
             });
  check_rows("standardised", [](value x, value w) { return let((x - mean(x)) * rsqrt(mean(square(x - mean(x))) + 1e-3) * w); },
             [](const row& x, const row& w) {
               const double mean = total_of(x) / double(x.size()), variance = total_of(each(x, w, [&](double a, double) { return (a - mean) * (a - mean); })) / double(x.size());
               return each(x, w, [&](double a, double b) { return (a - mean) / std::sqrt(variance + 1e-3) * b; });
             });
}

TEST_CASE("argmax takes the first of equals, and the last column too") {
  graph g;
  g.output("best", argmax(g.input("x", f32, {5, 4})));
  executor run(make_plan(g));
  run.bind("x", tensor::from({5, 4}, std::vector<float>{1, 3, 3, 0, -1, -2, -3, -4, 0, 0, 0, 0, 1, 2, 3, 4, -INFINITY, -INFINITY, 5, -INFINITY}));
  run.step();
  const tensor best = run.output("best");
  CHECK(best.dims() == extents{5, 1});
  CHECK(doubles(best) == row{1, 0, 0, 3, 2});
}

TEST_CASE("operands broadcast from the right, columns included") {
  graph g;
  const value a = g.input("a", f64, {2, 3, 4}), b = g.input("b", f64, {3, 1}), c = g.input("c", f64, {1, 4}), d = g.input("d", f64, {2, 1, 1});
  g.output("y", let(a * b + c - d));
  g.output("only", let(b + d));
  executor run(make_plan(g));
  const row ra = inputs(24, 0), rb = inputs(3, 1), rc = inputs(4, 2), rd = inputs(2, 3);
  run.bind("a", tensor_of(f64, {2, 3, 4}, ra)), run.bind("b", tensor_of(f64, {3, 1}, rb)), run.bind("c", tensor_of(f64, {1, 4}, rc)), run.bind("d", tensor_of(f64, {2, 1, 1}, rd));
  run.step();
  const row y = doubles(run.output("y"));
  CHECK(run.output("only").dims() == extents{2, 3, 1});
  const row only = doubles(run.output("only"));
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t j = 0; j < 3; ++j) {
      CHECK(only[i * 3 + j] == rb[j] + rd[i]);
      for (std::size_t k = 0; k < 4; ++k) CHECK(y[(i * 3 + j) * 4 + k] == doctest::Approx(ra[(i * 3 + j) * 4 + k] * rb[j] + rc[k] - rd[i]).epsilon(1e-14));
    }
}

TEST_CASE("let gives the widest real dtype or the one asked for, and is no node for a value as it is") {
  graph g;
  const value h = g.input("h", bf16, {4}), w = g.input("w", f32, {4}), i = g.input("i", i32, {4});
  CHECK(let(h * 2.0).type() == bf16);
  CHECK(let(h * w).type() == f32);
  CHECK(let(i * 1.0).type() == f32);
  CHECK(let(h * w, {.type = f16}).type() == f16);
  CHECK(let(w) == w);
  CHECK(cast(w, f32) == w);
  CHECK(cast(w, bf16).type() == bf16);
}

TEST_CASE("integers meet reals as numbers and each other as integers") {
  graph g;
  const value i = g.input("i", i32, {4}), x = g.input("x", f32, {4});
  g.output("y", let(select(equal(column(), i), x, 0.0) + i));
  executor run(make_plan(g));
  run.bind("i", tensor::from<std::int32_t>(i32, {4}, std::vector<std::int32_t>{0, 5, 2, -3}));
  run.bind("x", tensor::from({4}, std::vector<float>{10, 20, 30, 40}));
  run.step();
  CHECK(doubles(run.output("y")) == row{10, 5, 32, -3});
}

TEST_CASE("a quotient of integers is a real number, while their sums and products stay exact") {
  graph g;
  const value i = g.input("i", i64, {4}), j = g.input("j", i64, {4});
  g.output("quotient", let(i / j, {.type = f64})), g.output("exact", let(i * j + i - j, {.type = f64}));
  executor run(make_plan(g));
  run.bind("i", tensor::from({4}, std::vector<index_t>{7, -7, 1, 40000001})), run.bind("j", tensor::from({4}, std::vector<index_t>{2, 2, 4, 3}));
  run.step();
  CHECK(doubles(run.output("quotient")) == row{3.5, -3.5, 0.25, 40000001.0 / 3});
  CHECK(doubles(run.output("exact")) == row{19, -23, 1, 160000001});
}

TEST_CASE("stop_gradient and round_to change what they say and nothing else") {
  graph g;
  const value x = g.parameter("x", f64, {3});
  const value loss = total(stop_gradient(x) * x);
  g.output("loss", loss), g.output("d", gradient(loss, {x})[0]), g.output("rounded", let(round_to(x, bf16)));
  executor run(make_plan(g));
  run.bind("x", tensor_of(f64, {3}, {1, -2, 0.1}));
  run.step();
  CHECK(doubles(run.output("d")) == row{1, -2, 0.1});
  CHECK(doubles(run.output("rounded")) == row{1, -2, double(from_bf16(to_bf16(0.1f)))});
}

// ---- a user's own norm, activation and mask -------------------------------------------------------------------------

namespace {

/// Centred, scaled by the largest magnitude, squashed: nothing that the library has.
value peak_norm(const value& x, const value& w) { return let((x - mean(x)) / (largest(abs(x)) + 1e-3) * w); }
/// x * Phi(x) by the tanh approximation.
template <tensor_operand E>
auto gelu(const E& x) {
  return 0.5 * x * (1.0 + tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

}  // namespace

TEST_CASE("a norm, an activation and a mask written by a user have their values and gradients") {
  check_rows("peak_norm", peak_norm, [](const row& x, const row& w) {
    double mean = total_of(x) / double(x.size()), top = 0;
    for (double v : x) top = std::fmax(top, std::fabs(v));
    return each(x, w, [&](double a, double b) { return (a - mean) / (top + 1e-3) * b; });
  });
  check_rows("gelu", [](value x, value) { return let(gelu(x)); },
             [](const row& x, const row& w) { return each(x, w, [](double a, double) { return 0.5 * a * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (a + 0.044715 * a * a * a))); }); });

  using namespace symbols;
  const any_mask checkers = (q + kv) % 2 == 0 && kv <= q + 1;
  graph g;
  const value x = g.parameter("x", f64, {6, 4}), w = g.parameter("w", f64, {4});
  const value y = let(gelu(peak_norm(x, w)));
  const value heads = reshape(y, {1, 1, 6, 4});
  const value out = attention(heads, let(heads * 0.5), let(tanh(heads)), {.mask = checkers}).out;
  const value loss = total(square(out) * 0.5 + out);
  g.output("loss", loss), g.output("out", contiguous(out)), g.output("y", y);
  const std::vector<value> d = gradient(loss, {x, w});
  g.output("dx", d[0]), g.output("dw", d[1]);
  executor run(make_plan(g));
  tensor xt = tensor_of(f64, {6, 4}, inputs(24, 0.3)), wt = tensor_of(f64, {4}, inputs(4, 0.9));
  run.bind("x", xt), run.bind("w", wt);
  run.step();
  const row dx = doubles(run.output("dx")), dw = doubles(run.output("dw")), rows = doubles(run.output("y")), seen = doubles(run.output("out"));
  // The attention itself, by its definition.
  for (int i = 0; i < 6; ++i) {
    double bottom = 0, top[4] = {};
    for (int j = 0; j < 6; ++j) {
      if ((i + j) % 2 != 0 || j > i + 1) continue;
      double score = 0;
      for (int c = 0; c < 4; ++c) score += rows[std::size_t(4 * i + c)] * rows[std::size_t(4 * j + c)] * 0.5 / 2;  // 1 / sqrt(4)
      const double e = std::exp(score);
      bottom += e;
      for (int c = 0; c < 4; ++c) top[c] += e * std::tanh(rows[std::size_t(4 * j + c)]);
    }
    for (int c = 0; c < 4; ++c) CHECK(seen[std::size_t(4 * i + c)] == doctest::Approx(top[c] / bottom).epsilon(1e-10));
  }
  const auto slope = [&](double& at) {
    const double before = at, h = 1e-6;
    at = before + h, run.step();
    const double up = run.output("loss").data<double>()[0];
    at = before - h, run.step();
    const double down = run.output("loss").data<double>()[0];
    at = before;
    return (up - down) / (2 * h);
  };
  for (std::size_t i = 0; i < 24; ++i) CHECK(std::fabs(dx[i] - slope(xt.data<double>()[i])) < 1e-7);
  for (std::size_t i = 0; i < 4; ++i) CHECK(std::fabs(dw[i] - slope(wt.data<double>()[i])) < 1e-7);
}
