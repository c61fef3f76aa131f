// attention_mma.cuh: attention of bf16 and f16 tensors on mma.sync m16n8k16, for sm_80 and newer; its gradients are in attention_mma_gradient.cuh.
//
// D and Dv are the head dims padded to a multiple of 16 (of 32 where either passes 128), at most 256; the padding is zeros in
// shared memory. Scores, softmax and sums are fp32; P and dS are rounded to the tensors' type before they multiply.
//   forward  one block of 128 threads for 128 queries, a warp for 32 (64 and 16 past head dims of 128 and with score functions); K and V
//            tiles of 64 keys, copied while others are used; online softmax in powers of 2
// Dynamic shared memory: see *_shared_bytes; at most 101376 bytes, which every served device has.
// source  Dao 2023, arXiv:2307.08691, algorithm 1
#pragma once
#include "attention_copies.cuh"

namespace samite {

constexpr int mma_threads = 128, mma_rows = 16;

// A value as another lane of the warp has it. All threads of the warp.
struct from_lane {
  int lane;
  template <class T> __device__ T operator()(T x) const { return T(__shfl_sync(0xffffffffu, x, lane)); }
};

// A mask with the rows and columns of a score tile for its own; transposed, its rows are keys.
template <bool Transposed, class Mask> struct pair_mask {
  const attention_parameters& p;
  const Mask& mask;
  index b, h;
  decltype(Mask().head(0, 0)) head;
  __device__ pair_mask(const attention_parameters& parameters, const Mask& m, index batch, index query_head) : p(parameters), mask(m), b(batch), h(query_head), head(m.head(batch, query_head)) {}

  __device__ auto line(index row) const {
    if constexpr (Transposed) return mask.column(b, h, row, head);
    else return mask.row(b, h, row, head);
  }
  __device__ auto across(index column) const {
    if constexpr (Transposed) return mask.row(b, h, column, head);
    else return mask.column(b, h, column, head);
  }
  __device__ bool is_inside(index row, index column) const { return (Transposed ? column : row) < p.queries && (Transposed ? row : column) < p.keys; }
  template <class Line, class Across> __device__ bool keeps(index row, index column, const Line& of_row, const Across& of_column) const {
    if (!is_inside(row, column)) return false;
    if constexpr (Transposed) return mask.keep(b, h, column, row, head, of_column, of_row);
    else return mask.keep(b, h, row, column, head, of_row, of_column);
  }
};

// Which of a thread's pairs are visible, a bit each: bit 4n + e for s[n][e]. What the mask makes of a row alone or of a column alone,
// one lane of the warp computes for all. Rolled loops: inlining the predicate 32 times would cost compile time and instruction cache.
// All threads of the warp.
template <int N, bool Transposed, class Mask>
__device__ inline u32 visible_pairs(const attention_parameters& p, const Mask& mask, index b, index h, index first_row, index first_column, bool full) {
  const int lane = threadIdx.x % 32;
  const index last_row = first_row + mma_rows, last_column = first_column + N * 8;
  const index keys_end = Transposed ? last_row : last_column, queries_end = Transposed ? last_column : last_row;
  if (full && keys_end <= p.keys && queries_end <= p.queries) return 0xffffffffu;
  const pair_mask<Transposed, Mask> pairs(p, mask, b, h);
  const index row = first_row + lane / 4;
  u32 bits = 0;
  if (full) {
#pragma unroll 1
    for (int i = 0; i < N * 4; ++i)
      if (pairs.is_inside(row + i % 4 / 2 * 8, first_column + i / 4 * 8 + lane % 4 * 2 + i % 2)) bits |= 1u << i;
    return bits;
  }
  const auto mine = pairs.line(first_row + lane % mma_rows);
  const auto upper = mine.each(from_lane{lane / 4}), lower = mine.each(from_lane{lane / 4 + 8});
#pragma unroll 1
  for (int first = 0; first < N * 8; first += 32) {
    const auto next = pairs.across(first_column + first + lane);
#pragma unroll 1
    for (int i = 0; i < (N < 4 ? N : 4) * 2; ++i) {
      const int column = i / 2 * 8 + lane % 4 * 2 + i % 2, bit = first / 2 + i / 2 * 4 + i % 2;
      const auto of_column = next.each(from_lane{column});
      if (pairs.keeps(row, first_column + first + column, upper, of_column)) bits |= 1u << bit;
      if (pairs.keeps(row + 8, first_column + first + column, lower, of_column)) bits |= 4u << bit;
    }
  }
  return bits;
}

// Row and column of element (n, e) of a thread's part of a score tile.
struct pair_place {
  index row, column;
  __device__ pair_place(index first_row, index first_column, int n, int e)
      : row(first_row + threadIdx.x % 32 / 4 + e / 2 * 8), column(first_column + n * 8 + threadIdx.x % 4 * 2 + e % 2) {}
};

__device__ inline float quad_max(float x) {
  x = fmax(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmax(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Writes 16 rows of accumulators from `first_column` on, each multiplied by its row's factor.
template <int M, class T>
__device__ inline void store_rows(const float (&x)[M][4], const attention_tensor& t, T* head, index first_row, index length, int first_column, int columns,
                                  float factor_low, float factor_high) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const index row = first_row + lane / 4 + half * 8;
      const int column = first_column + m * 8 + lane % 4 * 2;
      const float factor = half == 0 ? factor_low : factor_high, a = x[m][half * 2] * factor, c = x[m][half * 2 + 1] * factor;
      if (row >= length || column >= columns) continue;
      T* to = head + row * t.row_stride + column * t.column_stride;
      if (t.vectors) {
        *reinterpret_cast<u32*>(to) = storage<T>::pair(a, c);
      } else {
        to[0] = storage<T>::from(a);
        if (column + 1 < columns) to[t.column_stride] = storage<T>::from(c);
      }
    }
}

// ---- forward ------------------------------------------------------------------------------------------------------------

// Blocks of rows and tiles of keys. Warps with two parts of 16 rows read K and V once for both. A score function takes the registers of the second part.
template <int D, int Dv, bool Scored> struct forward_shape {
  static constexpr int largest = D > Dv ? D : Dv;
  static constexpr int parts = largest > 128 || Scored ? 1 : 2;
  static constexpr int rows = 4 * mma_rows * parts;
  static constexpr int key_stages = largest <= 128 ? 2 : 1;  // tiles of K in shared memory
  static constexpr int shared_bytes = (rows * padded<D> + attention_tile * (key_stages * padded<D> + padded<Dv>)) * 2;
};

template <class T, int D, int Dv, class Mask, class Score>
__device__ inline void attention_forward(const attention_parameters& p, const Mask& mask, const Score& score) {
  using shape = forward_shape<D, Dv, !Score::identity>;
  constexpr int key_tiles = attention_tile / 8, value_tiles = Dv / 8, parts = shape::parts;
  extern __shared__ uint4 shared[];
  T* Qs = reinterpret_cast<T*>(shared);
  T* Vs = Qs + shape::rows * padded<D>;
  T* Ks = Vs + attention_tile * padded<Dv>;
  const block_place at((p.queries + shape::rows - 1) / shape::rows, p.heads);
  const i32 b = i32(at.b), h = i32(at.h), g = i32(at.h / (p.heads / p.key_heads)), query_tile = i32(at.tile);  // fewer registers
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * mma_rows * parts;
  const T *K = head_data<const T>(p.K, b, g), *V = head_data<const T>(p.V, b, g);
  const float scale = Score::identity ? ::fabsf(float(p.scale)) * log2_e : 1.0f;  // values of a score function come in powers of 2
  tile_walk walk(p.lists, b, h, query_tile, tiles_of(p.keys));
  const auto copy_keys = [&](int stage) {
    if (!walk.is_done()) copy_rows<attention_tile, D, mma_threads>(Ks + stage * (attention_tile * padded<D>), p.K, K, index(walk.tile) * attention_tile, p.keys, p.head_dim, thread_anew());
    end_copies();
  };
  copy_rows<shape::rows, D, mma_threads>(Qs, p.Q, head_data<const T>(p.Q, b, h), index(query_tile) * shape::rows, p.queries, p.head_dim, threadIdx.x);
  copy_keys(0);
  if (Score::identity && p.scale < 0) {  // -Q meets -scale, so that the largest product is the largest score
    wait_copies<0>();
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < shape::rows * padded<D> / 2; i += mma_threads) reinterpret_cast<u32*>(shared)[i] ^= 0x80008000u;
  }
  float O[parts][value_tiles][4] = {};
  float base[parts][2], total[parts][2];  // of rows lane / 4 and lane / 4 + 8: what is subtracted from their scores, and their sums
#pragma unroll
  for (int r = 0; r < parts; ++r) base[r][0] = base[r][1] = -infinity(), total[r][0] = total[r][1] = 0;

  int stage = 0;
#pragma unroll 1
  while (!walk.is_done()) {
    const index first_query = index(query_tile) * shape::rows + warp_row, first_key = index(walk.tile) * attention_tile;
    const bool full = walk.full;
    wait_copies<0>();
    __syncthreads();  // the keys are there, and the values before have been used
    copy_rows<attention_tile, Dv, mma_threads>(Vs, p.V, V, first_key, p.keys, p.value_dim, thread_anew());
    end_copies();
    walk.advance();
    if constexpr (shape::key_stages == 2) copy_keys(stage ^ 1);
    u32 visible[parts];  // before there are scores, which take the registers
#pragma unroll
    for (int r = 0; r < parts; ++r) visible[r] = visible_pairs<key_tiles, false>(p, mask, b, h, first_query + mma_rows * r, first_key, full);
    float s[parts][key_tiles][4] = {};
    u32 weights[parts][key_tiles][2];
    multiply_rows<D>(s, Qs, warp_row, Ks + stage * (attention_tile * padded<D>));
    if constexpr (shape::key_stages == 1) {
      wait_copies<0>();
      __syncthreads();  // the values are there, and the keys have been used
      copy_keys(0);
    }
#pragma unroll
    for (int r = 0; r < parts; ++r) {
      if constexpr (!Score::identity) {
#pragma unroll
        for (int i = 0; i < 4 * key_tiles; ++i) {
          const pair_place pair(first_query + mma_rows * r, first_key, i / 4, i % 4);
          s[r][i / 4][i % 4] = score.value(b, h, pair.row, pair.column, s[r][i / 4][i % 4] * float(p.scale)) * log2_e;
        }
      }
      if (visible[r] != 0xffffffffu) {
#pragma unroll
        for (int i = 0; i < 4 * key_tiles; ++i)
          if ((visible[r] >> i & 1u) == 0) s[r][i / 4][i % 4] = -infinity();
      }
      float rescale[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = 2 * half;
        float top = -infinity();
#pragma unroll
        for (int n = 0; n < key_tiles; ++n) top = ::fmaxf(top, ::fmaxf(s[r][n][e], s[r][n][e + 1]));
        top = quad_max(top) * scale;
        // The base follows the maximum only where that grows by much, since sums and values then change their unit: weights stay below 2^8.
        rescale[half] = 1;
        if (top > base[r][half] + 8) rescale[half] = power_of_2(base[r][half] - top), base[r][half] = top;
        const float shift = base[r][half] == -infinity() ? 0.0f : base[r][half];  // no key seen yet: keeps -inf - -inf from being NaN
        float sum = 0;
#pragma unroll
        for (int n = 0; n < key_tiles; ++n) {
          s[r][n][e] = power_of_2(s[r][n][e] * scale - shift), s[r][n][e + 1] = power_of_2(s[r][n][e + 1] * scale - shift);
          sum += s[r][n][e], sum += s[r][n][e + 1];
          weights[r][n][half] = storage<T>::pair(s[r][n][e], s[r][n][e + 1]);
        }
        total[r][half] = total[r][half] * rescale[half] + sum;
      }
      if (__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
        for (int m = 0; m < value_tiles; ++m)
#pragma unroll
          for (int e = 0; e < 4; ++e) O[r][m][e] *= rescale[e / 2];
      }
    }
    if constexpr (shape::key_stages == 2) {
      wait_copies<1>();
      __syncthreads();  // the values are there
      stage ^= 1;
    }
    multiply_columns<Dv>(O, weights, Vs);
  }
  wait_copies<0>();
#pragma unroll
  for (int r = 0; r < parts; ++r) {
    const index first_row = index(query_tile) * shape::rows + warp_row + mma_rows * r;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(total[r][half]);
      const row_result<float> row(p, h, sum, sum == 0 ? -infinity() : base[r][half] * ln_2 + real_log(sum));
      factor[half] = row.factor;
      const index q = first_row + lane / 4 + half * 8;
      if (q < p.queries && lane % 4 == 0) static_cast<float*>(p.lse)[(b * p.heads + h) * p.queries + q] = row.lse;
    }
    store_rows(O[r], p.out, head_data<T>(p.out, b, h), first_row, p.queries, 0, p.value_dim, factor[0], factor[1]);
  }
}

}  // namespace samite
