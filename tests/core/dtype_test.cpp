#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <samite/core/dtype.hpp>

using namespace samite;

namespace {

// The format's values by its definition: sign, exponent of `exponent_bits`, rest mantissa.
double decode(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1), mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <class From, class To>
void check_format(int exponent_bits, From from, To to) {
  int wrong_value = 0, wrong_round_trip = 0, wrong_tie = 0, wrong_below = 0, wrong_above = 0;
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const std::uint16_t bits = std::uint16_t(i);
    const double expected = decode(bits, exponent_bits);
    const float value = from(bits);
    if (std::isnan(expected)) {
      wrong_value += !std::isnan(value);
      wrong_round_trip += !std::isnan(from(to(value)));
      continue;
    }
    wrong_value += !(double(value) == expected && std::signbit(value) == ((bits & 0x8000) != 0));
    wrong_round_trip += to(value) != bits;
    // Halfway to the next larger magnitude: ties go to the even one, anything off the tie to the nearer.
    if (std::isinf(expected)) continue;
    const double next = decode(std::uint16_t(bits + 1), exponent_bits);
    const double step = std::isinf(next) ? std::fabs(expected - decode(std::uint16_t(bits - 1), exponent_bits)) : std::fabs(next - expected);
    const float tie = float(expected + std::copysign(step / 2, expected));
    if (double(tie) != expected + std::copysign(step / 2, expected)) continue;  // needs more bits than a float has
    const std::uint16_t even = std::uint16_t((bits & 1) == 0 ? bits : bits + 1);
    wrong_tie += to(tie) != even;
    const float below = std::nextafterf(tie, std::signbit(value) ? -0.0f : 0.0f), above = std::nextafterf(tie, std::signbit(value) ? -INFINITY : INFINITY);
    wrong_below += to(below) != bits;
    wrong_above += to(above) != std::uint16_t(bits + 1);
  }
  CHECK(wrong_value == 0);
  CHECK(wrong_round_trip == 0);
  CHECK(wrong_tie == 0);
  CHECK(wrong_below == 0);
  CHECK(wrong_above == 0);
}

}  // namespace

TEST_CASE("every bf16 is read as its value, comes back as itself, and neighbours round to nearest even") {
  check_format(8, from_bf16, to_bf16);
}

TEST_CASE("every f16 is read as its value, comes back as itself, and neighbours round to nearest even") {
  check_format(5, from_f16, to_f16);
}

TEST_CASE("rounding keeps infinities and NaNs, and overflows to infinity") {
  CHECK(to_bf16(INFINITY) == 0x7f80);
  CHECK(to_bf16(-INFINITY) == 0xff80);
  CHECK(to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(std::isnan(from_bf16(to_bf16(std::bit_cast<float>(0x7f800001u)))));  // its payload lies in the bits that are cut
  CHECK(to_f16(INFINITY) == 0x7c00);
  CHECK(to_f16(-1e6f) == 0xfc00);
  CHECK(to_f16(65504.0f) == 0x7bff);
  CHECK(to_f16(65519.99f) == 0x7bff);
  CHECK(to_f16(65520.0f) == 0x7c00);
  CHECK(to_f16(0x1p-25f) == 0);  // a tie between 0 and the smallest: even is 0
  CHECK(to_f16(0x1.000002p-25f) == 1);
  CHECK(std::isnan(from_f16(to_f16(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("dtypes know their size, name and kind") {
  for (const dtype type : {f64, f32, bf16, f16}) CHECK(is_real(type));
  for (const dtype type : {i64, i32, u8}) CHECK_FALSE(is_real(type));
  CHECK(size_of(f64) == 8);
  CHECK(size_of(bf16) == 2);
  CHECK(size_of(u8) == 1);
  CHECK(std::string(name_of(bf16)) == "bf16");
  CHECK(std::string(name_of(i64)) == "i64");
}
