// score_tile.cuh: score functions on the accumulators of a warpgroup (hopper.cuh), whose rows are queries, or keys in the kernels that
// compute S^T.
//
// An emitted score function for them has parts: what the pairs of a head share (of_head), of a row (of_row), and of a row in a tile
// (of_tile: sums that grow evenly with the column begin at the thread's first column there). What is left for a pair is inlined once for each
// accumulator; `c` is its column behind the thread's first one, a constant. Indices have 32 bits and reals are the approximations below:
// a weight is rounded to 16 bits next.
#pragma once
#include "attention.cuh"
#include "hopper.cuh"

namespace samite {

// What those functions call; it hides the functions of the same names in core.cuh and integers.cuh.
struct tile_arithmetic {
  static __device__ inline i32 floor_div(i32 a, i32 b) { return a / b - (a % b < 0 ? 1 : 0); }
  static __device__ inline i32 floor_mod(i32 a, i32 b) { return a % b < 0 ? a % b + b : a % b; }
  static __device__ inline i32 index_abs(i32 a) { return a < 0 ? -a : a; }
  static __device__ inline i32 index_min(i32 a, i32 b) { return b < a ? b : a; }
  static __device__ inline i32 index_max(i32 a, i32 b) { return a < b ? b : a; }
  // Pairs past the end are evaluated too.
  static __device__ inline i32 within(i32 i, i32 length) { return i < 0 ? 0 : i < length ? i : length - 1; }

  static __device__ inline float real_exp(float x) { return power_of_2(x * log2_e); }
  static __device__ inline float real_log(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y * ln_2;
  }
  static __device__ inline float real_sqrt(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  static __device__ inline float real_rsqrt(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  static __device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  // Forward, where weights are rounded to bf16: relative error 2^-11, one operation of the exponential unit.
  static __device__ inline float approximate_tanh(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  // r of tanh(x / (2 log2(e))) = 1 - 2 r: absolute error 2^-22, two operations. Backward 1 - tanh^2 needs it, forward weights in f16 do.
  static __device__ inline float tanh_part(float x) { return reciprocal(1.0f + power_of_2(x)); }
  static __device__ inline float negative_tanh_part(float x) { return reciprocal(-1.0f - power_of_2(x)); }
  static __device__ inline float exact_tanh(float x) { return 1.0f - 2.0f * tanh_part(x * (2.0f * log2_e)); }
};

// x, but the compiler knows nothing of it: so it does not keep for a second pass what it would soon have anew.
__device__ inline i32 as_new(i32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

// A thread's two rows.
template <class Score> struct scored_rows {
  typename Score::of_head head;
  typename Score::of_row row[2];
  __device__ inline void begin(const Score& score, i32 b, i32 h, float scale, i32 first_row, i32 second_row) {
    head = score.head_of(b, h, scale);
    row[0] = score.row_of(head, first_row), row[1] = score.row_of(head, second_row);
  }
};
template <> struct scored_rows<no_score> {};

// Those in a tile.
template <class Score> struct scored_tile {
  const Score& score;
  const scored_rows<Score>& rows;
  typename Score::of_tile tile[2];
  __device__ inline scored_tile(const Score& function, const scored_rows<Score>& of, i32 first_column) : score(function), rows(of) {
    const i32 first = first_column + i32(threadIdx.x % 4 * 2);
    tile[0] = score.tile_of(of.head, of.row[0], first), tile[1] = score.tile_of(of.head, of.row[1], first);
  }
  static __device__ constexpr int row(int i) { return i % 4 / 2; }
  static __device__ constexpr int column(int i) { return i / 4 * 8 + i % 2; }
  // Of accumulator i, x = the product as it is. Times scale_of(head), which is positive, plus offset_of(head) the value comes in powers of 2; so does value_in_units times
  // unit_of(head), which may be negative, and shares more with the adjoint. Where the score function adds a number to the
  // score, its product can begin with that.
  __device__ inline float beginning(int i) const { return score.beginning(rows.head, rows.row[row(i)], tile[row(i)], column(i)); }
  __device__ inline float value(int i, float x) const { return score.value(rows.head, rows.row[row(i)], tile[row(i)], column(i), x); }
  __device__ inline float value_in_units(int i, float x) const { return score.value_in_units(rows.head, rows.row[row(i)], tile[row(i)], column(i), x); }
  __device__ inline float adjoint(int i, float x, float dy) const { return score.adjoint(rows.head, rows.row[row(i)], tile[row(i)], column(i), x, dy); }
  __device__ inline void gradient(int i, float x, float dy, float* sums) const { score.gradient(rows.head, rows.row[row(i)], tile[row(i)], column(i), x, dy, sums); }
};

template <class Score, int N> __device__ inline void score_beginnings(const scored_tile<Score>& pairs, float (&s)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (Score::reads && i % 4 == 0) __syncwarp();
    s[i] = pairs.beginning(i);
  }
}
// Scores to values. Reads of memory for each pair are kept from being all in flight at once: registers would not suffice.
template <bool InUnits, class Score, int N> __device__ inline void score_values(const scored_tile<Score>& pairs, float (&s)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (Score::reads && i % 4 == 0) __syncwarp();
    s[i] = InUnits ? pairs.value_in_units(i, s[i]) : pairs.value(i, s[i]);
  }
}

// Adds a warpgroup's sums of elements that all pairs of a head share, and begins new ones. All threads of the warpgroup.
template <class Score, int N> __device__ inline void add_held_sums(const Score& score, i32 b, i32 h, float (&held)[N]) {
#pragma unroll
  for (int i = 0; i < Score::held; ++i) {
    float sum = held[i];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (threadIdx.x % 32 == 0 && sum != 0) score.add_held(i, b, h, sum);
    held[i] = 0;
  }
}

}  // namespace samite
