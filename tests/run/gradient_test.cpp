#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/run/executor.hpp>

using namespace samite;

namespace {

tensor random_tensor(extents dims, unsigned seed, double low = -1, double high = 1) {
  tensor t(f64, std::move(dims));
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> number(low, high);
  for (double& x : t.values<double>()) x = number(generator);
  return t;
}

/// Builds a loss from parameters of the given shapes and compares its gradients with central differences, all in double.
void check_gradients(std::vector<extents> shapes, const std::function<value(graph&, std::vector<value>)>& layer, double low = -1, double high = 1, double tolerance = 1e-6) {
  graph g;
  std::vector<value> parameters;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    shape dims(shapes[i].begin(), shapes[i].end());
    parameters.push_back(g.parameter("p" + std::to_string(i), f64, dims));
  }
  const value y = layer(g, parameters);
  // A weighted sum of squares, so that no gradient is trivially constant.
  std::vector<double> weights(std::size_t(count(capacities(y.dims()))));
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = std::sin(double(i) + 1);
  const value w = g.constant(weights, f64, y.dims());
  const value loss = total(w * y + 0.5 * w * w * y * y);
  g.output("loss", loss);
  const std::vector<value> gradients = gradient(loss, parameters);
  for (std::size_t i = 0; i < gradients.size(); ++i) g.output("g" + std::to_string(i), contiguous(gradients[i]));
  executor run(make_plan(g));
  std::vector<tensor> tensors;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    tensors.push_back(random_tensor(shapes[i], unsigned(17 + i), low, high));
    run.bind("p" + std::to_string(i), tensors[i]);
  }
  const auto loss_now = [&] {
    run.step();
    return run.output("loss").data<double>()[0];
  };
  loss_now();
  std::vector<tensor> found;
  for (std::size_t i = 0; i < shapes.size(); ++i) found.push_back(run.output("g" + std::to_string(i)).clone());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const index_t n = tensors[i].elements();
    for (index_t k = 0; k < n; k += std::max<index_t>(1, n / 23)) {
      double& x = tensors[i].data<double>()[std::size_t(k)];
      const double before = x, h = 1e-5;
      x = before + h;
      const double up = loss_now();
      x = before - h;
      const double down = loss_now();
      x = before;
      const double expected = (up - down) / (2 * h), actual = found[i].data<double>()[std::size_t(k)];
      INFO("parameter ", i, " element ", k);
      CHECK(std::abs(actual - expected) <= tolerance * (1 + std::abs(expected)));
    }
  }
}

}  // namespace

TEST_CASE("gradients of elementwise and row expressions agree with central differences") {
  check_gradients({{5, 7}, {7}}, [](graph&, auto p) { return let(p[0] * rsqrt(mean(p[0] * p[0]) + 1e-6) * p[1]); });
  check_gradients({{5, 7}, {5, 7}}, [](graph&, auto p) { return let(silu(p[0]) * p[1] - p[1] / (p[0] * p[0] + 2.0)); });
  check_gradients({{4, 6}}, [](graph&, auto p) { return let(exp(p[0]) / sum(exp(p[0]))); });
  check_gradients({{4, 6}}, [](graph&, auto p) { return let(log(sum(exp(p[0] - largest(p[0]))))); });
  check_gradients({{4, 6}}, [](graph&, auto p) { return let(tanh(p[0]) + sin(p[0]) * cos(p[0]) + abs(p[0])); });
  check_gradients({{4, 6}, {4, 1}}, [](graph&, auto p) { return let(max(p[0], p[1]) * min(p[0], 0.3) + largest(p[0]) * smallest(p[0])); });
  check_gradients({{4, 6}}, [](graph&, auto p) { return let(select(column() < 3.0, 2.0 * roll(p[0], 3), -roll(p[0], -2)) * p[0]); });
  check_gradients({{4, 6}}, [](graph&, auto p) { return let(sqrt(p[0]) + log(p[0]) + rsqrt(p[0])); }, 0.5, 2);
  check_gradients({{2, 3, 5}, {3, 1}, {1, 5}}, [](graph&, auto p) { return let(p[0] * p[1] + p[2] * p[1]); });
}

TEST_CASE("gradients through what is the same at all columns agree with central differences, and let changes no value") {
  using expression = std::function<value(const value&, const value&, bool)>;
#define SAMITE_EXPRESSION(inner, outer)                              \
  [](const value& x, const value& r, bool apart) {                   \
    (void)x, (void)r;                                                \
    const auto part = inner;                                         \
    return apart ? [&](const value& e) { return let(outer); }(let(part)) : [&](const auto& e) { return let(outer); }(part); \
  }
  const std::vector<expression> all{
      SAMITE_EXPRESSION(sum(x * x), sum(e)), SAMITE_EXPRESSION(sum(x * x), sum(r * e)), SAMITE_EXPRESSION(largest(x), sum(e)), SAMITE_EXPRESSION(sum(x * x), sum(x + e)),
      SAMITE_EXPRESSION(mean(x * x), mean(e)), SAMITE_EXPRESSION(exp(r), sum(e + x)), SAMITE_EXPRESSION(sum(r), e * sum(x)), SAMITE_EXPRESSION(r * r, sum(e) * mean(x)),
      SAMITE_EXPRESSION(log(sum(exp(x))), sum(e)), SAMITE_EXPRESSION(mean(x), square(sum(x - e)) + e), SAMITE_EXPRESSION(largest(x + r), x * smallest(e)), SAMITE_EXPRESSION(sum(x) * r, sum(e - x) * e),
      SAMITE_EXPRESSION(mean(r), smallest(e) + largest(mean(e * x)))};
#undef SAMITE_EXPRESSION
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    check_gradients({{4, 6}, {4, 1}}, [&](graph&, auto p) { return all[i](p[0], p[1], false); });
    check_gradients({{4, 6}, {4, 1}}, [&](graph&, auto p) { return all[i](p[0], p[1], true); });
    graph g;
    const value x = g.input("x", f64, {4, 6}), r = g.input("r", f64, {4, 1});
    g.output("one", all[i](x, r, false)), g.output("two", all[i](x, r, true));
    executor run(make_plan(g));
    run.bind("x", random_tensor({4, 6}, 3)), run.bind("r", random_tensor({4, 1}, 4));
    run.step();
    REQUIRE(run.output("one").dims() == run.output("two").dims());
    for (index_t k = 0; k < run.output("one").elements(); ++k) CHECK(run.output("one").data<double>()[std::size_t(k)] == doctest::Approx(run.output("two").data<double>()[std::size_t(k)]));
  }
}

TEST_CASE("gradients of gradients agree with central differences") {
  check_gradients({{3, 5}}, [](graph&, auto p) { return contiguous(gradient(total(square(sum(p[0] * p[0]))), {p[0]})[0]); }, -1, 1, 1e-5);
  check_gradients({{3, 5}, {3, 1}}, [](graph&, auto p) { return contiguous(gradient(total(exp(p[1]) * p[0] * p[0] + p[1] * sum(p[0])), {p[1]})[0]); }, -1, 1, 1e-5);
}

TEST_CASE("gradients of structural operations agree with central differences") {
  check_gradients({{5, 7}, {4, 7}}, [](graph&, auto p) { return linear(p[0], p[1]); });
  check_gradients({{5, 7}, {5, 4}}, [](graph&, auto p) { return matmul(p[0], p[1], {.trans_a = true}); });
  check_gradients({{7, 5}, {4, 7}}, [](graph&, auto p) { return matmul(p[0], p[1], {.trans_a = true, .trans_b = true}); });
  check_gradients({{2, 3, 4}}, [](graph&, auto p) { return contiguous(transpose(reshape(p[0], {6, 4}))); });
  check_gradients({{2, 3, 4}, {2, 2, 4}}, [](graph&, auto p) { return concat({p[0], slice(p[1], 1, 1, 1), p[0]}, 1); });
  check_gradients({{6, 3}}, [](graph& g, auto p) { return embedding(p[0], g.constant({0, 5, 5, 2}, i64, {4})); });
  check_gradients({{2, 3, 4}}, [](graph&, auto p) { return sum_to(p[0], {3, 1}); });
}

TEST_CASE("gradients of attention agree with central differences, grouped heads, masks and empty rows included") {
  using namespace symbols;
  const auto attend = [](any_mask mask) {
    return [mask](graph&, std::vector<value> p) {
      auto a = attention(p[0], p[1], p[2], {.mask = mask});
      return let(a.out + 0.1 * select(a.lse > -1e30, a.lse, 0.0));
    };
  };
  check_gradients({{2, 4, 5, 3}, {2, 2, 7, 3}, {2, 2, 7, 6}}, attend(any_mask()), -1, 1, 2e-6);
  check_gradients({{1, 2, 70, 3}, {1, 1, 70, 3}, {1, 1, 70, 3}}, attend(causal() && window(9)), -1, 1, 2e-6);
  check_gradients({{1, 2, 5, 3}, {1, 2, 5, 3}, {1, 2, 5, 3}}, attend(any_mask(kv + 2 < q)), -1, 1, 2e-6);
}
