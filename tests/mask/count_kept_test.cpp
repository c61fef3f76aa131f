#include <doctest/doctest.h>

#include <samite/mask/count_kept.hpp>
#include <samite/mask/window.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;

TEST_CASE("the kept pairs of causal, window and per-head masks, in tiles of any size") {
  CHECK(count_kept(kv <= q, {.B = 2, .H = 3, .Q = 10, .K = 10, .tile_q = 4, .tile_k = 3}) == 6 * 55);
  CHECK(count_kept(kv <= q, {.Q = 1 << 14, .K = 1 << 14}) == (index_t(1) << 14) * ((1 << 14) + 1) / 2);
  const auto widths = table({1, 3});
  CHECK(count_kept(window(widths[h]), {.B = 2, .H = 2, .Q = 5, .K = 5, .tile_q = 2, .tile_k = 2}) == 2 * (5 + 12));
  CHECK(count_kept(kv < table({2, 0})[b], {.B = 2, .H = 4, .Q = 3, .K = 5}) == 4 * 3 * 2);
}

TEST_CASE("full tiles are counted by their size, however large; more than 2^62 pairs are refused") {
  constexpr index_t large = index_t(1) << 30;
  CHECK(count_kept(any_mask(), {.Q = large, .K = large, .tile_q = large, .tile_k = large}) == index_t(1) << 60);
  CHECK(count_kept(kv <= 5 && q < 3, {.Q = 10, .K = index_t(1) << 18, .tile_q = 128, .tile_k = index_t(1) << 40}) == 18);
  CHECK_THROWS_WITH_AS(count_kept(any_mask(), {.B = 8, .Q = large, .K = large}), doctest::Contains("E-MASK-TILE"), error);
}
