// The decode kernels against the oracle in double, and against the CPU backend where that is faster.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <samite/core/random.hpp>
#include <samite/expr/tensor.hpp>
#include <samite/jit/compiler.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/nn/attention_parts.hpp>
#include <samite/runtime/cuda_driver.hpp>
#include <samite/score/bias.hpp>
#include <samite/testing/compare.hpp>
#include <samite/testing/oracle.hpp>

#include "support/gpu.hpp"
#include "support/masks.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite::symbols;
using namespace samite_tests;
using testing::difference;
using testing::tolerance_of;

namespace {

struct sizes {
  index_t B, H, G, Q, K, D, Dv;
};

enum class layout { heads_first, tokens_first, part_of_rows };

/// Q, K and V of normal sizes. K and V are [B,rows,heads,channels] in memory with tokens first, and every second column of something wider as parts
/// of rows, which no kernel reads 16 bytes at a time.
value operand(graph& g, const char* name, dtype type, layout how, index_t B, index_t heads, index_t rows, index_t channels) {
  if (how == layout::heads_first) return g.input(name, type, {B, heads, rows, channels});
  if (how == layout::tokens_first) return transpose(g.input(name, type, {B, rows, heads, channels}), {0, 2, 1, 3});
  return slice(g.input(name, type, {B, heads, rows, channels + 3}), 3, 1, channels);
}

void build(graph& g, dtype type, const sizes& s, const any_mask& mask, layout how) {
  const value Q = operand(g, "Q", type, how, s.B, s.H, s.Q, s.D), K = operand(g, "K", type, how, s.B, s.G, s.K, s.D), V = operand(g, "V", type, how, s.B, s.G, s.K, s.Dv);
  const attention_result a = attention(Q, K, V, {.mask = mask});
  g.output("out", contiguous(a.out)), g.output("lse", a.lse);
}

named_tensors inputs_of(dtype type, const sizes& s, layout how) {
  const auto filled = [&](index_t heads, index_t rows, index_t channels, std::uint32_t purpose) {
    return random_tensor(type, how == layout::tokens_first ? extents{s.B, rows, heads, channels} : extents{s.B, heads, rows, channels + (how == layout::part_of_rows ? 3 : 0)}, purpose);
  };
  return {{"Q", filled(s.H, s.Q, s.D, 1)}, {"K", filled(s.G, s.K, s.D, 2)}, {"V", filled(s.G, s.K, s.Dv, 3)}};
}

void check_equal(const named_numbers& found, const named_numbers& expected, dtype type, index_t terms) {
  CHECK(difference(found.at("out"), expected.at("out"), tolerance_of(type, 4)) == "");
  CHECK(difference(found.at("lse"), expected.at("lse"), tolerance_of(f32, terms, 8)) == "");
}

std::string text_of(const sizes& s) {
  const std::vector<index_t> all{s.B, s.H, s.G, s.Q, s.K, s.D, s.Dv};
  return "B H G Q K D Dv " + concat_text(all);
}

/// Against the oracle.
named_numbers check_decode(dtype type, const sizes& s, const any_mask& mask) {
  INFO(text_of(s), ", ", std::string(name_of(type)), ", mask ", mask.label());
  const named_tensors inputs = inputs_of(type, s, layout::heads_first);
  graph g;
  build(g, type, s, mask, layout::heads_first);
  const named_numbers found = run_on(g, device::cuda(), inputs);
  const auto in = [&](const char* name) { return numbers(inputs.at(name)); };
  const auto keep = [&](index_t b, index_t h, index_t q, index_t kv) { return naive_value(mask.program(), mask.program().roots[0], {b, h, q, kv}) != 0; };
  const testing::attention_extents e{.batch = s.B, .heads = s.H, .key_heads = s.G, .queries = s.Q, .keys = s.K, .head_dim = s.D, .value_dim = s.Dv};
  const auto right = testing::attention(e, in("Q"), in("K"), in("V"), 1 / std::sqrt(double(s.D)), keep);
  CHECK(difference(found.at("out"), right.out, tolerance_of(type, 4)) == "");
  CHECK(difference(found.at("lse"), right.lse, tolerance_of(f32, s.K + s.D, 8)) == "");
  return found;
}

}  // namespace

TEST_CASE("gpu decode: from one key and one query on, any number of heads a key head, agree with the oracle") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const set_variable always("SAMITE_ATTENTION", "decode");
  for (const dtype type : {bf16, f16})
    for (const index_t group : {1, 4, 8, 7})
      for (const auto& [Q, K] : {std::pair<index_t, index_t>{1, 1}, {1, 64}, {1, 65}, {2, 300}, {5, 63}, {3, 2000}, {64, 129}}) {
        const sizes s{2, 2 * group, 2, Q, K, 64, 64};
        check_decode(type, s, any_mask());
        check_decode(type, s, any_mask(kv <= q + (K - Q)));
      }
}

TEST_CASE("gpu decode: head dims from 8 to 256, equal or not for keys and values") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const set_variable always("SAMITE_ATTENTION", "decode");
  const std::pair<index_t, index_t> dims[] = {{8, 8}, {16, 16}, {40, 40}, {64, 128}, {80, 96}, {128, 128}, {160, 64}, {192, 128}, {256, 256}, {33, 7}};
  for (const auto& [head, value] : dims)
    for (const index_t Q : {1, 20}) check_decode(bf16, {1, 4, 1, Q, 333, head, value}, any_mask(kv < 320));
  check_decode(f16, {1, 4, 1, 1, 333, 256, 256}, any_mask());
}

TEST_CASE("gpu decode: random sizes, strides and masks agree with the CPU") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const set_variable always("SAMITE_ATTENTION", "decode");
  const std::uint64_t seed = 2031;
  CAPTURE(seed);
  counted_random random(seed, 1);
  const auto pick = [&](std::initializer_list<index_t> from) { return *(from.begin() + random.below(std::uint32_t(from.size()))); };
  scalar shift = 0;
  std::vector<std::int32_t> ids(7000);
  table_ref documents = table(ids);
  const std::vector<any_mask> masks{any_mask(), any_mask(kv <= q + shift && documents[q + 60] == documents[kv], "documents"),
                                    any_mask((q * 7 + kv * 3 + h) % 5 != 0, "scattered by head"), any_mask(kv < 300 * (b + 1) && q % 9 != 4, "lengths and empty rows"),
                                    any_mask(kv >= 500 * h && kv < 500 * h + 700, "windows by head"), any_mask(kv % 200 < 3, "many short runs")};
  const std::pair<index_t, index_t> dims[] = {{128, 128}, {40, 72}};  // few, since each is up to 12 kernels
  for (int i = 0; i < 60; ++i) {
    const index_t group = pick({1, 2, 4, 7, 8});
    const auto& [D, Dv] = dims[random.below(2)];
    const sizes s{pick({1, 2, 5}), 2 * group, 2, pick({1, 2, 3, 7, 16, 17, 33, 63, 64}), pick({1, 5, 64, 127, 300, 1000, 3000}), D, Dv};
    const dtype type = bf16;
    const any_mask& mask = masks[random.below(std::uint32_t(masks.size()))];
    const layout how = layout(random.below(3));
    shift.set(std::max<index_t>(0, s.K - s.Q));
    for (std::size_t j = 0; j < ids.size(); ++j) ids[j] = std::int32_t(j / std::size_t(20 + 10 * i));
    documents.update(ids);
    INFO(text_of(s), ", ", std::string(name_of(type)), ", mask ", mask.label(), ", layout ", int(how));
    graph g;
    build(g, type, s, mask, how);
    const named_tensors inputs = inputs_of(type, s, how);
    check_equal(run_on(g, device::cuda(), inputs), run_on(g, device::cpu(), inputs), type, s.K + s.D);
  }
}

TEST_CASE("gpu decode: blocks of 17 to 200 packed rows, parts of one tile to many, agree with the CPU") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const set_variable always("SAMITE_ATTENTION", "decode");
  const std::uint64_t seed = 77;
  CAPTURE(seed);
  counted_random random(seed, 1);
  scalar past = 0;
  table_ref lengths = table(std::vector<index_t>(4));
  const std::vector<any_mask> masks{any_mask(kv <= q + past), any_mask(kv < lengths[b] && (kv + q) % 7 != 0), any_mask(kv < lengths[b] + 40 * h)};
  const std::pair<index_t, index_t> dims[] = {{128, 128}, {64, 256}, {256, 64}};
  for (int i = 0; i < 30; ++i) {
    const index_t group = 1 + index_t(random.below(8)), Q = std::min<index_t>(64, (17 + index_t(random.below(184)) + group - 1) / group), K = Q + index_t(random.below(i % 2 == 0 ? 300 : 3000));
    const auto& [D, Dv] = dims[i % 3];
    const sizes s{1 + index_t(random.below(4)), 2 * group, 2, Q, K, D, Dv};
    const any_mask& mask = masks[random.below(3)];
    past.set(K - Q);
    std::vector<index_t> now;
    for (int b = 0; b < 4; ++b) now.push_back(index_t(random.below(std::uint32_t(K + 1))));
    lengths.update(now);
    INFO(text_of(s), ", mask ", mask.label());
    graph g;
    build(g, bf16, s, mask, layout::tokens_first);
    const named_tensors inputs = inputs_of(bf16, s, layout::tokens_first);
    check_equal(run_on(g, device::cuda(), inputs), run_on(g, device::cpu(), inputs), bf16, s.K + s.D);
  }
}

TEST_CASE("gpu decode: sequences of different lengths in one batch, new lengths without a new kernel, and none where nothing is held") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const sizes s{4, 8, 2, 1, 5000, 128, 128};
  table_ref lengths = table(std::vector<index_t>{1, 5000, 0, 777});
  const any_mask mask(length(lengths));
  const named_tensors inputs = inputs_of(bf16, s, layout::tokens_first);
  graph g;
  build(g, bf16, s, mask, layout::tokens_first);
  executor run(make_plan(g, device::cuda())), cpu(make_plan(g, device::cpu()));
  for (const auto& [name, t] : inputs) run.bind(name, t), cpu.bind(name, t);
  run.step();
  const int compiles = kernel_cache::instance().counters().compiles;
  for (const std::vector<index_t>& now : {std::vector<index_t>{1, 5000, 0, 777}, {5000, 64, 65, 4999}, {0, 0, 0, 0}, {4096, 4096, 4096, 4096}}) {
    lengths.update(now);
    run.step(), cpu.step();
    const named_numbers found{{"out", numbers(run.output("out"))}, {"lse", numbers(run.output("lse"))}}, expected{{"out", numbers(cpu.output("out"))}, {"lse", numbers(cpu.output("lse"))}};
    check_equal(found, expected, bf16, s.K + s.D);
    for (index_t b = 0; b < s.B; ++b)
      for (index_t h = 0; h < s.H; ++h) {
        if (now[std::size_t(b)] != 0) continue;
        CHECK(found.at("lse")[std::size_t(b * s.H + h)] == -std::numeric_limits<double>::infinity());
        for (index_t d = 0; d < s.Dv; ++d) CHECK(found.at("out")[std::size_t((b * s.H + h) * s.Dv + d)] == 0);
      }
  }
  CHECK(kernel_cache::instance().counters().compiles == compiles);
}

TEST_CASE("gpu decode: trees and blocks behind a prefix, whose parts see no key of some rows") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const std::vector<index_t> parents{-1, 0, 1, 2, 1, 0, 5, 6, 6, 0};
  const index_t nodes = index_t(parents.size()), prefix = 1500;
  check_decode(bf16, {1, 8, 2, nodes, prefix + nodes, 128, 128}, any_mask(tree(prefix, table(subtree_ends(parents)))));
  check_decode(f16, {2, 8, 1, nodes, prefix + nodes, 64, 64}, any_mask(tree(prefix, table(subtree_ends(parents))) && q != 3));
  check_decode(bf16, {1, 32, 8, 16, 1016, 128, 128}, any_mask(kv <= q + 1000));
  check_decode(bf16, {1, 4, 2, 64, 1000, 64, 64}, any_mask(kv >= 15 * q && kv < 15 * q + 20));
}

TEST_CASE("gpu decode: sinks, soft-capped scores and a bias by table") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const set_variable always("SAMITE_ATTENTION", "decode");
  for (const index_t Q : {1, 6})
    for (const bool empty : {false, true}) {
      const sizes s{2, 8, 2, Q, 900, 64, 64};
      graph g;
      const value q_in = g.input("Q", bf16, {s.B, s.H, s.Q, s.D}), k_in = g.input("K", bf16, {s.B, s.G, s.K, s.D}), v_in = g.input("V", bf16, {s.B, s.G, s.K, s.Dv}), sink = g.input("sink", bf16, {s.H}), slopes = g.input("slopes", f32, {s.H});
      const any_score capped(20.0 * tanh((score + table(slopes)[h] * (kv - 900)) / 20.0));
      const attention_result a = attention(q_in, k_in, v_in, {.mask = empty ? any_mask(kv < 0) : any_mask(kv < 850), .score = capped, .sink = sink});
      g.output("out", contiguous(a.out)), g.output("lse", a.lse);
      named_tensors inputs = inputs_of(bf16, s, layout::heads_first);
      inputs.emplace("sink", random_tensor(bf16, {s.H}, 4)), inputs.emplace("slopes", random_tensor(f32, {s.H}, 5, 0, 0.1));
      check_equal(run_on(g, device::cuda(), inputs), run_on(g, device::cpu(), inputs), bf16, s.K + s.D);
    }
}

TEST_CASE("gpu decode: the same bytes in every run, and the rows of the kernels for any sizes") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (const index_t Q : {1, 16, 64}) {
    const sizes s{3, 32, 8, Q, 8000, 128, 128};
    graph g;
    build(g, bf16, s, any_mask(kv < 7000 + 400 * b), layout::tokens_first);
    const named_tensors inputs = inputs_of(bf16, s, layout::tokens_first);
    const named_numbers first = run_on(g, device::cuda(), inputs);
    for (int run = 0; run < 3; ++run) {
      const named_numbers again = run_on(g, device::cuda(), inputs, 5);
      CHECK(again.at("out") == first.at("out"));
      CHECK(again.at("lse") == first.at("lse"));
    }
    const set_variable portable("SAMITE_ATTENTION", "portable");
    check_equal(first, run_on(g, device::cuda(), inputs), bf16, s.K + s.D);
  }
}

TEST_CASE("gpu decode: pages of a cache give what contiguous keys give") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const index_t page = 64, pages = 20, used = 12, S = 11 * page + 5, D = 64;
  graph g;
  const value k_pages = g.input("K", bf16, {pages, page, 2, D}), v_pages = g.input("V", bf16, {pages, page, 2, D}), ids = g.input("ids", i32, {2, used});
  const auto rows = [&](const value& x) { return slice(paged_rows(x, ids), 2, 0, S); };
  const attention_result a = attention(g.input("Q", bf16, {2, 8, 3, D}), rows(k_pages), rows(v_pages), {.mask = any_mask(kv <= q + (S - 3))});
  g.output("out", contiguous(a.out)), g.output("lse", a.lse);
  std::vector<std::int32_t> order(2 * used);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = std::int32_t(i * 7 % pages);
  const named_tensors inputs{{"Q", random_tensor(bf16, {2, 8, 3, D}, 1)}, {"K", random_tensor(bf16, {pages, page, 2, D}, 2)}, {"V", random_tensor(bf16, {pages, page, 2, D}, 3)},
                             {"ids", tensor::from<std::int32_t>(i32, {2, used}, order)}};
  check_equal(run_on(g, device::cuda(), inputs), run_on(g, device::cpu(), inputs), bf16, S + D);
}
