#include <doctest/doctest.h>

#include <algorithm>

#include <samite/core/random.hpp>
#include <samite/expr/table.hpp>

using namespace samite;

namespace {
constexpr interval zero{0, 0};
}

TEST_CASE("the range of a stretch of a table is the smallest and largest value in it, whatever the order") {
  counted_random random(3, 1);
  MESSAGE("seed 3");
  for (int round = 0; round < 40; ++round) {
    const index_t rows = 1 + random.below(3), length = 1 + random.below(200);
    std::vector<int> values(std::size_t(rows * length));
    for (int& v : values) v = int(random.below(50)) - 10;
    if (round % 2) std::sort(values.begin(), values.end());
    const auto contents = table(values, {rows, length}).contents();
    for (int i = 0; i < 50; ++i) {
      const index_t row = random.below(std::uint32_t(rows)), low = random.below(std::uint32_t(length)), high = low + random.below(std::uint32_t(length - low));
      const table_range found = contents->range(zero, interval::point(row), {low, high});
      const auto first = values.begin() + row * length + low, last = values.begin() + row * length + high + 1;
      REQUIRE(found.values == interval{*std::min_element(first, last), *std::max_element(first, last)});
      for (auto at = first; at != last; ++at) REQUIRE((found.residues & detail::residue_bit(*at)) != 0);
    }
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    CHECK(contents->whole().values == interval{*least, *most});
    CHECK(contents->range(zero, {0, rows - 1}, {0, length - 1}).values == interval{*least, *most});
  }
}

TEST_CASE("a table knows whether its rows never fall") {
  CHECK(table({0, 0, 1, 5}).contents()->is_non_decreasing());
  CHECK_FALSE(table({0, 1, -1}).contents()->is_non_decreasing());
  const auto two = table({0, 1, 1, 0}, {2, 2}).contents();
  CHECK(two->is_non_decreasing(0));
  CHECK_FALSE(two->is_non_decreasing(1));
}

TEST_CASE("strides read a table out of another layout") {
  const std::vector<int> columns{1, 4, 2, 5, 3, 6};  // 2 x 3, column-major
  CHECK(table(columns, {2, 3}, {1, 2}).contents()->values() == std::vector<std::int32_t>{1, 2, 3, 4, 5, 6});
  const std::vector<int> row{7, 8};
  CHECK(table(row, {3, 2}, {0, 1}).contents()->values() == std::vector<std::int32_t>{7, 8, 7, 8, 7, 8});
}

TEST_CASE("an update replaces the contents and counts up the version; old snapshots stay") {
  auto docs = table({1, 2, 3});
  const auto before = docs.contents();
  docs.update(std::vector<int>{4, 5});
  CHECK(before->values() == std::vector<std::int32_t>{1, 2, 3});
  CHECK(docs.contents()->values() == std::vector<std::int32_t>{4, 5});
  CHECK(docs.contents()->version() == before->version() + 1);
}

TEST_CASE("an update keeps the rank and the capacity") {
  auto docs = table({1, 2, 3});
  CHECK_THROWS_WITH_AS(docs.update(std::vector<int>{1, 2}, {1, 2}), doctest::Contains("E-MASK-TABLE-RANK"), error);
  CHECK_THROWS_WITH_AS(docs.update(std::vector<int>{1, 2, 3, 4}), doctest::Contains("call reserve(4)"), error);
  CHECK_THROWS_WITH_AS(docs.update(std::vector<int>{1, 2, 3, 4}), doctest::Contains("E-MASK-TABLE-CAPACITY"), error);
  docs.reserve(4);
  docs.update(std::vector<int>{1, 2, 3, 4});
  CHECK(docs.dims() == std::vector<index_t>{4});
}

TEST_CASE("shapes and values that don't fit are refused") {
  const std::vector<index_t> values{1, 2, 3, 4};
  CHECK_THROWS_WITH_AS(table(values, {3}), doctest::Contains("[3] hold 3 values, but 4 were given"), error);
  CHECK_THROWS_WITH_AS(table(values, {1, 1, 2, 2}), doctest::Contains("E-MASK-TABLE-RANK"), error);
  CHECK_THROWS_WITH_AS(table(values, {-2, -2}), doctest::Contains("E-MASK-TABLE-SHAPE"), error);
  CHECK_THROWS_WITH_AS(table(values, {2, 2}, {3, 1}), doctest::Contains("E-MASK-TABLE-SHAPE"), error);
  CHECK_THROWS_WITH_AS(table(values, {2, 2}, {-2, 1}), doctest::Contains("E-MASK-TABLE-SHAPE"), error);
  CHECK_THROWS_WITH_AS(table(values, {2, 2}, {1}), doctest::Contains("1 strides"), error);
  CHECK_THROWS_WITH_AS(table({index_t(1) << 40}), doctest::Contains("does not fit 32 bits"), error);
  CHECK_THROWS_WITH_AS(table({index_t(1) << 40}), doctest::Contains("E-MASK-TABLE-VALUE"), error);
}

TEST_CASE("an empty table can be held; it reads as 0 where it is clamped") {
  const auto nothing = table(std::vector<int>{});
  CHECK(nothing.contents()->is_empty());
  CHECK(nothing.contents()->clamped(0, 0, 5) == 0);
}

TEST_CASE("room for a negative count, or more than 2^40 values, is refused") {
  auto ids = table({1, 2});
  CHECK_THROWS_WITH_AS(ids.reserve(-4), doctest::Contains("table.reserve(-4)"), error);
  CHECK_THROWS_WITH_AS(ids.reserve(index_t(1) << 60), doctest::Contains("E-MASK-TABLE-CAPACITY"), error);
}

TEST_CASE("strides that leave the values are told apart from dimensions that hold another count") {
  CHECK_THROWS_WITH_AS(table(std::vector{1, 2, 3}, {2}, {-1}), doctest::Contains("read the values from number -1 to 0, but 3 were given"), error);
  CHECK_THROWS_WITH_AS(table(std::vector{1, 2, 3}, {2}), doctest::Contains("hold 2 values, but 3 were given"), error);
}
