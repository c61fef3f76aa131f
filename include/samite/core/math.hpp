// samite/core/math.hpp: elementary functions in a form that compilers turn into vector code.
#pragma once
#include <limits>
#include <bit>
#include <cmath>
#include <cstdint>

#include <samite/core/config.hpp>

namespace samite {

namespace detail {
// first ? a : b by bits: a conditional here is taken apart into branches (GCC 12), and a loop with branches is no vector code.
SAMITE_INLINE float chosen(bool first, float a, float b) {
  const std::uint32_t mask = std::uint32_t(0) - std::uint32_t(first);
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(a) & mask) | (std::bit_cast<std::uint32_t>(b) & ~mask));
}
}  // namespace detail

/// e^x in fp32, within 2 ulp, without branches or tables. Overflow gives infinity, underflow 0, NaN stays NaN.
///
/// source  Cody and Waite 1980, chapter 6 (argument reduction by n ln 2 in two parts); the polynomial is the Taylor series
///         to degree 7 over |r| <= ln(2)/2, whose remainder is below 2^-25
SAMITE_INLINE float fast_exp(float x) {
  const float bounded = detail::chosen(x < -104.0f, -104.0f, detail::chosen(x > 89.0f, 89.0f, x));
  // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer in the default rounding mode.
  const float shifted = bounded * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  float y = 1.98412698e-4f;
  y = y * r + 1.38888889e-3f;
  y = y * r + 8.33333333e-3f;
  y = y * r + 4.16666667e-2f;
  y = y * r + 1.66666667e-1f;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  // 2^n in two factors: n runs from -150 to 128, beyond what one exponent holds.
  const std::int32_t whole = std::bit_cast<std::int32_t>(shifted) - 0x4b400000;
  const std::int32_t half = whole >> 1;
  const float low = std::bit_cast<float>((half + 127) << 23), high = std::bit_cast<float>((whole - half + 127) << 23);
  const float scaled = y * low * high;
  return detail::chosen(x != x, x, scaled);
}

/// The whole number that a real is cut to; the nearest one that the type holds, and 0 for NaN.
template <class Integer>
Integer saturated(double value) {
  if (!(value == value)) return 0;
  if (value <= double(std::numeric_limits<Integer>::min())) return std::numeric_limits<Integer>::min();
  if (value >= double(std::numeric_limits<Integer>::max())) return std::numeric_limits<Integer>::max();
  return static_cast<Integer>(value);
}

}  // namespace samite
