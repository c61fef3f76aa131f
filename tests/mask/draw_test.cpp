#include <doctest/doctest.h>

#include <samite/mask.hpp>

using namespace samite;
using namespace samite::symbols;

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
