#include <doctest/doctest.h>

#include <samite/expr/table.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::visible_keys;

TEST_CASE("a table is looked up with one to three indices, in either writing") {
  const auto ids = table({0, 0, 1, 1});
  CHECK(visible_keys(ids[q] == ids[kv], 2, 4) == keys{2, 3});
  const auto lengths = table({1, 2, 3, 4}, {2, 2});
  CHECK(visible_keys(kv < lengths(b, h), 0, 6, 1, 0) == keys{0, 1, 2});
  CHECK(visible_keys(kv < lengths[b][h], 0, 6, 1, 1) == keys{0, 1, 2, 3});
  const auto cube = table({0, 1, 2, 3, 4, 5, 6, 7}, {2, 2, 2});
  CHECK(visible_keys(kv == cube[b][h][q % 2], 1, 9, 1, 0) == keys{5});
  CHECK(visible_keys(kv == cube(b, h, 1), 0, 9, 0, 1) == keys{3});
  CHECK(visible_keys(ids[ids[kv] + 1] == 1, 0, 4) == keys{2, 3});
}

TEST_CASE("vectors, spans and lists make tables") {
  const std::vector<std::int64_t> wide{3, 1};
  const std::int32_t narrow[] = {3, 1};
  CHECK(table(wide).contents()->values() == table(std::span<const std::int32_t>(narrow)).contents()->values());
  CHECK(table({3, 1}).dims() == keys{2});
  auto changing = table({3, 1, 2});
  changing.update({4, 5});
  CHECK(changing.contents()->values() == std::vector<std::int32_t>{4, 5});
  auto square = table({1, 2, 3, 4}, {2, 2});
  square.update({7, 8}, {1, 2});
  CHECK(square.dims() == keys{1, 2});
}

TEST_CASE("a lookup with the wrong number of indices names the rank and the count") {
  program p;
  const auto row = table({1, 2});
  const auto square = table({1, 2, 3, 4}, {2, 2});
  CHECK_THROWS_WITH_AS(row(b, h, q).lower(p), doctest::Contains("rank 1 but 3 index(es)"), error);
  CHECK_THROWS_WITH_AS(square[q].lower(p), doctest::Contains("E-MASK-TABLE-RANK"), error);
}

TEST_CASE("per_batch adds the batch where the table has one") {
  CHECK(visible_keys(per_batch(table({0, 1, 0}), kv) == 1, 0, 3, 1) == keys{1});
  CHECK(visible_keys(per_batch(table({0, 1, 0, 1, 1, 0}, {2, 3}), kv) == 1, 0, 3, 1) == keys{0, 1});
}

TEST_CASE("tables are made of vectors, arrays, spans and truth values; an update keeps the dimensions of more than one") {
  const auto values_of = [](const table_ref& t) { return t.contents()->values(); };
  int writable[] = {1, 0};
  const std::vector<std::int32_t> expected{1, 0};
  CHECK(values_of(table(std::array<std::uint8_t, 2>{1, 0})) == expected);
  CHECK(values_of(table(std::span(writable))) == expected);
  CHECK(values_of(table(std::vector<bool>{true, false})) == expected);
  auto pairs = table({1, 2, 3, 4}, {2, 2});
  pairs.update({5, 6, 7, 8});
  CHECK(pairs.dims() == std::vector<index_t>{2, 2});
}

TEST_CASE("rows make a table of two dimensions: nested braces, arrays of C, vectors of vectors") {
  const int rows[2][3] = {{0, 1, 2}, {3, 4, 5}};
  const int row[3] = {7, 8, 9};
  using shape = std::vector<index_t>;
  CHECK(table(rows).dims() == shape{2, 3});
  CHECK(table(rows).contents()->values() == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5});
  CHECK(table({{1, 2}, {3, 4}}).dims() == shape{2, 2});
  CHECK(table({{1}, {2}}).dims() == shape{2, 1});
  CHECK(table(std::vector<std::vector<short>>{{1, 2, 3}, {4, 5, 6}}).dims() == shape{2, 3});
  CHECK(table({{1, 2}, {3, 4}}).contents()->values() == std::vector<std::int32_t>{1, 2, 3, 4});
  CHECK(table(row).dims() == shape{3});
  CHECK(table(row, {3, 1}).dims() == shape{3, 1});
  CHECK_THROWS_WITH_AS(table({{1, 2}, {3}}), doctest::Contains("row 1 has 1 values and row 0 has 2"), error);
  CHECK_THROWS_WITH_AS(table(std::vector<std::vector<std::uint64_t>>{{~0ull}}), doctest::Contains("E-MASK-TABLE-VALUE"), error);
  CHECK_THROWS_WITH_AS(table({0, index_t(1) << 40}), doctest::Contains("at [1] does not fit"), error);
}

TEST_CASE("an update takes what table takes") {
  table_ref t = table({1, 1, 1});
  const auto values = [&] { return t.contents()->values(); };
  using list = std::vector<std::int32_t>;
  const int row[3] = {7, 8, 9};
  t.update(row);
  CHECK(values() == list{7, 8, 9});
  t.update(std::array{1, 2});
  CHECK(values() == list{1, 2});
  t.update(std::vector<bool>{true, false, true});
  CHECK(values() == list{1, 0, 1});
}
