// Score functions and sinks on the GPU against the CPU, forward and backward, with the gradients of what they capture.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/jit/compiler.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/score/bias.hpp>
#include <samite/score/scale.hpp>
#include <samite/testing/compare.hpp>

#include "support/gpu.hpp"
#include "support/raised.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite::symbols;
using namespace samite_tests;
using testing::difference;
using testing::tolerance_of;

namespace {

struct sizes {
  index_t B = 2, H = 4, key_heads = 2, Q = 75, K = 130, D = 40;
};

/// A score function over one captured tensor of the given extents; none if they are empty.
struct score_case {
  const char* name;
  extents captured;
  std::function<any_score(const value&)> score;
  dtype captured_type = f32;
};

std::vector<score_case> cases(const sizes& s) {
  static const std::vector<std::int32_t> steps = [] {
    std::vector<std::int32_t> t(256);
    for (std::size_t i = 0; i < t.size(); ++i) t[i] = std::int32_t(i % 7);
    return t;
  }();
  const auto stair = table(steps);
  return {
      {"softcap", {}, [](const value&) { return any_score(softcap(2.0)); }},
      {"fixed alibi", {}, [s](const value&) { return alibi(s.H); }},
      {"temperature", {}, [](const value&) { return any_score(temperature(0.1, 16)); }},
      {"learned alibi", {s.H}, [](const value& slopes) { return any_score(alibi(slopes)); }},
      {"one number for all", {1}, [](const value& g) { return any_score(score * table(g)[0]); }},
      {"relative bias", {s.H, 65}, [](const value& bias) { return relative_bias(bias, 32); }},
      {"relative bias in bf16", {s.H, 65}, [](const value& bias) { return relative_bias(bias, 32); }, bf16},
      {"t5 bias", {s.H, 32}, [](const value& bias) { return t5_bias(bias); }},
      {"a bias of every pair", {s.B, s.H, s.Q, s.K}, [](const value& bias) { return any_score(full_bias(bias)); }},
      {"a bias a row", {s.Q}, [](const value& bias) { return any_score(score + table(bias)[q]); }},
      {"capped, branched and looked up twice", {s.H}, [stair](const value& slopes) {
         return any_score(3.0 * tanh((select(score < 0.0, score * 2.0, score) + table(slopes)[h] * real(stair[kv] - stair[q])) / 3.0) + table(slopes)[(h + 1) % 4] * cos(score));
       }},
  };
}

named_numbers run(device where, dtype type, const sizes& s, const any_mask& mask, const score_case& c, bool with_sink, std::vector<std::string>& names) {
  const dtype wide = type == f64 ? f64 : f32, captured = type == f64 ? f64 : c.captured_type;
  graph g;
  const value Q = g.input("Q", type, {s.B, s.H, s.Q, s.D}), K = g.input("K", type, {s.B, s.key_heads, s.K, s.D}), V = g.input("V", type, {s.B, s.key_heads, s.K, s.D});
  const value d_out = g.input("d_out", wide, {s.B, s.H, s.Q, s.D}), d_lse = g.input("d_lse", wide, {s.B, s.H, s.Q, index_t(1)});
  named_tensors inputs{{"Q", random_tensor(type, {s.B, s.H, s.Q, s.D}, 11)},
                       {"K", random_tensor(type, {s.B, s.key_heads, s.K, s.D}, 12)},
                       {"V", random_tensor(type, {s.B, s.key_heads, s.K, s.D}, 13)},
                       {"d_out", random_tensor(wide, {s.B, s.H, s.Q, s.D}, 14)},
                       {"d_lse", random_tensor(wide, {s.B, s.H, s.Q, 1}, 15)}};
  std::vector<value> wanted{Q, K, V};
  names = {"dQ", "dK", "dV"};
  attention_options o{.mask = mask};
  if (!c.captured.empty()) {
    wanted.push_back(g.input("captured", captured, shape(c.captured.begin(), c.captured.end())));
    inputs["captured"] = random_tensor(captured, c.captured, 16, -0.5, 0.5);
    names.push_back("dcaptured");
  }
  if (c.score) o.score = c.score(c.captured.empty() ? value() : wanted.back());
  if (with_sink) {
    wanted.push_back(o.sink = g.input("sink", captured, {s.H}));
    inputs["sink"] = random_tensor(captured, {s.H}, 17);
    names.push_back("dsink");
  }
  const attention_result a = attention(Q, K, V, o);
  const auto gradients = gradient(let(total(a.out * d_out) + total(a.lse * d_lse)), wanted);
  for (std::size_t i = 0; i < wanted.size(); ++i) g.output(names[i], contiguous(gradients[i]));
  g.output("out", contiguous(a.out)), g.output("lse", a.lse);
  names.insert(names.end(), {"out", "lse"});
  return run_on(g, where, inputs);
}

void compare(dtype type, const sizes& s, const any_mask& mask, const score_case& c, bool with_sink) {
  INFO(name_of(type), ", ", c.name, with_sink ? " with a sink" : "", ", mask ", mask.label());
  std::vector<std::string> names;
  const named_numbers cpu = run(device::cpu(), type, s, mask, c, with_sink, names), gpu = run(device::cuda(), type, s, mask, c, with_sink, names);
  const bool half = type == bf16 || type == f16;
  for (const std::string& name : names) {
    CAPTURE(name);
    const bool is_lse = name == "lse", summed = name == "dcaptured" || name == "dsink";
    const index_t terms = is_lse ? s.K + s.D : half ? 4 : summed ? s.B * s.Q * s.K : s.K + s.Q + s.D;
    CHECK(difference(gpu.at(name), cpu.at(name), tolerance_of(is_lse ? f32 : type, terms, magnitude_of(cpu.at(name)))) == "");
  }
}

}  // namespace

TEST_CASE("gpu scores: every score function agrees with the CPU, forward, backward and in the gradients of what it captures") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const sizes s;
  for (const dtype type : {f32, bf16, f64})
    for (const score_case& c : cases(s)) compare(type, s, any_mask(kv <= q + (s.K - s.Q), "causal"), c, false);
}

TEST_CASE("gpu scores: sinks take part in the softmax and learn, with and without a score function") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  sizes s;
  const std::vector<score_case> all = cases(s);
  const any_mask some_rows_empty = any_mask(kv <= q && q >= 9, "rows 0 to 8 are empty");
  for (const dtype type : {f32, bf16, f64}) {
    compare(type, s, some_rows_empty, {"no score function", {}, {}}, true);
    compare(type, s, some_rows_empty, all[5], true);
    compare(type, s, {}, all[10], true);
  }
  s.K = 0;
  compare(f32, s, {}, {"no score function and no key", {}, {}}, true);
}

TEST_CASE("gpu scores: wide heads and single queries") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (const index_t head : {index_t(128), index_t(192)}) {
    const sizes wide{.B = 1, .H = 2, .key_heads = 1, .Q = 65, .K = 65, .D = head}, single{.B = 1, .H = 2, .key_heads = 1, .Q = 1, .K = 65, .D = head};
    for (const sizes& s : {wide, single}) {
      const std::vector<score_case> all = cases({.B = 1, .H = s.H, .key_heads = 1, .Q = s.Q, .K = s.K, .D = s.D});
      for (const std::size_t i : {std::size_t(0), std::size_t(5)}) compare(bf16, s, {}, all[i], i == 5);
    }
  }
}

TEST_CASE("H12: gradients of captured tensors are the same bytes in every run on the GPU") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const sizes s{.B = 1, .H = 4, .key_heads = 4, .Q = 1024, .K = 1024, .D = 32};
  const score_case c{"relative bias", {4, 2047}, [](const value& bias) { return any_score(score + table(bias)(h, q - kv + 1023)); }};
  std::vector<std::string> names;
  std::vector<double> first, sink;
  for (int i = 0; i < 20; ++i) {
    const named_numbers found = run(device::cuda(), bf16, s, {}, c, true, names);
    if (i == 0) first = found.at("dcaptured"), sink = found.at("dsink");
    CHECK(found.at("dcaptured") == first);
    CHECK(found.at("dsink") == sink);
  }
}

TEST_CASE("gpu scores: a bias too large for order-free sums gets the right gradient as well") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const sizes s{.B = 1, .H = 4, .key_heads = 2, .Q = 800, .K = 800, .D = 16};
  compare(f32, s, causal(), {"a bias of every pair", {s.H, s.Q, s.K}, [](const value& bias) { return any_score(score + table(bias)(h, q, kv)); }}, false);
}

TEST_CASE("gpu scores: another number is not another kernel, and an index that leaves its tensor is refused") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const sizes s{.B = 1, .H = 2, .key_heads = 2, .Q = 33, .K = 33, .D = 16};
  const auto capped = [](double cap) { return score_case{"softcap", {}, [cap](const value&) { return any_score(softcap(cap)); }}; };
  std::vector<std::string> names;
  run(device::cuda(), f32, s, {}, capped(3.0), false, names);
  const auto before = kernel_cache::instance().counters();
  compare(f32, s, {}, capped(0.5), false);
  CHECK(kernel_cache::instance().counters().compiles == before.compiles);
  CHECK(unlike("E-SCORE-RANGE", {"from 0 to 31"}, [&] {
          run(device::cuda(), f32, s, {}, {"short", {32}, [](const value& bias) { return any_score(score + table(bias)[q]); }}, false, names);
        }) == "");
}
