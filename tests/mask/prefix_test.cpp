#include <doctest/doctest.h>

#include <samite/mask/prefix.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::means;
using samite_tests::visible_keys;

TEST_CASE("prefix keeps the prefix for everyone and is causal behind it") {
  CHECK(means(prefix(3), 8, 8) == std::vector<double>{1, 1, 1, 1.5, 2, 2.5, 3, 3.5});
  for (index_t i = 0; i < 8; ++i) CHECK(visible_keys(prefix(3), i, 8) == visible_keys((q < 3 && kv < 3) || kv <= q, i, 8));
}

TEST_CASE("prefix takes a length per batch") {
  const auto lengths = table({1, 4});
  CHECK(visible_keys(prefix(lengths[b]), 0, 6, 0) == keys{0});
  CHECK(visible_keys(prefix(lengths[b]), 0, 6, 1) == keys{0, 1, 2, 3});
}

TEST_CASE("global_window: global tokens see all and are seen by all") {
  CHECK(visible_keys(global_window(1, 1), 0, 8) == keys{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(visible_keys(global_window(1, 1), 3, 8) == keys{0, 2, 3, 4});
  CHECK(visible_keys(global_window(1, 1), 7, 8) == keys{0, 6, 7});
  CHECK_THROWS_WITH_AS(global_window(1, -1), doctest::Contains("E-MASK-WINDOW"), error);
}

TEST_CASE("counts of tokens below 0 are refused") {
  CHECK_THROWS_WITH_AS(prefix(-1), doctest::Contains("prefix: -1 tokens; a count of tokens is 0 or more [E-MASK-LENGTHS]"), error);
  CHECK_THROWS_WITH_AS(prefix(scalar(-2)), doctest::Contains("E-MASK-LENGTHS"), error);
  CHECK_THROWS_WITH_AS(causal_bottom_right(-1, 5), doctest::Contains("causal_bottom_right, queries: -1"), error);
}
