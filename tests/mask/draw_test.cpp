#include <doctest/doctest.h>

#include <limits>

#include <samite/mask.hpp>

#include "support/raised.hpp"

using namespace samite;
using namespace samite::symbols;
using samite_tests::unlike;

TEST_CASE("draw shows one character a pair") {
  CHECK(draw(window(2), 3, 4) ==
        "  0\n"
        "0 #...\n"
        "1 ##..\n"
        "2 .##.\n");
  CHECK(draw(causal(), 2, 2, {.with_scale = false}) == "#.\n##\n");
}

TEST_CASE("draw shows any part of the matrix, of any batch and head") {
  CHECK(draw(kv <= q + 4 * h + b, 1, 8, {.b = 1, .h = 1, .first_q = 100, .first_kv = 102, .with_scale = false}) == "####....\n");
}

TEST_CASE("a large mask is shown by tiles: all kept, a part, none") {
  CHECK(draw(causal(), 4096, 4096, {.columns = 4, .lines = 4, .with_scale = false}) == "+...\n#+..\n##+.\n###+\n");
  CHECK(draw(causal(), 4096, 4096, {.columns = 4, .lines = 4}).find("1024 x 1024 pairs") != std::string::npos);
}

TEST_CASE("the scale numbers every tenth column and every row") {
  const std::string text = draw(full(), 11, 12);
  CHECK(text.substr(0, text.find('\n')) == "   0         10");
  CHECK(text.find("\n10 ############\n") != std::string::npos);
}

TEST_CASE("draw refuses an empty range, and a table that is too short") {
  CHECK_THROWS_WITH_AS(draw(causal(), 0, 4), doctest::Contains("E-MASK-DRAW"), error);
  CHECK_THROWS_WITH_AS(draw(document(table({0, 0})), 4, 4), doctest::Contains("E-MASK-TABLE-RANGE"), error);
}

TEST_CASE("draw takes any size of picture, and refuses numbers that can't be added up, naming what is wrong") {
  constexpr index_t most = std::numeric_limits<index_t>::max();
  CHECK(draw(causal(), 3, 3, {.columns = most, .lines = most, .with_scale = false}) == "#..\n##.\n###\n");
  CHECK(draw(causal(), 1, 4, {.first_q = index_t(1) << 40, .first_kv = (index_t(1) << 40) - 2, .with_scale = false}) == "###.\n");
  CHECK(unlike("E-MASK-DRAW", {"rows from 9223372036854775805", "2^40"}, [] { draw(causal(), 5, 5, {.first_q = most - 2}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {"2^40"}, [] { draw(causal(), most, 5); }) == "");
  CHECK(unlike("E-MASK-DRAW", {"columns = 0", "lines = 64"}, [] { draw(causal(), 5, 5, {.columns = 0}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {"head h = -1"}, [] { draw(causal(), 5, 5, {.h = -1}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {"2^26 characters"}, [] { draw(causal(), index_t(1) << 40, index_t(1) << 40, {.columns = most, .lines = most}); }) == "");
}
