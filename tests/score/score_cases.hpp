// tests/score/score_cases.hpp: score functions through the whole library: values with known answers, and what users of other libraries met.
// Included once for each device, which CASE_DEVICE and CASE_NEEDS name.
#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include <samite/core/random.hpp>
#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/run/executor.hpp>
#include <samite/score/bias.hpp>
#include <samite/score/scale.hpp>

#include "support/raised.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite::symbols;

namespace {

tensor numbers(extents dims, std::vector<double> values) {
  tensor t(f64, std::move(dims));
  REQUIRE(values.size() == t.values<double>().size());
  std::copy(values.begin(), values.end(), t.values<double>().begin());
  return t;
}

tensor random_numbers(extents dims, std::uint32_t purpose, double size = 1) {
  tensor t(f64, std::move(dims));
  counted_random random(11, purpose);
  for (double& x : t.values<double>()) x = size * random.normal();
  return t;
}

/// Attention in double over named parameters Q, K, V, bias and sink, with the gradients of sum(out * w) + sum(lse * u).
struct probe {
  using score_of = std::function<any_score(const value&)>;

  probe(tensor q, tensor k, tensor v, any_mask mask, score_of score, tensor bias, tensor sink = {}, double lse_weight = 0, double scale = 1) {
    const auto declare = [&](const char* name, const tensor& t) { return g.input(name, f64, shape(t.dims().begin(), t.dims().end())); };
    const value Q = declare("Q", q), K = declare("K", k), V = declare("V", v);
    attention_options options{.mask = std::move(mask), .scale = scale};
    std::vector<value> wanted{Q, K, V};
    names = {"Q", "K", "V"};
    tensors = {q, k, v};
    if (bias.elements() > 0) wanted.push_back(declare("bias", bias)), names.push_back("bias"), tensors.push_back(bias);
    if (score) options.score = score(bias.elements() > 0 ? wanted.back() : value());
    if (sink.elements() > 0) {
      wanted.push_back(options.sink = declare("sink", sink));
      names.push_back("sink"), tensors.push_back(sink);
    }
    const attention_result a = attention(Q, K, V, options);
    const value finite = let(select(a.lse > -1e300, a.lse, 0.0));
    const value loss = let(total(weights(a.out) * a.out) + lse_weight * total(weights(finite, lse_weight == 1) * finite));
    g.output("loss", loss), g.output("out", contiguous(a.out)), g.output("lse", contiguous(a.lse));
    const std::vector<value> gradients = gradient(loss, wanted);
    for (std::size_t i = 0; i < wanted.size(); ++i) g.output("d" + names[i], contiguous(gradients[i]));
    run.emplace(make_plan(g, CASE_DEVICE));
    for (std::size_t i = 0; i < names.size(); ++i) run->bind(names[i], tensors[i]);
    run->step();
  }

  // Ones, so that known answers can be told; for differences, numbers that make no gradient trivially constant.
  value weights(const value& like, bool ones = true) {
    std::vector<double> w(std::size_t(count(capacities(like.dims()))), 1.0);
    if (!ones || uneven) for (std::size_t i = 0; i < w.size(); ++i) w[i] = std::sin(double(i) + 1);
    return g.constant(w, f64, like.dims());
  }

  std::vector<double> output(const std::string& name) {
    const tensor t = run->output(name);
    const auto values = t.values<double>();
    return {values.begin(), values.end()};
  }

  void check_differences(double tolerance = 2e-7) {
    std::vector<std::vector<double>> found;
    for (const std::string& name : names) found.push_back(output("d" + name));
    for (std::size_t i = 0; i < names.size(); ++i) {
      const index_t n = tensors[i].elements();
      for (index_t e = 0; e < n; e += std::max<index_t>(1, n / 11)) {
        double& x = tensors[i].data<double>()[std::size_t(e)];
        const double before = x, h = 1e-5;
        const auto loss_at = [&](double at) {
          x = at;
          run->bind(names[i], tensors[i]);
          run->step();
          return run->output("loss").data<double>()[0];
        };
        const double slope = (loss_at(before + h) - loss_at(before - h)) / (2 * h);
        x = before;
        run->bind(names[i], tensors[i]);
        CAPTURE(names[i]);
        CAPTURE(e);
        CHECK(found[i][std::size_t(e)] == doctest::Approx(slope).epsilon(tolerance).scale(10));
      }
    }
  }

  static inline bool uneven = false;
  graph g;
  std::optional<executor> run;
  std::vector<std::string> names;
  std::vector<tensor> tensors;
};

void check_near(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance = 1e-6) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    CAPTURE(i);
    if (std::isinf(expected[i])) CHECK(actual[i] == expected[i]);
    else CHECK(actual[i] == doctest::Approx(expected[i]).epsilon(tolerance).scale(1));
  }
}

// v[kv] = kv in one channel, all queries zero.
tensor counting(index_t keys) {
  tensor t(f64, {1, 1, keys, 1});
  for (index_t i = 0; i < keys; ++i) t.values<double>()[std::size_t(i)] = double(i);
  return t;
}
tensor zeros(extents dims) { return tensor(f64, std::move(dims)); }

}  // namespace

TEST_CASE("H9: ALiBi with slope 0.5 gives the known means and LSE") {
  CASE_NEEDS;
  probe p(zeros({1, 1, 4, 1}), zeros({1, 1, 4, 1}), counting(4), causal(), [](const value& slopes) { return any_score(alibi(slopes)); }, numbers({1}, {0.5}));
  const std::vector<double> out = p.output("out"), lse = p.output("lse");
  CHECK(out[1] == doctest::Approx(0.622459).epsilon(1e-6));
  CHECK(lse[1] == doctest::Approx(0.474077).epsilon(1e-6));
  CHECK(out[3] == doctest::Approx(2.084576).epsilon(1e-6));
  CHECK(lse[3] == doctest::Approx(0.787339).epsilon(1e-6));
}

TEST_CASE("ALiBi's fixed slopes are those of the paper, for counts that are no power of two as well") {
  CASE_NEEDS;
  for (const index_t heads : {8, 12}) {
    probe p(zeros({1, heads, 2, 1}), zeros({1, heads, 2, 1}), zeros({1, heads, 2, 1}), causal(), [&](const value&) { return alibi(heads); }, tensor(f64, {0}));
    for (index_t head = 0; head < heads; ++head) {
      const double slope = head < 8 ? std::pow(2.0, -double(head + 1)) : std::pow(2.0, -(2.0 * double(head - 8) + 1) / 2);
      CAPTURE(head);
      CHECK(p.output("lse")[std::size_t(head * 2 + 1)] == doctest::Approx(std::log(1 + std::exp(-slope))).epsilon(1e-12));
    }
  }
}

TEST_CASE("H10: a soft cap of 2 gives the known weights and gradients") {
  CASE_NEEDS;
  // One query with scores 0 and 10.
  probe p(numbers({1, 1, 1, 1}, {1}), numbers({1, 1, 2, 1}, {0, 10}), numbers({1, 1, 2, 1}, {0, 1}), any_mask(), [](const value&) { return any_score(softcap(2.0)); }, tensor(f64, {0}));
  check_near(p.output("out"), {0.880778});
  check_near(p.output("lse"), {2.126768});
  check_near(p.output("dK"), {-0.105008, 1.90677e-5}, 1e-5);
}

TEST_CASE("A10: a hidden key's weight is exactly 0 under a soft cap") {
  CASE_NEEDS;
  probe p(zeros({1, 1, 8, 1}), zeros({1, 1, 8, 1}), counting(8), causal(), [](const value&) { return any_score(softcap(1.0)); }, tensor(f64, {0}));
  check_near(p.output("out"), {0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5}, 1e-12);
  CHECK(p.output("dV")[7] == doctest::Approx(0.125).epsilon(1e-12));
}

TEST_CASE("H1: the gradient of a relative bias is the sum along its diagonal") {
  CASE_NEEDS;
  const auto relative = [](const value& bias) { return any_score(score + table(bias)[q - kv + 1]); };
  probe p(zeros({1, 1, 2, 1}), zeros({1, 1, 2, 1}), numbers({1, 1, 2, 1}, {0, 1}), any_mask(), relative, zeros({3}));
  check_near(p.output("dbias"), {0.25, 0, -0.25});
  // Adding a constant to all scores changes nothing: the gradient sums to 0.
  const index_t S = 200;
  const auto long_relative = [](const value& bias) { return any_score(score + table(bias)[q - kv + (S - 1)]); };
  probe r(random_numbers({1, 1, S, 4}, 1), random_numbers({1, 1, S, 4}, 2), random_numbers({1, 1, S, 4}, 3), causal(), long_relative, random_numbers({2 * S - 1}, 4));
  double sum = 0;
  for (double x : r.output("dbias")) sum += x;
  CHECK(std::abs(sum) < 1e-9);
}

TEST_CASE("H12: the gradient of a captured tensor is the same bytes in every run") {
  CASE_NEEDS;
  const index_t S = 300;
  const auto relative = [](const value& bias) { return any_score(score + table(bias)[q - kv + (S - 1)]); };
  probe p(random_numbers({2, 2, S, 4}, 1), random_numbers({2, 2, S, 4}, 2), random_numbers({2, 2, S, 4}, 3), causal(), relative, random_numbers({2 * S - 1}, 4));
  const std::vector<double> first = p.output("dbias");
  for (int i = 0; i < 10; ++i) {
    p.run->step();
    CHECK(p.output("dbias") == first);
  }
}

TEST_CASE("H2: a learned factor on the scores gets sum(dy * s)") {
  CASE_NEEDS;
  probe::uneven = true;
  const auto scaled = [](const value& factor) { return any_score(score * table(factor)[0 * q]); };
  probe p(random_numbers({1, 2, 9, 3}, 1), random_numbers({1, 2, 9, 3}, 2), random_numbers({1, 2, 9, 3}, 3), causal(), scaled, numbers({1}, {1.3}));
  p.check_differences();
  probe::uneven = false;
}

TEST_CASE("H7: adding a[q] to a row changes its LSE alone, and its gradient is that of the LSE") {
  CASE_NEEDS;
  const auto biased = [](const value& a) { return any_score(score + table(a)[q]); };
  const tensor Q = random_numbers({1, 1, 12, 4}, 1), K = random_numbers({1, 1, 12, 4}, 2), V = random_numbers({1, 1, 12, 4}, 3), a = random_numbers({12}, 4);
  probe with(Q, K, V, causal(), biased, a, {}, 1), without(Q, K, V, causal(), nullptr, tensor(f64, {0}), {}, 1);
  check_near(with.output("out"), without.output("out"), 1e-13);
  for (std::size_t i = 0; i < 12; ++i) {
    CHECK(with.output("lse")[i] == doctest::Approx(without.output("lse")[i] + a.data<double>()[i]).epsilon(1e-12));
    CHECK(with.output("dbias")[i] == doctest::Approx(1.0).epsilon(1e-10));
  }
}

TEST_CASE("A13: a sink has its own gradient, with a loss on the LSE as well") {
  CASE_NEEDS;
  const tensor v = numbers({1, 1, 2, 1}, {1, 1});
  probe p(zeros({1, 1, 2, 1}), zeros({1, 1, 2, 1}), v, causal(), nullptr, tensor(f64, {0}), numbers({1}, {0}));
  check_near(p.output("out"), {0.5, 2.0 / 3});
  check_near(p.output("lse"), {std::log(2.0), std::log(3.0)});
  check_near(p.output("dsink"), {-0.472222});
  probe loss_on_lse(zeros({1, 1, 2, 1}), zeros({1, 1, 2, 1}), v, causal(), nullptr, tensor(f64, {0}), numbers({1}, {0}), 1);
  check_near(loss_on_lse.output("dsink"), {-0.472222 + 0.5 + 1.0 / 3});
  probe one(zeros({1, 1, 2, 1}), zeros({1, 1, 2, 1}), v, causal(), nullptr, tensor(f64, {0}), numbers({1}, {1}));
  check_near(one.output("out"), {0.268941, 0.423883});
  check_near(one.output("lse"), {1.313262, 1.551445});
  check_near(one.output("dsink"), {-0.440818});
}

TEST_CASE("a row without a visible key has the sink as its LSE, output 0, and no gradient but the sink's") {
  CASE_NEEDS;
  probe p(zeros({1, 1, 3, 1}), zeros({1, 1, 3, 1}), counting(3), any_mask(q >= 2), nullptr, tensor(f64, {0}), numbers({1}, {0.7}));
  check_near(p.output("out"), {0, 0, 3 / (3 + std::exp(0.7))});
  check_near(p.output("lse"), {0.7, 0.7, std::log(3 + std::exp(0.7))});
  const std::vector<double> dQ = p.output("dQ");
  CHECK(dQ[0] == 0);
  CHECK(dQ[1] == 0);
}

TEST_CASE("H5: every tensor that a score reads gets its gradient, wherever it stands and however often") {
  CASE_NEEDS;
  const auto through = table({1, 0, 2});
  const probe::score_of places[] = {
      [](const value& t) { return any_score(select(q < 3, score, score + table(t)[kv % 3])); },
      [](const value& t) { return any_score(score * table(t)[h] * table(t)[h + 1]); },
      [through](const value& t) { return any_score(score * (1.0 + table(t)[through[q % 3]])); },
      [](const value& t) { return any_score(max(score, table(t)[0]) + min(score, 0.1 * table(t)[2])); },
  };
  for (const probe::score_of& place : places) {
    probe p(random_numbers({1, 2, 6, 3}, 1), random_numbers({1, 2, 6, 3}, 2), random_numbers({1, 2, 6, 2}, 3), causal(), place, random_numbers({3}, 4, 0.5));
    double size = 0;
    for (const double x : p.output("dbias")) size += std::abs(x);
    CHECK(size > 1e-3);
  }
}

TEST_CASE("H11: a lookup that can leave its tensor is refused at the sizes of the run") {
  CASE_NEEDS;
  const auto relative = [](const value& bias) { return any_score(score + table(bias)[q - kv + 63]); };
  CHECK(samite_tests::unlike("E-SCORE-RANGE", {}, [&] { probe(zeros({1, 1, 65, 1}), zeros({1, 1, 65, 1}), counting(65), any_mask(), relative, zeros({127})); }) == "");
  const auto ids = table({0, 1, 2, 0, 1, 2});
  const auto through_table = [&](const value& bias) { return any_score(score + table(bias)[ids[kv]]); };
  CHECK(samite_tests::unlike("E-MASK-TABLE-RANGE", {}, [&] { probe(zeros({1, 1, 8, 1}), zeros({1, 1, 8, 1}), counting(8), any_mask(), through_table, zeros({3})); }) == "");
  const auto too_far = [&](const value&) { return any_score(score + real(q * (index_t(1) << 62))); };
  CHECK(samite_tests::unlike("E-MASK-OVERFLOW", {"score function: an index expression"}, [&] { probe(zeros({1, 1, 3, 1}), zeros({1, 1, 3, 1}), counting(3), any_mask(), too_far, zeros({1})); }) == "");
  const auto clock = [&](const value&) { return any_score(score + real(scalar(1764545000123456789) % 8)); };
  CHECK(probe(zeros({1, 1, 1, 1}), zeros({1, 1, 1, 1}), counting(1), any_mask(), clock, zeros({1})).output("lse")[0] == doctest::Approx(5));
  probe fits(zeros({1, 1, 64, 1}), zeros({1, 1, 64, 1}), counting(64), any_mask(), relative, zeros({127}));
  CHECK(fits.output("out")[0] == doctest::Approx(31.5));
}

TEST_CASE("select takes a condition over the score and the indices") {
  CASE_NEEDS;
  const auto chosen = [](const value&) { return any_score(select(kv < q && score <= 0.5, score + 2.0, select(score > 3 || q == kv, score + 1.0, score))); };
  probe p(zeros({1, 1, 2, 1}), zeros({1, 1, 2, 1}), counting(2), causal(), chosen, tensor(f64, {0}));
  check_near(p.output("lse"), {1, std::log(std::exp(2.0) + std::exp(1.0))});
}

TEST_CASE("a score that was moved from stays as it is") {
  any_score capped = softcap(2.0);
  const any_score other = std::move(capped);
  CHECK_FALSE(capped.is_identity());
  CHECK(capped.hash() == other.hash());
}
