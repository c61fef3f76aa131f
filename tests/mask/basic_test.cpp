#include <doctest/doctest.h>

#include <samite/mask/basic.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::means;
using samite_tests::visible_keys;

static_assert(predicate_expr<decltype(full())> && predicate_expr<decltype(none())>);

TEST_CASE("full() keeps every pair and none() keeps no pair") {
  CHECK(means(full(), 2, 4) == std::vector<double>{1.5, 1.5});
  CHECK(means(none(), 2, 4) == std::vector<double>{-1, -1});
  CHECK(visible_keys(full() && kv < 2, 0, 4) == keys{0, 1});
}
