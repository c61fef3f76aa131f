#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include <samite/core/random.hpp>

using namespace samite;
using words = std::array<std::uint32_t, 4>;

TEST_CASE("philox gives the published answers") {
  // Known answers of Salmon et al. for philox 4x32-10.
  CHECK(philox{0, 0}(0, 0, 0, 0) == words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const std::uint32_t ones = 0xffffffff;
  CHECK(philox{ones, ones}(ones, ones, ones, ones) == words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox{0xa4093822, 0x299f31d0}(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344) == words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a stream is a function of its four numbers, and any of them changes it") {
  const auto first = [](counted_random r) { return std::vector<std::uint32_t>{r.bits(), r.bits(), r.bits(), r.bits(), r.bits()}; };
  const auto base = first(counted_random(1, 2, 3, 4));
  CHECK(base == first(counted_random(1, 2, 3, 4)));
  CHECK(base != first(counted_random(2, 2, 3, 4)));
  CHECK(base != first(counted_random(1, 3, 3, 4)));
  CHECK(base != first(counted_random(1, 2, 4, 4)));
  CHECK(base != first(counted_random(1, 2, 3, 5)));
  CHECK(base != first(counted_random((std::uint64_t(1) << 32) | 1, 2, 3, 4)));
}

TEST_CASE("uniform numbers lie in [0, 1) with the mean and deviation of their distribution") {
  counted_random r(5, 6);
  double sum = 0, squares = 0, normal_sum = 0, normal_squares = 0;
  constexpr int n = 20000;
  for (int i = 0; i < n; ++i) {
    const double u = r.uniform(), x = r.normal();
    REQUIRE(u >= 0);
    REQUIRE(u < 1);
    sum += u, squares += u * u, normal_sum += x, normal_squares += x * x;
  }
  // 5 standard errors each.
  CHECK(sum / n == doctest::Approx(0.5).epsilon(0.021));
  CHECK(squares / n == doctest::Approx(1.0 / 3).epsilon(0.032));
  CHECK(std::abs(normal_sum / n) < 0.036);
  CHECK(normal_squares / n == doctest::Approx(1).epsilon(0.05));
}

TEST_CASE("whole numbers below a bound reach all of them alike") {
  counted_random r(7, 8);
  std::array<int, 7> hits{};
  for (int i = 0; i < 14000; ++i) {
    const std::uint32_t x = r.below(7);
    REQUIRE(x < 7);
    ++hits[x];
  }
  for (const int count : hits) CHECK(std::abs(count - 2000) < 5 * 45);
  CHECK(r.below(1) == 0);
  const std::uint32_t wide = 0xffffffff;
  CHECK(r.below(wide) < wide);
}
