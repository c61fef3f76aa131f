#include <doctest/doctest.h>

#include <samite/mask/causal.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::means;
using samite_tests::visible_keys;

static_assert(predicate_expr<decltype(causal())>, "causal() is a predicate");

TEST_CASE("causal() keeps keys up to the query's own index, also if there are more or fewer keys") {
  CHECK(means(causal(), 4, 6) == std::vector<double>{0, 0.5, 1, 1.5});
  CHECK(means(causal(), 6, 4) == std::vector<double>{0, 0.5, 1, 1.5, 1.5, 1.5});
}

TEST_CASE("causal_bottom_right lets the last query see the last key") {
  CHECK(means(causal_bottom_right(2), 4, 6) == std::vector<double>{1, 1.5, 2, 2.5});
  CHECK(means(causal_bottom_right(-2), 6, 4) == std::vector<double>{-1, -1, 0, 0.5, 1, 1.5});
  CHECK(means(causal_bottom_right(4, 6), 4, 6) == std::vector<double>{1, 1.5, 2, 2.5});
}

TEST_CASE("the offset of causal_bottom_right may change from run to run and from batch to batch") {
  scalar past(0);
  const auto mask = causal_bottom_right(past);
  CHECK(visible_keys(mask, 0, 4) == keys{0});
  past.set(2);
  CHECK(visible_keys(mask, 0, 4) == keys{0, 1, 2});
  const auto per_batch_offset = causal_bottom_right(table({0, 1})[b]);
  CHECK(visible_keys(per_batch_offset, 0, 4, 0) == keys{0});
  CHECK(visible_keys(per_batch_offset, 0, 4, 1) == keys{0, 1});
}

TEST_CASE("causal_by_position compares positions and not indices") {
  const auto mask = causal_by_position(table({5, 2}), table({0, 2, 3, 6}));
  CHECK(visible_keys(mask, 0, 4) == keys{0, 1, 2});
  CHECK(visible_keys(mask, 1, 4) == keys{0, 1});
}
