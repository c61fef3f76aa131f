#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include <samite/testing/compare.hpp>

using namespace samite;
using testing::difference;

TEST_CASE("difference: equal numbers and equal infinities agree without any tolerance") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(difference(std::vector<float>{1, 2}, std::vector<double>{1, 2}, {}).empty());
  CHECK(difference(std::vector<double>{-infinity}, std::vector<double>{-infinity}, {}).empty());
  CHECK_FALSE(difference(std::vector<double>{infinity}, std::vector<double>{-infinity}, {1, 1}).empty());
}

TEST_CASE("difference: names the first pair that disagrees and counts them all") {
  const std::string text = difference(std::vector<double>{1, 2, 3}, std::vector<double>{1, 2.5, 4}, {0, 0.1});
  CHECK(text.find("2 of 3 values differ; the first at 1: 2 where 2.5") == 0);
}

TEST_CASE("difference: a NaN agrees with nothing, and lengths must be equal") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(difference(std::vector<double>{nan}, std::vector<double>{nan}, {1, 1}).empty());
  CHECK_FALSE(difference(std::vector<double>{1}, std::vector<double>{1, 1}, {1, 1}).empty());
}

TEST_CASE("tolerance_of: grows with the reduction and shrinks with the precision") {
  CHECK(testing::tolerance_of(bf16).relative == 4 * 0x1p-8);
  CHECK(testing::tolerance_of(f32, 1000).absolute > testing::tolerance_of(f32, 10).absolute);
  CHECK(testing::tolerance_of(f64, 1000).absolute < 1e-12);
}
