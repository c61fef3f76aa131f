// samite/run/row_loops.hpp: the vector loops under row kernels, compiled twice: for any x86-64 and for AVX2 with FMA.
#pragma once
#include <algorithm>
#include <limits>

#include <samite/core/math.hpp>
#include <samite/ir/ops.hpp>

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
#if defined(__clang__)
#define SAMITE_TARGET_AVX2 __attribute__((target("avx2,fma")))
#else
// GCC's -O2 vectorises only loops of known length; these are the loops that matter, whatever the user's flags are.
#define SAMITE_TARGET_AVX2 __attribute__((target("avx2,fma"), optimize("O3")))
#endif
#define SAMITE_HAS_AVX2_TARGET 1
#else
#define SAMITE_TARGET_AVX2
#define SAMITE_HAS_AVX2_TARGET 0
#endif
#define SAMITE_LAMBDA_INLINE __attribute__((always_inline))

namespace samite::detail {

inline bool cpu_has_avx2() {
#if SAMITE_HAS_AVX2_TARGET
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
#else
  return false;
#endif
}

/// An operand of a loop: one element a column, or one a row.
struct loop_operand {
  const void* data;
  bool full;
};
/// Rows and columns of a loop. A loop over one-element rows has a single "row" whose columns are the rows.
struct loop_shape {
  index_t rows, columns;
  bool full;
};

// The body sees pointers and whether each advances with the column; both are template constants, so that the compiler
// vectorises with a broadcast where one does not.
template <bool AFull, bool BFull, class Out, class In, class F>
SAMITE_INLINE void binary_body(F f, const In* a, const In* b, index_t rows, index_t columns, Out* out) {
  for (index_t r = 0; r < rows; ++r) {
    const In* SAMITE_RESTRICT x = a + (AFull ? r * columns : r);
    const In* SAMITE_RESTRICT y = b + (BFull ? r * columns : r);
    Out* SAMITE_RESTRICT z = out + r * columns;
    for (index_t c = 0; c < columns; ++c) z[c] = f(x[AFull ? c : 0], y[BFull ? c : 0]);
  }
}

template <bool AFull, bool BFull, class Out, class In, class F>
void binary_plain(F f, const In* a, const In* b, index_t rows, index_t columns, Out* out) {
  binary_body<AFull, BFull>(f, a, b, rows, columns, out);
}
template <bool AFull, bool BFull, class Out, class In, class F>
SAMITE_TARGET_AVX2 void binary_avx2(F f, const In* a, const In* b, index_t rows, index_t columns, Out* out) {
  binary_body<AFull, BFull>(f, a, b, rows, columns, out);
}

template <class Out, class In, class F>
void binary_dispatch(F f, loop_operand a, loop_operand b, loop_shape s, void* out) {
  const In* x = static_cast<const In*>(a.data);
  const In* y = static_cast<const In*>(b.data);
  Out* z = static_cast<Out*>(out);
  // One number a row: the loop runs over the rows, and both operands advance with it.
  const bool a_full = a.full || !s.full, b_full = b.full || !s.full;
  if (a_full && b_full) s.columns *= s.rows, s.rows = 1;
  const auto go = [&](auto af, auto bf) {
    if (cpu_has_avx2()) binary_avx2<af.value, bf.value>(f, x, y, s.rows, s.columns, z);
    else binary_plain<af.value, bf.value>(f, x, y, s.rows, s.columns, z);
  };
  if (a_full && b_full) go(std::true_type{}, std::true_type{});
  else if (a_full) go(std::true_type{}, std::false_type{});
  else if (b_full) go(std::false_type{}, std::true_type{});
  else go(std::false_type{}, std::false_type{});
}

template <class Out, class In, class Rule>
void binary_loop(loop_operand a, loop_operand b, loop_shape s, void* out) {
  binary_dispatch<Out, In>([](In x, In y) SAMITE_LAMBDA_INLINE { return Out(Rule::value(x, y)); }, a, b, s, out);
}

template <class Rule>
void logic_loop(loop_operand a, loop_operand b, loop_shape s, void* out) {
  using byte = std::uint8_t;
  if constexpr (requires { Rule::value(true, true); })
    binary_dispatch<byte, byte>([](byte x, byte y) SAMITE_LAMBDA_INLINE { return byte(Rule::value(x != 0, y != 0)); }, a, b, s, out);
  else
    binary_dispatch<byte, byte>([](byte x, byte) SAMITE_LAMBDA_INLINE { return byte(Rule::value(x != 0)); }, a, b, s, out);
}

template <class Out, class In, class F>
void unary_loop(F f, loop_operand a, loop_shape s, void* out) {
  binary_dispatch<Out, In>([f](In x, In) SAMITE_LAMBDA_INLINE { return f(x); }, a, a, s, out);
}

template <class T>
void select_loop(loop_operand c, loop_operand a, loop_operand b, loop_shape s, void* out) {
  const std::uint8_t* k = static_cast<const std::uint8_t*>(c.data);
  const T* x = static_cast<const T*>(a.data);
  const T* y = static_cast<const T*>(b.data);
  T* z = static_cast<T*>(out);
  for (index_t r = 0; r < s.rows; ++r)
    for (index_t j = 0; j < s.columns; ++j) {
      const index_t wide = r * s.columns + j, narrow = s.full ? r : j;
      z[wide] = k[c.full ? wide : narrow] ? x[a.full ? wide : narrow] : y[b.full ? wide : narrow];
    }
}

template <class T>
T rounded(T x, dtype type) {
  switch (type) {
    case dtype::bf16: return T(from_bf16(to_bf16(float(x))));
    case dtype::f16: return T(from_f16(to_f16(float(x))));
    case dtype::f32: return T(float(x));
    default: return x;
  }
}

// Computing in double, a graph of f32 values still rounds only where the program says so.
template <class T>
void round_loop_as(dtype type, loop_operand a, loop_shape s, void* out) {
  unary_loop<T, T>([type](T x) { return rounded(x, type); }, a, s, out);
}

/// Sum in eight partial sums: a fixed order that vectorises.
template <class T>
SAMITE_INLINE T row_sum_body(const T* x, index_t n) {
  T part[8] = {};
  index_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; ++k) part[k] += x[i + k];
  for (int k = 0; i < n; ++i, ++k) part[k] += x[i];
  return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}
template <class T>
SAMITE_TARGET_AVX2 T row_sum_avx2(const T* x, index_t n) { return row_sum_body(x, n); }
template <class T>
T row_sum(const T* x, index_t n) { return cpu_has_avx2() ? row_sum_avx2(x, n) : row_sum_body(x, n); }

template <class T>
SAMITE_INLINE T row_extreme_body(const T* x, index_t n, bool want_largest) {
  T best = want_largest ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
  bool nan = false;
  for (index_t i = 0; i < n; ++i) {
    best = want_largest ? (x[i] > best ? x[i] : best) : (x[i] < best ? x[i] : best);
    nan |= x[i] != x[i];
  }
  return nan ? std::numeric_limits<T>::quiet_NaN() : best;
}
template <class T>
SAMITE_TARGET_AVX2 T row_extreme_avx2(const T* x, index_t n, bool want_largest) { return row_extreme_body(x, n, want_largest); }
template <class T>
T row_extreme(const T* x, index_t n, bool want_largest) {
  return cpu_has_avx2() ? row_extreme_avx2(x, n, want_largest) : row_extreme_body(x, n, want_largest);
}

template <class To>
void load_row(To* to, const std::byte* from, dtype type, index_t stride, index_t n) {
  const auto copy = [&](auto* x, auto convert) {
    for (index_t i = 0; i < n; ++i) to[i] = To(convert(x[i * stride]));
  };
  const auto same = [](auto x) { return x; };
  switch (type) {
    case dtype::f64: return copy(reinterpret_cast<const double*>(from), same);
    case dtype::f32: return copy(reinterpret_cast<const float*>(from), same);
    case dtype::bf16: return copy(reinterpret_cast<const std::uint16_t*>(from), from_bf16);
    case dtype::f16: return copy(reinterpret_cast<const std::uint16_t*>(from), from_f16);
    case dtype::i64: return copy(reinterpret_cast<const std::int64_t*>(from), same);
    case dtype::i32: return copy(reinterpret_cast<const std::int32_t*>(from), same);
    case dtype::u8: return copy(reinterpret_cast<const std::uint8_t*>(from), same);
  }
}

template <class From>
void store_row(std::byte* to, dtype type, const From* from, index_t n) {
  const auto copy = [&](auto* x, auto convert) {
    for (index_t i = 0; i < n; ++i) x[i] = convert(from[i]);
  };
  // Reals saturate, as in tensor::to_dtype; integers wrap.
  const auto whole = []<class Integer>() {
    return [](From x) {
      if constexpr (std::is_floating_point_v<From>) return saturated<Integer>(double(x));
      else return Integer(x);
    };
  };
  switch (type) {
    case dtype::f64: return copy(reinterpret_cast<double*>(to), [](From x) { return double(x); });
    case dtype::f32: return copy(reinterpret_cast<float*>(to), [](From x) { return float(x); });
    case dtype::bf16: return copy(reinterpret_cast<std::uint16_t*>(to), [](From x) { return to_bf16(float(x)); });
    case dtype::f16: return copy(reinterpret_cast<std::uint16_t*>(to), [](From x) { return to_f16(float(x)); });
    case dtype::i64: return copy(reinterpret_cast<std::int64_t*>(to), whole.template operator()<std::int64_t>());
    case dtype::i32: return copy(reinterpret_cast<std::int32_t*>(to), whole.template operator()<std::int32_t>());
    case dtype::u8: return copy(reinterpret_cast<std::uint8_t*>(to), whole.template operator()<std::uint8_t>());
  }
}

}  // namespace samite::detail
