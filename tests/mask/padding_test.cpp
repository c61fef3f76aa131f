#include <doctest/doctest.h>

#include <samite/mask/padding.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::means;
using samite_tests::visible_keys;

TEST_CASE("length keeps the first keys of each batch") {
  CHECK(visible_keys(length(3), 0, 8) == keys{0, 1, 2});
  const auto lengths = table({3, 8});
  CHECK(means(length(lengths), 1, 8, 0) == std::vector<double>{1});
  CHECK(means(length(lengths), 1, 8, 1) == std::vector<double>{3.5});
}

TEST_CASE("left_padding hides the first keys of each batch") {
  CHECK(visible_keys(left_padding(table({0, 2})), 0, 4, 1) == keys{2, 3});
}

TEST_CASE("length refuses a count below 0, as prefix does") {
  CHECK_THROWS_WITH_AS(length(-1), doctest::Contains("length: -1 tokens"), error);
  CHECK_THROWS_WITH_AS(length(scalar(-2)), doctest::Contains("E-MASK-LENGTHS"), error);
}
