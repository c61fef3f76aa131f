// attention_decode.cuh: attention of few queries over many keys, forward, on mma.sync m16n8k16, for sm_80 and newer: decoding, and the
// verification of blocks and trees (on sm_90a attention_decode_sm90.cuh is for the latter).
//
// A block of 128 threads has a part of a pair's keys (attention_decode_parts.cuh) and `rows` packed rows:
//   16 rows  each warp has all rows and a quarter of the keys of a tile, and copies these itself: the loop has no barrier of the block
//   64 rows  each warp has 16 rows; all share the keys
// Keys and values come through a ring of `stages` pieces by cp.async.
#pragma once
#include "attention_decode_parts.cuh"
#include "attention_mma.cuh"

namespace samite {

// By which part of the threads keys are shared, and how far copies run ahead.
template <int D, int Dv, int RowWarps> struct decode_shape {
  static_assert(RowWarps == 1 || RowWarps == 4, "a warp alone, or the whole block");
  static constexpr int widest = D > Dv ? D : Dv;
  static constexpr int rows = mma_rows * RowWarps;
  static constexpr int key_parts = 4 / RowWarps;                                   // of a step
  static constexpr int keys = RowWarps == 1 || widest > 192 ? 16 : widest > 128 ? 32 : 64;  // of a step, for each part
  static constexpr int steps = attention_tile / (keys * key_parts);                // of a tile
  static constexpr int piece = keys * padded<widest>;                              // elements
  static constexpr int fitting = (widest > 128 ? 101376 : 71680) / (2 * piece * key_parts);  // three blocks a multiprocessor of sm_90
  static constexpr int stages = fitting < 8 ? fitting : 8;
  static constexpr int shared_bytes = stages * piece * key_parts * 2;
  static_assert(stages >= 3, "two pieces on their way");
  static_assert(key_parts * rows * (row_sums<Dv>::stride + 2) * 4 <= shared_bytes, "the warps' sums take the ring's place");
};
template <int D, int Dv, int RowWarps> constexpr int decode_shared_bytes = decode_shape<D, Dv, RowWarps>::shared_bytes;

// The A operands of a warp's 16 packed rows, 16 columns at a time. In registers throughout, unless the heads are wide: then they come from the L1
// whenever they are used.
template <int D, class T> struct packed_queries {
  static constexpr bool stay = D <= 128;
  const T* row[2];
  u32 held[stay ? D / 16 : 1][4];
  __device__ packed_queries(const attention_parameters& p, index b, const packed_rows& rows) {
#pragma unroll
    for (int half = 0; half < 2; ++half) row[half] = rows.exists[half] ? head_data<const T>(p.Q, b, rows.h[half]) + rows.q[half] * p.Q.row_stride : nullptr;
    if constexpr (stay)
#pragma unroll
      for (int k = 0; k < D / 16; ++k) load(held[k], p, k);
  }
  __device__ void get(u32 (&a)[4], const attention_parameters& p, int k) const {
    if constexpr (stay) a[0] = held[k][0], a[1] = held[k][1], a[2] = held[k][2], a[3] = held[k][3];
    else load(a, p, k);
  }
  __device__ void load(u32 (&a)[4], const attention_parameters& p, int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i % 2, column = k * 16 + i / 2 * 8 + threadIdx.x % 4 * 2;
      u32 bits = 0;
      if (row[half] != nullptr && column < p.head_dim) {
        if (p.Q.vectors) {
          bits = *reinterpret_cast<const u32*>(row[half] + column);
        } else {
          bits = row[half][column * p.Q.column_stride].bits;
          if (column + 1 < p.head_dim) bits |= u32(row[half][(column + 1) * p.Q.column_stride].bits) << 16;
        }
      }
      a[i] = bits;
    }
  }
};

template <class T, int D, int Dv, int RowWarps, bool ByHead, class Mask, class Score>
__device__ inline void attention_decode(const decode_parameters& a, const Mask& mask, const Score& score) {
  using shape = decode_shape<D, Dv, RowWarps>;
  constexpr int key_tiles = shape::keys / 8, value_tiles = Dv / 8, stages = shape::stages, group_threads = 32 * RowWarps;
  extern __shared__ uint4 shared[];
  const attention_parameters& p = a.p;
  const decode_place place(a);
  const index b = place.b, g = place.g;
  const i32 first_row = place.first_row, rows = place.rows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_warp = warp % RowWarps, key_part = warp / RowWarps;

  if (a.splits > 1) let_next_start();  // the merge; what comes behind it should find the multiprocessors free, or it spreads over few of them

  const decode_run first_run = place.first_run(a);
  wait_for_last();
  if (place.split > 0 && first_run.first >= first_run.last) return;  // the pair has fewer parts

  const i32 warp_row = first_row + row_warp * mma_rows;
  const bool has_rows = row_warp * mma_rows < rows;  // of all threads of the warp
  const packed_queries<D, T> queries(p, b, packed_rows(p, g, warp_row));
  const float scale = Score::identity ? float(p.scale) * log2_e : float(p.scale);
  float O[value_tiles][4] = {}, s[key_tiles][4];
  float largest[2] = {-infinity(), -infinity()}, total[2] = {0, 0};  // of rows lane / 4 and lane / 4 + 8

  // Pieces, the keys and the values of a step by turns: piece i + stages - 1 is on its way while piece i is used. One loop, so that there is
  // one copy of each of its parts in the kernel.
  T* const ring = reinterpret_cast<T*>(shared) + key_part * stages * shape::piece;
  const T *K = head_data<const T>(p.K, b, g), *V = head_data<const T>(p.V, b, g);
  const int group_thread = int(threadIdx.x) % group_threads;
  part_walk<shape::steps> ahead(first_run), at(first_run);
  const auto key_of = [&](const part_walk<shape::steps>& walk) { return index(walk.tile) * attention_tile + (walk.step * shape::key_parts + key_part) * shape::keys; };
  int filled = 0, used = 0;  // slots of the ring
  bool fills_values = false, uses_values = false;
#pragma unroll 1
  for (int i = 1 - stages; !at.is_done(); ++i) {
    if (i >= 0) {
      wait_copies<stages - 2>();
      if constexpr (RowWarps == 1) __syncwarp();  // what the others have copied is there, and all have used the piece before
      else __syncthreads();
    }
    if (!ahead.is_done()) {
      T* const slot = ring + filled * shape::piece;
      if (fills_values) {
        copy_rows<shape::keys, Dv, group_threads>(slot, p.V, V, key_of(ahead), p.keys, p.value_dim, group_thread);
        ahead.advance(a.runs);
      } else {
        copy_rows<shape::keys, D, group_threads>(slot, p.K, K, key_of(ahead), p.keys, p.head_dim, group_thread);
      }
      fills_values = !fills_values;
    }
    filled = filled + 1 == stages ? 0 : filled + 1;
    end_copies();
    if (i < 0) continue;

    const T* const piece = ring + used * shape::piece;
    used = used + 1 == stages ? 0 : used + 1;
    uses_values = !uses_values;
    if (!uses_values) {
      if (has_rows) multiply_columns<Dv>(O, s, piece, 0, 0);
      at.advance(a.runs);
      continue;
    }
    if (!has_rows) continue;
    const index first_key = key_of(at);
#pragma unroll
    for (int n = 0; n < key_tiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = 0;
#pragma unroll(packed_queries<D, T>::stay ? D / 16 : 2)
    for (int k = 0; k < D / 16; ++k) {
      u32 rows_of_queries[4];
      queries.get(rows_of_queries, p, k);
#pragma unroll
      for (int n = 0; n < key_tiles; n += 2) {
        u32 keys[4];
        load_b<D>(keys, piece, n * 8, k * 16);
        multiply_add<T>(s[n], rows_of_queries, keys[0], keys[1]);
        multiply_add<T>(s[n + 1], rows_of_queries, keys[2], keys[3]);
      }
    }
    const u32 visible = packed_visible<key_tiles, ByHead>(p, mask, b, g, warp_row, first_key, at.run.full != 0);
#pragma unroll
    for (int n = 0; n < key_tiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float y = s[n][e] * scale;
        if constexpr (!Score::identity) {
          const packed_rows packed(p, g, warp_row);
          y = score.value(b, packed.h[e / 2], packed.q[e / 2], first_key + n * 8 + lane % 4 * 2 + e % 2, y) * log2_e;
        }
        s[n][e] = (visible >> (4 * n + e) & 1u) != 0 ? y : -infinity();
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float row_largest = largest[half];
#pragma unroll
      for (int n = 0; n < key_tiles; ++n) row_largest = fmax(row_largest, fmax(s[n][2 * half], s[n][2 * half + 1]));
      row_largest = quad_max(row_largest);
      const float base = row_largest == -infinity() ? 0.0f : row_largest;  // keeps exp2(-inf - -inf) from being NaN
      const float rescale = power_of_2(largest[half] - base);
      largest[half] = row_largest;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < key_tiles; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) sum += s[n][e] = power_of_2(s[n][e] - base);
      total[half] = total[half] * rescale + sum;
#pragma unroll
      for (int m = 0; m < value_tiles; ++m) O[m][2 * half] *= rescale, O[m][2 * half + 1] *= rescale;
    }
  }

  // ---- what the warps have of each row, in the ring's place
  wait_copies<0>();
  __syncthreads();
  float* const sums = reinterpret_cast<float*>(shared);
  float2* const statistics = reinterpret_cast<float2*>(sums + shape::key_parts * shape::rows * row_sums<Dv>::stride);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = key_part * shape::rows + row_warp * mma_rows + lane / 4 + half * 8;
    const float sum = quad_sum(total[half]);
    if (row_warp * mma_rows + lane / 4 + half * 8 >= rows) continue;
    if (lane % 4 == 0) statistics[row] = {largest[half], sum};
#pragma unroll
    for (int m = 0; m < value_tiles; ++m) *reinterpret_cast<float2*>(sums + row * row_sums<Dv>::stride + m * 8 + lane % 4 * 2) = {O[m][2 * half], O[m][2 * half + 1]};
  }
  __syncthreads();
  finish_rows<T, Dv, shape::key_parts>(a, place, sums, statistics, shape::key_parts, shape::rows, 4);
}

}  // namespace samite
