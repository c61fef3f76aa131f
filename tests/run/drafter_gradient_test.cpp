#include <doctest/doctest.h>

#include "support/drafters.hpp"

using namespace samite_tests;

namespace {

/// Compares the gradients of a whole training step with central differences, for some elements of every parameter.
void check_step(const drafter_config& c, const drafter_bench::options& o) {
  // Two documents and padding behind them; an anchor with no context, one whose block passes its document's end, two unused slots.
  packed_row row = tiny_row({11, 9});
  for (int i = 0; i < 3; ++i) row.ids.push_back(0), row.positions.push_back(0), row.documents.push_back(-1), row.loss_mask.push_back(0);
  row.loss_mask[6] = 0;
  drafter_bench bench(c, row, {0, 4, 9, 15, 0, 0}, {1, 1, 1, 1, 0, 0}, o);
  bench.run->step();
  std::map<std::string, std::vector<double>> found;
  for (const auto& [name, ref] : bench.g.outputs())
    if (name.starts_with("d.")) found[name.substr(2)] = to_doubles(bench.run->output(name));
  CHECK(found.size() == 25);
  double largest_gradient = 0;
  for (auto& [name, gradient] : found) {
    tensor parameter = bench.weights.at(name);  // shared with the executor
    const std::size_t n = gradient.size();
    for (std::size_t k = 0; k < n; k += std::max<std::size_t>(1, n / 7)) {
      double& x = parameter.data<double>()[k];
      const double before = x, h = 1e-5;
      x = before + h;
      const double up = bench.result("numerator")[0];
      x = before - h;
      const double down = bench.result("numerator")[0];
      x = before;
      const double expected = (up - down) / (2 * h);
      largest_gradient = std::fmax(largest_gradient, std::fabs(expected));
      const std::string& which = name;  // lambdas of clang 14 capture no structured binding
      INFO(which, " element ", k);
      CHECK(std::fabs(gradient[k] - expected) <= 2e-6 * (1 + std::fabs(expected)));
    }
  }
  CHECK(largest_gradient > 0.1);
}

}  // namespace

TEST_CASE("gradients of a drafter's whole loss agree with central differences") {
  const drafter_config c = tiny_drafter({draft_layer{.window = 5, .causal = true}, draft_layer{}});
  check_step(c, {.with_gradients = true});
  check_step(c, {.with_gradients = true, .padded = padded_slots::hidden, .loss = {.target = draft_target::teacher}});
}

TEST_CASE("so do those of a drafter with scaled embeddings and capped logits") {
  drafter_config c = tiny_drafter({draft_layer{.window = 5, .causal = false}, draft_layer{.window = {}, .causal = true}});
  c.input_embedding_scale = 1.5, c.output_multiplier = 0.7, c.final_logit_softcapping = 4;
  check_step(c, {.with_gradients = true});
}
