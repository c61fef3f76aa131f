#include <doctest/doctest.h>

#include <samite/expr/index.hpp>
#include <samite/ir/canonical.hpp>
#include <samite/ir/evaluate.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::visible_keys;

namespace {
template <index_expr E>
index_t value_of(const E& e, index_t bi, index_t hi, index_t qi, index_t ki) {
  program p;
  p.roots.push_back(e.lower(p));
  const index_t naive = samite_tests::naive_value(p, p.roots[0], {bi, hi, qi, ki});
  CHECK(evaluator(p)(bi, hi, qi, ki) == naive);
  return naive;
}
struct stranger {
  node_id lower(program&) const { return 0; }
};
}  // namespace

static_assert(index_expr<decltype(q)> && index_expr<decltype(q - kv)> && index_expr<scalar> && index_expr<decltype(fixed(3))>);
static_assert(predicate_expr<decltype(kv <= q)> && !index_expr<decltype(kv <= q)> && !predicate_expr<decltype(q)>);
static_assert(!index_expr<stranger> && !predicate_expr<stranger> && !predicate_expr<bool> && !index_expr<int>, "the concepts are nominal");

TEST_CASE("index arithmetic means what it says; quotients round towards minus infinity") {
  CHECK(value_of(q + 2 * kv - h, 0, 1, 10, 3) == 15);
  CHECK(value_of((q - kv) / 4, 0, 0, 1, 6) == -2);
  CHECK(value_of((q - kv) % 4, 0, 0, 1, 6) == 3);
  CHECK(value_of(-q, 0, 0, 7, 0) == -7);
  CHECK(value_of(abs(q - kv), 0, 0, 2, 9) == 7);
  CHECK(value_of(min(q, kv) * 10 + max(q, 5), 0, 0, 2, 9) == 25);
  CHECK(value_of(clamp(q - 4, 0, 3), 0, 0, 2, 0) == 0);
  CHECK(value_of(clamp(q - 4, 0, 3), 0, 0, 9, 0) == 3);
  CHECK(value_of((q << 3) + (kv >> 1), 0, 0, 2, 5) == 18);
  CHECK(value_of(100 - q, 0, 0, 2, 5) == 98);
  CHECK(value_of(select(kv <= q, q, 7), 0, 0, 2, 5) == 7);
  CHECK(value_of(b * 100 + h, 4, 3, 0, 0) == 403);
}

TEST_CASE("comparisons and logic combine into masks") {
  CHECK(visible_keys(kv <= q, 2, 5) == keys{0, 1, 2});
  CHECK(visible_keys(kv != q && kv > 0, 2, 5) == keys{1, 3, 4});
  CHECK(visible_keys(!(kv < 3) || kv == 0, 0, 5) == keys{0, 3, 4});
  CHECK(visible_keys(3 > kv, 0, 5) == keys{0, 1, 2});
  CHECK(visible_keys(select(kv < 2, q == 1, q == 0), 0, 4) == keys{2, 3});
  CHECK(visible_keys(0 <= kv && kv < 8 && kv >= 6, 0, 20) == keys{6, 7});
}

TEST_CASE("numbers are arguments: another number is the same structure; 0, divisors and fixed numbers are structure") {
  const auto hash = [](const auto& mask) { return canonical(samite_tests::lowered(mask)).hash(); };
  CHECK(hash(q - kv < 8) == hash(q - kv < 1024));
  CHECK(hash(q - kv < 8) != hash(q - kv < 0));
  CHECK(hash(q / 8 == kv / 8) != hash(q / 16 == kv / 16));
  CHECK(hash(q - kv < fixed(8)) != hash(q - kv < fixed(9)));
  CHECK(hash(q % 2 == 0) != hash(q % 3 == 0));
}

TEST_CASE("copies of an expression share its numbers") {
  const auto width = q - kv < 8;
  const program p = canonical(samite_tests::lowered(width && width));
  CHECK(p.arguments().size() == 1);
}

TEST_CASE("a scalar can be set later, and every mask made from it follows") {
  scalar past(0);
  const auto mask = kv <= q + past;
  CHECK(visible_keys(mask, 1, 8) == keys{0, 1});
  past.set(3);
  CHECK(past.value() == 3);
  CHECK(visible_keys(mask, 1, 8) == keys{0, 1, 2, 3, 4});
}

TEST_CASE("divisors, moduli and shifts must be positive numbers known beforehand") {
  program p;
  CHECK_THROWS_WITH_AS((q / 0).lower(p), doctest::Contains("E-EXPR-DIVISOR"), error);
  CHECK_THROWS_WITH_AS((q % -3).lower(p), doctest::Contains("must be positive"), error);
  CHECK_THROWS_WITH_AS((q / kv).lower(p), doctest::Contains("not a symbol"), error);
  CHECK_THROWS_WITH_AS((q / scalar(4)).lower(p), doctest::Contains("E-EXPR-DIVISOR"), error);
  CHECK_THROWS_WITH_AS((q << 63).lower(p), doctest::Contains("from 0 to 62"), error);
  CHECK_THROWS_WITH_AS((q / 0).lower(p), doctest::Contains("x / 0:"), error);
  CHECK_THROWS_WITH_AS((q % 0).lower(p), doctest::Contains("x % 0:"), error);
  CHECK_THROWS_WITH_AS((q << 64).lower(p), doctest::Contains("x << 64:"), error);
  CHECK_THROWS_WITH_AS((q >> 64).lower(p), doctest::Contains("x >> 64:"), error);
  CHECK_THROWS_WITH_AS((q % kv).lower(p), doctest::Contains("x % n: the modulus"), error);
  CHECK_THROWS_WITH_AS((void)(kv < ~std::uint64_t(0)), doctest::Contains("E-EXPR-NUMBER"), error);
}

TEST_CASE("numbers that 64 bits don't hold are refused wherever they are written") {
  scalar s(3u);
  CHECK_THROWS_WITH_AS(scalar(~std::uint64_t(0)), doctest::Contains("E-EXPR-NUMBER"), error);
  CHECK_THROWS_WITH_AS(s.set(~std::uint64_t(0)), doctest::Contains("18446744073709551615"), error);
  CHECK_THROWS_WITH_AS(fixed(~std::uint64_t(0)), doctest::Contains("E-EXPR-NUMBER"), error);
  CHECK_THROWS_WITH_AS(static_cast<void>(kv < ~std::uint64_t(0)), doctest::Contains("E-EXPR-NUMBER"), error);
  CHECK(s.value() == 3);
}

static_assert(!std::is_assignable_v<scalar&, int> && std::is_assignable_v<scalar&, scalar>, "s = 1 would make another scalar silently");

TEST_CASE("what was moved from stays as it is: scalars, tables and masks can still be read") {
  scalar past(2);
  const scalar moved = std::move(past);
  CHECK(visible_keys(kv <= past, 0, 8) == keys{0, 1, 2});
  past.set(1);
  CHECK(visible_keys(kv <= moved, 0, 8) == keys{0, 1});
  table_ref ids = table({0, 1, 1});
  const table_ref other = std::move(ids);
  CHECK(visible_keys(ids[kv] == 1 && other[kv] == 1, 0, 3) == keys{1, 2});
  any_mask mask = kv < 2;
  const any_mask taken = std::move(mask);
  CHECK(visible_keys(mask, 0, 4) == visible_keys(taken, 0, 4));
  CHECK(visible_keys(mask && kv > 0, 0, 4) == keys{1});
}
