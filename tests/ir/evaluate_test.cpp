#include <doctest/doctest.h>

#include <algorithm>

#include <samite/ir/evaluate.hpp>

#include "support/masks.hpp"
#include "support/random_programs.hpp"

using namespace samite;
using namespace samite::symbols;

TEST_CASE("point and row values equal the program read node by node: 2000 random predicates") {
  MESSAGE("seed 11");
  int wrong = 0;
  for (std::uint32_t sample = 0; sample < 2000; ++sample) {
    samite_tests::random_programs random(11, sample);
    const program p = random.predicate(1 + int(random.below(5)));
    evaluator point(p);
    row_evaluator rows(p);
    for (int i = 0; i < 6; ++i) {
      const index_t bi = random.below(2), hi = random.below(2), qi = random.below(64), k0 = random.below(64), count = 1 + random.below(8);
      std::uint8_t keep[8];
      rows.row(bi, hi, qi, k0, k0 + count, keep);
      for (index_t k = 0; k < count; ++k) {
        const bool truth = samite_tests::naive_value(p, p.roots[0], {bi, hi, qi, k0 + k}) != 0;
        wrong += keep[k] != truth;
        wrong += (point(bi, hi, qi, k0 + k) != 0) != truth;
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("indices have values too") {
  program p;
  p.roots.push_back(((q - 7) / 4 + kv % 3).lower(p));
  evaluator value(p);
  CHECK(value(0, 0, 2, 5) == 0);   // floor(-5 / 4) = -2, and 5 % 3 = 2
  CHECK(value(0, 0, 15, 3) == 2);
}

TEST_CASE("long rows are filled over several blocks of columns") {
  const any_mask mask = kv <= q && q - kv < 300;
  row_evaluator rows(mask.program());
  std::vector<std::uint8_t> keep(1000);
  rows.row(0, 0, 700, 0, 1000, keep.data());
  for (index_t k = 0; k < 1000; ++k) REQUIRE(keep[std::size_t(k)] == (k > 400 && k <= 700));
  rows.row(0, 0, 5, 0, 1000, keep.data());
  CHECK(std::count(keep.begin(), keep.end(), std::uint8_t(1)) == 6);
}

TEST_CASE("the evaluator refuses an index outside its table; the row evaluator clamps it") {
  const any_mask mask = table({1, 0})[kv] == 1;
  evaluator point(mask.program());
  CHECK(point(0, 0, 0, 0) == 1);
  CHECK_THROWS_WITH_AS(point(0, 0, 0, 2), doctest::Contains("index 0 of a table of rank 1 is 2"), error);
  std::uint8_t keep[4];
  row_evaluator(mask.program()).row(0, 0, 0, 0, 4, keep);
  CHECK(std::vector<int>(keep, keep + 4) == std::vector<int>{1, 0, 0, 0});
}

TEST_CASE("arguments are read when the evaluator is made") {
  scalar width(1);
  const any_mask mask = q - kv < width;
  evaluator before(mask.program());
  width.set(5);
  evaluator after(mask.program());
  CHECK(before(0, 0, 3, 0) == 0);
  CHECK(after(0, 0, 3, 0) == 1);
}
