#include <doctest/doctest.h>

#include <cmath>

#include <samite/decode/drafter_session.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/mask.hpp>
#include <samite/plan/plan.hpp>
#include <samite/train/drafter_loss.hpp>

using namespace samite;

namespace {

decoder_config small_decoder() {
  decoder_config c;
  c.sizes = {.hidden = 32, .intermediate = 64, .heads = 4, .kv_heads = 2, .head_dim = 8};
  c.vocab_size = 96, c.layers = 3, c.rope_theta = 1e4;
  return c;
}

drafter_config small_drafter() {
  drafter_config c;
  c.sizes = {.hidden = 32, .intermediate = 64, .heads = 4, .kv_heads = 2, .head_dim = 8};
  c.vocab_size = 96, c.target_hidden = 32, c.block_size = 4, c.mask_token_id = 95, c.num_target_layers = 6;
  c.target_layer_ids = {1, 3}, c.rope_theta = 1e4;
  c.layer_types = {draft_layer{.window = 8, .causal = true}, draft_layer{}};
  return c;
}

void check_memory(const graph& g) {
  const plan p = make_plan(g);
  CHECK(p.arena_bytes() >= p.live_bytes());
  CHECK(double(p.arena_bytes()) <= 1.1 * double(p.live_bytes()));
  CHECK(executor(p).arena_bytes() == p.arena_bytes());
  const std::string text = p.explain();
  std::size_t at = 0;
  for (std::size_t s = 0; s < p.steps().size(); ++s) {
    at = text.find(concat_text("\n", s, ": "), at);
    REQUIRE(at != std::string::npos);
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    const graph_node& n = g.node(p.steps()[s]);
    CHECK(line.find(n.type_name()) != std::string::npos);
    CHECK(line.find("\"" + n.label + "\"") != std::string::npos);
  }
}

/// Intermediates alive at the same step that share a byte.
int overlaps(const plan& p) {
  struct item {
    std::size_t first, last, begin, end;
  };
  const graph& g = p.source();
  std::map<value_ref, item> items;
  for (std::size_t s = 0; s < p.steps().size(); ++s) {
    const graph_node& n = g.node(p.steps()[s]);
    for (const value_ref& in : n.inputs)
      if (const auto found = items.find(p.root(in)); found != items.end()) found->second.last = s;
    for (std::size_t o = 0; !n.is_view() && o < n.outputs.size(); ++o) {
      const value_ref ref{p.steps()[s], int(o)};
      std::size_t bytes = size_of(n.outputs[o].type);
      for (const dim& d : n.outputs[o].dims) bytes *= std::size_t(d.capacity());
      const std::size_t begin = p.storage_of(ref).offset;
      items[ref] = {s, s, begin, begin + bytes};
    }
  }
  for (const auto& [name, ref] : g.outputs())
    if (const auto found = items.find(p.root(ref)); found != items.end()) found->second.last = p.steps().size();
  int count = 0;
  for (auto a = items.begin(); a != items.end(); ++a)
    for (auto b = items.begin(); b != a; ++b)
      count += a->second.first <= b->second.last && b->second.first <= a->second.last && a->second.begin < b->second.end && b->second.begin < a->second.end;
  return count;
}

}  // namespace

TEST_CASE("a decoder's intermediates lie in an arena close to the least possible, none over another that is alive") {
  graph g;
  const decoder_config c = small_decoder();
  const dim n = tokens(200, "n");
  const decoder_result r = decoder(g.input("ids", i32, {1, n}), g.input("positions", i32, {1, n}), declare_decoder(g, c, f32, f32), c, {.mask = causal(), .taps = {0, 2}});
  g.output("logits", r.logits), g.output("features", concat(r.taps, 2));
  check_memory(g);
  CHECK(overlaps(make_plan(g)) == 0);
}

TEST_CASE("the same holds for a drafter's training step with gradients") {
  graph g;
  const drafter_config c = small_drafter();
  const drafter_step step = build_drafter_step(g, c, {any_mask(), causal()}, dim(64), 32, f32, bf16);
  g.output("loss", step.numerator);
  const std::vector<value> d = gradient(step.numerator, step.parameters);
  for (std::size_t i = 0; i < d.size(); ++i) g.output("d" + std::to_string(i), d[i]);
  check_memory(g);
  CHECK(overlaps(make_plan(g)) == 0);
}

TEST_CASE("what nothing needs is neither computed nor asked for") {
  graph g;
  const value x = g.input("x", f32, {4}), unused = g.input("unused", f32, {4});
  let(unused * 2.0);
  g.output("y", let(x * 2.0, {.label = "double"}));
  const plan p = make_plan(g);
  REQUIRE(p.steps().size() == 1);
  CHECK(g.node(p.steps()[0]).label == "double");
  CHECK_FALSE(p.uses(unused.node()));
  executor run(p);
  run.bind("x", tensor(f32, {4}));
  run.step();
}

TEST_CASE("memory is shared by values that are not alive together") {
  graph g;
  value x = g.input("x", f32, {1024});
  for (int i = 0; i < 10; ++i) x = let(x * 2.0 + 1.0);
  g.output("y", x);
  const plan p = make_plan(g);
  CHECK(p.steps().size() == 10);
  CHECK(p.arena_bytes() == 2 * 4096);
  CHECK(p.live_bytes() == 2 * 4096);
}

TEST_CASE("explain names what is written into a state") {
  graph g;
  const value s = g.state("memory", f32, {4});
  assign(s, let(s + 1.0, {.label = "more"}));
  const std::string text = make_plan(g).explain();
  CHECK(text.find("plan for cpu: 2 steps") == 0);
  CHECK(text.find("written into \"memory\"") != std::string::npos);
  CHECK(text.find("row kernel of") != std::string::npos);
}

TEST_CASE("a decoder in bf16 stays close to the same decoder in f32") {
  const decoder_config c = small_decoder();
  std::vector<std::vector<float>> logits;
  for (const dtype used : {f32, bf16}) {
    graph g;
    const decoder_result r = decoder(g.input("ids", i32, {2, 20}), g.input("positions", i32, {2, 20}), declare_decoder(g, c, f32, used), c, {.mask = causal()});
    CHECK(r.logits.type() == used);
    g.output("logits", let(r.logits, {.type = f32}));
    executor run(make_plan(g));
    bind_weights(run, initial_weights(parameter_shapes(g), 7, 0.2));
    tensor ids(i32, {2, 20}), positions(i32, {2, 20});
    for (std::int32_t i = 0; i < 40; ++i) ids.data<std::int32_t>()[i] = i * 37 % 96, positions.data<std::int32_t>()[i] = i % 20;
    run.bind("ids", ids), run.bind("positions", positions);
    run.step();
    const tensor out = run.output("logits");
    logits.emplace_back(out.values<float>().begin(), out.values<float>().end());
  }
  double error = 0, size = 0;
  for (std::size_t i = 0; i < logits[0].size(); ++i) {
    error += std::pow(double(logits[0][i]) - double(logits[1][i]), 2);
    size += std::pow(double(logits[0][i]), 2);
  }
  // Some 30 roundings of 2^-9 each between embedding and logits, independent of one another: 2 %, and not nothing.
  CHECK(std::sqrt(error / size) < 0.02);
  CHECK(error > 0);
}
