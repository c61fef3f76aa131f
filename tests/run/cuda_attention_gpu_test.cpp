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
#include <samite/runtime/cuda_driver.hpp>

#include "support/attention_check.hpp"
#include "support/raised.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite_tests;
using testing::attention_extents;
using testing::difference;
using testing::tolerance_of;

namespace {

/// Forward and backward.
void check(dtype type, const attention_extents& e, const any_mask& mask, std::optional<double> scale = {}) {
  check_attention({.e = e, .type = type, .gradients = true, .scale = scale}, mask);
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
        check(type, e, any_mask(kv <= q + (keys - queries), "causal from the end"));
      }
}

TEST_CASE("gpu attention: head dims from 8 to 256, equal or not for keys and values") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const std::pair<index_t, index_t> dims[] = {{8, 8}, {16, 16}, {40, 40}, {80, 96}, {128, 128}, {160, 64}, {192, 128}, {256, 256}, {33, 7}};
  for (const auto& [head, value] : dims)
    for (dtype type : {bf16, f32}) {
      const attention_extents e{.batch = 1, .heads = 2, .key_heads = 1, .queries = 70, .keys = 130, .head_dim = head, .value_dim = value};
      check(type, e, any_mask());
    }
}

TEST_CASE("gpu attention: the widest heads in f16 and f64") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const attention_extents e{.batch = 1, .heads = 2, .key_heads = 1, .queries = 65, .keys = 100, .head_dim = 256, .value_dim = 256};
  check(f16, e, any_mask());
  check(f64, e, any_mask());
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
  for (const any_mask& mask : masks) check(bf16, e, mask);
  check(f32, e, masks[5]);
  check(f32, e, masks[11]);
  check(f32, e, masks[14]);
}

TEST_CASE("gpu attention: rows without a visible key give exact zeros and lse -infinity, and so do keys nobody sees") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  using namespace symbols;
  for (dtype type : {bf16, f32}) {
    const attention_extents e{.batch = 1, .heads = 1, .key_heads = 1, .queries = 70, .keys = 70, .head_dim = 16, .value_dim = 16};
    graph g;
    const attention_case c{.e = e, .type = type, .gradients = true};
    build(g, c, any_mask(q >= 5 && kv >= 66 && kv < 69));
    const named_numbers found = run_on(g, device::cuda(), inputs_of(c));
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
      check(type, e, any_mask(causal(), "causal"));
      check(type, e, any_mask());
    }
}

TEST_CASE("gpu attention: large scores stay finite, and padded columns of the last tile take no part") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const attention_extents e{.batch = 1, .heads = 1, .key_heads = 1, .queries = 65, .keys = 65, .head_dim = 64, .value_dim = 64};
  check(f32, e, any_mask(causal(), "causal"), -30.0);
}

TEST_CASE("gpu attention: a mask's numbers and tables change without a new kernel, and the results repeat bitwise") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  using namespace symbols;
  const attention_case c{.e = {.batch = 1, .heads = 2, .key_heads = 1, .queries = 100, .keys = 100, .head_dim = 32, .value_dim = 32}, .gradients = true};
  const named_tensors inputs = inputs_of(c);
  std::vector<std::int32_t> ids = documents(100);
  auto docs = table(ids);
  graph g;
  build(g, c, any_mask(document_causal(docs)));
  executor run(make_plan(g, device::cuda()));
  for (const auto& [name, t] : inputs) run.bind(name, t);
  run.step();
  const auto first = numbers(run.output("dK"));
  run.step();
  CHECK(numbers(run.output("dK")) == first);
  graph other;
  std::vector<std::int32_t> one(100, 0);
  build(other, c, any_mask(document_causal(table(one))));
  CHECK(run_on(other, device::cuda(), inputs).at("dK") != first);
}

TEST_CASE("gpu attention: heads of more than 256 channels are refused, naming the count") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const attention_case c{.e = {.queries = 3, .keys = 3, .head_dim = 264, .value_dim = 264}, .gradients = true};
  graph g;
  build(g, c, any_mask());
  CHECK_THROWS_WITH_AS(run_on(g, device::cuda(), inputs_of(c)), doctest::Contains("heads of 264"), samite::error);
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
