// attention_decode_parts.cuh: what the kernels for few queries over many keys share: packed rows, parts of a list of key tiles, and the merge of
// what the parts have of each row.
//
// The query heads of a key head are packed: row r of a pair (batch, key head) is query r / group of its head r % group, so that K and V are
// read once for all of them. The listed key tiles of a pair are cut into parts, a block each and some rows of the pair. A part gives a maximum,
// a sum and a weighted sum of values for each row; where a pair has several, a second kernel merges them in a fixed order, so that results
// repeat. Tails: keys past the end are zeros and count as hidden; rows past the end are zeros and not stored.
// Grid: row tiles (fastest) x splits x pairs; of the second kernel a block of 128 threads a row of out.
// source  Dao et al. 2023, "Flash-Decoding for long-context inference"; the packing of heads: FlashAttention 3, pack_gqa
#pragma once
#include "attention.cuh"
#include "mma.cuh"

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
  i32 rows;                // packed rows of a block
  float* partials;         // of each block rows * Dv sums, then a maximum and a sum for each row
};

// The parts of a pair's list.
__device__ inline i32 parts_of(const decode_parameters& a, index b, index g) {
  if (a.runs != nullptr) return a.parts[b * a.batch_lists + g * a.head_lists];
  const i32 tiles = i32(tiles_of(a.p.keys));
  return tiles == 0 ? 1 : (tiles + a.chunk - 1) / a.chunk;
}

// Floats that a block leaves for the merge.
template <int Dv> __device__ inline i32 block_floats(i32 rows) { return rows * (Dv + 2); }

// Lets the kernel that was launched to follow this one start its blocks, and waits for all that the one before has written; sm_90 and newer,
// where the host launches it so. Elsewhere that kernel starts when this one has ended.
__device__ inline void let_next_start() {
  if constexpr (__CUDA_ARCH__ >= 900) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ inline void wait_for_last() {
  if constexpr (__CUDA_ARCH__ >= 900) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Which rows, and which part of the keys, are the block's.
struct decode_place {
  i32 row_tile, split;
  index b, g;
  i32 first_row, rows;  // packed rows; those that exist
  __device__ explicit decode_place(const decode_parameters& a) : row_tile(i32(blockIdx.x) % a.row_tiles), split(i32(blockIdx.x) / a.row_tiles % a.splits) {
    const i32 pair = i32(blockIdx.x) / a.row_tiles / a.splits;
    b = pair / a.p.key_heads, g = pair % a.p.key_heads, first_row = row_tile * a.rows;
    const i32 left = i32(a.p.queries * (a.p.heads / a.p.key_heads)) - first_row;
    rows = left < a.rows ? left : a.rows;
  }
  // The part's first run of tiles.
  __device__ decode_run first_run(const decode_parameters& a) const {
    if (a.runs != nullptr) return a.runs[(b * a.batch_lists + g * a.head_lists) * a.splits + split];
    const i32 tiles = i32(tiles_of(a.p.keys)), first = split * a.chunk;
    return {first, first + a.chunk < tiles ? first + a.chunk : tiles, 1, 0};
  }
};

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
  static constexpr int stride = Dv + 4;  // of rows in shared memory
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

// Adds up what the block's `key_parts` parts of the keys, at most Most, gave for each row and stores the rows, or leaves them for the merge.
// `sums` and `statistics` are in shared memory, `rows` of each part. All threads of the first `warps` warps.
template <class T, int Dv, int Most> __device__ inline void finish_rows(const decode_parameters& a, const decode_place& at, const float* sums, const float2* statistics, int key_parts, int rows, int warps) {
  const attention_parameters& p = a.p;
  const bool is_whole = parts_of(a, at.b, at.g) == 1;
  float* const partial = a.partials + index(blockIdx.x) * block_floats<Dv>(a.rows);
#pragma unroll 1
  for (i32 row = threadIdx.x / 32; row < at.rows; row += warps) {
    row_sums<Dv> whole;
    whole.template add_parts<Most>(
        key_parts, [&](int k) { return sums + (k * rows + row) * row_sums<Dv>::stride; }, [&](int k) { return statistics + k * rows + row; });
    const i32 group = i32(p.heads / p.key_heads), packed_row = at.first_row + row;
    if (is_whole) whole.template store<T>(p, at.b, at.g * group + packed_row % group, packed_row / group);
    else whole.put(partial + row * Dv, reinterpret_cast<float2*>(partial + a.rows * Dv) + row);
  }
}

// Merges the parts of a row, each warp a quarter of them, 8 at a time.
template <class T, int Dv> __device__ inline void merge_decode(const decode_parameters& a) {
  __shared__ float sums[4][Dv];
  __shared__ float2 statistics[4];
  const attention_parameters& p = a.p;
  const i32 group = i32(p.heads / p.key_heads), pair_rows = i32(p.queries) * group;
  const i32 pair = i32(blockIdx.x) / pair_rows, packed_row = i32(blockIdx.x) % pair_rows, row_tile = packed_row / a.rows, row = packed_row % a.rows, warp = threadIdx.x / 32;
  const index b = pair / p.key_heads, g = pair % p.key_heads;
  const i32 parts = parts_of(a, b, g);
  if (parts == 1) return;  // it has been stored
  const float* const first = a.partials + (index(pair) * a.splits * a.row_tiles + row_tile) * block_floats<Dv>(a.rows);
  const index step = index(a.row_tiles) * block_floats<Dv>(a.rows);
  wait_for_last();
  let_next_start();
  row_sums<Dv> whole;
  constexpr int at_once = Dv > 128 ? 4 : 8;
#pragma unroll 1
  for (i32 part = warp; part < parts; part += 4 * at_once)
    whole.template add_parts<at_once>(
        (parts - part + 3) / 4, [&](int k) { return first + (part + 4 * k) * step + row * Dv; },
        [&](int k) { return reinterpret_cast<const float2*>(first + (part + 4 * k) * step + a.rows * Dv) + row; });
  whole.put(sums[warp], statistics + warp);
  __syncthreads();
  if (warp != 0) return;
  row_sums<Dv> merged;
  merged.template add_parts<4>(4, [&](int k) { return sums[k]; }, [&](int k) { return statistics + k; });
  merged.template store<T>(p, b, g * group + packed_row % group, packed_row / group);
}

}  // namespace samite
