#include <doctest/doctest.h>

#include <samite/ir/canonical.hpp>
#include <samite/mask/any_mask.hpp>

#include "support/masks.hpp"
#include "support/random_programs.hpp"

using namespace samite;
using namespace samite::symbols;

namespace {
template <class L, class R>
bool same(const L& l, const R& r) {
  return any_mask(l).hash() == any_mask(r).hash();
}
}  // namespace

TEST_CASE("the canonical form keeps every value: 3000 random predicates, with and without bound arguments") {
  MESSAGE("seed 12");
  int wrong = 0;
  for (std::uint32_t sample = 0; sample < 3000; ++sample) {
    samite_tests::random_programs random(12, sample);
    const program p = random.predicate(1 + int(random.below(5))), free = canonical(p), bound = canonical(p, true);
    for (int i = 0; i < 12; ++i) {
      const index_t at[4] = {random.below(2), random.below(2), random.below(64), random.below(64)};
      const index_t truth = samite_tests::naive_value(p, p.roots[0], at);
      wrong += samite_tests::naive_value(free, free.roots[0], at) != truth;
      wrong += samite_tests::naive_value(bound, bound.roots[0], at) != truth;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("the canonical form of a canonical form is itself") {
  for (std::uint32_t sample = 0; sample < 1000; ++sample) {
    samite_tests::random_programs random(13, sample);
    const program once = canonical(random.predicate(4));
    CAPTURE(sample);
    REQUIRE(canonical(once).hash() == once.hash());
  }
}

TEST_CASE("one meaning, one hash: comparisons in either direction") {
  CHECK(same(kv <= q, q >= kv));
  CHECK(same(kv <= q, !(q < kv)));
  CHECK(same(kv <= q, q - kv >= 0));
  CHECK(same(kv < q, !(q - kv <= 0)));
  CHECK(same(q - kv < 7, kv - q > -scalar(7)));
  CHECK(same(q - kv < 7, kv + 7 > q));
  CHECK(same(q != kv, !(kv == q)));
  CHECK_FALSE(same(kv <= q, kv < q));
  CHECK_FALSE(same(kv <= q, q <= kv));
}

TEST_CASE("one meaning, one hash: sums, quotients and shifts") {
  CHECK(same(q + kv < 5, kv + q < 5));
  CHECK(same((q >> 4) == kv / 16, q / 16 == (kv >> 4)));
  CHECK(same((q % 16) + fixed(16) * (q / 16) <= kv, q <= kv));
  CHECK(same(q - fixed(8) * (q / 8) == 0, q % 8 == 0));
  CHECK(same(q / 4 / 8 == kv, q / 32 == kv));
  CHECK(same((fixed(16) * q + fixed(3)) / 16 == kv, q == kv));
  CHECK(same(abs(q - kv) < 9, abs(kv - q) < 9));
  CHECK(same(fixed(2) * q < fixed(2) * kv, q < kv));
  CHECK(same(fixed(2) * q < fixed(2) * kv + fixed(1), q <= kv));
}

TEST_CASE("conjunctions and disjunctions: order, repetition and nesting don't count") {
  const auto a = kv <= q;
  const auto c = q / 4 == kv / 4;
  const auto d = q != 0;
  CHECK(same(a && c && d, d && (c && a)));
  CHECK(same(a && c, a && c && a));
  CHECK(same(a || c, c || a));
  CHECK_FALSE(same(a && c, a || c));
}

TEST_CASE("what is always or never true is known from the structure") {
  const auto a = kv <= q;
  const auto m = a && q / 4 == kv / 4;
  CHECK(any_mask(a && !a).is_none());
  CHECK(any_mask(a || !a).is_full());
  CHECK(any_mask(m && !m).is_none());
  CHECK(any_mask(m || !m).is_full());
  CHECK(same(!!m, m));
  CHECK(any_mask(q == q).is_full());
  CHECK(any_mask(fixed(2) * q == fixed(2) * kv + fixed(1)).is_none());
}

TEST_CASE("nodes that nobody needs don't count") {
  CHECK(any_mask(kv <= q + (h - h)).hash() == any_mask(kv <= q).hash());
  CHECK_FALSE(any_mask(kv <= q + (h - h)).uses(symbol_id::h));
}
