#include <doctest/doctest.h>

#include <samite/mask/window.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::means;
using samite_tests::visible_keys;

TEST_CASE("window(3) lets a query see itself and the two keys before it") {
  CHECK(visible_keys(window(3), 4, 5) == keys{2, 3, 4});
  CHECK(visible_keys(window(3), 0, 5) == keys{0});
  CHECK(visible_keys(window(1), 2, 5) == keys{2});
}

TEST_CASE("window: widths below one are refused, naming the width") {
  CHECK_THROWS_WITH_AS(window(0), doctest::Contains("window(width=0)"), error);
  CHECK_THROWS_WITH_AS(window(-1), doctest::Contains("E-MASK-WINDOW"), error);
}

TEST_CASE("a width may come from a table, head by head") {
  const auto widths = table({1, 2, 4, 8});
  CHECK(means(window(widths[h]), 8, 8, 0, 0)[7] == 7);
  CHECK(means(window(widths[h]), 8, 8, 0, 1)[7] == 6.5);
  CHECK(means(window(widths[h]), 8, 8, 0, 2)[7] == 5.5);
  CHECK(means(window(widths[h]), 8, 8, 0, 3)[7] == 3.5);
}

TEST_CASE("window(left, right) includes both ends") {
  CHECK(visible_keys(window(2, 1), 4, 9) == keys{2, 3, 4, 5});
  CHECK(visible_keys(window(0, 0), 4, 9) == keys{4});
  CHECK_THROWS_WITH_AS(window(5, -1), doctest::Contains("right=-1"), error);
}

TEST_CASE("sink_window keeps the first keys and the latest ones") {
  const std::vector<keys> rows{{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}, {0, 1, 3, 4, 5}, {0, 1, 4, 5, 6}, {0, 1, 5, 6, 7}};
  for (index_t i = 0; i < 8; ++i) CHECK(visible_keys(sink_window(2, 3), i, 8) == rows[std::size_t(i)]);
  CHECK_THROWS_WITH_AS(sink_window(-1, 3), doctest::Contains("sinks=-1"), error);
}

TEST_CASE("neighborhood keeps exactly its width, also at the ends") {
  const auto starts = [](index_t width) {
    keys first;
    for (index_t i = 0; i < 8; ++i) {
      const keys seen = visible_keys(neighborhood(8, width), i, 8);
      CHECK(index_t(seen.size()) == width);
      first.push_back(seen[0]);
    }
    return first;
  };
  CHECK(starts(3) == keys{0, 0, 1, 2, 3, 4, 5, 5});
  CHECK(starts(4) == keys{0, 0, 0, 1, 2, 3, 4, 4});
  CHECK(starts(5) == keys{0, 0, 0, 1, 2, 3, 3, 3});
  CHECK_THROWS_WITH_AS(neighborhood(3, 4), doctest::Contains("length=3, width=4"), error);
}
