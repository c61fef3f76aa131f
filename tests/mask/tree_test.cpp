#include <doctest/doctest.h>

#include <samite/mask/any_mask.hpp>
#include <samite/mask/tree.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::means;
using samite_tests::visible_keys;

TEST_CASE("a drafted token sees the prefix, its ancestors and itself") {
  // 0 has the children 1 and 3, 1 has the child 2, 3 has the child 4
  const auto ends = subtree_ends({-1, 0, 1, 0, 3});
  CHECK(ends == std::vector<index_t>{5, 3, 3, 5, 5});
  const auto mask = tree(3, table(ends));
  const std::vector<keys> rows{{0, 1, 2, 3}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 6}, {0, 1, 2, 3, 6, 7}};
  for (index_t i = 0; i < 5; ++i) CHECK(visible_keys(mask, i, 8) == rows[std::size_t(i)]);
}

TEST_CASE("several roots make a forest") {
  CHECK(subtree_ends({-1, 0, -1, 2}) == std::vector<index_t>{2, 2, 4, 4});
  CHECK(subtree_ends({}).empty());
}

TEST_CASE("nodes that are not in depth-first order are refused") {
  CHECK_THROWS_WITH_AS(subtree_ends({-1, 0, 0, 1}), doctest::Contains("number the nodes depth-first"), error);
  CHECK_THROWS_WITH_AS(subtree_ends({-1, 2, 0}), doctest::Contains("node 1 has parent 2"), error);
  CHECK_THROWS_WITH_AS(subtree_ends({-2}), doctest::Contains("E-MASK-TREE"), error);
}

TEST_CASE("an update of the ends is read as the formula says, and not checked again") {
  table_ref ends = table({3, 2, 3});
  const any_mask mask = tree(0, ends);
  ends.update(subtree_ends({-1, 0, 1}));
  CHECK(visible_keys(mask, 2, 3) == keys{0, 1, 2});
  ends.update({-1, 0, 0});  // parents: no node sees even itself
  CHECK(visible_keys(mask, 2, 3) == keys{});
}

TEST_CASE("ends that are not those of subtrees, and a negative prefix, are refused") {
  const auto made = [](index_t prefix, std::vector<index_t> ends) { return any_mask(tree(prefix, table(ends))); };
  CHECK_NOTHROW(made(0, {5, 3, 3, 5, 5}));
  CHECK_NOTHROW(made(2, {5, 3, 3, 5, 5, 0, 0}));                                                   // room for larger trees
  CHECK_NOTHROW(made(2, {0, 0}));
  CHECK_THROWS_WITH_AS(made(2, {1, 0, 3}), doctest::Contains("node 1 ends at 0"), error);
  CHECK_THROWS_WITH_AS(made(3, {-1, 0, 1, 0, 3}), doctest::Contains("node 0 ends at -1"), error);  // parents
  CHECK_THROWS_WITH_AS(made(3, {5, 3, 4, 5, 5}), doctest::Contains("from 3 to 3"), error);         // beyond the subtree around it
  CHECK_THROWS_WITH_AS(made(3, {6, 3, 3, 5, 5}), doctest::Contains("E-MASK-TREE"), error);         // beyond the nodes
  CHECK_THROWS_WITH_AS(made(-1, {1}), doctest::Contains("the prefix is -1"), error);
  CHECK_THROWS_WITH_AS(any_mask(tree(1, table({1, 2}, {1, 2}))), doctest::Contains("E-MASK-TREE"), error);
}
