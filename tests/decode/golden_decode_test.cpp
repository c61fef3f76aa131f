// Speculative decoding against whole runs of the reference implementation (tests/golden/README.md), and its exactness.
#include <doctest/doctest.h>

#include <cstring>
#include <set>

#include <samite/core/random.hpp>
#include <samite/decode/sampling.hpp>
#include <samite/decode/speculative.hpp>

#include "support/golden.hpp"

using namespace samite_tests;

namespace {

using ids = std::vector<std::int32_t>;

struct loaded {
  decoder_config target;
  drafter_config drafter;
  weight_map target_weights, drafter_weights;

  explicit loaded(const std::string& kind) {
    const std::string target_config = golden_path("spec_decode/target/config.json");
    target = read_decoder_config(read_json(target_config), target_config);
    drafter = golden_drafter_config(kind == "full" ? "spec_decode/drafter/config.json" : "spec_decode/drafter/config_sliding.json");
    graph shapes;
    declare_decoder(shapes, target, f32, f32);
    target_weights = load_weights(golden_path("spec_decode/target"), parameter_shapes(shapes), f32);
    drafter_weights = golden_drafter_weights("spec_decode/drafter", drafter);
    drafter_weights["target.embedding"] = target_weights.at("model.embed_tokens.weight"), drafter_weights["target.head"] = target_weights.at("lm_head.weight");
  }
  target_session_options session() const { return {.capacity = 96, .chunk = 16, .taps = drafter.target_layer_ids}; }
};

// What a round verified, as the golden files have it: -1 behind a block that the length limit cut.
ids padded(const std::vector<ids>& blocks, index_t size) {
  ids all;
  for (ids block : blocks) {
    block.resize(std::size_t(size), -1);
    all.insert(all.end(), block.begin(), block.end());
  }
  return all;
}

tensor first_rows(const tensor& t, index_t count) {
  tensor out(t.type(), {count, t.dims()[1]});
  std::memcpy(out.raw(), t.raw(), out.bytes());
  return out;
}

}  // namespace

TEST_CASE("a speculative run commits the reference's tokens, round by round") {
  const golden_file golden("spec_decode/runs.safetensors");
  for (const std::string kind : {"full", "sliding"}) {
    const loaded m(kind);
    target_session target(m.target, m.target_weights, device::cpu(), f32, m.session());
    drafter_session draft(m.drafter, m.drafter_weights, device::cpu(), f32, {.capacity = 96, .chunk = 16});
    for (const std::string prompt : {"p0.", "p1.", "p2."}) {
      const std::string at = kind + "." + prompt;
      CAPTURE(at);
      const ids start = golden.integers<std::int32_t>(at + "prompt_ids");
      target.crop(0);
      const generation g = generate_speculative(target, draft, start, {.new_tokens = 40});
      CHECK(g.ids == golden.integers<std::int32_t>(at + "output_ids"));
      CHECK(g.produced == golden.integers(at + "produced"));
      CHECK(padded(g.blocks, m.drafter.block_size) == golden.integers<std::int32_t>(at + "verify_blocks"));
      CHECK(g.new_tokens() == 40);
      CHECK(g.target_forwards == index_t(g.produced.size()));
      CHECK(target.length() == index_t(g.ids.size()) - 1);
      if (!golden.has(at + "stop_id")) continue;
      target.crop(0);
      const generation stopped = generate_speculative(target, draft, start, {.new_tokens = 40, .stop_id = golden.integers<std::int32_t>(at + "stop_id")[0]});
      CHECK(stopped.ids == golden.integers<std::int32_t>(at + "stop_output_ids"));
      CHECK(stopped.produced == golden.integers(at + "stop_produced"));
      CHECK(target.length() == index_t(stopped.ids.size()) - 1);
    }
  }
}

TEST_CASE("a plain run has the reference's tokens, logits and margins") {
  const golden_file golden("spec_decode/runs.safetensors");
  const loaded m("full");
  target_session target(m.target, m.target_weights, device::cpu(), f32, {.capacity = 96, .chunk = 16});
  for (const std::string at : {"full.p0.", "full.p1.", "full.p2."}) {
    CAPTURE(at);
    const ids start = golden.integers<std::int32_t>(at + "prompt_ids"), greedy = golden.integers<std::int32_t>(at + "greedy_ids");
    target.crop(0);
    const generation g = generate_plain(target, start, {.new_tokens = 40});
    CHECK(ids(g.ids.begin() + g.prompt_tokens, g.ids.end()) == greedy);
    REQUIRE(g.margins.size() == 40);
    const std::vector<double> margins = golden.numbers(at + "greedy_top2_margin");
    for (std::size_t i = 0; i < 40; ++i) CHECK(double(g.margins[i]) == doctest::Approx(margins[i]).epsilon(1e-6).scale(20));
    // All 40 rows at once: the prompt's last row and those of the first 39 tokens.
    target.crop(0);
    const target_output out = target.read(ids(g.ids.begin(), g.ids.end() - 1));
    tensor last(f32, {40, m.target.vocab_size});
    std::memcpy(last.raw(), out.logits.data<float>() + (g.prompt_tokens - 1) * m.target.vocab_size, last.bytes());
    CHECK(golden_difference(last, golden[at + "greedy_logits"]) == "");
  }
}

TEST_CASE("the drafter's logits of each round are the reference's") {
  const golden_file golden("spec_decode/runs.safetensors");
  const loaded m("full");
  target_session target(m.target, m.target_weights, device::cpu(), f32, m.session());
  drafter_session draft(m.drafter, m.drafter_weights, device::cpu(), f32, {.capacity = 96, .chunk = 16});
  const tensor expected = golden["full.p0.draft_logits"];
  const ids blocks = golden.integers<std::int32_t>("full.p0.verify_blocks");
  const std::vector<index_t> produced = golden.integers("full.p0.produced");
  const index_t bs = m.drafter.block_size, V = m.drafter.vocab_size;
  tensor features = target.read(golden.integers<std::int32_t>("full.p0.prompt_ids")).features;
  for (std::size_t round = 0; round < produced.size(); ++round) {
    CAPTURE(round);
    ids block(blocks.begin() + index_t(round) * bs, blocks.begin() + index_t(round + 1) * bs);
    while (block.back() < 0) block.pop_back();
    ids asked(block.size(), std::int32_t(m.drafter.mask_token_id));
    asked[0] = block[0];
    if (block.size() > 1) {
      tensor reference(f32, {index_t(block.size()), V});
      std::memcpy(reference.raw(), expected.data<float>() + index_t(round) * bs * V, reference.bytes());
      CHECK(golden_difference(draft.propose(features, asked), reference) == "");
    }
    const index_t start = target.length();
    features = first_rows(target.read(block).features, produced[round]);
    target.crop(start + produced[round]);
  }
}

TEST_CASE("greedy output does not depend on the drafter, however many of its proposals are accepted") {
  const golden_file golden("spec_decode/runs.safetensors");
  const loaded m("full");
  target_session target(m.target, m.target_weights, device::cpu(), f32, m.session());
  std::set<index_t> accepted;  // without rounds that the length limit cut
  for (unsigned variant = 0; variant < 7; ++variant) {
    weight_map weights = m.drafter_weights;
    // Variant 0 drafts with random weights, the others with ever more noise on the trained ones.
    const double size = 0.01 * (variant - 1.0);
    for (auto& [name, t] : weights) {
      if (name.starts_with("target.") || t.rank() < 2) continue;
      t = t.clone();
      counted_random random(17, variant, 0, std::uint32_t(hash_text(name)));
      for (float& x : t.values<float>()) x = variant == 0 ? float(random.normal() * 0.1) : x + float(random.normal() * size);
    }
    drafter_session draft(m.drafter, weights, device::cpu(), f32, {.capacity = 96, .chunk = 16});
    for (const std::string at : {"full.p0.", "full.p1.", "full.p2."}) {
      CAPTURE(variant);
      CAPTURE(at);
      target.crop(0);
      const generation g = generate_speculative(target, draft, golden.integers<std::int32_t>(at + "prompt_ids"), {.new_tokens = 40});
      CHECK(g.ids == golden.integers<std::int32_t>(at + "output_ids"));
      index_t sum = 0;
      for (std::size_t r = 0; r < g.produced.size(); ++r) {
        sum += g.produced[r];
        if (index_t(g.blocks[r].size()) == m.drafter.block_size) accepted.insert(g.produced[r] - 1);
      }
      CHECK(sum == 39);
    }
  }
  CHECK(accepted == std::set<index_t>{0, 1, 2, 3, 4, 5, 6, 7});
}
