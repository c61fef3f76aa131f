// score.cuh: what emitted score functions call: elements of captured tensors and tables, and sums of their gradients.
//
// A score function is a struct with `value`, `adjoint` and `gradient`; `no_score` stands where there is none.
#pragma once
#include "core.cuh"

namespace samite {

struct score_tensor {
  const void* data;
  index dims[3], strides[3];  // of one to three axes, the rest 1 and 0
};

// Pairs past the end of the matrix and hidden ones are evaluated too; their results are dropped, so their indices are clamped.
__device__ inline index inside(index i, index length) { return i < 0 ? 0 : i < length ? i : length - 1; }

template <class Real, class T> __device__ inline Real element(const score_tensor& t, index i, index j, index k) {
  if (t.dims[0] * t.dims[1] * t.dims[2] == 0) return 0;
  const index at = inside(i, t.dims[0]) * t.strides[0] + inside(j, t.dims[1]) * t.strides[1] + inside(k, t.dims[2]) * t.strides[2];
  return arithmetic<Real>::load(static_cast<const T*>(t.data)[at]);
}

struct score_table {
  const i32* values;
  index dims[3];
};
__device__ inline index entry(const score_table& t, index i, index j, index k) {
  if (t.dims[0] * t.dims[1] * t.dims[2] == 0) return 0;
  return t.values[(inside(i, t.dims[0]) * t.dims[1] + inside(j, t.dims[1])) * t.dims[2] + inside(k, t.dims[2])];
}

// ---- sums that do not depend on the order of their terms --------------------------------------------------------------------
//
// A float is a whole number of 24 bits times a power of 2. Each sum is kept as `sum_words` whole numbers; word w counts units of
// 2^(20 w - 149), and a term adds at most 2^20 to each, so that 2^43 terms fit. Whole numbers add up in any order.
// source  Kulisch 2013, "Computer Arithmetic and Validity", chapter 8 (the long accumulator)

constexpr int sum_words = 15, sum_bits = 20;

struct element_sums {
  i64* words;    // [elements, sum_words]
  void* direct;  // or, where the words would not fit in memory: [elements], of the kernel's reals
};

__device__ inline void add_exactly(i64* words, float x) {
  const u32 bits = __float_as_uint(x);
  const int exponent = int(bits >> 23 & 255u);
  u64 digits = bits & 0x7fffffu;
  int place = 0;  // x = digits * 2^(place - 149)
  if (exponent != 0) digits |= 0x800000u, place = exponent - 1;
  digits <<= place % sum_bits;
  for (i64* word = words + place / sum_bits; digits != 0; ++word, digits >>= sum_bits) {
    const i64 part = i64(digits & ((1u << sum_bits) - 1));
    if (part != 0) atomicAdd(reinterpret_cast<u64*>(word), u64(bits >> 31 != 0 ? -part : part));
  }
}

// Infinities and NaN must not vanish among whole numbers: they mark the highest word.
constexpr i64 sum_is_nan = i64(1) << 62;

__device__ inline void add_to(const element_sums& sums, index at, float x) {
  if (sums.direct != nullptr) atomicAdd(static_cast<float*>(sums.direct) + at, x);
  else if ((__float_as_uint(x) & 0x7f800000u) == 0x7f800000u) atomicExch(reinterpret_cast<u64*>(sums.words + at * sum_words + sum_words - 1), u64(sum_is_nan));
  else add_exactly(sums.words + at * sum_words, x);
}
// The first 48 bits of a double count.
__device__ inline void add_to(const element_sums& sums, index at, double x) {
  if (sums.direct != nullptr) {
    atomicAdd(static_cast<double*>(sums.direct) + at, x);
    return;
  }
  const float high = float(x);
  add_to(sums, at, high);
  if (x - double(high) == x - double(high)) add_to(sums, at, float(x - double(high)));
}

__device__ inline index element_index(const score_tensor& t, index i, index j, index k) { return (i * t.dims[1] + j) * t.dims[2] + k; }

template <class Out> __device__ inline void finish_sums(const i64* words, Out* out, index elements) {
  for (index at = index(blockIdx.x) * blockDim.x + threadIdx.x; at < elements; at += index(gridDim.x) * blockDim.x) {
    const i64* w = words + at * sum_words;
    double sum = 0, unit = 1.401298464324817e-45;  // 2^-149
    for (int i = 0; i < sum_words; ++i, unit *= 1 << sum_bits) sum += double(w[i]) * unit;
    const i64 top = w[sum_words - 1];
    out[at] = Out(top > sum_is_nan / 2 || top < -sum_is_nan / 2 ? real_bits(0x7ff8000000000000ull) : sum);
  }
}

struct no_score {
  index unused;
  static constexpr bool identity = true, begins = false, bounded = false, fills_registers = false;
  static constexpr int held = 0;
};

}  // namespace samite
