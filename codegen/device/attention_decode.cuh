// attention_decode.cuh: attention of few queries over many keys, forward, on mma.sync m16n8k16, for sm_80 and newer: decoding, and the
// verification of blocks and trees.
//
// The query heads of a key head are packed: row r of a pair (batch, key head) is query r / group of its head r % group, so that K and V are
// read once for all of them. The listed key tiles of a pair are cut into parts, a block of 128 threads each and `rows` packed rows:
//   16 rows  each warp has all rows and a quarter of the keys of a tile, and copies these itself: the loop has no barrier of the block
//   64 rows  each warp has 16 rows; all share the keys
// Keys and values come through a ring of `stages` pieces by cp.async. A part gives a maximum, a sum and a weighted sum of values for each
// row; where a pair has several, a second kernel merges them in a fixed order, so that results repeat. Tails: keys past the end are zeros and
// count as hidden; rows past the end are zeros and not stored.
// Grid: row tiles (fastest) x splits x pairs; of the second kernel a block of 128 threads a row of out.
// source  Dao et al. 2023, "Flash-Decoding for long-context inference"; the packing of heads: FlashAttention 3, pack_gqa
#pragma once
#include "attention_mma.cuh"

namespace samite {

struct decode_run {
  i32 first, last;  // tiles first to last - 1
  i32 full;
  i32 next;         // place of the run behind it, 0 if none
};

struct decode_parameters {
  attention_parameters p;
  const decode_run* runs;  // null: every tile is full; else the first run of each part, `splits` places a list, then those behind them
  const i32* parts;        // of each list, at least 1
  index batch_lists, head_lists;  // lists from one batch or key head to the next; 0 where they share
  i32 splits, chunk, row_tiles;   // chunk: tiles a part, without lists
  i32 padding;
  float* partials;         // of each block rows * Dv sums, then a maximum and a sum for each row
};

// The parts of a pair's list.
__device__ inline i32 parts_of(const decode_parameters& a, index b, index g) {
  if (a.runs != nullptr) return a.parts[b * a.batch_lists + g * a.head_lists];
  const i32 tiles = i32(tiles_of(a.p.keys));
  return tiles == 0 ? 1 : (tiles + a.chunk - 1) / a.chunk;
}

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
  static constexpr int sum_stride = Dv + 4;
  static constexpr int block_floats = rows * (Dv + 2);
  static_assert(stages >= 3, "two pieces on their way");
  static_assert(key_parts * rows * (sum_stride + 2) * 4 <= shared_bytes, "the warps' sums take the ring's place");
};
template <int D, int Dv, int RowWarps> constexpr int decode_shared_bytes = decode_shape<D, Dv, RowWarps>::shared_bytes;

// Lets the kernel that was launched to follow this one start its blocks, and waits for all that the one before has written; sm_90 and newer,
// where the host launches it so. Elsewhere that kernel starts when this one has ended.
__device__ inline void let_next_start() {
  if constexpr (__CUDA_ARCH__ >= 900) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ inline void wait_for_last() {
  if constexpr (__CUDA_ARCH__ >= 900) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The steps of a part, in order.
template <int Steps> struct part_walk {
  decode_run run;
  i32 tile;
  int step = 0;
  __device__ part_walk(const decode_run& first) : run(first), tile(first.first) {}
  __device__ bool is_done() const { return tile >= run.last; }
  __device__ void advance(const decode_run* runs) {
    if (++step < Steps) return;
    step = 0;
    if (++tile < run.last || run.next == 0) return;
    run = runs[run.next], tile = run.first;
  }
};

// What a thread's two packed rows, lane / 4 and lane / 4 + 8 of its warp's, stand for.
struct packed_rows {
  i32 q[2], h[2];
  bool exists[2];
  __device__ packed_rows(const attention_parameters& p, index g, i32 first) {
    const i32 group = i32(p.heads / p.key_heads), end = i32(p.queries) * group;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 row = first + i32(threadIdx.x % 32) / 4 + half * 8, inside = row < end ? row : end - 1;
      exists[half] = row < end, q[half] = inside / group, h[half] = i32(g) * group + inside % group;
    }
  }
};

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

// Which of a thread's pairs are visible, a bit each: bit 4n + e for s[n][e]. ByHead: the mask reads h, which the rows of a warp differ in.
template <int N, bool ByHead, class Mask>
__device__ inline u32 packed_visible(const attention_parameters& p, const Mask& mask, index b, index g, i32 first_row, index first_key, bool full) {
  if (full && first_key + N * 8 <= p.keys) return 0xffffffffu;
  const packed_rows rows(p, g, first_row);
  const auto upper_head = mask.head(b, rows.h[0]), lower_head = mask.head(b, rows.h[1]);
  const auto upper = mask.row(b, rows.h[0], rows.q[0], upper_head), lower = mask.row(b, rows.h[1], rows.q[1], lower_head);
  u32 bits = 0;
#pragma unroll 1
  for (int i = 0; i < N * 2; ++i) {
    const index key = first_key + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
    const int bit = i / 2 * 4 + i % 2;
    if (key >= p.keys) break;
    if (full) {
      bits |= 5u << bit;
      continue;
    }
    const auto column = mask.column(b, rows.h[0], key, upper_head);
    if (mask.keep(b, rows.h[0], rows.q[0], key, upper_head, upper, column)) bits |= 1u << bit;
    if constexpr (ByHead) {
      if (mask.keep(b, rows.h[1], rows.q[1], key, lower_head, lower, mask.column(b, rows.h[1], key, lower_head))) bits |= 4u << bit;
    } else {
      if (mask.keep(b, rows.h[1], rows.q[1], key, lower_head, lower, column)) bits |= 4u << bit;
    }
  }
  return bits;
}

// Weighted sums of values of one row, four columns of them a lane, then those 128 further on; the sum of the weights is `total`, and their
// unit 2 ^ largest. All threads of a warp.
template <int Dv> struct row_sums {
  static constexpr int quads = (Dv + 127) / 128;
  float4 sum[quads];
  float largest, total;
  __device__ row_sums() : largest(-infinity()), total(0) {
#pragma unroll
    for (int i = 0; i < quads; ++i) sum[i] = {0, 0, 0, 0};
  }
  static __device__ int column(int i) { return i * 128 + i32(threadIdx.x % 32) * 4; }
  static __device__ bool is_column(int i) { return Dv % 128 == 0 || column(i) < Dv; }
  __device__ void add(int i, float weight, const float4& x) { sum[i].x += weight * x.x, sum[i].y += weight * x.y, sum[i].z += weight * x.z, sum[i].w += weight * x.w; }

  // Adds the first `count` of Most parts: `place(k)` and `statistics(k)` say where part k has its sums, and its maximum and sum of weights. All loads
  // are on their way before the first is used.
  template <int Most, class Place, class Statistics> __device__ void add_parts(int count, const Place& place, const Statistics& statistics) {
    float2 own[Most];
    float4 x[Most][quads];
    float top = largest;
#pragma unroll
    for (int k = 0; k < Most; ++k) {
      own[k] = {-infinity(), 0};
      if (k < count) own[k] = *statistics(k);
#pragma unroll
      for (int i = 0; i < quads; ++i) {
        x[k][i] = {0, 0, 0, 0};
        if (k < count && is_column(i)) x[k][i] = *reinterpret_cast<const float4*>(place(k) + column(i));
      }
    }
#pragma unroll
    for (int k = 0; k < Most; ++k) top = fmax(top, own[k].x);
    const float base = top == -infinity() ? 0.0f : top, rescale = power_of_2(largest - base);
    largest = top, total *= rescale;
#pragma unroll
    for (int i = 0; i < quads; ++i) sum[i].x *= rescale, sum[i].y *= rescale, sum[i].z *= rescale, sum[i].w *= rescale;
#pragma unroll
    for (int k = 0; k < Most; ++k) {
      const float weight = power_of_2(own[k].x - base);
      total += weight * own[k].y;
#pragma unroll
      for (int i = 0; i < quads; ++i) add(i, weight, x[k][i]);
    }
  }

  __device__ void put(float* to, float2* statistics) const {
#pragma unroll
    for (int i = 0; i < quads; ++i)
      if (is_column(i)) *reinterpret_cast<float4*>(to + column(i)) = sum[i];
    if (threadIdx.x % 32 == 0) *statistics = {largest, total};
  }

  // out and lse of a row.
  template <class T> __device__ void store(const attention_parameters& p, index b, index h, index q) const {
    const row_result<float> result(p, h, total, total == 0 ? -infinity() : largest * ln_2 + real_log(total));
    if (threadIdx.x % 32 == 0) static_cast<float*>(p.lse)[(b * p.heads + h) * p.queries + q] = result.lse;
    T* to = head_data<T>(p.out, b, h) + q * p.out.row_stride;
#pragma unroll
    for (int i = 0; i < quads; ++i) {
      const int first = column(i);
      const float x[4] = {sum[i].x * result.factor, sum[i].y * result.factor, sum[i].z * result.factor, sum[i].w * result.factor};
      if (first >= p.value_dim) continue;
      if (p.out.vectors) {
        *reinterpret_cast<uint2*>(to + first) = {storage<T>::pair(x[0], x[1]), storage<T>::pair(x[2], x[3])};
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (first + c < p.value_dim) to[(first + c) * p.out.column_stride] = storage<T>::from(x[c]);
      }
    }
  }
};

template <class T, int D, int Dv, int RowWarps, bool ByHead, class Mask, class Score>
__device__ inline void attention_decode(const decode_parameters& a, const Mask& mask, const Score& score) {
  using shape = decode_shape<D, Dv, RowWarps>;
  constexpr int key_tiles = shape::keys / 8, value_tiles = Dv / 8, stages = shape::stages, group_threads = 32 * RowWarps;
  extern __shared__ uint4 shared[];
  const attention_parameters& p = a.p;
  const i32 row_tile = i32(blockIdx.x) % a.row_tiles, split = i32(blockIdx.x) / a.row_tiles % a.splits, pair = i32(blockIdx.x) / a.row_tiles / a.splits;
  const index b = pair / p.key_heads, g = pair % p.key_heads;
  const i32 first_row = row_tile * shape::rows, rows_left = i32(p.queries * (p.heads / p.key_heads)) - first_row, rows = rows_left < shape::rows ? rows_left : shape::rows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_warp = warp % RowWarps, key_part = warp / RowWarps;

  if (a.splits > 1) let_next_start();  // the merge; what comes behind it should find the multiprocessors free, or it spreads over few of them

  // ---- which tiles
  decode_run first_run;
  if (a.runs == nullptr) {
    const i32 tiles = i32(tiles_of(p.keys)), first = split * a.chunk;
    first_run = {first, first + a.chunk < tiles ? first + a.chunk : tiles, 1, 0};
  } else {
    first_run = a.runs[(b * a.batch_lists + g * a.head_lists) * a.splits + split];
  }
  wait_for_last();
  if (split > 0 && first_run.first >= first_run.last) return;  // the pair has fewer parts

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
  const bool is_whole = parts_of(a, b, g) == 1;
  wait_copies<0>();
  __syncthreads();
  float* const sums = reinterpret_cast<float*>(shared);
  float2* const statistics = reinterpret_cast<float2*>(sums + shape::key_parts * shape::rows * shape::sum_stride);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = key_part * shape::rows + row_warp * mma_rows + lane / 4 + half * 8;
    const float sum = quad_sum(total[half]);
    if (row_warp * mma_rows + lane / 4 + half * 8 >= rows) continue;
    if (lane % 4 == 0) statistics[place] = {largest[half], sum};
#pragma unroll
    for (int m = 0; m < value_tiles; ++m) *reinterpret_cast<float2*>(sums + place * shape::sum_stride + m * 8 + lane % 4 * 2) = {O[m][2 * half], O[m][2 * half + 1]};
  }
  __syncthreads();
  float* const partial = a.partials + index(blockIdx.x) * shape::block_floats;
#pragma unroll 1
  for (i32 row = warp; row < rows; row += 4) {
    row_sums<Dv> whole;
    whole.template add_parts<shape::key_parts>(
        shape::key_parts, [&](int k) { return sums + (k * shape::rows + row) * shape::sum_stride; }, [&](int k) { return statistics + k * shape::rows + row; });
    const i32 group = i32(p.heads / p.key_heads), packed_row = first_row + row;
    if (is_whole) whole.template store<T>(p, b, g * group + packed_row % group, packed_row / group);
    else whole.put(partial + row * Dv, reinterpret_cast<float2*>(partial + shape::rows * Dv) + row);
  }
}

// Merges the parts of a row, each warp a quarter of them, 8 at a time.
template <class T, int D, int Dv, int RowWarps> __device__ inline void merge_decode(const decode_parameters& a) {
  using shape = decode_shape<D, Dv, RowWarps>;
  __shared__ float sums[4][Dv];
  __shared__ float2 statistics[4];
  const attention_parameters& p = a.p;
  const i32 group = i32(p.heads / p.key_heads), pair_rows = i32(p.queries) * group;
  const i32 pair = i32(blockIdx.x) / pair_rows, packed_row = i32(blockIdx.x) % pair_rows, row_tile = packed_row / shape::rows, row = packed_row % shape::rows, warp = threadIdx.x / 32;
  const index b = pair / p.key_heads, g = pair % p.key_heads;
  const i32 parts = parts_of(a, b, g);
  if (parts == 1) return;  // it has been stored
  const float* const first = a.partials + (index(pair) * a.splits * a.row_tiles + row_tile) * shape::block_floats;
  const index step = index(a.row_tiles) * shape::block_floats;
  wait_for_last();
  let_next_start();
  row_sums<Dv> whole;
  constexpr int at_once = Dv > 128 ? 4 : 8;
#pragma unroll 1
  for (i32 part = warp; part < parts; part += 4 * at_once)
    whole.template add_parts<at_once>(
        (parts - part + 3) / 4, [&](int k) { return first + (part + 4 * k) * step + row * Dv; },
        [&](int k) { return reinterpret_cast<const float2*>(first + (part + 4 * k) * step + shape::rows * Dv) + row; });
  whole.put(sums[warp], statistics + warp);
  __syncthreads();
  if (warp != 0) return;
  row_sums<Dv> merged;
  merged.template add_parts<4>(4, [&](int k) { return sums[k]; }, [&](int k) { return statistics + k; });
  merged.template store<T>(p, b, g * group + packed_row % group, packed_row / group);
}

}  // namespace samite
