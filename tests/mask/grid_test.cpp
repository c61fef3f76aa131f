#include <doctest/doctest.h>

#include <samite/mask/grid.hpp>
#include <samite/mask/tile_map.hpp>

#include "support/masks.hpp"
#include "support/raised.hpp"

using namespace samite;
using samite_tests::visible_keys;

TEST_CASE("a neighbourhood in an image holds window x window keys, clamped by each axis's own length") {
  // An image that is not square: rows clamped by the width would sit elsewhere.
  const index_t height = 8, width = 4;
  const any_mask mask = neighborhood_2d({.height = height, .width = width, .window_height = 3, .window_width = 3});
  const auto start = [](index_t at, index_t length) { return std::min(std::max<index_t>(at - 1, 0), length - 3); };
  for (index_t token = 0; token < height * width; ++token) {
    std::vector<index_t> expected;
    for (index_t y = start(token / width, height); y < start(token / width, height) + 3; ++y)
      for (index_t x = start(token % width, width); x < start(token % width, width) + 3; ++x) expected.push_back(y * width + x);
    CAPTURE(token);
    CHECK(visible_keys(mask, token, height * width) == expected);
  }
}

TEST_CASE("windows that don't fit the image are refused") {
  CHECK(samite_tests::unlike("E-MASK-WINDOW", {"3 x 5", "8 x 4"}, [] { neighborhood_2d({8, 4, 3, 5}); }) == "");
  CHECK(samite_tests::unlike("E-MASK-WINDOW", {}, [] { neighborhood_2d({8, 4, 0, 3}); }) == "");
}

TEST_CASE("tiles of an image's neighbourhood are skipped where the rows are far apart") {
  const tile_map map(neighborhood_2d({64, 64, 7, 7}), {.Q = 4096, .K = 4096});
  CHECK(map.counts().empty > map.counts().undecided * 4);
}
