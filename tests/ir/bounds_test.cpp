#include <doctest/doctest.h>

#include <samite/ir/bounds.hpp>
#include <samite/ir/evaluate.hpp>

#include "../support/masks.hpp"
#include "../support/random_programs.hpp"

using namespace samite;
using namespace samite::symbols;
using samite_tests::naive_value;
using samite_tests::random_programs;

namespace {

constexpr std::uint64_t seed = 20261130;

index_box random_box(random_programs& random, index_t size) {
  const auto range = [&](index_t bound, index_t extent) {
    const index_t low = random.below(bound);
    return interval{low, low + random.below(extent)};
  };
  return {interval::point(random.below(2)), range(2, 2), range(size, 1 + random.below(20)), range(size, 1 + random.below(20))};
}

template <class F>
void for_each_pair(const index_box& box, F f) {
  for (index_t b = box.b.low; b <= box.b.high; ++b)
    for (index_t h = box.h.low; h <= box.h.high; ++h)
      for (index_t q = box.q.low; q <= box.q.high; ++q)
        for (index_t kv = box.kv.low; kv <= box.kv.high; ++kv) f(b, h, q, kv);
}

verdict by_enumeration(const program& p, const index_box& box) {
  bool kept = false, hidden = false;
  for_each_pair(box, [&](index_t b, index_t h, index_t q, index_t kv) {
    (naive_value(p, p.roots[0], {b, h, q, kv}) ? kept : hidden) = true;
  });
  return kept && hidden ? verdict::undecided : kept ? verdict::full : verdict::empty;
}

interval everything_to(index_t last) { return {0, last}; }

}  // namespace

TEST_CASE("the verdict on a box is never wrong: 10000 random predicates against enumeration") {
  MESSAGE("seed ", seed);
  int wrong = 0, loose = 0, undecided = 0, loose_after_search = 0, wrong_after_search = 0;
  for (std::uint32_t sample = 0; sample < 10000; ++sample) {
    random_programs random(seed, sample);
    const program p = random.predicate(1 + int(random.below(5)));
    box_judge judge(p);
    for (int i = 0; i < 2; ++i) {
      const index_box box = random_box(random, 48);
      const verdict found = judge.judge(box), searched = judge.judge_finely(box, 400), truth = by_enumeration(p, box);
      if (found != verdict::undecided && found != truth) {
        if (wrong++ == 0) FAIL_CHECK("wrong verdict in sample " << sample);
      }
      if (searched != verdict::undecided && searched != truth) ++wrong_after_search;
      undecided += found == verdict::undecided;
      loose += found == verdict::undecided && truth != verdict::undecided;
      loose_after_search += searched == verdict::undecided && truth != verdict::undecided;
    }
  }
  CHECK(wrong == 0);
  CHECK(wrong_after_search == 0);
  MESSAGE(undecided, " of 20000 undecided, ", loose, " of them could have been decided; after the search ", loose_after_search);
}

TEST_CASE("D8: 100000 random boxes of predicates with gathers, quotients and remainders: no verdict is wrong, and a full search decides every box") {
  MESSAGE("seed ", seed);
  int unsound = 0, undecided = 0, narrowed = 0;
  for (std::uint32_t sample = 0; sample < 10000; ++sample) {
    random_programs random(seed + 3, sample);
    const program p = random.predicate(5);
    box_judge judge(p), alone(p);
    row_evaluator rows(p);
    const index_t b = random.below(2), h = random.below(2);
    const index_box around{interval::point(b), interval::point(h), {0, 60}, {0, 60}};
    judge.enter(around);
    for (int i = 0; i < 10; ++i) {
      index_box box = around;
      const index_t q0 = random.below(50), k0 = random.below(50);
      box.q = {q0, q0 + random.below(6)}, box.kv = {k0, k0 + random.below(8)};
      bool kept = false, hidden = false;
      for (index_t row = box.q.low; row <= box.q.high; ++row) {
        std::uint8_t keep[8];
        rows.row(b, h, row, box.kv.low, box.kv.high + 1, keep);
        for (index_t k = 0; k <= box.kv.high - box.kv.low; ++k) (keep[k] ? kept : hidden) = true;
      }
      const verdict truth = kept && hidden ? verdict::undecided : kept ? verdict::full : verdict::empty;
      const verdict found = judge.enter(box), searched = judge.judge_finely(box, 10000);
      judge.leave();
      unsound += found != verdict::undecided && found != truth;
      undecided += searched != truth;
      narrowed += found != alone.judge(box);  // what a box around has decided changes no verdict inside
    }
    judge.leave();
  }
  CHECK(unsound == 0);
  CHECK(undecided == 0);
  CHECK(narrowed == 0);
}

TEST_CASE("bounds of an index hold every value: 3000 random indices against enumeration") {
  MESSAGE("seed ", seed);
  int wrong = 0;
  for (std::uint32_t sample = 0; sample < 3000; ++sample) {
    random_programs random(seed + 1, sample);
    const program p = random.index(1 + int(random.below(5)));
    box_judge judge(p);
    const index_box box = random_box(random, 48);
    const interval found = judge.range(box);
    for_each_pair(box, [&](index_t b, index_t h, index_t q, index_t kv) {
      if (!found.contains(naive_value(p, p.roots[0], {b, h, q, kv}))) ++wrong;
    });
  }
  CHECK(wrong == 0);
}

TEST_CASE("a box of one pair is always decided") {
  for (std::uint32_t sample = 0; sample < 2000; ++sample) {
    random_programs random(seed + 2, sample);
    const program p = random.predicate(4);
    const index_t qi = random.below(60), ki = random.below(60);
    const verdict found = judge(p, {interval::point(1), interval::point(0), interval::point(qi), interval::point(ki)});
    REQUIRE(found == (naive_value(p, p.roots[0], {1, 0, qi, ki}) ? verdict::full : verdict::empty));
  }
}

TEST_CASE("two comparisons of one difference are judged as one interval") {
  const any_mask nothing = q - kv >= 5 && q - kv < 3;
  CHECK(judge(nothing.program(), {{}, {}, everything_to(1000), everything_to(1000)}) == verdict::empty);
  const any_mask band = q - kv >= 0 && q - kv < 4;
  CHECK(judge(band.program(), {{}, {}, {10, 11}, {14, 20}}) == verdict::empty);
  CHECK(judge(band.program(), {{}, {}, {10, 11}, {7, 10}}) == verdict::undecided);
  CHECK(judge(band.program(), {{}, {}, {10, 11}, {8, 9}}) == verdict::full);
  CHECK(box_judge(band.program()).is_exact());
}

TEST_CASE("a range and a residue of one difference are judged together") {
  const any_mask dilated = q - kv >= 0 && q - kv < 64 && (q - kv) % 16 == 3;
  CHECK(judge(dilated.program(), {{}, {}, {100, 100}, {98, 100}}) == verdict::empty);   // differences 0..2
  CHECK(judge(dilated.program(), {{}, {}, {100, 100}, {97, 97}}) == verdict::full);     // difference 3
  CHECK(judge(dilated.program(), {{}, {}, {100, 100}, {38, 48}}) == verdict::empty);      // 52..62: between 51 and 67
  CHECK(judge(dilated.program(), {{}, {}, {100, 100}, {38, 52}}) == verdict::undecided);  // 48..62 holds 51
}

TEST_CASE("ids that are not sorted are told apart by their residues") {
  const auto ids = table({0, 2, 0, 2, 1, 1, 1, 1});
  const any_mask same = ids[q] == ids[kv];
  CHECK(judge(same.program(), {{}, {}, {0, 3}, {4, 7}}) == verdict::empty);
}

TEST_CASE("blocks put together again by hand are seen through") {
  const any_mask again = (q % 16) + fixed(16) * (q / 16) >= kv;
  CHECK(again.hash() == any_mask(q >= kv).hash());
  const any_mask from_argument = (q % 16) + 16 * (q / 16) >= kv;  // 16 is an argument: known when the box is judged
  CHECK(box_judge(from_argument.program()).is_exact());
}

TEST_CASE("numbers that leave 62 bits are refused, not wrapped") {
  const any_mask huge = q * (index_t(1) << 60) >= kv;
  box_judge judge(huge.program());
  CHECK_THROWS_WITH_AS(judge.check(index_box::whole(1, 1, 1024, 1024)), doctest::Contains("E-MASK-OVERFLOW"), error);
  const any_mask wide = q - kv < (index_t(1) << 62);  // an argument alone may be as large as it likes
  box_judge second(wide.program());
  CHECK_NOTHROW(second.check(index_box::whole(1, 1, 64, 64)));
  CHECK(second.judge(index_box::whole(1, 1, 64, 64)) == verdict::full);
}

TEST_CASE("an index that can leave its table is refused with the range and the table's size") {
  const auto ids = table({1, 2, 3, 4});
  const any_mask mask = ids[kv] == ids[q];
  box_judge judge(mask.program());
  CHECK_NOTHROW(judge.check(index_box::whole(1, 1, 4, 4)));
  CHECK_THROWS_WITH_AS(judge.check(index_box::whole(1, 1, 4, 6)), doctest::Contains("can be from 0 to 5"), error);
}

TEST_CASE("a mask that reads an empty table is told so") {
  box_judge judge(any_mask(kv < table(std::vector<index_t>{})[q]).program());
  CHECK_THROWS_WITH_AS(judge.check(index_box::whole(1, 1, 4, 4)), doctest::Contains("is empty; give it values"), error);
}
