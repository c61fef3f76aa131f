// samite/core/dtype.hpp: element types of tensors and their conversions.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include <samite/core/error.hpp>

namespace samite {

/// A position, an id, a length or a count. 64 bits everywhere: q * S + kv passes 2^31 at S = 46341.
using index_t = std::int64_t;

enum class dtype : std::uint8_t { f64, f32, bf16, f16, i64, i32, u8 };

inline constexpr dtype f64 = dtype::f64, f32 = dtype::f32, bf16 = dtype::bf16, f16 = dtype::f16, i64 = dtype::i64,
                       i32 = dtype::i32, u8 = dtype::u8;

/// Bytes of one element.
constexpr std::size_t size_of(dtype type) {
  switch (type) {
    case dtype::f64:
    case dtype::i64: return 8;
    case dtype::f32:
    case dtype::i32: return 4;
    case dtype::bf16:
    case dtype::f16: return 2;
    case dtype::u8: return 1;
  }
  return 0;
}

constexpr const char* name_of(dtype type) {
  switch (type) {
    case dtype::f64: return "f64";
    case dtype::f32: return "f32";
    case dtype::bf16: return "bf16";
    case dtype::f16: return "f16";
    case dtype::i64: return "i64";
    case dtype::i32: return "i32";
    case dtype::u8: return "u8";
  }
  return "?";
}

constexpr bool is_real(dtype type) {
  return type == dtype::f64 || type == dtype::f32 || type == dtype::bf16 || type == dtype::f16;
}

/// bf16 to fp32: exact.
inline float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t(bits) << 16); }

/// fp32 to bf16: round to nearest, ties to even; NaN stays NaN.
inline std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return std::uint16_t((bits >> 16) | 0x40u);
  return std::uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// fp16 to fp32: exact.
inline float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // 2^112 moves the exponent bias from 15 to 127 and normalises subnormals on the way.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

/// fp32 to fp16: round to nearest, ties to even; overflow gives infinity.
inline std::uint16_t to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = std::uint16_t((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return std::uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return std::uint16_t(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal result: adding 0.5 rounds at the right bit
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return std::uint16_t(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return std::uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

}  // namespace samite
