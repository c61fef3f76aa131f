#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <samite/testing/compare.hpp>
#include <samite/testing/oracle.hpp>

using namespace samite;
using testing::attention_extents;

namespace {
bool is_causal(index_t, index_t, index_t q, index_t kv) { return kv <= q; }
}  // namespace

TEST_CASE("oracle: with zero queries, causal attention is a running mean and its value gradient a difference of harmonic numbers") {
  const attention_extents e{.queries = 8, .keys = 8};
  const std::vector<double> zeros(8, 0.0), ones(8, 1.0), V{1, 2, 3, 4, 5, 6, 7, 8};
  const auto forward = testing::attention(e, zeros, zeros, V, 1.0, is_causal);
  CHECK(forward.out[7] == doctest::Approx(4.5));
  CHECK(forward.lse[7] == doctest::Approx(std::log(8.0)));
  const auto backward = testing::attention_gradient(e, zeros, zeros, ones, ones, {}, 1.0, is_causal);
  const double expected[8] = {2.717857, 1.717857, 1.217857, 0.884524, 0.634524, 0.434524, 0.267857, 0.125};
  for (std::size_t i = 0; i < 8; ++i) CHECK(backward.dV[i] == doctest::Approx(expected[i]).epsilon(1e-6));
}

TEST_CASE("oracle: a row without a kept key has output 0, lse -infinity and gradients 0") {
  const attention_extents e{.queries = 2, .keys = 3, .head_dim = 2, .value_dim = 2};
  const std::vector<double> Q{1, 2, 3, 4}, K{1, 0, 0, 1, 1, 1}, V{1, 2, 3, 4, 5, 6}, d_out{1, 1, 1, 1}, d_lse{5, 0};
  const auto keep = [](index_t, index_t, index_t q, index_t) { return q == 1; };
  const auto forward = testing::attention(e, Q, K, V, 0.5, keep);
  CHECK(forward.out[0] == 0);
  CHECK(forward.lse[0] == -std::numeric_limits<double>::infinity());
  const auto backward = testing::attention_gradient(e, Q, K, V, d_out, d_lse, 0.5, keep);
  CHECK(backward.dQ[0] == 0);
  CHECK(backward.dQ[1] == 0);
}

TEST_CASE("oracle: gradients agree with central differences, groups of heads and the lse included") {
  const attention_extents e{.batch = 1, .heads = 4, .key_heads = 2, .queries = 3, .keys = 4, .head_dim = 2, .value_dim = 3};
  const auto numbers = [](std::size_t count, double phase) {
    std::vector<double> out(count);
    for (std::size_t i = 0; i < count; ++i) out[i] = std::sin(double(i) * 1.7 + phase);
    return out;
  };
  std::vector<double> Q = numbers(e.query_size(), 0), K = numbers(e.key_size(), 1), V = numbers(e.value_size(), 2);
  const std::vector<double> d_out = numbers(e.out_size(), 3), d_lse = numbers(e.lse_size(), 4);
  const auto keep = [](index_t, index_t h, index_t q, index_t kv) { return kv <= q + h % 2; };
  const auto loss = [&] {
    const auto f = testing::attention(e, Q, K, V, 0.7, keep);
    double total = 0;
    for (std::size_t i = 0; i < f.out.size(); ++i) total += f.out[i] * d_out[i];
    for (std::size_t i = 0; i < f.lse.size(); ++i) total += f.lse[i] * d_lse[i];
    return total;
  };
  const auto gradients = testing::attention_gradient(e, Q, K, V, d_out, d_lse, 0.7, keep);
  const auto check = [&](std::vector<double>& x, const std::vector<double>& gradient) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double held = x[i], step = 1e-5;
      x[i] = held + step;
      const double above = loss();
      x[i] = held - step;
      const double below = loss();
      x[i] = held;
      CHECK(gradient[i] == doctest::Approx((above - below) / (2 * step)).epsilon(1e-6));
    }
  };
  check(Q, gradients.dQ);
  check(K, gradients.dK);
  check(V, gradients.dV);
}
