#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <limits>

#include <samite/core/math.hpp>

using samite::fast_exp;

TEST_CASE("fast_exp is within two units in the last place over all results that are normal numbers") {
  int worst = 0;
  for (std::uint32_t bits = 0; bits < 0x42b17200u; bits += 997)  // 0 to 88.72
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      const double exact = std::exp(double(x));
      if (exact < double(std::numeric_limits<float>::min())) continue;
      const float nearest = float(exact), found = fast_exp(x);
      worst = std::max(worst, std::abs(std::bit_cast<std::int32_t>(nearest) - std::bit_cast<std::int32_t>(found)));
    }
  CHECK(worst <= 2);
}

TEST_CASE("fast_exp has the limits of the exponential") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(fast_exp(0.0f) == 1.0f);
  CHECK(fast_exp(-0.0f) == 1.0f);
  for (const float x : {89.0f, 1e4f, std::numeric_limits<float>::max(), infinity}) CHECK(fast_exp(x) == infinity);
  for (const float x : {-104.5f, -1e4f, std::numeric_limits<float>::lowest(), -infinity}) CHECK(fast_exp(x) == 0.0f);
  CHECK(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
  CHECK(fast_exp(-100.0f) > 0.0f);  // a subnormal
  CHECK(double(fast_exp(-100.0f)) == doctest::Approx(std::exp(-100.0)).epsilon(0.02));
}
