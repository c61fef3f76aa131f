// The forward kernel for sm_90a against the portable one and the CPU backend. On other devices both sides are the portable kernel.
#include <doctest/doctest.h>

#include <cstdlib>
#include <optional>
#include <vector>

#include <samite/core/random.hpp>
#include <samite/expr/tensor.hpp>
#include <samite/ir/tensor_ops.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/runtime/cuda_driver.hpp>
#include <samite/testing/compare.hpp>

#include "support/gpu.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite::symbols;
using namespace samite_tests;
using testing::difference;
using testing::tolerance_of;

namespace {

/// While it lives, backends that are made use the portable kernels.
struct portable_attention {
  portable_attention() { ::setenv("SAMITE_ATTENTION", "portable", 1); }
  ~portable_attention() { ::unsetenv("SAMITE_ATTENTION"); }
};

struct sizes {
  index_t B, H, G, Q, K, D, Dv;
};

named_numbers forward(device where, dtype type, const sizes& s, const any_mask& mask, bool token_major) {
  graph g;
  const auto operand = [&](const char* name, index_t heads, index_t rows, index_t channels) {
    if (!token_major) return g.input(name, type, {s.B, heads, rows, channels});
    return transpose(g.input(name, type, {s.B, rows, heads, channels}), {0, 2, 1, 3});
  };
  const attention_result a = attention(operand("Q", s.H, s.Q, s.D), operand("K", s.G, s.K, s.D), operand("V", s.G, s.K, s.Dv), {.mask = mask});
  g.output("out", contiguous(a.out)), g.output("lse", a.lse);
  const auto filled = [&](index_t heads, index_t rows, index_t channels, std::uint32_t purpose) {
    return random_tensor(type, token_major ? extents{s.B, rows, heads, channels} : extents{s.B, heads, rows, channels}, purpose);
  };
  return run_on(g, where, {{"Q", filled(s.H, s.Q, s.D, 1)}, {"K", filled(s.G, s.K, s.D, 2)}, {"V", filled(s.G, s.K, s.Dv, 3)}});
}

void check_equal(const named_numbers& found, const named_numbers& expected, dtype type, index_t terms) {
  CHECK(difference(found.at("out"), expected.at("out"), tolerance_of(type, 4)) == "");
  CHECK(difference(found.at("lse"), expected.at("lse"), tolerance_of(f32, terms, 8)) == "");
}

}  // namespace

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
    const named_numbers expected = forward(device::cpu(), type, s, mask, token_major);
    check_equal(forward(device::cuda(), type, s, mask, token_major), expected, type, s.K + s.D);
    if (i % 6 != 0) continue;
    const portable_attention here;
    check_equal(forward(device::cuda(), type, s, mask, token_major), expected, type, s.K + s.D);
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
    const named_numbers first = forward(device::cuda(), bf16, s, packed, false);
    for (int run = 0; run < 3; ++run) {
      const named_numbers again = forward(device::cuda(), bf16, s, packed, false);
      CHECK(again.at("out") == first.at("out"));
      CHECK(again.at("lse") == first.at("lse"));
    }
    const portable_attention here;
    check_equal(first, forward(device::cuda(), bf16, s, packed, false), bf16, s.K + s.D);
  }
}
