// tests/run/attention_cases.hpp: faults that users of other attention libraries met, each with its right value, on one device.
//
// A title begins with the fault's id. U: queries are 0 and v[kv] = kv, so that an output is the mean of the visible keys, lse
// the log of their count, and dV[kv] the sum of 1 / count over the rows that see kv. R: random numbers against the dense oracle
// in double. Included once for each device, which CASE_DEVICE and CASE_NEEDS name.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/ir/evaluate.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/testing/compare.hpp>
#include <samite/testing/oracle.hpp>

#include "support/gpu.hpp"
#include "support/raised.hpp"
#include "support/skip.hpp"

namespace {

using namespace samite;
using namespace samite::symbols;
using namespace samite_tests;
using testing::attention_extents;

constexpr double hidden = -std::numeric_limits<double>::infinity();

struct case_result {
  std::vector<double> out, lse, dQ, dK, dV;
};

tensor filled(dtype type, extents dims, const std::vector<double>& values) {
  tensor t(f64, std::move(dims));
  REQUIRE(values.size() == t.values<double>().size());
  std::copy(values.begin(), values.end(), t.values<double>().begin());
  return t.to_dtype(type);
}

/// Attention and its gradients for dO = d_out.
case_result attend(const any_mask& mask, const tensor& Q, const tensor& K, const tensor& V, const tensor& d_out, std::optional<double> scale = {}) {
  graph g;
  const auto declare = [&](const char* name, const tensor& t) { return g.input(name, t.type(), shape(t.dims().begin(), t.dims().end())); };
  const value q_in = declare("Q", Q), k_in = declare("K", K), v_in = declare("V", V), d_in = declare("d_out", d_out);
  const attention_result a = attention(q_in, k_in, v_in, {.mask = mask, .scale = scale});
  const std::vector<value> gradients = gradient(total(let(a.out * d_in, {.type = Q.type() == f64 ? f64 : f32})), {q_in, k_in, v_in});
  g.output("out", contiguous(a.out)), g.output("lse", contiguous(a.lse));
  const char* names[] = {"dQ", "dK", "dV"};
  for (std::size_t i = 0; i < 3; ++i) g.output(names[i], contiguous(gradients[i]));
  named_numbers r = run_on(g, CASE_DEVICE, {{"Q", Q}, {"K", K}, {"V", V}, {"d_out", d_out}});
  return {r["out"], r["lse"], r["dQ"], r["dK"], r["dV"]};
}

/// The probe U with one channel of values (the key number modulo 64 in 16 bits), in fp32.
case_result probe(const any_mask& mask, index_t queries, index_t keys, index_t batch = 1, index_t heads = 1, index_t key_heads = 1, index_t per_key_head = 0) {
  std::vector<double> values(std::size_t(batch * key_heads * keys)), ones(std::size_t(batch * heads * queries), 1.0);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = double(index_t(i) % keys) + double(per_key_head * (index_t(i) / keys % key_heads));
  const tensor zeros_q = filled(f32, {batch, heads, queries, 8}, std::vector<double>(std::size_t(batch * heads * queries * 8), 0.0));
  const tensor zeros_k = filled(f32, {batch, key_heads, keys, 8}, std::vector<double>(std::size_t(batch * key_heads * keys * 8), 0.0));
  return attend(mask, zeros_q, zeros_k, filled(f32, {batch, key_heads, keys, 1}, values), filled(f32, {batch, heads, queries, 1}, ones));
}

void check_values(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance = 2e-6) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    CAPTURE(i);
    if (std::isinf(expected[i])) CHECK(actual[i] == expected[i]);
    else CHECK(std::abs(actual[i] - expected[i]) <= tolerance * (1 + std::abs(expected[i])));
  }
}

double log_of(double count) { return count == 0 ? hidden : std::log(count); }

/// R: everything against the dense oracle.
void check_random(const any_mask& mask, const attention_extents& e, dtype type = f32) {
  const tensor Q = random_tensor(type, {e.batch, e.heads, e.queries, e.head_dim}, 1), K = random_tensor(type, {e.batch, e.key_heads, e.keys, e.head_dim}, 2),
               V = random_tensor(type, {e.batch, e.key_heads, e.keys, e.value_dim}, 3), d_out = random_tensor(type, {e.batch, e.heads, e.queries, e.value_dim}, 4);
  const case_result r = attend(mask, Q, K, V, d_out);
  evaluator keep(mask.program());
  const auto visible = [&](index_t batch, index_t head, index_t query, index_t key) { return keep(batch, head, query, key) != 0; };
  const double scale = 1 / std::sqrt(double(e.head_dim));
  const auto expected = testing::attention(e, numbers(Q), numbers(K), numbers(V), scale, visible);
  const auto gradients = testing::attention_gradient(e, numbers(Q), numbers(K), numbers(V), numbers(d_out), {}, scale, visible);
  const index_t group = e.heads / e.key_heads;
  CAPTURE(e.queries);
  CAPTURE(e.keys);
  CAPTURE(e.head_dim);
  CHECK(testing::difference(r.out, expected.out, testing::tolerance_of(type, e.keys)) == "");
  CHECK(testing::difference(r.lse, expected.lse, testing::tolerance_of(type == f64 ? f64 : f32, e.head_dim, 2)) == "");
  CHECK(testing::difference(r.dQ, gradients.dQ, testing::tolerance_of(type, e.keys, 2)) == "");
  CHECK(testing::difference(r.dK, gradients.dK, testing::tolerance_of(type, e.queries * group, 2)) == "");
  CHECK(testing::difference(r.dV, gradients.dV, testing::tolerance_of(type, e.queries * group, 2)) == "");
}

/// Sequences packed on both axes, causal from the end of each: what varlen attention computes.
any_mask packed_causal(const std::vector<index_t>& cu_q, const std::vector<index_t>& cu_k) {
  std::vector<index_t> ids_q, ids_k, shift;  // query i of its sequence sees keys up to i + shift, by packed indices
  for (std::size_t s = 0; s + 1 < cu_q.size(); ++s) {
    ids_q.insert(ids_q.end(), std::size_t(cu_q[s + 1] - cu_q[s]), index_t(s));
    ids_k.insert(ids_k.end(), std::size_t(cu_k[s + 1] - cu_k[s]), index_t(s));
    shift.insert(shift.end(), std::size_t(cu_q[s + 1] - cu_q[s]), cu_k[s + 1] - cu_q[s + 1]);
  }
  return any_mask(document(table(ids_q), table(ids_k)) && kv <= q + table(shift)[q]);
}

}  // namespace

TEST_CASE("A1: rows without a visible key give 0, -inf and no gradient") {
  CASE_NEEDS;
  const case_result r = probe(q >= 2, 4, 4);
  check_values(r.out, {0, 0, 1.5, 1.5});
  check_values(r.lse, {hidden, hidden, log_of(4), log_of(4)});
  check_values(r.dV, {0.5, 0.5, 0.5, 0.5});
  for (std::size_t i = 0; i < 16; ++i) CHECK(r.dQ[i] == 0);
}

TEST_CASE("A2: bottom-right causal with more queries than keys has empty rows first") {
  CASE_NEEDS;
  const case_result r = probe(causal_bottom_right(5, 3), 5, 3);
  check_values(r.out, {0, 0, 0, 0.5, 1});
  check_values(r.lse, {hidden, hidden, 0, log_of(2), log_of(3)});
}

TEST_CASE("A5: one hidden row among many is 0 and not the mean of all values") {
  CASE_NEEDS;
  const case_result r = probe(q < 7 || q > 7, 441, 441);
  CHECK(r.out[7] == 0);
  CHECK(r.lse[7] == hidden);
  CHECK(r.out[8] == doctest::Approx(220));
}

TEST_CASE("A8: an empty row of one attention does not poison the next") {
  CASE_NEEDS;
  graph g;
  const tensor x = random_tensor(f32, {1, 1, 9, 8}, 5);
  const value in = g.input("x", f32, {1, 1, 9, 8});
  const value first = contiguous(attention(in, in, in, {.mask = q >= 3}).out);
  const value second = contiguous(attention(first, first, first, {.mask = causal()}).out);
  g.output("y", second), g.output("dx", contiguous(gradient(total(second), {in})[0]));
  const named_numbers r = run_on(g, CASE_DEVICE, {{"x", x}});
  for (const auto& [name, values] : r)
    for (double v : values) CHECK(std::isfinite(v));
  for (std::size_t i = 0; i < 8; ++i) CHECK(r.at("y")[i] == 0);
}

TEST_CASE("A11: no keys, or no queries") {
  CASE_NEEDS;
  const case_result none = probe(any_mask(), 4, 0);
  check_values(none.out, {0, 0, 0, 0});
  check_values(none.lse, {hidden, hidden, hidden, hidden});
  const case_result rows = probe(causal(), 0, 4);
  check_values(rows.dV, {0, 0, 0, 0});
  check_values(rows.dK, std::vector<double>(32, 0.0));
}

TEST_CASE("B1: a length that no tile divides, forward and backward") {
  CASE_NEEDS;
  const case_result r = probe(causal(), 1025, 1025);
  CHECK(r.dV[0] == doctest::Approx(7.510151).epsilon(1e-5));
  CHECK(r.dV[1024] == doctest::Approx(1.0 / 1025).epsilon(1e-5));
  CHECK(r.lse[1024] == doctest::Approx(6.932448).epsilon(1e-6));
}

TEST_CASE("B3: odd lengths") {
  CASE_NEEDS;
  for (index_t S : {1, 2, 7, 63, 65, 127, 129, 137, 255, 441}) check_random(causal(), {.queries = S, .keys = S, .head_dim = 32, .value_dim = 32});
}

TEST_CASE("B5: what lies behind a sequence's end changes nothing") {
  CASE_NEEDS;
  const index_t S = 256, end = 200;
  const tensor K = random_tensor(f32, {1, 1, S, 16}, 2), V = random_tensor(f32, {1, 1, S, 16}, 3), Q = random_tensor(f32, {1, 1, S, 16}, 1);
  tensor d_out = random_tensor(f32, {1, 1, S, 16}, 4);
  const any_mask mask = causal() && length(end) && q < end;
  const case_result clean = attend(mask, Q, K, V, d_out);
  tensor other = K.clone(), values = V.clone(), queries = Q.clone();
  for (tensor* t : {&other, &values, &queries})
    for (index_t i = end * 16; i < S * 16; ++i) t->data<float>()[std::size_t(i)] = 1e4f;
  const case_result dirty = attend(mask, queries, other, values, d_out);
  CHECK(std::equal(clean.out.begin(), clean.out.end(), dirty.out.begin()));
  for (const auto* pair : {&clean.dQ, &clean.dK, &clean.dV})
    for (std::size_t i = std::size_t(end) * 16; i < pair->size(); ++i) CHECK((*pair)[i] == 0);
  CHECK(std::equal(clean.dK.begin(), clean.dK.begin() + end * 16, dirty.dK.begin()));
}

TEST_CASE("B6: sequences with one key each give the last query of each its only key") {
  CASE_NEEDS;
  const case_result r = probe(packed_causal({0, 76, 110, 256}, {0, 1, 2, 3}), 256, 3);
  std::vector<double> expected(256, 0.0);
  expected[75] = 0, expected[109] = 1, expected[255] = 2;
  check_values(r.out, expected);
  for (std::size_t i = 0; i < 256; ++i) CHECK(r.lse[i] == (i == 75 || i == 109 || i == 255 ? 0 : hidden));
}

TEST_CASE("B7: sequences of zero length on either side") {
  CASE_NEEDS;
  const std::vector<index_t> cu_q{0, 0, 75, 128, 128}, cu_k{0, 158, 267, 320, 512};
  const any_mask mask = packed_causal(cu_q, cu_k);
  check_random(mask, {.queries = 128, .keys = 512, .head_dim = 64, .value_dim = 64});
  const case_result r = probe(mask, 128, 512);
  for (std::size_t i = 0; i < 158; ++i) CHECK(r.dV[i] == 0);
  for (std::size_t i = 320; i < 512; ++i) CHECK(r.dV[i] == 0);
}

TEST_CASE("B10: more queries than keys, in both frames") {
  CASE_NEEDS;
  check_values(probe(causal_bottom_right(6, 4), 6, 4).out, {0, 0, 0, .5, 1, 1.5});
  check_values(probe(causal(), 6, 4).out, {0, .5, 1, 1.5, 1.5, 1.5});
}

TEST_CASE("B11: more keys than queries, in both frames") {
  CASE_NEEDS;
  check_values(probe(causal(), 2, 4).out, {0, .5});
  check_values(probe(causal_bottom_right(2, 4), 2, 4).out, {1, 1.5});
}

TEST_CASE("B14: a query at a later position equals the row of the whole, and what is not written yet is not read") {
  CASE_NEEDS;
  const index_t capacity = 512, at = 100;
  const tensor K = random_tensor(f32, {1, 1, capacity, 16}, 2), V = random_tensor(f32, {1, 1, capacity, 16}, 3), Q = random_tensor(f32, {1, 1, 101, 16}, 1);
  tensor all_k = K.clone(), all_v = V.clone(), last(f32, {1, 1, 1, 16});
  std::copy_n(Q.data<float>() + at * 16, 16, last.data<float>());
  for (index_t i = (at + 1) * 16; i < capacity * 16; ++i) all_k.data<float>()[i] = all_v.data<float>()[i] = 3e4f;
  const tensor ones(f32, {1, 1, 1, 16}), rows(f32, {1, 1, 101, 16});
  const case_result one = attend(kv <= q + at, last, all_k, all_v, ones), whole = attend(causal(), Q, K, V, rows);
  for (std::size_t c = 0; c < 16; ++c) CHECK(one.out[c] == doctest::Approx(whole.out[std::size_t(at) * 16 + c]).epsilon(1e-5));
}

TEST_CASE("B15: one mask object serves every length") {
  CASE_NEEDS;
  const any_mask mask = causal() && window(40);
  for (index_t S : {3, 64, 100, 191}) check_random(mask, {.queries = S, .keys = S, .head_dim = 16, .value_dim = 16});
}

TEST_CASE("B17: every batch has its own mask") {
  CASE_NEEDS;
  check_random(kv <= q + 10 * b, {.batch = 2, .queries = 100, .keys = 180, .head_dim = 16, .value_dim = 16});
}

TEST_CASE("C1: a causal window of 4 holds 4 keys") {
  CASE_NEEDS;
  const case_result r = probe(causal() && window(4), 8, 8);
  check_values(r.out, {0, .5, 1, 1.5, 2.5, 3.5, 4.5, 5.5});
  CHECK(r.lse[7] == doctest::Approx(log_of(4)));
}

TEST_CASE("C4: a two-sided window in the bottom-right frame with more queries than keys") {
  CASE_NEEDS;
  const index_t offset = 16 - 129;
  const case_result r = probe(q + offset - kv <= 32 && kv - (q + offset) <= 64, 129, 16);
  for (std::size_t i = 0; i < 49; ++i) CHECK(r.lse[i] == hidden);
  CHECK(r.lse[49] == 0);
  CHECK(r.out[49] == 0);
  for (std::size_t i = 64; i < 129; ++i) CHECK(r.out[i] == doctest::Approx(7.5));
}

TEST_CASE("C5: a window without differences is empty, never full") {
  CASE_NEEDS;
  const case_result r = probe(3 <= q - kv && q - kv <= 1, 8, 8);
  for (double x : r.out) CHECK(x == 0);
  for (double x : r.lse) CHECK(x == hidden);
}

TEST_CASE("C8: a window to the left only does not see the future") {
  CASE_NEEDS;
  const case_result r = probe(window(2, 0), 8, 8);
  CHECK(r.out[0] == 0);
  CHECK(r.out[5] == doctest::Approx(4));
}

TEST_CASE("D1: kept corners and a kept centre don't make a full tile") {
  CASE_NEEDS;
  std::vector<index_t> ids(128, 0);
  std::fill(ids.begin() + 40, ids.begin() + 88, 1);
  const case_result r = probe(document(table(ids)), 128, 128);
  CHECK(r.out[0] == doctest::Approx(63.5));
  CHECK(r.out[64] == doctest::Approx(63.5));
  CHECK(r.lse[0] == doctest::Approx(log_of(80)));
  CHECK(r.lse[64] == doctest::Approx(log_of(48)));
}

TEST_CASE("D5: a block table alone, without a test per element") {
  CASE_NEEDS;
  const case_result r = probe(block_table(table({1, 0, 0, 1}, {2, 2}), 64), 128, 128);
  CHECK(r.out[0] == doctest::Approx(31.5));
  CHECK(r.out[127] == doctest::Approx(95.5));
}

TEST_CASE("D10: products of indices have 64 bits") {
  CASE_NEEDS;
  check_random(q * 46341000 + kv >= 0, {.queries = 200, .keys = 70, .head_dim = 16, .value_dim = 16});
}

TEST_CASE("D12: the order of anchors does not change a block's values") {
  CASE_NEEDS;
  const index_t S = 96, blocks = 8, size = 4, rows = blocks * size, keys = S + rows;
  std::vector<index_t> sorted(8), shuffled, place{3, 0, 7, 5, 1, 6, 2, 4};
  for (std::size_t i = 0; i < sorted.size(); ++i) sorted[i] = index_t(i) * 11 + 3;
  for (index_t p : place) shuffled.push_back(sorted[std::size_t(p)]);
  const tensor Q = random_tensor(f32, {1, 1, rows, 16}, 1), K = random_tensor(f32, {1, 1, keys, 16}, 2), V = random_tensor(f32, {1, 1, keys, 16}, 3);
  tensor moved_q = Q.clone(), moved_k = K.clone(), moved_v = V.clone();
  for (std::size_t i = 0; i < place.size(); ++i) {
    const index_t from = place[i] * size * 16, to = index_t(i) * size * 16;
    std::copy_n(Q.data<float>() + from, size * 16, moved_q.data<float>() + to);
    std::copy_n(K.data<float>() + S * 16 + from, size * 16, moved_k.data<float>() + S * 16 + to);
    std::copy_n(V.data<float>() + S * 16 + from, size * 16, moved_v.data<float>() + S * 16 + to);
  }
  const tensor d_out(f32, {1, 1, rows, 16});
  const auto mask = [&](const std::vector<index_t>& at) { return dflash_mask({.context_length = S, .block_size = size, .anchors = table(at, {1, blocks})}); };
  const case_result in_order = attend(mask(sorted), Q, K, V, d_out), out_of_order = attend(mask(shuffled), moved_q, moved_k, moved_v, d_out);
  for (std::size_t i = 0; i < place.size(); ++i)
    for (std::size_t c = 0; c < std::size_t(size * 16); ++c)
      CHECK(out_of_order.out[i * std::size_t(size * 16) + c] == doctest::Approx(in_order.out[std::size_t(place[i] * size * 16) + c]).epsilon(2e-5));
}

TEST_CASE("D14: an even neighbourhood holds its width") {
  CASE_NEEDS;
  const case_result r = probe(neighborhood(8, 4), 8, 8);
  const double starts[] = {0, 0, 0, 1, 2, 3, 4, 4};
  for (std::size_t i = 0; i < 8; ++i) CHECK(r.out[i] == doctest::Approx(starts[i] + 1.5));
  for (double x : r.lse) CHECK(x == doctest::Approx(log_of(4)));
}

TEST_CASE("D17: a rectangular causal slice in the bottom-right frame") {
  CASE_NEEDS;
  check_values(probe(causal_bottom_right(4, 6), 4, 6).out, {1, 1.5, 2, 2.5});
}

TEST_CASE("D19: many queries that select one key add up its gradient") {
  CASE_NEEDS;
  const index_t S = 100;
  const case_result r = probe(kv == 0 || kv == q, S, S);
  CHECK(r.dV[0] == doctest::Approx(1 + double(S - 1) / 2));
  CHECK(r.dV[50] == doctest::Approx(0.5));
}

TEST_CASE("E1: lengths by batch") {
  CASE_NEEDS;
  const case_result r = probe(length(table({3, 8})), 8, 8, 2, 2, 2);
  for (std::size_t i = 0; i < 16; ++i) CHECK(r.out[i] == doctest::Approx(1.0));
  for (std::size_t i = 16; i < 32; ++i) CHECK(r.out[i] == doctest::Approx(3.5));
}

TEST_CASE("E3: a window by head") {
  CASE_NEEDS;
  const case_result r = probe(causal() && window(table({1, 2, 4, 8})[h]), 8, 8, 1, 4, 4);
  const double expected[] = {7, 6.5, 5.5, 3.5};
  for (std::size_t head = 0; head < 4; ++head) CHECK(r.out[head * 8 + 7] == doctest::Approx(expected[head]));
}

TEST_CASE("E4: query heads share key heads in groups, not interleaved") {
  CASE_NEEDS;
  const case_result r = probe(any_mask(), 4, 4, 1, 6, 2, 100);
  for (std::size_t i = 0; i < 12; ++i) CHECK(r.out[i] == doctest::Approx(1.5));
  for (std::size_t i = 12; i < 24; ++i) CHECK(r.out[i] == doctest::Approx(101.5));
  for (double x : r.dV) CHECK(x == doctest::Approx(3));
}

TEST_CASE("E5: the LSE of grouped heads") {
  CASE_NEEDS;
  for (double x : probe(any_mask(), 128, 128, 2, 32, 8).lse) CHECK(x == doctest::Approx(4.852030).epsilon(1e-6));
}

TEST_CASE("G1: head dims that are no power of two, and one that is odd") {
  CASE_NEEDS;
  for (index_t D : {8, 16, 24, 31, 40, 72, 96, 112, 160, 192, 256}) check_random(causal(), {.heads = 2, .key_heads = 1, .queries = 70, .keys = 70, .head_dim = D, .value_dim = D});
}

TEST_CASE("G3: fp32 stays fp32") {
  CASE_NEEDS;
  const index_t S = 256;
  const attention_extents e{.queries = S, .keys = S, .head_dim = 64, .value_dim = 64};
  const tensor Q = random_tensor(f32, {1, 1, S, 64}, 1), K = random_tensor(f32, {1, 1, S, 64}, 2), V = random_tensor(f32, {1, 1, S, 64}, 3);
  const case_result r = attend(any_mask(), Q, K, V, random_tensor(f32, {1, 1, S, 64}, 4));
  const auto expected = testing::attention(e, numbers(Q), numbers(K), numbers(V), 0.125, [](index_t, index_t, index_t, index_t) { return true; });
  double worst = 0;
  for (std::size_t i = 0; i < r.out.size(); ++i) worst = std::max(worst, std::abs(r.out[i] - expected.out[i]));
  CHECK(worst <= 1e-5);
}

TEST_CASE("G4: operands of different dtypes are refused") {
  graph g;
  const value Q = g.input("Q", bf16, {1, 1, 4, 8}), K = g.input("K", f32, {1, 1, 4, 8});
  CHECK(unlike("E-DTYPE-OPERANDS", {"bf16", "f32"}, [&] { attention(Q, K, K); }) == "");
}

TEST_CASE("G8: the LSE is a natural logarithm") {
  CASE_NEEDS;
  for (double x : probe(any_mask(), 64, 64).lse) CHECK(x == doctest::Approx(4.158883).epsilon(1e-6));
}

TEST_CASE("J1: the backward pass gives the same bytes in every run, where SAMITE_DETERMINISTIC asks for it") {
  CASE_NEEDS;
  const set_variable repeat("SAMITE_DETERMINISTIC", "1");
  std::vector<index_t> ids(600);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = index_t(i) / 64;
  for (const any_mask& mask : {any_mask(causal()), any_mask(causal() && window(30)), any_mask(document(table(ids)))}) {
    const tensor Q = random_tensor(bf16, {1, 4, 600, 32}, 1), K = random_tensor(bf16, {1, 2, 600, 32}, 2), V = random_tensor(bf16, {1, 2, 600, 32}, 3), d = random_tensor(bf16, {1, 4, 600, 32}, 4);
    const case_result first = attend(mask, Q, K, V, d);
    for (int i = 0; i < 5; ++i) {
      const case_result next = attend(mask, Q, K, V, d);
      CHECK(next.out == first.out);
      CHECK(next.dQ == first.dQ);
      CHECK(next.dK == first.dK);
      CHECK(next.dV == first.dV);
    }
    for (double x : first.dK) CHECK(std::isfinite(x));
  }
}

TEST_CASE("J7: a hidden key changes nothing, a visible one does") {
  CASE_NEEDS;
  const any_mask mask = causal() && (q - kv) % 3 != 1;
  const tensor Q = random_tensor(f32, {1, 1, 90, 16}, 1), K = random_tensor(f32, {1, 1, 90, 16}, 2), V = random_tensor(f32, {1, 1, 90, 16}, 3), d = random_tensor(f32, {1, 1, 90, 16}, 4);
  tensor other_k = K.clone(), other_v = V.clone();
  for (std::size_t c = 0; c < 16; ++c) other_k.data<float>()[std::size_t(40) * 16 + c] += 1, other_v.data<float>()[std::size_t(40) * 16 + c] -= 2;
  const case_result before = attend(mask, Q, K, V, d), after = attend(mask, Q, other_k, other_v, d);
  for (index_t row = 0; row < 90; ++row) {
    const bool sees = row >= 40 && floor_mod(row - 40, 3) != 1;
    const bool same = std::equal(before.out.begin() + row * 16, before.out.begin() + (row + 1) * 16, after.out.begin() + row * 16);
    CAPTURE(row);
    CHECK(same == !sees);
  }
}
