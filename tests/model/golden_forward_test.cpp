// The drafter's forward against values of the reference implementation (tests/golden/README.md).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include <samite/decode/drafter_session.hpp>
#include <samite/ir/evaluate.hpp>
#include <samite/mask/dflash.hpp>

#include "support/golden.hpp"

using namespace samite_tests;

namespace {

struct forward_case {
  const char *config, *file;
};
constexpr forward_case forward_cases[] = {{"dflash_forward/drafter/config.json", "full"},
                                          {"dflash_forward/drafter/config_sliding.json", "sliding"},
                                          {"dflash_forward/drafter/config_sliding_bidirectional.json", "sliding_bidirectional"}};

tensor part(const tensor& t, index_t begin, index_t end) {
  tensor out(t.type(), {1, end - begin});
  std::memcpy(out.raw(), t.raw() + std::size_t(begin) * size_of(t.type()), out.bytes());
  return out;
}

// Rows first .. first + count of a matrix.
tensor rows_of(const tensor& t, index_t first, index_t count) {
  const index_t width = t.dims()[1];
  tensor out(t.type(), {count, width});
  std::memcpy(out.raw(), t.raw() + std::size_t(first * width) * size_of(t.type()), out.bytes());
  return out;
}

// Rows first .. first + count of a cache [1,capacity,G,D], as the golden files have them: [G,count,D].
tensor cached_rows(const tensor& cache, index_t first, index_t count) {
  const index_t G = cache.dims()[2], D = cache.dims()[3];
  tensor out(f32, {G, count, D});
  for (index_t g = 0; g < G; ++g)
    for (index_t t = 0; t < count; ++t) std::memcpy(out.data<float>() + (g * count + t) * D, cache.data<float>() + ((first + t) * G + g) * D, std::size_t(D) * 4);
  return out;
}

}  // namespace

TEST_CASE("the decoding masks are those of the reference") {
  for (const forward_case& f : forward_cases) {
    CAPTURE(f.file);
    const drafter_config c = golden_drafter_config(f.config);
    const golden_file golden("dflash_forward/" + std::string(f.file) + ".safetensors");
    for (index_t i = 0; i < c.layers(); ++i) {
      CAPTURE(i);
      const std::vector<index_t> expected = golden.integers("layers." + std::to_string(i) + ".visible");
      const index_t bs = c.block_size, K = index_t(expected.size()) / bs;
      const any_mask mask = drafter_decoding_mask(c.layer_types[std::size_t(i)], scalar(K - bs));
      std::vector<index_t> seen;
      if (mask.is_full()) seen.assign(expected.size(), 1);
      row_evaluator rows(mask.program());
      std::vector<std::uint8_t> keep(static_cast<std::size_t>(K));
      for (index_t q = 0; q < bs && !mask.is_full(); ++q) {
        rows.row(0, 0, q, 0, K, keep.data());
        seen.insert(seen.end(), keep.begin(), keep.end());
      }
      CHECK(seen == expected);
    }
  }
}

TEST_CASE("every stage of the drafter's forward has the reference's values") {
  for (const forward_case& f : forward_cases) {
    CAPTURE(f.file);
    const drafter_config c = golden_drafter_config(f.config);
    const golden_file golden("dflash_forward/" + std::string(f.file) + ".safetensors");
    const tensor features = golden["context_features"], positions = golden["position_ids"].to_dtype(i32);
    const index_t S = features.dims()[0], bs = c.block_size, width = features.dims()[1];

    graph g;
    const drafter_weights w = declare_drafter(g, c, f32, f32);
    const value table = g.parameter("target.embedding", f32, {c.vocab_size, c.target_hidden}), head = g.parameter("target.head", f32, {c.vocab_size, c.target_hidden});
    const value context = fuse_features(g.input("features", f32, {1, S, width}), w, c);
    drafter_options o;
    for (const draft_layer& l : c.layer_types) o.masks.push_back(drafter_decoding_mask(l, scalar(S)));
    const drafter_result r = drafter(context, g.input("context_positions", i32, {1, S}), embedding(table, g.input("block_ids", i32, {1, bs})),
                                     g.input("block_positions", i32, {1, bs}), w, c, o);
    std::vector<std::string> names = {"ctx_hidden", "final_hidden", "logits"};
    g.output("ctx_hidden", context), g.output("final_hidden", r.hidden), g.output("logits", drafter_logits(r.hidden, head, c));
    for (std::size_t i = 0; i < r.layers.size(); ++i) {
      const std::string layer = "layers." + std::to_string(i);
      g.output(layer + ".attn_out", r.attended[i]), g.output(layer + ".hidden", r.layers[i]);
      names.push_back(layer + ".attn_out"), names.push_back(layer + ".hidden");
    }
    executor run(make_plan(g));
    bind_weights(run, golden_forward_weights(c));
    run.bind("features", features.reshaped({1, S, width}));
    run.bind("context_positions", part(positions, 0, S)), run.bind("block_positions", part(positions, S, S + bs));
    run.bind("block_ids", golden["block_ids"].to_dtype(i32).reshaped({1, bs}));
    run.step();
    for (const std::string& name : names) {
      CAPTURE(name);
      CHECK(golden_difference(run.output(name), golden[name]) == "");
    }
  }
}

TEST_CASE("a drafter session proposes with the reference's logits, in one chunk or many") {
  for (const forward_case& f : forward_cases)
    for (const index_t chunk : {64, 7}) {
      CAPTURE(f.file);
      CAPTURE(chunk);
      const drafter_config c = golden_drafter_config(f.config);
      const golden_file golden("dflash_forward/" + std::string(f.file) + ".safetensors");
      drafter_session session(c, golden_forward_weights(c), device::cpu(), f32, {.capacity = 64, .chunk = chunk});
      CHECK(golden_difference(session.propose(golden["context_features"], golden.integers<std::int32_t>("block_ids")), golden["logits"]) == "");
      CHECK(golden_difference(session.hidden(), golden["final_hidden"]) == "");
    }
}

TEST_CASE("a session fed in chunks of 13, 5 and 1 rows has the reference's logits and cache after each") {
  for (const forward_case& f : {forward_case{"dflash_forward/drafter/config.json", "cache_full"}, forward_case{"dflash_forward/drafter/config_sliding.json", "cache_sliding"}}) {
    CAPTURE(f.file);
    const drafter_config c = golden_drafter_config(f.config);
    const golden_file golden("dflash_forward/" + std::string(f.file) + ".safetensors");
    const tensor features = golden["context_features"];
    drafter_session session(c, golden_forward_weights(c), device::cpu(), f32, {.capacity = 32, .chunk = 16});
    const std::vector<index_t> chunks = golden.integers("chunks");
    REQUIRE(chunks == std::vector<index_t>{13, 5, 1});
    for (std::size_t j = 0; j < chunks.size(); ++j) {
      CAPTURE(j);
      const std::string step = "step" + std::to_string(j) + ".";
      const tensor logits = session.propose(rows_of(features, session.length(), chunks[j]), golden.integers<std::int32_t>(step + "block_ids"));
      CHECK(golden_difference(logits, golden[step + "logits"]) == "");
      CHECK(golden_difference(session.hidden(), golden[step + "final_hidden"]) == "");
      for (index_t i = 0; i < c.layers(); ++i)
        for (const std::string kind : {"keys", "values"}) {
          CAPTURE(i);
          CAPTURE(kind);
          const tensor expected = golden[step + "cache." + std::to_string(i) + "." + kind];  // of a sliding layer the last W - 1 rows
          const index_t kept = expected.dims()[1];
          CHECK(kept == (c.layer_types[std::size_t(i)].window ? std::min<index_t>(session.length(), 7) : session.length()));
          CHECK(golden_difference(cached_rows(session.cached(kind, i), session.length() - kept, kept), expected) == "");
        }
    }
  }
}

namespace {

// Logits of blocks behind the given context lengths, all in one pass of the training layout. The row has one token more than the
// features: an anchor's own row, which its block must not see.
tensor training_layout(const drafter_config& c, const tensor& known, const std::vector<index_t>& anchors, const std::vector<std::int32_t>& block_ids, dtype used) {
  const index_t S = known.dims()[0] + 1, width = known.dims()[1], bs = c.block_size, N = index_t(anchors.size()), M = N * bs;
  tensor features(f32, {S, width});
  std::fill_n(std::copy_n(known.data<float>(), known.elements(), features.data<float>()), width, 50.0f);
  graph g;
  const drafter_weights w = declare_drafter(g, c, f32, used);
  const value table = g.parameter("target.embedding", f32, {c.vocab_size, c.target_hidden}), head = g.parameter("target.head", f32, {c.vocab_size, c.target_hidden});
  drafter_options o;
  for (const draft_layer& l : c.layer_types) {
    dflash_mask_options m{.context_length = scalar(S), .block_size = bs, .anchors = samite::table(anchors), .causal = l.causal};
    if (l.window) m.window = scalar(*l.window);
    o.masks.push_back(dflash_mask(m));
  }
  const drafter_result r = drafter(fuse_features(cast(g.input("features", f32, {1, S, width}), used), w, c), g.input("context_positions", i32, {1, S}),
                                   embedding(cast(table, used), g.input("block_ids", i32, {1, M})), g.input("block_positions", i32, {1, M}), w, c, o);
  g.output("logits", let(drafter_logits(r.hidden, cast(head, used), c), {.type = f32}));
  executor run(make_plan(g));
  bind_weights(run, golden_forward_weights(c));
  std::vector<std::int32_t> context_positions, block_positions;
  for (index_t p = 0; p < S; ++p) context_positions.push_back(std::int32_t(p));
  for (const index_t a : anchors)
    for (index_t k = 0; k < bs; ++k) block_positions.push_back(std::int32_t(a + k));
  run.bind("features", features.reshaped({1, S, width}));
  run.bind("context_positions", tensor::from<std::int32_t>(i32, {1, S}, context_positions));
  run.bind("block_ids", tensor::from<std::int32_t>(i32, {1, M}, block_ids));
  run.bind("block_positions", tensor::from<std::int32_t>(i32, {1, M}, block_positions));
  run.step();
  return run.output("logits");
}

}  // namespace

TEST_CASE("the training layout gives the reference's logits of one block and of three blocks at once") {
  for (const forward_case& f : forward_cases) {
    CAPTURE(f.file);
    const golden_file golden("dflash_forward/" + std::string(f.file) + ".safetensors");
    const tensor features = golden["context_features"];
    const drafter_config c = golden_drafter_config(f.config);
    CHECK(golden_difference(training_layout(c, features, {features.dims()[0]}, golden.integers<std::int32_t>("block_ids"), f32), golden["logits"]) == "");
  }
  for (const forward_case& f : {forward_case{"dflash_forward/drafter/config.json", "cache_full"}, forward_case{"dflash_forward/drafter/config_sliding.json", "cache_sliding"}}) {
    CAPTURE(f.file);
    const golden_file golden("dflash_forward/" + std::string(f.file) + ".safetensors");
    const drafter_config c = golden_drafter_config(f.config);
    std::vector<std::int32_t> ids;
    for (const std::string step : {"step0.", "step1.", "step2."})
      for (const std::int32_t id : golden.integers<std::int32_t>(step + "block_ids")) ids.push_back(id);
    const tensor logits = training_layout(c, golden["context_features"], {13, 18, 19}, ids, f32);
    for (index_t j = 0; j < 3; ++j) {
      CAPTURE(j);
      CHECK(golden_difference(rows_of(logits.reshaped({3 * c.block_size, c.vocab_size}), j * c.block_size, c.block_size), golden[concat_text("step", j, ".logits")]) == "");
    }
  }
}

TEST_CASE("a drafter in bf16 stays within 2 percent of the reference") {
  for (const forward_case& f : forward_cases) {
    CAPTURE(f.file);
    const golden_file golden("dflash_forward/" + std::string(f.file) + ".safetensors");
    const tensor features = golden["context_features"];
    const tensor logits = training_layout(golden_drafter_config(f.config), features, {features.dims()[0]}, golden.integers<std::int32_t>("block_ids"), bf16);
    CHECK(golden_difference(logits, golden["logits"], {INFINITY, 2e-2}) == "");
    CHECK(golden_difference(logits, golden["logits"], {INFINITY, 1e-4}) != "");  // it was bf16
  }
}
