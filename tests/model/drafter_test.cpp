#include <doctest/doctest.h>

#include <samite/model/drafter.hpp>

#include "support/drafters.hpp"
#include "support/raised.hpp"

using namespace samite_tests;

TEST_CASE("masks and caches come one a layer: a list of another length would leave layers without theirs") {
  const drafter_config c = tiny_drafter({draft_layer{}, draft_layer{}});
  const auto build = [&](std::size_t masks, std::size_t caches) {
    graph g;
    const drafter_weights w = declare_drafter(g, c, f32, f32);
    drafter_options o;
    o.masks.resize(masks);
    for (std::size_t i = 0; i < caches; ++i) {
      const shape rows = {1, 16, c.sizes.kv_heads, c.sizes.head_dim};
      o.caches.push_back({g.state(concat_text("k", i), f32, rows), g.state(concat_text("v", i), f32, rows)});
    }
    drafter(g.input("context", f32, {1, 8, 12}), g.input("context_positions", i32, {1, 8}), g.input("block", f32, {1, 4, 12}), g.input("block_positions", i32, {1, 4}), w, c, o);
  };
  build(2, 0), build(2, 2);
  CHECK(unlike("E-MODEL-LAYERS", {"drafter", "1 masks for 2 layers"}, [&] { build(1, 0); }) == "");
  CHECK(unlike("E-MODEL-LAYERS", {"0 masks"}, [&] { build(0, 0); }) == "");
  CHECK(unlike("E-MODEL-LAYERS", {"3 masks"}, [&] { build(3, 0); }) == "");
  CHECK(unlike("E-MODEL-LAYERS", {"1 caches for 2 layers"}, [&] { build(2, 1); }) == "");
  graph g;
  decoder_config target;
  target.sizes = c.sizes, target.vocab_size = 40, target.layers = 2;
  const shape rows = {1, 16, c.sizes.kv_heads, c.sizes.head_dim};
  const decoder_options o{.caches = {{g.state("k", f32, rows), g.state("v", f32, rows)}}};
  CHECK(unlike("E-MODEL-LAYERS", {"decoder", "1 caches for 2 layers"}, [&] { decoder(g.input("ids", i32, {1, 4}), g.input("positions", i32, {1, 4}), declare_decoder(g, target, f32, f32), target, o); }) == "");
}

TEST_CASE("scaled embeddings, multiplied and capped logits are what the config says") {
  drafter_config plain = tiny_drafter({draft_layer{}}), special = plain;
  special.output_multiplier = 0.7, special.final_logit_softcapping = 4;
  const auto logits = [](const drafter_config& c, double scale) {
    graph g;
    const value head = g.input("head", f64, {c.vocab_size, 12});
    g.output("logits", drafter_logits(g.input("hidden", f64, {3, 12}), head, c));
    executor run(make_plan(g));
    run.bind("hidden", random_reals(f64, {3, 12}, 1, scale)), run.bind("head", random_reals(f64, {c.vocab_size, 12}, 2, 2));
    run.step();
    return to_doubles(run.output("logits"));
  };
  const auto x = logits(plain, 2), y = logits(special, 2);
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(y[i] == doctest::Approx(4 * std::tanh(0.7 * x[i] / 4)).epsilon(1e-12));
    largest = std::fmax(largest, std::fabs(x[i]));
  }
  CHECK(largest > 4);
}

TEST_CASE("a scale of the embeddings acts on the block alone, before the first layer") {
  drafter_config c = tiny_drafter({draft_layer{}});
  const weight_map weights = tiny_weights(c, f64);
  const auto hidden = [&](double scale, double size) {
    c.input_embedding_scale = scale;
    graph g;
    const drafter_weights w = declare_drafter(g, c, f64, f64);
    g.output("hidden", drafter(g.input("context", f64, {1, 8, 12}), g.input("context_positions", i32, {1, 8}), g.input("block", f64, {1, 4, 12}), g.input("block_positions", i32, {1, 4}), w, c, {.masks = {any_mask()}}).hidden);
    executor run(make_plan(g));
    for (const auto& [name, dims] : parameter_shapes(g)) run.bind(name, weights.at(name));
    tensor block = random_reals(f64, {1, 4, 12}, 2);
    for (double& x : block.values<double>()) x *= size;
    run.bind("context", random_reals(f64, {1, 8, 12}, 1)), run.bind("block", block);
    run.bind("context_positions", tensor(i32, {1, 8})), run.bind("block_positions", tensor(i32, {1, 4}));
    run.step();
    return to_doubles(run.output("hidden"));
  };
  CHECK(largest_difference(hidden(1.5, 1), hidden(1, 1.5)) < 1e-12);
  CHECK(largest_difference(hidden(1.5, 1), hidden(1, 1)) > 1e-2);
}

TEST_CASE("released drafters have the published numbers of parameters") {
  const auto parameters = [](index_t H, index_t F, index_t heads, index_t kv, index_t D, index_t layers, index_t taps) {
    drafter_config c;
    c.sizes = {.hidden = H, .intermediate = F, .heads = heads, .kv_heads = kv, .head_dim = D};
    c.vocab_size = 8, c.target_hidden = H, c.target_layer_ids.resize(std::size_t(taps)), c.layer_types.resize(std::size_t(layers));
    graph g;
    declare_drafter(g, c, bf16, bf16);
    index_t sum = 0;
    for (const auto& [name, dims] : parameter_shapes(g)) sum += count(dims);
    return sum;
  };
  CHECK(parameters(2560, 9728, 32, 8, 128, 5, 5) == 537427200);
  CHECK(parameters(4096, 12288, 32, 8, 128, 5, 5) == 1048626432);
  CHECK(parameters(5120, 17408, 32, 8, 128, 5, 5) == 1730213120);
  CHECK(parameters(896, 4864, 14, 2, 64, 5, 5) == 78572672);
  CHECK(parameters(5376, 10752, 64, 8, 128, 5, 6) == 1535967488);
  CHECK(parameters(2048, 6144, 32, 4, 128, 6, 8) < 385906176);  // the released one has 8 key heads
  CHECK(parameters(2048, 6144, 32, 8, 128, 6, 8) == 385906176);
}
