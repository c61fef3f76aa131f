// Every attention kernel once or twice on small shapes, against the oracle: what tests/sanitize_kernels.sh runs under compute-sanitizer, which
// makes kernels up to a hundred times slower. One test a path.
#include <doctest/doctest.h>

#include <samite/mask.hpp>
#include <samite/runtime/cuda_driver.hpp>

#include "support/attention_check.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite::symbols;
using namespace samite_tests;

namespace {

/// Tiles of all kinds, rows that see nothing, and keys past a tile's edge; a head a group and two.
void check_small(index_t D, index_t Dv, bool gradients, dtype type = bf16) {
  const any_mask masks[] = {any_mask(), any_mask(kv <= q + 20 && (q * 7 + kv * 3) % 11 != 0 && q != 4, "mostly causal")};
  for (const any_mask& mask : masks)
    for (const index_t group : {1, 2})
      check_attention({.e = {.batch = 1, .heads = 2 * group, .key_heads = 2, .queries = 150, .keys = 140 + 60 * group, .head_dim = D, .value_dim = Dv}, .type = type, .sink = !gradients, .gradients = gradients}, mask);
}

}  // namespace

TEST_CASE("gpu small: forward of every width") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (const auto& [D, Dv] : {std::pair<index_t, index_t>{64, 64}, {128, 128}, {192, 128}, {256, 256}}) check_small(D, Dv, false);
}

TEST_CASE("gpu small: gradients, heads to 128 channels") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  check_small(64, 64, true), check_small(128, 128, true);
}

TEST_CASE("gpu small: gradients, wider heads") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  check_small(192, 128, true), check_small(256, 256, true);
}

TEST_CASE("gpu small: gradients that repeat every bit") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const set_variable here("SAMITE_DETERMINISTIC", "1");
  check_small(64, 64, true), check_small(128, 128, true);
}

TEST_CASE("gpu small: portable, forward and gradients") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const set_variable here("SAMITE_ATTENTION", "portable");
  check_small(64, 64, true), check_small(128, 128, true), check_small(256, 256, true);
}

TEST_CASE("gpu small: real numbers of 32 and 64 bits") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  check_small(40, 24, true, f32), check_small(40, 24, true, f64);
}

TEST_CASE("gpu small: decoding with few rows and many, in parts") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const set_variable here("SAMITE_ATTENTION", "decode");
  for (const index_t D : {64, 128, 256})
    for (const index_t Q : {1, 5, 17})
      for (const any_mask& mask : {any_mask(), any_mask(kv <= q + 1000 && kv % 150 < 140 && q != 3, "holes")})
        check_attention({.e = {.batch = 1, .heads = 8, .key_heads = 2, .queries = Q, .keys = 1040, .head_dim = D, .value_dim = D}}, mask);
}
