#include <doctest/doctest.h>

#include <cmath>

#include <samite/core/random.hpp>
#include <samite/decode/sampling.hpp>
#include <samite/decode/speculative.hpp>

#include "support/chi_square.hpp"

using namespace samite;
using samite_tests::chi_square_excess;

namespace {

constexpr std::uint64_t seed = 20;

// Random distribution over n tokens, some of them impossible.
std::vector<double> random_distribution(index_t n, counted_random& random) {
  std::vector<double> p;
  double sum = 0;
  for (index_t i = 0; i < n; ++i) p.push_back(random.below(4) == 0 ? 0 : random.uniform() * random.uniform()), sum += p.back();
  if (sum == 0) p[0] = sum = 1;
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace

TEST_CASE("sample follows its weights, whatever their sum") {
  MESSAGE("seed " << seed);
  counted_random random(seed, 1);
  for (int trial = 0; trial < 4; ++trial) {
    const std::vector<double> p = random_distribution(7, random);
    std::vector<double> weights = p, counts(7, 0.0);
    for (double& w : weights) w *= 3.5;
    for (int i = 0; i < 100000; ++i) ++counts[std::size_t(sample(weights, random))];
    CHECK(chi_square_excess(counts, p) < 1);
  }
}

TEST_CASE("an accepted or replaced token follows the target's distribution, whatever it was drawn from") {
  MESSAGE("seed " << seed);
  counted_random random(seed, 2);
  for (int trial = 0; trial < 8; ++trial) {
    CAPTURE(trial);
    const std::vector<double> p = random_distribution(6, random);
    std::vector<double> q = trial == 0 ? p : random_distribution(6, random);
    if (trial == 1) q = {0, 0, 1, 0, 0, 0};  // the most likely token proposed
    std::vector<double> counts(6, 0.0);
    double kept = 0, overlap = 0;
    for (std::size_t i = 0; i < 6; ++i) overlap += std::min(p[i], q[i]);
    for (int i = 0; i < 100000; ++i) {
      std::int32_t token = sample(q, random);
      kept += accept(token, p, q, random) ? 1 : 0;
      ++counts[std::size_t(token)];
    }
    CHECK(chi_square_excess(counts, p) < 1);
    // Tokens are kept as often as the distributions overlap: the rule rejects no more than it must.
    if (overlap > 0.001 && overlap < 0.999) CHECK(chi_square_excess({kept, 100000 - kept}, {overlap, 1 - overlap}) < 1);
    else CHECK(kept == doctest::Approx(100000 * overlap));
  }
}

TEST_CASE("speculative sampling follows the target's own distribution of the first three tokens") {
  MESSAGE("seed " << seed);
  constexpr index_t V = 6, draws = 3000;
  decoder_config c;
  c.sizes = {.hidden = 8, .intermediate = 12, .heads = 2, .kv_heads = 1, .head_dim = 4};
  c.vocab_size = V, c.layers = 1;
  drafter_config d;
  d.sizes = c.sizes, d.vocab_size = V, d.target_hidden = 8, d.block_size = 3, d.mask_token_id = 5, d.num_target_layers = 1;
  d.target_layer_ids = {0}, d.layer_types = {draft_layer{}};
  graph target_shapes, draft_shapes;
  declare_decoder(target_shapes, c, f32, f32), declare_drafter(draft_shapes, d, f32, f32);
  const weight_map target_weights = initial_weights(parameter_shapes(target_shapes), 5, 0.6);
  weight_map draft_weights = initial_weights(parameter_shapes(draft_shapes), 6, 0.6);
  draft_weights["target.embedding"] = target_weights.at("model.embed_tokens.weight"), draft_weights["target.head"] = target_weights.at("lm_head.weight");
  target_session target(c, target_weights, device::cpu(), f32, {.capacity = 16, .chunk = 8, .taps = {0}});
  const std::vector<std::int32_t> prompt = {1, 4};

  struct way {
    double temperature;
    bool argmax_proposals;
    index_t block_size;  // of 2: the third token is the bonus; of 3: it is a proposal or what replaces one
  };
  for (const way& w : {way{1, false, 2}, way{1, false, 3}, way{1, true, 3}, way{0.5, false, 2}}) {
    const double temperature = w.temperature;
    const bool argmax_proposals = w.argmax_proposals;
    d.block_size = w.block_size;
    drafter_session draft(d, draft_weights, device::cpu(), f32, {.capacity = 16, .chunk = 8});
    CAPTURE(d.block_size);
    CAPTURE(temperature);
    CAPTURE(argmax_proposals);
    // p(x1, x2, x3) by the target's logits after every prefix.
    const auto after = [&](std::vector<std::int32_t> tokens) {
      target.crop(0);
      const target_output out = target.read(tokens);
      return distribution(detail::row_of(out.logits, out.logits.dims()[0] - 1), temperature);
    };
    std::vector<double> expected, pairs;
    const std::vector<double> first = after(prompt);
    for (std::int32_t x = 0; x < V; ++x) {
      const std::vector<double> second = after({1, 4, x});
      for (std::int32_t y = 0; y < V; ++y) {
        pairs.push_back(first[std::size_t(x)] * second[std::size_t(y)]);
        for (const double third : after({1, 4, x, y})) expected.push_back(pairs.back() * third);
      }
    }
    std::vector<double> counts(expected.size(), 0.0), pair_counts(pairs.size(), 0.0);
    index_t rejected = 0;
    for (index_t i = 0; i < draws; ++i) {
      target.crop(0);
      const generation g = generate_speculative(target, draft, prompt, {.new_tokens = 4, .temperature = temperature, .seed = seed, .sample = std::uint32_t(i), .argmax_proposals = argmax_proposals});
      const index_t pair = g.ids[2] * V + g.ids[3];
      ++pair_counts[std::size_t(pair)], ++counts[std::size_t(pair * V + g.ids[4])];
      rejected += g.produced[0] < d.block_size ? 1 : 0;
    }
    CHECK(chi_square_excess(pair_counts, pairs) < 1);
    CHECK(chi_square_excess(counts, expected) < 1);
    CHECK(rejected > draws / 20);  // of the first rounds neither all accepted nor all rejected, or the test shows nothing
    CHECK(rejected < draws - draws / 20);
  }
}

TEST_CASE("a temperature divides the logits, and large ones do no harm") {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(4.0f)};
  const auto close = [](const std::vector<double>& p, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < p.size(); ++i) CHECK(p[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  };
  close(distribution(logits, 1), {1.0 / 7, 2.0 / 7, 4.0 / 7});
  close(distribution(logits, 0.5), {1.0 / 21, 4.0 / 21, 16.0 / 21});
  close(distribution(logits, 2), {1 / (3 + std::sqrt(2.0)), std::sqrt(2.0) / (3 + std::sqrt(2.0)), 2 / (3 + std::sqrt(2.0))});
  close(distribution(std::vector<float>{3e38f, -3e38f, 3e38f}, 1), {0.5, 0, 0.5});
  CHECK(distribution(logits, 1e-300) == std::vector<double>{0, 0, 1});
}

TEST_CASE("the most likely token is the first of equals, and the margin is zero there") {
  CHECK(most_likely(std::vector<float>{1, 3, 2, 3}) == 1);
  CHECK(top2_margin(std::vector<float>{1, 3, 2, 3}) == 0);
  CHECK(top2_margin(std::vector<float>{-1, -4, -2.5f}) == 1.5f);
  CHECK(top2_margin(std::vector<float>{4, 1}) == 3);
}
