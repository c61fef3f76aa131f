// What public DFlash trainers and servers agree on, checked on tiny drafters.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <samite/decode/drafter_session.hpp>

#include "support/drafters.hpp"

using namespace samite_tests;

namespace {

drafter_bench bench_of(const drafter_config& c, const packed_row& row, std::vector<index_t> anchors, std::vector<index_t> keep = {}, const drafter_bench::options& o = {}) {
  keep.resize(anchors.size(), 1);
  return drafter_bench(c, row, std::move(anchors), std::move(keep), o);
}

}  // namespace

TEST_CASE("the feature at an anchor is hidden from its block, the one before is seen") {
  for (const draft_layer layer : {draft_layer{}, draft_layer{.window = 6, .causal = true}, draft_layer{.window = 6}}) {
    drafter_bench bench = bench_of(tiny_drafter({layer, draft_layer{}}), tiny_row({29}), {5, 12, 13, 20});
    const auto before = bench.result("logits");
    for (index_t n = 0; n < 4; ++n) {
      CAPTURE(n);
      const index_t A = bench.blocks.anchors[std::size_t(n)];
      for (const index_t after : {A, A + 1, index_t(28)}) {
        bench.shift_features(after, 0.5);
        CHECK(bench.block(bench.result("logits"), n) == bench.block(before, n));
        bench.shift_features(after, -0.5);
      }
      bench.shift_features(A - 1, 0.5);
      const auto changed = bench.result("logits");
      for (index_t o = 0; o < 4; ++o) CHECK(bench.slot(changed, n, o) != bench.slot(before, n, o));
      bench.shift_features(A - 1, -0.5);
    }
  }
}

TEST_CASE("a sliding layer's slot sees W keys, itself included, counted from its own position") {
  for (const bool causal : {false, true}) {
    const index_t W = 6, A = 15;
    drafter_bench bench = bench_of(tiny_drafter({draft_layer{.window = W, .causal = causal}}), tiny_row({29}), {4, A, 21});
    const auto before = bench.result("logits");
    for (index_t o = 0; o < 4; ++o) {
      CAPTURE(o);
      bench.shift_features(A + o - W, 0.5);
      CHECK(bench.slot(bench.result("logits"), 1, o) == bench.slot(before, 1, o));
      bench.shift_features(A + o - W, -0.5);
      bench.shift_features(A + o - W + 1, 0.5);
      CHECK(bench.slot(bench.result("logits"), 1, o) != bench.slot(before, 1, o));
      bench.shift_features(A + o - W + 1, -0.5);
    }
  }
}

TEST_CASE("blocks don't see one another, also where their positions overlap") {
  drafter_bench bench = bench_of(tiny_drafter({draft_layer{.window = 6, .causal = true}, draft_layer{}}), tiny_row({29}), {5, 6, 7, 20});
  const auto before = bench.result("logits");
  for (index_t changed = 0; changed < 4; ++changed)
    for (index_t o = 0; o < 4; ++o) {
      std::int32_t& id = bench.block_ids.data<std::int32_t>()[changed * 4 + o];
      const std::int32_t old = id;
      id = 8;
      const auto after = bench.result("logits");
      id = old;
      for (index_t n = 0; n < 4; ++n) CHECK((bench.block(after, n) == bench.block(before, n)) == (n != changed));
    }
}

TEST_CASE("a causal layer's slot sees no later slot, a bidirectional one sees all") {
  for (const bool causal : {false, true}) {
    drafter_bench bench = bench_of(tiny_drafter({draft_layer{.window = {}, .causal = causal}, draft_layer{.window = {}, .causal = causal}}), tiny_row({20}), {5, 9});
    const auto before = bench.result("logits");
    bench.block_ids.data<std::int32_t>()[4 + 2] = 8;
    const auto after = bench.result("logits");
    for (index_t o = 0; o < 4; ++o) CHECK((bench.slot(after, 1, o) == bench.slot(before, 1, o)) == (causal && o < 2));
  }
}

TEST_CASE("a session that takes in features in uneven chunks drafts the logits of the training layout") {
  for (const bool causal : {true, false}) {
    CAPTURE(causal);
    const drafter_config c = tiny_drafter({draft_layer{.window = 6, .causal = causal}, draft_layer{}});
    const std::vector<index_t> anchors = {2, 11, 12, 20};
    drafter_bench bench = bench_of(c, tiny_row({29}), anchors);
    const auto trained = bench.result("logits");
    drafter_session session(c, bench.weights, device::cpu(), f64, {.capacity = 32, .chunk = 4});
    for (std::size_t n = 0; n < anchors.size(); ++n) {
      CAPTURE(n);
      const index_t first = session.length(), rows = anchors[n] - first, width = bench.features.dims()[2];
      tensor part(f64, {rows, width});
      std::copy_n(bench.features.data<double>() + first * width, rows * width, part.data<double>());
      const std::vector<std::int32_t> ids(bench.blocks.ids.begin() + std::ptrdiff_t(n) * 4, bench.blocks.ids.begin() + std::ptrdiff_t(n) * 4 + 4);
      const auto served = to_doubles(session.propose(part, ids));
      CHECK(session.length() == anchors[n]);
      CHECK(largest_difference(served, bench.block(trained, index_t(n))) < 2e-6);  // the session gives f32
      // Asked again without new features, the block is the same: its rows did not stay in the cache.
      CHECK(largest_difference(to_doubles(session.propose(tensor(f64, {0, width}), ids)), served) < 1e-6);
    }
    session.reset();
    CHECK(session.length() == 0);
  }
}

TEST_CASE("packed documents give the logits of rows of their own, positions restarting") {
  const drafter_config c = tiny_drafter({draft_layer{.window = 6, .causal = true}, draft_layer{}});
  const std::vector<index_t> lengths = {11, 14, 9}, begins = {0, 11, 25};
  drafter_bench packed = bench_of(c, tiny_row(lengths), {4, 9, 11, 17, 26, 32});
  const auto all = packed.result("logits");
  for (std::size_t d = 0; d < 3; ++d) {
    packed_row row;
    std::vector<index_t> anchors, packed_index;
    for (std::size_t p = 0; p < std::size_t(lengths[d]); ++p) {
      const std::size_t at = std::size_t(begins[d]) + p;
      row.ids.push_back(packed.row.ids[at]), row.positions.push_back(std::int32_t(p)), row.documents.push_back(0), row.loss_mask.push_back(1);
    }
    for (std::size_t n = 0; n < 6; ++n)
      if (const index_t local = packed.blocks.anchors[n] - begins[d]; local >= 0 && local < lengths[d]) anchors.push_back(local), packed_index.push_back(index_t(n));
    REQUIRE(anchors.size() == 2);
    drafter_bench alone = bench_of(c, row, anchors, {}, {.documents = false});
    const index_t width = packed.features.dims()[2];
    std::copy_n(packed.features.data<double>() + begins[d] * width, lengths[d] * width, alone.features.data<double>());
    const auto logits = alone.result("logits");
    for (index_t n = 0; n < 2; ++n) CHECK(largest_difference(alone.block(logits, n), packed.block(all, packed_index[std::size_t(n)])) < 1e-12);
    for (index_t k = 0; k < 4; ++k)  // labels end with the document
      CHECK(packed.blocks.valid[std::size_t(packed_index[1] * 4 + k)] == alone.blocks.valid[std::size_t(4 + k)]);
  }
}

TEST_CASE("unused slots change neither the loss nor its gradients, whether they see their block or nothing") {
  const drafter_config c = tiny_drafter({draft_layer{.window = 6, .causal = true}, draft_layer{}});
  drafter_bench few = bench_of(c, tiny_row({20}), {0, 5, 12}, {}, {.with_gradients = true});  // the first sees its own block alone
  few.run->step();
  for (const padded_slots padded : {padded_slots::own_block, padded_slots::hidden}) {
    drafter_bench more = bench_of(c, tiny_row({20}), {0, 5, 12, 0, 0}, {1, 1, 1, 0, 0}, {.with_gradients = true, .padded = padded});
    more.run->step();
    for (const auto& [name, ref] : more.g.outputs()) {
      if (!name.starts_with("d.") && name != "numerator" && name != "denominator") continue;
      const std::string& which = name;  // lambdas of clang 14 capture no structured binding
      CAPTURE(which);
      CHECK(largest_difference(to_doubles(more.run->output(name)), to_doubles(few.run->output(name))) < 1e-12);
    }
    for (const double x : to_doubles(more.run->output("logits"))) REQUIRE(std::isfinite(x));
  }
}

TEST_CASE("the loss is the weighted sum of the slots' cross-entropies, and its denominator the weights") {
  drafter_bench bench = bench_of(tiny_drafter({draft_layer{}}), tiny_row({20}), {5, 12, 18});
  const auto logits = bench.result("logits"), ce = to_doubles(bench.run->output("token_ce")), right = to_doubles(bench.run->output("right"));
  double numerator = 0, denominator = 0;
  for (std::size_t i = 0; i < 12; ++i) {
    const double* x = logits.data() + i * 40;
    double sum = 0;
    std::size_t best = 0;
    for (std::size_t v = 0; v < 40; ++v) sum += std::exp(x[v]), best = x[v] > x[best] ? v : best;
    const std::size_t label = std::size_t(bench.blocks.labels[i]);
    CHECK(ce[i] == doctest::Approx(std::log(sum) - x[label]).epsilon(1e-12));
    CHECK(right[i] == (best == label ? 1 : 0));
    numerator += double(bench.blocks.weights[i]) * ce[i], denominator += double(bench.blocks.weights[i]);
  }
  CHECK(to_doubles(bench.run->output("numerator"))[0] == doctest::Approx(numerator).epsilon(1e-7));
  CHECK(to_doubles(bench.run->output("denominator"))[0] == doctest::Approx(denominator).epsilon(1e-6));
  CHECK(denominator == doctest::Approx(2 * (1 + std::exp(-1.0 / 3) + std::exp(-2.0 / 3)) + 1).epsilon(1e-6));  // two whole blocks and one slot of the last
}

TEST_CASE("a teacher's logits come from the row before the label, its choice or its whole distribution") {
  const drafter_config c = tiny_drafter({draft_layer{}});
  for (const draft_target target : {draft_target::teacher_argmax, draft_target::teacher}) {
    drafter_bench bench = bench_of(c, tiny_row({20}), {5, 12}, {}, {.loss = {.target = target}});
    const auto logits = bench.result("logits"), ce = to_doubles(bench.run->output("token_ce"));
    const auto hidden = to_doubles(random_reals(f64, {20, 12}, 92)), head = to_doubles(bench.weights.at("target.head"));
    for (std::size_t i = 0; i < 8; ++i) {
      if (bench.blocks.valid[i] == 0) continue;
      const std::size_t row = std::size_t(bench.blocks.anchors[i / 4]) + i % 4 - 1;  // a + k - 1
      std::vector<double> teacher(40), draft(logits.begin() + std::ptrdiff_t(i) * 40, logits.begin() + std::ptrdiff_t(i) * 40 + 40);
      for (std::size_t v = 0; v < 40; ++v)
        for (std::size_t h = 0; h < 12; ++h) teacher[v] += hidden[row * 12 + h] * head[v * 12 + h];
      double teacher_sum = 0, draft_sum = 0, expected = 0;
      std::size_t best = 0;
      for (std::size_t v = 0; v < 40; ++v) teacher_sum += std::exp(teacher[v]), draft_sum += std::exp(draft[v]), best = teacher[v] > teacher[best] ? v : best;
      for (std::size_t v = 0; v < 40; ++v) {
        const double p = target == draft_target::teacher ? std::exp(teacher[v]) / teacher_sum : v == best ? 1 : 0;
        expected -= p * (draft[v] - std::log(draft_sum));
      }
      CHECK(ce[i] == doctest::Approx(expected).epsilon(1e-10));
    }
  }
}

TEST_CASE("D-PACE weights have the values worked out by hand, an invalid slot included") {
  graph g;
  const value ce = g.input("ce", f64, {2, 4}), valid = g.input("valid", f64, {2, 4});
  const dpace_parts parts = dpace_weights(ce, valid, 0.5);
  g.output("w", parts.weights), g.output("C", parts.confidence), g.output("R", parts.continuation);
  executor run(make_plan(g));
  tensor c(f64, {2, 4}), v(f64, {2, 4});
  const double q[] = {.9, .5, .8, .1};
  for (std::size_t i = 0; i < 8; ++i) c.data<double>()[i] = -std::log(q[i % 4]), v.data<double>()[i] = i == 6 ? 0 : 1;
  run.bind("ce", c), run.bind("valid", v);
  run.step();
  const auto w = to_doubles(run.output("w")), C = to_doubles(run.output("C")), R = to_doubles(run.output("R"));
  const double expected[] = {2.656438, 1.706437, .993938, .352688, 2.054375, 1.104375, 0, .391875};
  for (std::size_t i = 0; i < 8; ++i) CHECK(std::fabs(w[i] - expected[i]) < 1e-6);
  CHECK(C[3] == doctest::Approx(0.352688).epsilon(1e-5));
  CHECK(R[1] == doctest::Approx(1.706437 / (.95 * .75)).epsilon(1e-6));
  CHECK(C[6] == 0);
}

TEST_CASE("D-PACE weights a drafter's loss without a gradient through them") {
  const drafter_config c = tiny_drafter({draft_layer{}});
  drafter_bench paced = bench_of(c, tiny_row({20}), {5, 12}, {}, {.with_gradients = true, .loss = {.weighting = draft_weighting::dpace}});
  const auto ce = paced.result("token_ce");
  std::vector<float> weights(8, 0.0f);
  for (std::size_t n = 0; n < 2; ++n) {
    double C = 1, sum = 0;
    std::vector<double> confidence;
    for (std::size_t k = 0; k < 4; ++k) confidence.push_back(C *= k == 0 ? 1 : 0.5 + 0.5 * std::exp(-ce[n * 4 + k]));
    for (std::size_t k = 4; k-- > 1;) weights[n * 4 + k] = float(sum += confidence[k]);
  }
  drafter_bench given = bench_of(c, tiny_row({20}), {5, 12}, {}, {.with_gradients = true});
  given.run->bind("weights", tensor::from<float>(f32, {8, 1}, weights));
  given.run->step();
  for (const auto& [name, ref] : paced.g.outputs())
    if (name.starts_with("d.") || name.ends_with("ator")) {
      const std::string& which = name;  // lambdas of clang 14 capture no structured binding
      CAPTURE(which);
      CHECK(largest_difference(to_doubles(paced.run->output(name)), to_doubles(given.run->output(name))) < 1e-5);  // weights are f32
    }
}

TEST_CASE("rotary embedding holds at position 200000 with bf16 activations") {
  graph g;
  constexpr index_t D = 64;
  const value positions = g.input("positions", i32, {2}), x = g.input("x", bf16, {2, 3, D});
  g.output("y", rope(x, make_rope(positions, D, 1e6, bf16)));
  executor run(make_plan(g));
  const tensor xt = random_reals(bf16, {2, 3, D}, 5);
  run.bind("x", xt), run.bind("positions", tensor::from<std::int32_t>(i32, {2}, std::vector<std::int32_t>{200000, 199999}));
  run.step();
  const auto y = to_doubles(run.output("y")), in = to_doubles(xt);
  double worst_exact = 0, worst = 0;
  for (std::size_t r = 0; r < 6; ++r)
    for (std::size_t i = 0; i < D; ++i) {
      const std::size_t pair = i % (D / 2);
      const double position = r < 3 ? 200000 : 199999, frequency = std::pow(1e6, -2.0 * double(pair) / D);
      const double sign = i < D / 2 ? -1 : 1, self = in[r * D + i], other = in[r * D + (i + D / 2) % D];
      const auto rotated = [&](double angle) { return self * std::cos(angle) + sign * other * std::sin(angle); };
      worst_exact = std::fmax(worst_exact, std::fabs(y[r * D + i] - rotated(position * frequency)));
      worst = std::fmax(worst, std::fabs(y[r * D + i] - rotated(double(float(position) * float(frequency)))));
    }
  // The angle in fp32 may be off by 2 * 200000 * 2^-24; cosine, sine and result are rounded to bf16 (2^-9 each, of up to 2).
  CHECK(worst < 0.013);
  CHECK(worst_exact < 0.013 + 2 * 2 * 200000 * 0x1p-24);
}
