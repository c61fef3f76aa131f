// Query heads that share a tile, and narrow tiles: the kernels for sm_90a against the CPU backend.
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include <samite/core/random.hpp>
#include <samite/run/attention_packing.hpp>
#include <samite/runtime/cuda_driver.hpp>
#include <samite/score/bias.hpp>
#include <samite/score/scale.hpp>

#include "run/attention_results.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite::symbols;
using namespace samite_tests;

namespace {

/// How many heads share a tile forward at these sizes.
index_t packed_heads(const any_mask& mask, const sizes& s) {
  const index_t rows = std::max(s.D, s.Dv) > 64 ? 128 : 192, keys = std::max(s.D, s.Dv) > 128 ? 64 : 128;
  return detail::packed_tiles::by_queries(mask, {.B = s.B, .H = s.H, .Q = s.Q, .K = s.K, .tile_q = rows, .tile_k = keys}, detail::heads_to_pack(mask.program(), s.H / s.G, false), keys == 128).pack;
}

/// DFlash training with unused slots: blocks of 16 queries, documents of 70 tokens.
any_mask drafting(index_t batches, index_t blocks, index_t context) {
  std::vector<index_t> anchors, keep, ids;
  for (index_t b = 0; b < batches; ++b) {
    for (index_t i = 0; i < blocks; ++i) anchors.push_back(std::min(context - 1, (context - 20) * i / blocks + b + i * 7 % 13)), keep.push_back((i + b) % 5 != 4);
    for (index_t i = 0; i < context; ++i) ids.push_back((i + 9 * b) / 70);
  }
  return dflash_mask({.context_length = context, .block_size = 16, .anchors = table(anchors, {batches, blocks}), .keep = table(keep, {batches, blocks}), .documents = table(ids, {batches, context})});
}

}  // namespace

TEST_CASE("gpu attention: groups of 1 to 16 query heads that share tiles agree with the CPU, at odd lengths, in batches, with strides and empty rows") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const std::uint64_t seed = 2031;
  CAPTURE(seed);
  counted_random random(seed, 1);
  const auto pick = [&](std::initializer_list<index_t> from) { return *(from.begin() + random.below(std::uint32_t(from.size()))); };
  const any_mask window = any_mask(q - kv < 20 && kv - q < 9, "window"), holes = any_mask(kv <= q && q - kv < 45 && q % 9 != 4, "window with empty rows"), lengths = any_mask(kv <= q && q - kv < 25 && kv < 90 * (b + 1), "window in batches"),
                 by_key_head = any_mask(kv <= q && q - kv < 10 + h / 8 * 30, "window of each eight heads"), by_head = any_mask(kv <= q && q - kv < 20 + 4 * h, "window of each head"), lone = any_mask(kv >= 64 && kv < 90 && q > 5, "few keys");
  int shared = 0;
  for (const index_t group : {1, 2, 3, 4, 7, 8, 16})
    for (int i = 0; i < 7; ++i) {
      const any_mask masks[] = {window, holes, lengths, by_key_head, by_head, lone};
      const any_mask& mask = masks[(i + group) % 6];
      const index_t D = i < 4 ? 128 : pick({64, 72, 192});
      const sizes s{pick({1, 2}), 2 * group, 2, pick({1, 3, 5, 17, 31, 33, 63, 101, 190, 301}), pick({33, 100, 129, 200, 301}), D, D};
      const bool token_major = random.below(2) == 0;
      const std::vector<index_t> drawn{s.B, s.H, s.G, s.Q, s.K, s.D, s.Dv};
      INFO("B H G Q K D Dv ", concat_text(drawn), ", mask ", mask.label(), token_major ? ", token-major" : "");
      shared += packed_heads(mask, s) > 1;
      const named_numbers expected = results(device::cpu(), bf16, s, mask, token_major, true);
      check_gradients(results(device::cuda(), bf16, s, mask, token_major, true), expected, bf16, s.K + s.D);
      const set_variable repeat("SAMITE_DETERMINISTIC", "1");
      check_gradients(results(device::cuda(), bf16, s, mask, token_major, true), expected, bf16, s.K + s.D);
    }
  CHECK(shared >= 12);
}

TEST_CASE("gpu attention: drafting masks agree with the CPU, their own keys in narrow tiles, whatever the group") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (const index_t group : {1, 2, 3, 4, 8})
    for (const index_t context : {256, 301, 544}) {
      const index_t D = context == 301 ? 64 : 128;
      const sizes s{2, 2 * group, 2, 16 * 19, context + 16 * 19, D, D};
      CAPTURE(group);
      CAPTURE(context);
      const any_mask mask = drafting(s.B, 19, context);
      CHECK((packed_heads(mask, s) > 1) == (group > 1));
      const named_numbers expected = results(device::cpu(), bf16, s, mask, true, true);
      check_gradients(results(device::cuda(), bf16, s, mask, true, true), expected, bf16, s.K + s.D);
      const set_variable repeat("SAMITE_DETERMINISTIC", "1");
      check_gradients(results(device::cuda(), bf16, s, mask, true, true), expected, bf16, s.K + s.D);
    }
}

TEST_CASE("gpu attention: score functions see the head of each row where heads share a tile") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const any_mask window = any_mask(kv <= q && q - kv < 30);
  for (const index_t group : {2, 4, 6, 7, 8}) {
    CAPTURE(group);
    const sizes s{2, 2 * group, 2, 301, 301, 128, 128};
    CHECK(packed_heads(window, s) > 1);
    for (const any_score& function : {any_score(alibi(2 * group)), any_score(softcap(2.0)), any_score(score * real(h + 1))}) {
      const named_numbers expected = results(device::cpu(), bf16, s, window, false, true, function);
      check_gradients(results(device::cuda(), bf16, s, window, false, true, function), expected, bf16, s.K + s.D);
      const set_variable repeat("SAMITE_DETERMINISTIC", "1");
      check_gradients(results(device::cuda(), bf16, s, window, false, true, function), expected, bf16, s.K + s.D);
    }
  }
}

TEST_CASE("gpu attention: lengths and windows that change between steps change which heads share tiles, and never the result") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const dim queries = tokens(500, "queries"), keys = tokens(500, "keys");
  scalar width = 20;
  graph g;
  const value Q = g.input("Q", bf16, {2, 8, queries, 128}), K = g.input("K", bf16, {2, 2, keys, 128}), V = g.input("V", bf16, {2, 2, keys, 128});
  const attention_result a = attention(Q, K, V, {.mask = any_mask(kv <= q && q - kv < width)});
  g.output("out", contiguous(a.out)), g.output("lse", contiguous(a.lse));
  executor cpu(make_plan(g, device::cpu())), gpu(make_plan(g, device::cuda()));
  struct step {
    index_t Q, K, width;
  };
  for (const step& s : {step{500, 500, 20}, {301, 301, 20}, {301, 301, 400}, {5, 200, 3}, {77, 500, 20}, {499, 130, 33}, {500, 500, 20}}) {
    INFO("Q ", s.Q, ", K ", s.K, ", window ", s.width);
    width.set(s.width);
    for (executor* run : {&cpu, &gpu}) {
      run->set_length(queries, s.Q), run->set_length(keys, s.K);
      run->bind("Q", random_tensor(bf16, {2, 8, s.Q, 128}, 1)), run->bind("K", random_tensor(bf16, {2, 2, s.K, 128}, 2)), run->bind("V", random_tensor(bf16, {2, 2, s.K, 128}, 3));
      run->step();
    }
    named_numbers found, expected;
    for (const char* name : {"out", "lse"}) found[name] = numbers(gpu.output(name)), expected[name] = numbers(cpu.output(name));
    check_equal(found, expected, bf16, s.K + 128);
  }
}
