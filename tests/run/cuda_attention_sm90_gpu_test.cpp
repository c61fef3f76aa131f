// The kernels for sm_90a against the portable one and the CPU backend. On other devices both sides are the portable kernels.
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include <samite/core/random.hpp>
#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/ir/tensor_ops.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/runtime/cuda_driver.hpp>
#include <samite/score/bias.hpp>
#include <samite/score/scale.hpp>
#include <samite/testing/compare.hpp>

#include "run/attention_results.hpp"
#include "support/gpu.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite::symbols;
using namespace samite_tests;
using testing::difference;
using testing::tolerance_of;

TEST_CASE("gpu attention: random sizes, strides and masks agree with the CPU, on the kernel for sm_90a and on the portable one") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const std::uint64_t seed = 2026;
  CAPTURE(seed);
  counted_random random(seed, 1);
  const auto pick = [&](std::initializer_list<index_t> from) { return *(from.begin() + random.below(std::uint32_t(from.size()))); };
  scalar shift = 0;
  std::vector<std::int32_t> ids(1000);
  table_ref documents = table(ids);
  const std::vector<any_mask> masks{any_mask(), any_mask(kv <= q + shift, "shifted"), any_mask(kv <= q && q - kv < 40 && documents[q] == documents[kv], "documents"),
                                    any_mask((q * 7 + kv * 3 + h) % 5 != 0, "scattered by head"), any_mask(kv < 30 * (b + 1) && q % 9 != 4, "lengths and empty rows")};
  for (int i = 0; i < 60; ++i) {
    const index_t group = pick({1, 2, 4});
    const sizes s{pick({1, 2, 3}), 2 * group, 2, pick({1, 2, 63, 64, 65, 128, 129, 191, 193, 300}), pick({1, 5, 64, 127, 128, 129, 257, 400}), pick({8, 16, 40, 64, 72, 96, 128, 192, 256}), pick({8, 64, 80, 128, 256})};
    const dtype type = random.below(2) == 0 ? bf16 : f16;
    const any_mask& mask = masks[random.below(std::uint32_t(masks.size()))];
    const bool token_major = random.below(2) == 0;
    shift.set(s.K - s.Q);
    for (std::size_t j = 0; j < ids.size(); ++j) ids[j] = std::int32_t(j / std::size_t(20 + i));
    documents.update(ids);
    const std::vector<index_t> drawn{s.B, s.H, s.G, s.Q, s.K, s.D, s.Dv};
    INFO("B H G Q K D Dv ", concat_text(drawn), ", ", std::string(name_of(type)), ", mask ", mask.label(), token_major ? ", token-major" : "");
    const named_numbers expected = results(device::cpu(), type, s, mask, token_major);
    check_equal(results(device::cuda(), type, s, mask, token_major), expected, type, s.K + s.D);
    if (i % 6 != 0) continue;
    const set_variable here("SAMITE_ATTENTION", "portable");
    check_equal(results(device::cuda(), type, s, mask, token_major), expected, type, s.K + s.D);
  }
}

TEST_CASE("gpu attention: with several items a block results are right, and the same bytes in every run") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 1100; ++i) ids.push_back(i / 300);
  const any_mask packed = any_mask(document_causal(table(ids)));
  for (const index_t D : {64, 128, 256}) {
    CAPTURE(D);
    const sizes s{4, 16, 4, 1100, 1100, D, D};
    const named_numbers first = results(device::cuda(), bf16, s, packed, false);
    for (int run = 0; run < 3; ++run) {
      const named_numbers again = results(device::cuda(), bf16, s, packed, false);
      CHECK(again.at("out") == first.at("out"));
      CHECK(again.at("lse") == first.at("lse"));
    }
    const set_variable here("SAMITE_ATTENTION", "portable");
    check_equal(first, results(device::cuda(), bf16, s, packed, false), bf16, s.K + s.D);
  }
}

TEST_CASE("gpu attention: tiles of which a warpgroup needs the left half, the right one, both or none agree with the CPU, in any order") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const std::uint64_t seed = 2029;
  CAPTURE(seed);
  counted_random random(seed, 1);
  constexpr index_t Q = 449, K = 1101, rows = (Q + 63) / 64, columns = (K + 63) / 64;
  // Of 64 x 64 pairs: none, all, some, a few columns.
  table_ref kinds = table(std::vector<index_t>(std::size_t(rows * columns), 0), {rows, columns});
  const auto kind = kinds(q / 64, kv / 64);
  const any_mask mask(kind == 1 || (kind == 2 && (q * 5 + kv * 3) % 7 < 4) || (kind == 3 && kv % 64 < 20), "blocks of half a tile");
  for (int i = 0; i < 24; ++i) {
    const index_t D = std::vector<index_t>{64, 128, 72, 192}[std::size_t(i % 4)], Dv = D == 192 ? 128 : D, group = i % 3 == 2 ? 2 : 1, likely = index_t(random.below(9));
    std::vector<index_t> drawn;
    for (index_t j = 0; j < rows * columns; ++j) drawn.push_back(index_t(random.below(9)) < likely ? 1 + index_t(random.below(3)) : 0);
    kinds.update(drawn);
    const sizes s{1, 2 * group, 2, Q, K, D, Dv};
    CAPTURE(i);
    const any_score functions[] = {{}, {}, any_score(softcap(2.0)), any_score(alibi(2 * group))};
    const any_score& function = functions[i / 4 % 4];
    const named_numbers expected = results(device::cpu(), bf16, s, mask, false, false, function), found = results(device::cuda(), bf16, s, mask, false, false, function);
    check_equal(found, expected, bf16, s.K + s.D);
    const named_numbers again = results(device::cuda(), bf16, s, mask, false, false, function);
    CHECK(again.at("out") == found.at("out"));
    CHECK(again.at("lse") == found.at("lse"));
  }
}

TEST_CASE("gpu attention: capped scores agree with the CPU, where all are at the cap, where none comes near, and where the cap is too high for weights that no row's largest one divides") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const any_mask mask(kv <= q && q % 9 != 4, "causal with empty rows");
  for (const double cap : {0.5, 30.0, 50.0, 80.0, 3000.0})
    for (const index_t D : {64, 128}) {
      CAPTURE(cap);
      CAPTURE(D);
      const sizes s{1, 4, 2, 500, 700, D, D};
      for (const any_score& function : {any_score(softcap(cap)), any_score(cap * tanh(score * 9.0)), any_score(cap * tanh(score / cap - 9.0)), any_score(-cap * tanh(score / cap))}) {
        INFO(function.label());
        const named_numbers found = results(device::cuda(), bf16, s, mask, false, false, function), expected = results(device::cpu(), bf16, s, mask, false, false, function);
        // tanh is right to 2^-11 there: nothing is said of weights where that is more than bf16 rounds.
        if (cap < 100) CHECK(difference(found.at("out"), expected.at("out"), tolerance_of(bf16, 8)) == "");
        CHECK(difference(found.at("lse"), expected.at("lse"), {1e-3 * cap + 1e-4, 1e-4}) == "");
      }
    }
}

TEST_CASE("gpu attention: gradients of random sizes, strides and masks agree with the CPU, deterministic, fused and portable") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const std::uint64_t seed = 2027;
  CAPTURE(seed);
  counted_random random(seed, 1);
  const auto pick = [&](std::initializer_list<index_t> from) { return *(from.begin() + random.below(std::uint32_t(from.size()))); };
  scalar shift = 0;
  std::vector<std::int32_t> ids(3000);
  table_ref documents = table(ids);
  const std::vector<any_mask> masks{any_mask(), any_mask(kv <= q + shift, "shifted"), any_mask(kv <= q && q - kv < 40 && documents[q] == documents[kv], "documents"),
                                    any_mask((q * 7 + kv * 3 + h) % 5 != 0, "scattered by head"), any_mask(kv < 30 * (b + 1) && q % 9 != 4, "lengths and empty rows")};
  for (int i = 0; i < 40; ++i) {
    const index_t group = pick({1, 2, 4});
    const bool many = i % 8 == 7;  // queries: the fused form where it serves
    const sizes s{pick({1, 2}), 2 * group, 2, many ? 2085 : pick({1, 2, 63, 64, 65, 128, 129, 191, 300}), pick({1, 5, 64, 127, 128, 129, 257, 400}), pick({8, 16, 40, 64, 72, 96, 128, 192, 256}), pick({8, 64, 80, 128, 256})};
    const dtype type = random.below(2) == 0 ? bf16 : f16;
    const any_mask& mask = many ? masks[std::size_t(i % 16 == 7 ? 0 : 3)] : masks[random.below(std::uint32_t(masks.size()))];
    const bool token_major = random.below(2) == 0;
    shift.set(s.K - s.Q);
    for (std::size_t j = 0; j < ids.size(); ++j) ids[j] = std::int32_t(j / std::size_t(20 + i));
    documents.update(ids);
    const std::vector<index_t> drawn{s.B, s.H, s.G, s.Q, s.K, s.D, s.Dv};
    INFO("B H G Q K D Dv ", concat_text(drawn), ", ", std::string(name_of(type)), ", mask ", mask.label(), token_major ? ", token-major" : "");
    const named_numbers expected = results(device::cpu(), type, s, mask, token_major, true);
    check_gradients(results(device::cuda(), type, s, mask, token_major, true), expected, type, s.K + s.D);
    if (many) {
      const set_variable here("SAMITE_DETERMINISTIC", "1");
      check_gradients(results(device::cuda(), type, s, mask, token_major, true), expected, type, s.K + s.D);
    }
    if (i % 6 != 0) continue;
    const set_variable here("SAMITE_ATTENTION", "portable");
    check_gradients(results(device::cuda(), type, s, mask, token_major, true), expected, type, s.K + s.D);
  }
}

// Each kernel is compiled once and meets several sizes and masks.
static void compare_scores(dtype type, index_t D, index_t Dv, std::uint64_t seed) {
  CAPTURE(seed);
  counted_random random(seed, 1);
  const auto pick = [&](std::initializer_list<index_t> from) { return *(from.begin() + random.below(std::uint32_t(from.size()))); };
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 3000; ++i) ids.push_back(i / 70);
  const auto documents = table(ids);
  const std::vector<any_mask> masks{any_mask(kv <= q, "causal"), any_mask(kv <= q && q - kv < 90 && documents[q] == documents[kv], "documents"), any_mask(), any_mask((q * 7 + kv * 3 + h) % 5 != 0 && q % 9 != 4, "scattered")};
  struct function {
    const char* name;
    bool captures;
    any_score (*make)(index_t heads, const value& captured);
    int masks = 4;  // those that it is defined for
  };
  const function functions[] = {
      {"softcap", false, [](index_t, const value&) { return any_score(softcap(2.0)); }},
      {"alibi", false, [](index_t heads, const value&) { return alibi(heads); }},
      {"temperature", false, [](index_t, const value&) { return any_score(temperature(0.3, 16)); }},
      {"learned slopes", true, [](index_t, const value& slopes) { return any_score(alibi(slopes)); }},
      {"learned scale and cap", true, [](index_t, const value& s) { return any_score(3.0 * tanh((score * table(s)[h] + table(s)[0] * (kv - q)) / 3.0)); }},
      {"logarithm of distance", true, [](index_t, const value& s) { return any_score(score - table(s)[h] * log(real(q - kv + 1))); }, 2},  // no number where causal hides
      {"relative", true, [](index_t, const value& s) { return any_score(score + table(s)[min(max(q - kv, 0), 1)]); }},
  };
  for (const function& f : functions)
    for (int i = 0; i < 4; ++i) {
      const index_t group = pick({1, 2, 4});
      const bool is_long = i == 3;
      const sizes s{pick({1, 2}), 2 * group, 2, is_long ? 1085 : pick({1, 2, 63, 65, 128, 191, 300}), is_long ? 1085 : pick({1, 5, 64, 127, 129, 257, 400}), D, Dv};
      const any_mask& mask = masks[random.below(std::uint32_t(f.masks))];
      const std::vector<index_t> drawn{s.B, s.H, s.G, s.Q, s.K, s.D, s.Dv};
      INFO(std::string(f.name), ", B H G Q K D Dv ", concat_text(drawn), ", ", std::string(name_of(type)), ", mask ", mask.label());
      const auto found = [&](device where) {
        graph g;
        const value Q = g.input("Q", type, {s.B, s.H, s.Q, s.D}), K = g.input("K", type, {s.B, s.G, s.K, s.D}), V = g.input("V", type, {s.B, s.G, s.K, s.Dv});
        const value d_out = g.input("d_out", type, {s.B, s.H, s.Q, s.Dv}), captured = g.input("captured", f32, {s.H});
        attention_options options{.mask = mask, .score = f.make(s.H, captured), .sink = g.input("sink", f32, {s.H})};
        const attention_result a = attention(Q, K, V, options);
        std::vector<value> wanted{Q, K, V, options.sink};
        if (f.captures) wanted.push_back(captured);
        const auto made = gradient(total(cast(a.out, f32) * cast(d_out, f32)), wanted);
        const char* names[] = {"dQ", "dK", "dV", "d_sink", "d_captured"};
        for (std::size_t j = 0; j < wanted.size(); ++j) g.output(names[j], contiguous(made[j]));
        g.output("out", contiguous(a.out)), g.output("lse", a.lse);
        return run_on(g, where, {{"Q", random_tensor(type, {s.B, s.H, s.Q, s.D}, 1)}, {"K", random_tensor(type, {s.B, s.G, s.K, s.D}, 2)}, {"V", random_tensor(type, {s.B, s.G, s.K, s.Dv}, 3)},
                                 {"d_out", random_tensor(type, {s.B, s.H, s.Q, s.Dv}, 4)}, {"captured", random_tensor(f32, {s.H}, 5, 0.1, 0.5)}, {"sink", random_tensor(f32, {s.H}, 6)}});
      };
      const named_numbers expected = found(device::cpu()), gpu = found(device::cuda());
      check_gradients(gpu, expected, type, s.K + s.D);
      if (f.captures) {
        CHECK(difference(gpu.at("d_captured"), expected.at("d_captured"), tolerance_of(type, 4, magnitude_of(expected.at("d_captured")))) == "");
      } else if (i % 2 == 1) {  // with captured elements the deterministic kernels are the only ones
        const set_variable repeat("SAMITE_DETERMINISTIC", "1");
        check_gradients(found(device::cuda()), expected, type, s.K + s.D);
      }
    }
}

TEST_CASE("gpu attention: score functions agree with the CPU, forward, backward and in what they capture, heads of 128 channels") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  compare_scores(bf16, 128, 128, 2028);
}

TEST_CASE("gpu attention: score functions agree with the CPU, forward, backward and in what they capture, heads of 64 channels") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  compare_scores(f16, 64, 64, 2029);
}

TEST_CASE("gpu attention: score functions agree with the CPU, forward, backward and in what they capture, heads of 192 and 72 channels") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  compare_scores(bf16, 192, 72, 2030);
}

TEST_CASE("gpu attention: gradients of long sequences agree with the portable kernels, and deterministic ones are the same bytes in every run") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 2900; ++i) ids.push_back(i / 1300);
  const any_mask packed = any_mask(document_causal(table(ids))), triangle = any_mask(causal());
  for (const index_t D : {64, 128, 256}) {
    CAPTURE(D);
    for (const any_mask& mask : {packed, triangle, any_mask()}) {
      INFO("mask ", mask.label());
      const sizes s{1, 8, 4, 2900, 2900, D, D};
      const named_numbers fused = results(device::cuda(), bf16, s, mask, false, true);
      {
        const set_variable here("SAMITE_ATTENTION", "portable");
        check_gradients(fused, results(device::cuda(), bf16, s, mask, false, true), bf16, s.K + s.D);
      }
      const set_variable here("SAMITE_DETERMINISTIC", "1");
      const named_numbers first = results(device::cuda(), bf16, s, mask, false, true), again = results(device::cuda(), bf16, s, mask, false, true);
      check_gradients(first, fused, bf16, s.K + s.D);
      for (const char* name : {"dQ", "dK", "dV", "d_sink"}) CHECK(again.at(name) == first.at(name));
    }
  }
}
