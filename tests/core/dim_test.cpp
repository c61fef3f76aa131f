#include <doctest/doctest.h>

#include <samite/core/dim.hpp>

#include "support/raised.hpp"

using namespace samite;
using samite_tests::unlike;

TEST_CASE("extents add, multiply and compare by their lengths, not by the order of writing") {
  const dim s = tokens(100, "S"), n = tokens(10, "N");
  CHECK(s + 8 * n == n * 8 + s);
  CHECK_FALSE(s + 8 * n == s + 7 * n);
  CHECK_FALSE(s == tokens(100, "S"));  // two lengths of one name are two lengths
  CHECK((s + 8 * n).capacity() == 180);
  CHECK((s + 3).constant() == 3);
  CHECK(s + n - n == s);
  CHECK((s - s).is_constant());
  CHECK((s * 0).is_constant());
  CHECK(dim(3) * 4 == dim(12));
  CHECK(2 * (s + 1) == s * 2 + 2);
}

TEST_CASE("division is exact where a factor divides every part") {
  const dim s = tokens(100, "S");
  CHECK((s * 4 + 8).divisible_by(4));
  CHECK((s * 4 + 8) / 4 == s + 2);
  CHECK_FALSE((s * 4 + 6).divisible_by(4));
  CHECK_FALSE((s * 2).divisible_by(4));
  CHECK_FALSE(s.divisible_by(0));
}

TEST_CASE("extents print as they are written") {
  const dim s = tokens(100, "S"), n = tokens(10, "N");
  CHECK(to_text({s + 8 * n, 5, s + 1}) == "[S+8*N,5,S+1]");
  CHECK(to_text({}) == "[]");
  CHECK(to_text({0}) == "[0]");
}

TEST_CASE("extents are computed from lengths, and a length without a value is an error") {
  const dim s = tokens(100, "S"), n = tokens(10, "N");
  const length_map lengths = {{s.terms()[0].symbol.get(), 7}};
  CHECK(evaluate({2 * s + 1, 4}, lengths) == extents{15, 4});
  CHECK(capacities({2 * s + 1, 4}) == extents{201, 4});
  CHECK(unlike("E-SHAPE-LENGTH", {"\"N\"", "no value"}, [&] { evaluate(s + n, lengths); }) == "");
  CHECK(unlike("E-SHAPE-CAPACITY", {"tokens(-3)"}, [] { tokens(-3); }) == "");
  CHECK(tokens(0).capacity() == 0);
}

TEST_CASE("row-major strides count the elements behind an axis") {
  CHECK(row_major_strides(extents{2, 3, 4}) == extents{12, 4, 1});
  CHECK(row_major_strides(extents{}) == extents{});
  CHECK(count(extents{2, 0, 4}) == 0);
  CHECK(count(extents{}) == 1);
}
