#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/testing/compare.hpp>
#include <samite/testing/oracle.hpp>
#include <samite/runtime/cuda_driver.hpp>

#include "support/gpu.hpp"
#include "support/raised.hpp"
#include "support/masks.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite_tests;
using testing::attention_extents;
using testing::difference;
using testing::tolerance_of;

namespace {

named_tensors inputs_of(dtype type, const attention_extents& e) {
  return {{"Q", random_tensor(type, {e.batch, e.heads, e.queries, e.head_dim}, 1)},
          {"K", random_tensor(type, {e.batch, e.key_heads, e.keys, e.head_dim}, 2)},
          {"V", random_tensor(type, {e.batch, e.key_heads, e.keys, e.value_dim}, 3)},
          {"d_out", random_tensor(type, {e.batch, e.heads, e.queries, e.value_dim}, 4).to_dtype(type == f64 ? f64 : f32)},
          {"d_lse", random_tensor(type == f64 ? f64 : f32, {e.batch, e.heads, e.queries, 1}, 5)}};
}

/// out, lse, dQ, dK and dV of a loss that weighs out by d_out and lse by d_lse.
void build(graph& g, dtype type, const attention_extents& e, const any_mask& mask, std::optional<double> scale) {
  const auto shape_of = [](index_t a, index_t b, index_t c, index_t d) { return shape{a, b, c, d}; };
  const dtype wide = type == f64 ? f64 : f32;
  const value Q = g.input("Q", type, shape_of(e.batch, e.heads, e.queries, e.head_dim)), K = g.input("K", type, shape_of(e.batch, e.key_heads, e.keys, e.head_dim));
  const value V = g.input("V", type, shape_of(e.batch, e.key_heads, e.keys, e.value_dim));
  const value d_out = g.input("d_out", wide, shape_of(e.batch, e.heads, e.queries, e.value_dim)), d_lse = g.input("d_lse", wide, shape_of(e.batch, e.heads, e.queries, 1));
  const attention_result a = attention(Q, K, V, {.mask = mask, .scale = scale});
  g.output("out", contiguous(a.out));
  g.output("lse", a.lse);
  const value loss = let(total(a.out * d_out) + total(a.lse * d_lse));
  const auto gradients = gradient(loss, {Q, K, V});
  g.output("dQ", contiguous(gradients[0]));
  g.output("dK", contiguous(gradients[1]));
  g.output("dV", contiguous(gradients[2]));
}

void check_attention(dtype type, const attention_extents& e, const any_mask& mask, std::optional<double> scale = {}) {
  CAPTURE(name_of(type));
  const std::vector<index_t> sizes{e.batch, e.heads, e.key_heads, e.queries, e.keys, e.head_dim, e.value_dim};
  INFO("B H G Q K D Dv ", concat_text(sizes), ", mask ", mask.label());
  graph g;
  build(g, type, e, mask, scale);
  const named_tensors inputs = inputs_of(type, e);
  const named_numbers found = run_on(g, device::cuda(), inputs);

  const auto in = [&](const char* name) { return numbers(inputs.at(name)); };
  const double s = scale.value_or(1 / std::sqrt(double(e.head_dim)));
  const auto keep = [&](index_t b, index_t h, index_t q, index_t kv) { return naive_value(mask.program(), mask.program().roots[0], {b, h, q, kv}) != 0; };
  const auto forward = testing::attention(e, in("Q"), in("K"), in("V"), s, keep);
  const auto backward = testing::attention_gradient(e, in("Q"), in("K"), in("V"), in("d_out"), in("d_lse"), s, keep);
  // 16-bit paths round P and dS, whose terms make up one result of about its own size; sums are fp32 otherwise.
  const bool half = type == bf16 || type == f16;
  const dtype wide = type == f64 ? f64 : f32;
  const auto allowed = [&](const std::vector<double>& expected) { return tolerance_of(type, half ? 4 : e.keys + e.queries + e.head_dim, magnitude_of(expected)); };
  CHECK(difference(found.at("out"), forward.out, allowed(forward.out)) == "");
  CHECK(difference(found.at("lse"), forward.lse, tolerance_of(wide, e.keys + e.head_dim, magnitude_of(forward.lse))) == "");
  CHECK(difference(found.at("dQ"), backward.dQ, allowed(backward.dQ)) == "");
  CHECK(difference(found.at("dK"), backward.dK, allowed(backward.dK)) == "");
  CHECK(difference(found.at("dV"), backward.dV, allowed(backward.dV)) == "");
}

std::vector<std::int32_t> documents(index_t length) {
  std::vector<std::int32_t> ids;
  for (index_t i = 0; i < length; ++i) ids.push_back(std::int32_t(i / 37 + (i % 97 == 0 ? 1 : 0)));
  return ids;
}

}  // namespace

TEST_CASE("gpu attention: odd lengths on both axes agree with the oracle, in every dtype") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  using namespace symbols;
  for (dtype type : {bf16, f16, f32, f64})
    for (index_t queries : {1, 7, 63, 64, 65, 129})
      for (index_t keys : {1, 64, 129}) {
        const attention_extents e{.batch = 2, .heads = 4, .key_heads = 2, .queries = queries, .keys = keys, .head_dim = 64, .value_dim = 64};
        check_attention(type, e, any_mask(kv <= q + (keys - queries), "causal from the end"));
      }
}

TEST_CASE("gpu attention: head dims from 8 to 256, equal or not for keys and values") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const std::pair<index_t, index_t> dims[] = {{8, 8}, {16, 16}, {40, 40}, {80, 96}, {128, 128}, {160, 64}, {192, 128}, {256, 256}, {33, 7}};
  for (const auto& [head, value] : dims)
    for (dtype type : {bf16, f32}) {
      const attention_extents e{.batch = 1, .heads = 2, .key_heads = 1, .queries = 70, .keys = 130, .head_dim = head, .value_dim = value};
      check_attention(type, e, any_mask());
    }
}

TEST_CASE("gpu attention: the widest heads in f16 and f64") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const attention_extents e{.batch = 1, .heads = 2, .key_heads = 1, .queries = 65, .keys = 100, .head_dim = 256, .value_dim = 256};
  check_attention(f16, e, any_mask());
  check_attention(f64, e, any_mask());
}

TEST_CASE("gpu attention: every family of masks agrees with the oracle") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  using namespace symbols;
  const index_t length = 200;
  const std::vector<std::int32_t> ids = documents(length);
  const std::vector<std::int32_t> heads{3, 100, 17, 64};
  const auto docs = table(ids), reach = table(heads);
  const std::vector<any_mask> masks = {
      any_mask(causal(), "causal"),
      any_mask(window(17), "window"),
      any_mask(window(40, 3), "window to both sides"),
      any_mask(sink_window(4, 70), "sink and window"),
      any_mask(document(docs), "document"),
      any_mask(document_causal(docs), "document causal"),
      any_mask(prefix(index_t(90)), "prefix"),
      any_mask(dilated(64, 4), "dilated"),
      any_mask(strided(16), "strided"),
      any_mask(block_causal(24), "block causal"),
      any_mask(chunked_causal(50), "chunked causal"),
      any_mask(kv <= q && q - kv < reach[h], "reach by head"),
      any_mask(b == 1 || (kv - q) % 3 == 0, "by batch"),
      any_mask(kv < 0, "nothing"),
      any_mask(q % 2 == 1 && kv > 70, "every other row is empty"),
  };
  const attention_extents e{.batch = 2, .heads = 4, .key_heads = 2, .queries = length, .keys = length, .head_dim = 32, .value_dim = 32};
  for (const any_mask& mask : masks) check_attention(bf16, e, mask);
  check_attention(f32, e, masks[5]);
  check_attention(f32, e, masks[11]);
  check_attention(f32, e, masks[14]);
}

TEST_CASE("gpu attention: rows without a visible key give exact zeros and lse -infinity, and so do keys nobody sees") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  using namespace symbols;
  for (dtype type : {bf16, f32}) {
    const attention_extents e{.batch = 1, .heads = 1, .key_heads = 1, .queries = 70, .keys = 70, .head_dim = 16, .value_dim = 16};
    graph g;
    build(g, type, e, any_mask(q >= 5 && kv >= 66 && kv < 69), {});
    const named_numbers found = run_on(g, device::cuda(), inputs_of(type, e));
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(found.at("lse")[i] == -std::numeric_limits<double>::infinity());
      for (std::size_t d = 0; d < 16; ++d) CHECK(std::fabs(found.at("out")[i * 16 + d]) + std::fabs(found.at("dQ")[i * 16 + d]) == 0);
    }
    for (std::size_t d = 0; d < 16; ++d) CHECK(std::fabs(found.at("dK")[65 * 16 + d]) + std::fabs(found.at("dV")[69 * 16 + d]) == 0);
  }
}

TEST_CASE("gpu attention: no keys give zeros and -infinity; no queries give key gradients of zero") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (dtype type : {bf16, f32})
    for (const auto& [queries, keys] : {std::pair<index_t, index_t>{5, 0}, {0, 5}, {0, 0}}) {
      const attention_extents e{.batch = 2, .heads = 2, .key_heads = 1, .queries = queries, .keys = keys, .head_dim = 16, .value_dim = 16};
      check_attention(type, e, any_mask(causal(), "causal"));
      check_attention(type, e, any_mask());
    }
}

TEST_CASE("gpu attention: large scores stay finite, and padded columns of the last tile take no part") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const attention_extents e{.batch = 1, .heads = 1, .key_heads = 1, .queries = 65, .keys = 65, .head_dim = 64, .value_dim = 64};
  check_attention(f32, e, any_mask(causal(), "causal"), -30.0);
}

TEST_CASE("gpu attention: a mask's numbers and tables change without a new kernel, and the results repeat bitwise") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  using namespace symbols;
  const attention_extents e{.batch = 1, .heads = 2, .key_heads = 1, .queries = 100, .keys = 100, .head_dim = 32, .value_dim = 32};
  const named_tensors inputs = inputs_of(bf16, e);
  std::vector<std::int32_t> ids = documents(100);
  auto docs = table(ids);
  graph g;
  build(g, bf16, e, any_mask(document_causal(docs)), {});
  executor run(make_plan(g, device::cuda()));
  for (const auto& [name, t] : inputs) run.bind(name, t);
  run.step();
  const auto first = numbers(run.output("dK"));
  run.step();
  CHECK(numbers(run.output("dK")) == first);
  graph other;
  std::vector<std::int32_t> one(100, 0);
  build(other, bf16, e, any_mask(document_causal(table(one))), {});
  CHECK(run_on(other, device::cuda(), inputs).at("dK") != first);
}

TEST_CASE("gpu attention: heads of more than 256 channels are refused, naming the count") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const attention_extents e{.queries = 3, .keys = 3, .head_dim = 264, .value_dim = 264};
  graph g;
  build(g, bf16, e, any_mask(), {});
  CHECK_THROWS_WITH_AS(run_on(g, device::cuda(), inputs_of(bf16, e)), doctest::Contains("heads of 264"), samite::error);
}

TEST_CASE("gpu attention: token-major tensors are read in place through their strides") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (dtype type : {bf16, f32}) {
    graph g;
    const value x = g.input("x", type, {2, 50, 3, 4, 32});  // [B, tokens, q k v, H, D]
    const auto part = [&](index_t i) { return transpose(reshape(slice(x, 2, i, 1), {2, 50, 4, 32}), {0, 2, 1, 3}); };
    const value t = transpose(x, {2, 0, 3, 1, 4});
    const value Q = part(0), K = part(1), V = part(2);
    const attention_result a = attention(Q, K, V, {.mask = causal()});
    g.output("out", contiguous(a.out));
    g.output("dx", contiguous(gradient(total(cast(a.out, f32)), {x})[0]));
    (void)t;
    const named_tensors inputs{{"x", random_tensor(type, {2, 50, 3, 4, 32}, 9)}};
    const named_numbers cpu = run_on(g, device::cpu(), inputs), gpu = run_on(g, device::cuda(), inputs);
    CHECK(difference(gpu.at("out"), cpu.at("out"), tolerance_of(type, 4)) == "");
    CHECK(difference(gpu.at("dx"), cpu.at("dx"), tolerance_of(type, 4, magnitude_of(cpu.at("dx")))) == "");
  }
}

TEST_CASE("gpu attention: heads beyond 256 channels are refused, naming the size") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  graph g;
  const value Q = g.input("Q", bf16, {1, 1, 4, 264});
  g.output("out", contiguous(attention(Q, Q, Q, {.label = "wide"}).out));
  executor run(make_plan(g, device::cuda()));
  run.bind("Q", tensor(bf16, {1, 1, 4, 264}));
  CHECK(unlike("E-ATTN-HEAD-DIM", {"\"wide\"", "264"}, [&] { run.step(); }) == "");
}
