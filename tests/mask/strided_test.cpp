#include <doctest/doctest.h>

#include <samite/mask/strided.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::means;
using samite_tests::visible_keys;

TEST_CASE("dilated keeps every step-th key of the window") {
  const std::vector<keys> rows{{0}, {1}, {0, 2}, {1, 3}, {0, 2, 4}, {1, 3, 5}, {2, 4, 6}, {3, 5, 7}};
  for (index_t i = 0; i < 8; ++i) CHECK(visible_keys(dilated(5, 2), i, 8) == rows[std::size_t(i)]);
}

TEST_CASE("strided keeps the latest keys and every step-th one before") {
  CHECK(visible_keys(strided(3), 7, 9) == keys{1, 4, 5, 6, 7});
}

TEST_CASE("steps and widths below one are refused") {
  CHECK_THROWS_WITH_AS(dilated(5, 0), doctest::Contains("step=0"), error);
  CHECK_THROWS_WITH_AS(strided(0), doctest::Contains("E-MASK-STRIDE"), error);
}
