// samite/generated/device_sources.hpp: codegen/device/*.cuh as text, made by the embed target. Change those files, not this one.
#pragma once
#include <string_view>

namespace samite::detail {

struct device_source {
  std::string_view name, text;
};

inline constexpr device_source device_sources[] = {
    {"attention.cuh",
     R"cuh(// attention.cuh: what the attention kernels share: tensors, tile lists, loads of tiles, and the pass that prepares backward.
//
// Q [B,H,Q,D], K [B,G,K,D], V [B,G,K,Dv] with any strides; query head h reads key head h / (H/G). The score matrix is cut into
// 64x64 tiles. For each row (forward, dQ) or column (dK, dV) of tiles a list of runs says which tiles hold a kept pair and
// whether all their pairs are kept; tiles are visited in ascending order, so the result does not depend on how they are
// classed. Tails: rows past the end are loaded as zeros and never stored; pairs past the end count as hidden.
#pragma once
#include "core.cuh"
#include "score.cuh"

namespace samite {

constexpr int attention_tile = 64;
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

struct attention_tensor {
  void* data;
  index batch_stride, head_stride, row_stride, column_stride;
  i32 vectors;  // 1: 16-byte accesses are aligned and a row is a whole number of them
  i32 padding;
};

struct tile_run {
  i32 first, last;  // tiles first to last - 1
  i32 full;
  i32 bits;         // bit tile of the first one, the others follow; -1 if full
};

struct tile_lists {
  const tile_run* runs;  // null: every tile is full
  const i64* begin;      // [lists + 1]
  index batch_lists, head_lists;  // lists from one batch or head to the next; 0 where they share
};

struct attention_parameters {
  attention_tensor Q, K, V, out, d_out, dQ, dK, dV;
  // All [B,H,Q] and fp32; fp64 for f64 tensors.
  void* lse;
  const void* d_lse;  // or null
  void* row_lse;      // scratch: lse in the units of the backward kernel, +infinity in rows without a kept key
  void* row_delta;    // scratch
  const void* sink;   // or null: a logit a head [H], fp32 (fp64 for f64 tensors)
  index batch, heads, key_heads, queries, keys;
  i32 head_dim, value_dim;
  double scale;
  tile_lists lists;
};

template <class T> __device__ inline T* head_data(const attention_tensor& t, index b, index h) {
  return static_cast<T*>(t.data) + b * t.batch_stride + h * t.head_stride;
}

// The block's place: tiles of one head follow one another, so that they share its keys in L2; the last tile comes first,
// since causal masks give it the most work.
struct block_place {
  index b, h, tile;
  __device__ block_place(index tiles, index heads) {
    index rest = blockIdx.x;
    tile = tiles - 1 - rest % tiles;
    rest /= tiles;
    h = rest % heads, b = rest / heads;
  }
};

// Calls visit(tile, full) for the tiles of one list in ascending order.
template <class Visit>
__device__ inline void walk_tiles(const tile_lists& lists, index b, index h, index list, index tiles, Visit&& visit) {
  i64 run = 0, end = 1;
  if (lists.runs != nullptr) {
    const i64* begin = lists.begin + b * lists.batch_lists + h * lists.head_lists + list;
    run = begin[0], end = begin[1];
  }
  for (; run < end; ++run) {
    const tile_run r = lists.runs != nullptr ? lists.runs[run] : tile_run{0, i32(tiles), 1, -1};
    for (index tile = r.first; tile < r.last; ++tile) visit(tile, r.full != 0);
  }
}

__device__ inline index tiles_of(index length) { return (length + attention_tile - 1) / attention_tile; }

// Rows first to first + Rows - 1 of a head into shared memory with `Stride` elements a row; zeros past the end. All threads of
// the block.
template <int Rows, int Columns, int Stride, int Threads, class T>
__device__ inline void load_rows(T* shared, const attention_tensor& t, const T* head, index first, index length, int columns) {
  if constexpr (sizeof(T) == 2) {
    if (t.vectors) {
      constexpr int units = Columns / 8;
      for (int i = threadIdx.x; i < Rows * units; i += Threads) {
        const int row = i / units, column = i % units * 8;
        uint4 bits = {0, 0, 0, 0};
        if (first + row < length && column < columns) bits = *reinterpret_cast<const uint4*>(head + (first + row) * t.row_stride + column);
        *reinterpret_cast<uint4*>(shared + row * Stride + column) = bits;
      }
      return;
    }
  }
  for (int i = threadIdx.x; i < Rows * Columns; i += Threads) {
    const int row = i / Columns, column = i % Columns;
    T x{};
    if (first + row < length && column < columns) x = head[(first + row) * t.row_stride + column * t.column_stride];
    shared[row * Stride + column] = x;
  }
}

// log(exp(a) + exp(b)).
template <class Real> __device__ inline Real log_of_sum(Real a, Real b) {
  const Real top = fmax(a, b);
  return top == Real(-infinity()) ? top : top + real_log(real_exp(a - top) + real_exp(b - top));
}

// A row's log-sum-exp and the factor of its weighted values, of the sum over the keys and its logarithm: a sink takes part in the
// softmax without a value of its own.
// source  Xiao et al. 2023, arXiv:2309.17453, section 3.2; as a learned logit: OpenAI 2025, gpt-oss model card, section 2
template <class Real> struct row_result {
  Real lse, factor;
  __device__ row_result(const attention_parameters& p, index h, Real sum, Real log_sum) : lse(log_sum), factor(sum == 0 ? Real(0) : 1 / sum) {
    if (p.sink == nullptr) return;
    lse = log_of_sum(log_sum, static_cast<const Real*>(p.sink)[h]);
    if (sum != 0) factor *= real_exp(log_sum - lse);
  }
};

// The sum over the block, in thread 0, in an order that does not change.
template <int Threads, class Real> __device__ inline Real block_sum(Real x) {
  __shared__ Real sums[Threads / 32];
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  __syncthreads();  // the sums before have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  Real total = 0;
  for (int i = 0; i < Threads / 32; ++i) total += sums[i];
  return total;
}

// d_sink[h] = -sum over the head's rows of exp(sink - lse) * row_delta: the sink's weight, whose value is 0. A block a head.
template <class Real> __device__ inline void sink_gradient(const attention_parameters& p, void* d_sink, Real unit) {
  const index h = blockIdx.x;
  const Real sink = static_cast<const Real*>(p.sink)[h];
  Real sum = 0;
  for (index i = threadIdx.x; i < p.batch * p.queries; i += 256) {
    const index row = (i / p.queries * p.heads + h) * p.queries + i % p.queries;
    sum -= real_exp(sink - static_cast<const Real*>(p.row_lse)[row] / unit) * static_cast<const Real*>(p.row_delta)[row];
  }
  sum = block_sum<256>(sum);
  if (threadIdx.x == 0) static_cast<Real*>(d_sink)[h] = sum;
}

// row_lse = lse * unit, row_delta = rowsum(d_out * out) - d_lse. A warp a row; grid: any number of blocks of 256 threads.
// A row without a kept key gets lse +infinity, so that exp(score - lse) is 0 and not exp(-inf + inf), and Delta 0.
template <class T, class Real> __device__ inline void prepare_gradient(const attention_parameters& p, Real unit) {
  const index rows = p.batch * p.heads * p.queries, step = index(gridDim.x) * (blockDim.x / 32);
  for (index row = (index(blockIdx.x) * blockDim.x + threadIdx.x) / 32; row < rows; row += step) {
    const index q = row % p.queries, h = row / p.queries % p.heads, b = row / p.queries / p.heads;
    const T* out = head_data<const T>(p.out, b, h) + q * p.out.row_stride;
    const T* d_out = head_data<const T>(p.d_out, b, h) + q * p.d_out.row_stride;
    Real sum = 0;
    for (int d = threadIdx.x % 32; d < p.value_dim; d += 32)
      sum += arithmetic<Real>::load(out[d * p.out.column_stride]) * arithmetic<Real>::load(d_out[d * p.d_out.column_stride]);
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % 32 != 0) continue;
    const Real lse = static_cast<const Real*>(p.lse)[row];
    const bool hidden = lse == Real(-infinity());
    static_cast<Real*>(p.row_lse)[row] = hidden ? Real(infinity()) : lse * unit;
    static_cast<Real*>(p.row_delta)[row] = hidden ? Real(0) : sum - (p.d_lse != nullptr ? static_cast<const Real*>(p.d_lse)[row] : Real(0));
  }
}

}  // namespace samite
)cuh"},
    {"attention_bits.cuh",
     R"cuh(// attention_bits.cuh: bit tiles: which pairs of a mask's undecided tiles are kept, one bit each, in the order of the accumulators of
// attention_sm90.cuh. Filled once for a mask; heads, layers and steps share them.
#pragma once
#include "core.cuh"

namespace samite {

struct undecided_tile {
  i32 b, h, query_tile, key_tile;
};

// The bits of one undecided tile a block of 2 * Rows threads; a thread's are those of its accumulators in attention_forward_sm90.
template <int Rows, int Keys, class Mask> __device__ inline void fill_bits(const undecided_tile* tiles, uint2* bits, index queries, index keys, const Mask& mask) {
  const undecided_tile t = tiles[blockIdx.x];
  const int lane = threadIdx.x % 32;
  const index q = index(t.query_tile) * Rows + threadIdx.x / 32 * 16 + lane / 4, kv = index(t.key_tile) * Keys + lane % 4 * 2;
  uint2 found = {0, 0};
#pragma unroll 1
  for (int i = 0; i < Keys / 4; ++i) {
    const index column = kv + i / 2 * 8 + i % 2;
    if (column >= keys) break;
    if (q < queries && mask.keep(t.b, t.h, q, column)) found.x |= 1u << i;
    if (q + 8 < queries && mask.keep(t.b, t.h, q + 8, column)) found.y |= 1u << i;
  }
  bits[index(blockIdx.x) * (2 * Rows) + threadIdx.x] = found;
}

}  // namespace samite
)cuh"},
    {"attention_mma.cuh",
     R"cuh(// attention_mma.cuh: attention of bf16 and f16 tensors on mma.sync m16n8k16, forward and backward, for sm_80 and newer.
//
// D and Dv are the head dims padded to a multiple of 16 (of 32 where either passes 128), at most 256; the padding is zeros in
// shared memory. Scores, softmax and sums are fp32; P and dS are rounded to the tensors' type before they multiply.
//   forward  one block of 128 threads for 64 queries, a warp for 16; K and V tiles of 64 keys; online softmax in powers of 2
//   dQ       the same blocks; 64 keys a step (32 where a head dim passes 96, 16 past 192)
//   dK, dV   one block of 128 threads for 64 keys (32 where a head dim passes 128: there pairs of warps share 16 keys and
//            keep half of the columns each); walks the query heads of the group, 32 queries a step. No atomics.
// Dynamic shared memory: see *_shared_bytes; at most 101376 bytes, which every served device has.
// source  Dao 2023, arXiv:2307.08691, algorithms 1 and 2; the dK/dV and dQ split into two kernels is for determinism
#pragma once
#include "attention.cuh"
#include "mma.cuh"

namespace samite {

constexpr int mma_threads = 128, mma_rows = 16;

// Steps shrink as the accumulators grow, or registers spill (ptxas 13.0, sm_80 and sm_90a).
template <int D, int Dv> struct mma_shape {
  static constexpr int largest = D > Dv ? D : Dv;
  static constexpr bool wide = largest > 128;
  static constexpr int key_step = largest > 192 ? 16 : largest > 96 ? 32 : 64;  // dQ
  static constexpr int key_tile = wide ? 32 : 64;                               // dK, dV
  static constexpr int column_parts = wide ? 2 : 1;                             // dK, dV
  static constexpr int query_step = 32;                                         // dK, dV: queries in shared memory
  static constexpr int query_part = largest > 96 ? 16 : 32;                     // dK, dV: of them in registers at once
};

// Which of a thread's pairs are visible, a bit each: bit 4n + e for s[n][e]. A rolled loop: inlining the predicate 32 times
// would cost compile time and instruction cache. Transposed: the rows of s are keys.
template <int N, bool Transposed, class Mask>
__device__ inline u32 visible_pairs(const attention_parameters& p, const Mask& mask, index b, index h, index first_row, index first_column, bool full) {
  const int lane = threadIdx.x % 32;
  const index last_row = first_row + mma_rows, last_column = first_column + N * 8;
  const index keys_end = Transposed ? last_row : last_column, queries_end = Transposed ? last_column : last_row;
  if (full && keys_end <= p.keys && queries_end <= p.queries) return 0xffffffffu;
  u32 bits = 0;
#pragma unroll 1
  for (int i = 0; i < N * 4; ++i) {
    const index row = first_row + lane / 4 + i % 4 / 2 * 8, column = first_column + i / 4 * 8 + lane % 4 * 2 + i % 2;
    const index q = Transposed ? column : row, kv = Transposed ? row : column;
    const bool inside = q < p.queries && kv < p.keys;
    if (inside && (full || mask.keep(b, h, q, kv))) bits |= 1u << i;
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

template <int D, int Dv> constexpr int forward_shared_bytes = (2 * attention_tile * padded<D> + attention_tile * padded<Dv>) * 2;

template <class T, int D, int Dv, class Mask, class Score>
__device__ inline void attention_forward(const attention_parameters& p, const Mask& mask, const Score& score) {
  constexpr int key_tiles = attention_tile / 8, value_tiles = Dv / 8;
  extern __shared__ uint4 shared[];
  T* Qs = reinterpret_cast<T*>(shared);
  T* Ks = Qs + attention_tile * padded<D>;
  T* Vs = Ks + attention_tile * padded<D>;
  const block_place at(tiles_of(p.queries), p.heads);
  const index b = at.b, h = at.h, g = h / (p.heads / p.key_heads), first_query = at.tile * attention_tile;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * mma_rows;
  const T *K = head_data<const T>(p.K, b, g), *V = head_data<const T>(p.V, b, g);
  const float scale = Score::identity ? float(p.scale) * log2_e : float(p.scale);

  load_rows<attention_tile, D, padded<D>, mma_threads>(Qs, p.Q, head_data<const T>(p.Q, b, h), first_query, p.queries, p.head_dim);
  float O[value_tiles][4] = {};
  float largest[2] = {-infinity(), -infinity()}, total[2] = {0, 0};  // of rows lane / 4 and lane / 4 + 8

  walk_tiles(p.lists, b, h, at.tile, tiles_of(p.keys), [&](index tile, bool full) {
    const index first_key = tile * attention_tile;
    __syncthreads();  // the tile before has been used
    load_rows<attention_tile, D, padded<D>, mma_threads>(Ks, p.K, K, first_key, p.keys, p.head_dim);
    load_rows<attention_tile, Dv, padded<Dv>, mma_threads>(Vs, p.V, V, first_key, p.keys, p.value_dim);
    __syncthreads();

    float s[key_tiles][4] = {};
    multiply_rows<D>(s, Qs, warp_row, Ks, 0);
    const u32 visible = visible_pairs<key_tiles, false>(p, mask, b, h, first_query + warp_row, first_key, full);
#pragma unroll
    for (int n = 0; n < key_tiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float y = s[n][e] * scale;
        if constexpr (!Score::identity) {
          const pair_place at_pair(first_query + warp_row, first_key, n, e);
          y = score.value(b, h, at_pair.row, at_pair.column, y) * log2_e;
        }
        s[n][e] = (visible >> (4 * n + e) & 1u) != 0 ? y : -infinity();
      }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float row_largest = largest[half];
#pragma unroll
      for (int n = 0; n < key_tiles; ++n) row_largest = fmax(row_largest, fmax(s[n][2 * half], s[n][2 * half + 1]));
      row_largest = quad_max(row_largest);
      // While no key is visible the maximum is -inf; 0 in its place keeps exp2(-inf - -inf) from being NaN.
      const float base = row_largest == -infinity() ? 0.0f : row_largest;
      const float rescale = exp2f(largest[half] - base);
      largest[half] = row_largest;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < key_tiles; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) sum += s[n][e] = exp2f(s[n][e] - base);
      total[half] = total[half] * rescale + sum;
#pragma unroll
      for (int m = 0; m < value_tiles; ++m) O[m][2 * half] *= rescale, O[m][2 * half + 1] *= rescale;
    }
    multiply_columns<Dv>(O, s, Vs, 0, 0);
  });

  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(total[half]);
    const row_result<float> row(p, h, sum, sum == 0 ? -infinity() : largest[half] * ln_2 + real_log(sum));
    factor[half] = row.factor;
    const index q = first_query + warp_row + lane / 4 + half * 8;
    if (q < p.queries && lane % 4 == 0) static_cast<float*>(p.lse)[(b * p.heads + h) * p.queries + q] = row.lse;
  }
  store_rows(O, p.out, head_data<T>(p.out, b, h), first_query + warp_row, p.queries, 0, p.value_dim, factor[0], factor[1]);
}

// ---- backward: dQ -------------------------------------------------------------------------------------------------------

template <int D, int Dv> constexpr int query_gradient_shared_bytes = (attention_tile + mma_shape<D, Dv>::key_step) * (padded<D> + padded<Dv>) * 2;

template <class T, int D, int Dv, class Mask, class Score>
__device__ inline void attention_query_gradient(const attention_parameters& p, const Mask& mask, const Score& score) {
  constexpr int step = mma_shape<D, Dv>::key_step, key_tiles = step / 8, head_tiles = D / 8;
  extern __shared__ uint4 shared[];
  T* Qs = reinterpret_cast<T*>(shared);
  T* dOs = Qs + attention_tile * padded<D>;
  T* Ks = dOs + attention_tile * padded<Dv>;
  T* Vs = Ks + step * padded<D>;
  const block_place at(tiles_of(p.queries), p.heads);
  const index b = at.b, h = at.h, g = h / (p.heads / p.key_heads), first_query = at.tile * attention_tile;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * mma_rows;
  const T *K = head_data<const T>(p.K, b, g), *V = head_data<const T>(p.V, b, g);
  const float scale = Score::identity ? float(p.scale) * log2_e : float(p.scale);

  load_rows<attention_tile, D, padded<D>, mma_threads>(Qs, p.Q, head_data<const T>(p.Q, b, h), first_query, p.queries, p.head_dim);
  load_rows<attention_tile, Dv, padded<Dv>, mma_threads>(dOs, p.d_out, head_data<const T>(p.d_out, b, h), first_query, p.queries, p.value_dim);
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const index q = first_query + warp_row + lane / 4 + half * 8, row = (b * p.heads + h) * p.queries + q;
    lse[half] = q < p.queries ? static_cast<const float*>(p.row_lse)[row] : infinity();
    delta[half] = q < p.queries ? static_cast<const float*>(p.row_delta)[row] : 0.0f;
  }
  float dQ[head_tiles][4] = {};
  float held[Score::held + 1] = {};  // of elements that all pairs of a head share

  walk_tiles(p.lists, b, h, at.tile, tiles_of(p.keys), [&](index tile, bool full) {
#pragma unroll 1
    for (index first_key = tile * attention_tile; first_key < (tile + 1) * attention_tile && first_key < p.keys; first_key += step) {
      __syncthreads();  // the keys before have been used
      load_rows<step, D, padded<D>, mma_threads>(Ks, p.K, K, first_key, p.keys, p.head_dim);
      load_rows<step, Dv, padded<Dv>, mma_threads>(Vs, p.V, V, first_key, p.keys, p.value_dim);
      __syncthreads();
      float s[key_tiles][4] = {}, dP[key_tiles][4] = {};
      multiply_rows<D>(s, Qs, warp_row, Ks, 0);
      multiply_rows<Dv>(dP, dOs, warp_row, Vs, 0);
      const u32 visible = visible_pairs<key_tiles, false>(p, mask, b, h, first_query + warp_row, first_key, full);
#pragma unroll
      for (int n = 0; n < key_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const bool kept = (visible >> (4 * n + e) & 1u) != 0;
          const float x = s[n][e] * scale;
          if constexpr (Score::identity) {
            s[n][e] = kept ? exp2f(x - lse[e / 2]) * (dP[n][e] - delta[e / 2]) : 0.0f;
          } else {
            const pair_place at_pair(first_query + warp_row, first_key, n, e);
            const float dy = exp2f(score.value(b, h, at_pair.row, at_pair.column, x) * log2_e - lse[e / 2]) * (dP[n][e] - delta[e / 2]);
            s[n][e] = kept ? score.adjoint(b, h, at_pair.row, at_pair.column, x, dy) : 0.0f;
            if (kept) score.gradient(b, h, at_pair.row, at_pair.column, x, dy, held);
          }
        }
      multiply_columns<D>(dQ, s, Ks, 0, 0);
    }
  });
  if constexpr (Score::held > 0)
#pragma unroll
    for (int i = 0; i < Score::held; ++i) {
      const float sum = block_sum<mma_threads>(held[i]);
      if (threadIdx.x == 0) score.add_held(i, b, h, sum);
    }
  store_rows(dQ, p.dQ, head_data<T>(p.dQ, b, h), first_query + warp_row, p.queries, 0, p.head_dim, float(p.scale), float(p.scale));
}

// ---- backward: dK, dV -----------------------------------------------------------------------------------------------------

template <int D, int Dv> constexpr int key_gradient_shared_bytes =
    (mma_shape<D, Dv>::key_tile + mma_shape<D, Dv>::query_step) * (padded<D> + padded<Dv>) * 2;

template <class T, int D, int Dv, class Mask, class Score>
__device__ inline void attention_key_gradient(const attention_parameters& p, const Mask& mask, const Score& score) {
  using shape = mma_shape<D, Dv>;
  constexpr int step = shape::query_step, query_tiles = shape::query_part / 8, parts = shape::column_parts;
  constexpr int head_tiles = D / 8 / parts, value_tiles = Dv / 8 / parts, blocks_per_tile = attention_tile / shape::key_tile;
  extern __shared__ uint4 shared[];
  T* Ks = reinterpret_cast<T*>(shared);
  T* Vs = Ks + shape::key_tile * padded<D>;
  T* Qs = Vs + shape::key_tile * padded<Dv>;
  T* dOs = Qs + step * padded<D>;
  __shared__ float lse[step], delta[step];
  const block_place at(tiles_of(p.keys) * blocks_per_tile, p.key_heads);
  const index b = at.b, g = at.h, group = p.heads / p.key_heads, first_key = at.tile * shape::key_tile;
  constexpr int key_warps = shape::key_tile / mma_rows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_row = warp % key_warps * mma_rows, part = warp / key_warps;
  const float scale = Score::identity ? float(p.scale) * log2_e : float(p.scale);

  load_rows<shape::key_tile, D, padded<D>, mma_threads>(Ks, p.K, head_data<const T>(p.K, b, g), first_key, p.keys, p.head_dim);
  load_rows<shape::key_tile, Dv, padded<Dv>, mma_threads>(Vs, p.V, head_data<const T>(p.V, b, g), first_key, p.keys, p.value_dim);
  float dK[head_tiles][4] = {}, dV[value_tiles][4] = {};

#pragma unroll 1
  for (index h = g * group; h < (g + 1) * group; ++h) {
    const T *Q = head_data<const T>(p.Q, b, h), *dO = head_data<const T>(p.d_out, b, h);
    const index head_row = (b * p.heads + h) * p.queries;
    walk_tiles(p.lists, b, h, at.tile / blocks_per_tile, tiles_of(p.queries), [&](index tile, bool full) {
#pragma unroll 1
      for (index first_query = tile * attention_tile; first_query < (tile + 1) * attention_tile && first_query < p.queries; first_query += step) {
        __syncthreads();  // the queries before have been used
        load_rows<step, D, padded<D>, mma_threads>(Qs, p.Q, Q, first_query, p.queries, p.head_dim);
        load_rows<step, Dv, padded<Dv>, mma_threads>(dOs, p.d_out, dO, first_query, p.queries, p.value_dim);
)cuh"
     R"cuh(        if (threadIdx.x < step) {
          const index q = first_query + threadIdx.x;
          lse[threadIdx.x] = q < p.queries ? static_cast<const float*>(p.row_lse)[head_row + q] : infinity();
          delta[threadIdx.x] = q < p.queries ? static_cast<const float*>(p.row_delta)[head_row + q] : 0.0f;
        }
        __syncthreads();
#pragma unroll 1
        for (int first = 0; first < step; first += shape::query_part) {
          float P[query_tiles][4] = {}, dS[query_tiles][4] = {};  // transposed: rows are keys
          multiply_rows<D>(P, Ks, warp_row, Qs, first);
          multiply_rows<Dv>(dS, Vs, warp_row, dOs, first);
          const u32 visible = visible_pairs<query_tiles, true>(p, mask, b, h, first_key + warp_row, first_query + first, full);
#pragma unroll
          for (int n = 0; n < query_tiles; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int q = first + n * 8 + lane % 4 * 2 + e % 2;
              const bool kept = (visible >> (4 * n + e) & 1u) != 0;
              const float x = P[n][e] * scale;
              if constexpr (Score::identity) {
                P[n][e] = kept ? exp2f(x - lse[q]) : 0.0f;
                dS[n][e] = kept ? P[n][e] * (dS[n][e] - delta[q]) : 0.0f;
              } else {
                const pair_place at_pair(first_key + warp_row, first_query + first, n, e);
                P[n][e] = kept ? exp2f(score.value(b, h, at_pair.column, at_pair.row, x) * log2_e - lse[q]) : 0.0f;
                dS[n][e] = kept ? score.adjoint(b, h, at_pair.column, at_pair.row, x, P[n][e] * (dS[n][e] - delta[q])) : 0.0f;
              }
            }
          multiply_columns<Dv>(dV, P, dOs, first, part * value_tiles * 8);
          multiply_columns<D>(dK, dS, Qs, first, part * head_tiles * 8);
        }
      }
    });
  }
  const index row = first_key + warp_row;
  store_rows(dK, p.dK, head_data<T>(p.dK, b, g), row, p.keys, part * head_tiles * 8, p.head_dim, float(p.scale), float(p.scale));
  store_rows(dV, p.dV, head_data<T>(p.dV, b, g), row, p.keys, part * value_tiles * 8, p.value_dim, 1.0f, 1.0f);
}

}  // namespace samite
)cuh"},
    {"attention_real.cuh",
     R"cuh(// attention_real.cuh: attention of f32 and f64 tensors with ordinary multiply-adds, forward and backward. Slow and exact: no
// TF32, no approximations of exp.
//
// A block of 256 threads owns 8 * Rows rows (queries; keys for dK and dV), Rows a warp; it steps over the other side 32 at a
// time. A lane holds one score a row, and one column of 32 a row of the results. One shared buffer holds in turn the tensors
// that a step needs. Dynamic shared memory: real_shared_bytes, at most 98560 bytes.
#pragma once
#include "attention.cuh"

namespace samite {

constexpr int real_threads = 256, real_warps = real_threads / 32, real_step = 32;
template <class Real> constexpr int real_rows = sizeof(Real) == 4 ? 4 : 1;  // a warp
template <int D, int Dv> constexpr int real_stride = (D > Dv ? D : Dv) + 1;  // odd: lanes read different banks
template <class Real, int D, int Dv> constexpr int real_shared_bytes =
    (real_warps * real_rows<Real> * (D + Dv) + real_step * real_stride<D, Dv>) * int(sizeof(Real));

template <class Real> __device__ inline Real warp_max(Real x) {
  for (int distance = 16; distance > 0; distance /= 2) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}
template <class Real> __device__ inline Real warp_sum(Real x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// s[r] = the warp's row r of `mine` times row `lane` of the buffer.
template <int Columns, int Stride, int Rows, class Real>
__device__ inline void score_rows(Real (&s)[Rows], const Real* mine, const Real* buffer) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * Rows;
#pragma unroll
  for (int r = 0; r < Rows; ++r) s[r] = 0;
#pragma unroll 4
  for (int d = 0; d < Columns; ++d) {
    const Real x = buffer[lane * Stride + d];
#pragma unroll
    for (int r = 0; r < Rows; ++r) s[r] += mine[(first + r) * Columns + d] * x;
  }
}

// out[r][c] += sum over lanes j of p[r] (lane j) times buffer[j][lane + 32 c].
template <int Stride, int Rows, int Parts, class Real>
__device__ inline void add_weighted(Real (&out)[Rows][Parts], const Real (&p)[Rows], const Real* buffer) {
  const int lane = threadIdx.x % 32;
#pragma unroll 2
  for (int j = 0; j < real_step; ++j) {
    Real weight[Rows];
#pragma unroll
    for (int r = 0; r < Rows; ++r) weight[r] = __shfl_sync(0xffffffffu, p[r], j);
#pragma unroll
    for (int c = 0; c < Parts; ++c) {
      const Real x = buffer[j * Stride + c * 32 + lane];
#pragma unroll
      for (int r = 0; r < Rows; ++r) out[r][c] += weight[r] * x;
    }
  }
}

template <int Rows, int Parts, class Real>
__device__ inline void store_real_rows(const Real (&x)[Rows][Parts], const attention_tensor& t, Real* head, index first_row, index length, int columns,
                                       const Real (&factor)[Rows]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < Rows; ++r)
#pragma unroll
    for (int c = 0; c < Parts; ++c)
      if (first_row + r < length && c * 32 + lane < columns)
        head[(first_row + r) * t.row_stride + (c * 32 + lane) * t.column_stride] = x[r][c] * factor[r];
}

// What the score function makes of the score of a pair; itself if there is none.
template <class Real, class Score> __device__ inline Real score_of(const Score& score, index b, index h, index q, index kv, Real x) {
  if constexpr (Score::identity) return x;
  else return score.value(b, h, q, kv, x);
}
template <class Real, class Score> __device__ inline Real score_adjoint(const Score& score, index b, index h, index q, index kv, Real x, Real dy) {
  if constexpr (Score::identity) return dy;
  else return score.adjoint(b, h, q, kv, x, dy);
}

// ---- forward ------------------------------------------------------------------------------------------------------------

// D and Dv: head dims padded to multiples of 32.
template <class Real, int D, int Dv, class Mask, class Score>
__device__ inline void attention_forward_real(const attention_parameters& p, const Mask& mask, const Score& score) {
  constexpr int rows = real_rows<Real>, block_rows = real_warps * rows, stride = real_stride<D, Dv>, per_tile = attention_tile / block_rows;
  extern __shared__ uint4 shared[];
  Real* Qs = reinterpret_cast<Real*>(shared);
  Real* buffer = Qs + block_rows * D;
  const block_place at(tiles_of(p.queries) * per_tile, p.heads);
  const index b = at.b, h = at.h, g = h / (p.heads / p.key_heads), first_query = at.tile * block_rows;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * rows;
  const Real hidden = Real(-infinity()), scale = Real(p.scale);
  load_rows<block_rows, D, D, real_threads>(Qs, p.Q, head_data<const Real>(p.Q, b, h), first_query, p.queries, p.head_dim);
  Real O[rows][Dv / 32] = {}, largest[rows], total[rows];
  for (int r = 0; r < rows; ++r) largest[r] = hidden, total[r] = 0;

  walk_tiles(p.lists, b, h, at.tile / per_tile, tiles_of(p.keys), [&](index tile, bool full) {
#pragma unroll 1
    for (index first_key = tile * attention_tile; first_key < (tile + 1) * attention_tile && first_key < p.keys; first_key += real_step) {
      Real s[rows];
      __syncthreads();  // the values before have been used
      load_rows<real_step, D, stride, real_threads>(buffer, p.K, head_data<const Real>(p.K, b, g), first_key, p.keys, p.head_dim);
      __syncthreads();
      score_rows<D, stride>(s, Qs, buffer);
      __syncthreads();  // the keys have been used
      load_rows<real_step, Dv, stride, real_threads>(buffer, p.V, head_data<const Real>(p.V, b, g), first_key, p.keys, p.value_dim);
      __syncthreads();
      const index kv = first_key + lane;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const index q = first_query + warp_row + r;
        const bool kept = kv < p.keys && q < p.queries && (full || mask.keep(b, h, q, kv));
        s[r] = kept ? score_of(score, b, h, q, kv, s[r] * scale) : hidden;
        const Real row_largest = fmax(largest[r], warp_max(s[r]));
        const Real base = row_largest == hidden ? Real(0) : row_largest;  // keeps exp(-inf - -inf) from being NaN
        const Real rescale = real_exp(largest[r] - base);
        largest[r] = row_largest;
        s[r] = real_exp(s[r] - base);
        total[r] = total[r] * rescale + s[r];
#pragma unroll
        for (int c = 0; c < Dv / 32; ++c) O[r][c] *= rescale;
      }
      add_weighted<stride>(O, s, buffer);
    }
  });
  Real factor[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const Real sum = warp_sum(total[r]);
    const row_result<Real> row(p, h, sum, sum == 0 ? hidden : largest[r] + real_log(sum));
    factor[r] = row.factor;
    const index q = first_query + warp_row + r;
    if (q < p.queries && lane == 0) static_cast<Real*>(p.lse)[(b * p.heads + h) * p.queries + q] = row.lse;
  }
  store_real_rows(O, p.out, head_data<Real>(p.out, b, h), first_query + warp_row, p.queries, p.value_dim, factor);
}

// ---- backward -------------------------------------------------------------------------------------------------------------

template <class Real, int D, int Dv, class Mask, class Score>
__device__ inline void attention_query_gradient_real(const attention_parameters& p, const Mask& mask, const Score& score) {
  constexpr int rows = real_rows<Real>, block_rows = real_warps * rows, stride = real_stride<D, Dv>, per_tile = attention_tile / block_rows;
  extern __shared__ uint4 shared[];
  Real* Qs = reinterpret_cast<Real*>(shared);
  Real* dOs = Qs + block_rows * D;
  Real* buffer = dOs + block_rows * Dv;
  const block_place at(tiles_of(p.queries) * per_tile, p.heads);
  const index b = at.b, h = at.h, g = h / (p.heads / p.key_heads), first_query = at.tile * block_rows;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * rows;
  const Real scale = Real(p.scale);
  load_rows<block_rows, D, D, real_threads>(Qs, p.Q, head_data<const Real>(p.Q, b, h), first_query, p.queries, p.head_dim);
  load_rows<block_rows, Dv, Dv, real_threads>(dOs, p.d_out, head_data<const Real>(p.d_out, b, h), first_query, p.queries, p.value_dim);
  Real dQ[rows][D / 32] = {}, lse[rows], delta[rows], factor[rows];
  Real held[Score::held + 1] = {};  // of elements that all pairs of a head share
  for (int r = 0; r < rows; ++r) {
    const index q = first_query + warp_row + r, row = (b * p.heads + h) * p.queries + q;
    lse[r] = q < p.queries ? static_cast<const Real*>(p.row_lse)[row] : Real(infinity());
    delta[r] = q < p.queries ? static_cast<const Real*>(p.row_delta)[row] : Real(0);
    factor[r] = scale;
  }

  walk_tiles(p.lists, b, h, at.tile / per_tile, tiles_of(p.keys), [&](index tile, bool full) {
#pragma unroll 1
    for (index first_key = tile * attention_tile; first_key < (tile + 1) * attention_tile && first_key < p.keys; first_key += real_step) {
      const Real* K = head_data<const Real>(p.K, b, g);
      Real s[rows], dP[rows];
      __syncthreads();  // the keys of the step before have been used
      load_rows<real_step, Dv, stride, real_threads>(buffer, p.V, head_data<const Real>(p.V, b, g), first_key, p.keys, p.value_dim);
      __syncthreads();
      score_rows<Dv, stride>(dP, dOs, buffer);
      __syncthreads();
      load_rows<real_step, D, stride, real_threads>(buffer, p.K, K, first_key, p.keys, p.head_dim);
      __syncthreads();
      score_rows<D, stride>(s, Qs, buffer);
      const index kv = first_key + lane;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const index q = first_query + warp_row + r;
        const bool kept = kv < p.keys && q < p.queries && (full || mask.keep(b, h, q, kv));
        const Real x = s[r] * scale, dy = real_exp(score_of(score, b, h, q, kv, x) - lse[r]) * (dP[r] - delta[r]);
        s[r] = kept ? score_adjoint(score, b, h, q, kv, x, dy) : Real(0);
        if constexpr (!Score::identity)
          if (kept) score.gradient(b, h, q, kv, x, dy, held);
      }
      add_weighted<stride>(dQ, s, buffer);
    }
  });
  if constexpr (Score::held > 0)
#pragma unroll
    for (int i = 0; i < Score::held; ++i) {
      const Real sum = block_sum<real_threads>(held[i]);
      if (threadIdx.x == 0) score.add_held(i, b, h, sum);
    }
  store_real_rows(dQ, p.dQ, head_data<Real>(p.dQ, b, h), first_query + warp_row, p.queries, p.head_dim, factor);
}

template <class Real, int D, int Dv, class Mask, class Score>
__device__ inline void attention_key_gradient_real(const attention_parameters& p, const Mask& mask, const Score& score) {
  constexpr int rows = real_rows<Real>, block_rows = real_warps * rows, stride = real_stride<D, Dv>, per_tile = attention_tile / block_rows;
  extern __shared__ uint4 shared[];
  Real* Ks = reinterpret_cast<Real*>(shared);
  Real* Vs = Ks + block_rows * D;
  Real* buffer = Vs + block_rows * Dv;
  const block_place at(tiles_of(p.keys) * per_tile, p.key_heads);
  const index b = at.b, g = at.h, group = p.heads / p.key_heads, first_key = at.tile * block_rows;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * rows;
  const Real scale = Real(p.scale);
  load_rows<block_rows, D, D, real_threads>(Ks, p.K, head_data<const Real>(p.K, b, g), first_key, p.keys, p.head_dim);
  load_rows<block_rows, Dv, Dv, real_threads>(Vs, p.V, head_data<const Real>(p.V, b, g), first_key, p.keys, p.value_dim);
  Real dK[rows][D / 32] = {}, dV[rows][Dv / 32] = {}, scales[rows], ones[rows];
  for (int r = 0; r < rows; ++r) scales[r] = scale, ones[r] = 1;

#pragma unroll 1
  for (index h = g * group; h < (g + 1) * group; ++h) {
    const Real *Q = head_data<const Real>(p.Q, b, h), *dO = head_data<const Real>(p.d_out, b, h);
    walk_tiles(p.lists, b, h, at.tile / per_tile, tiles_of(p.queries), [&](index tile, bool full) {
#pragma unroll 1
      for (index first_query = tile * attention_tile; first_query < (tile + 1) * attention_tile && first_query < p.queries; first_query += real_step) {
        const index q = first_query + lane, row = (b * p.heads + h) * p.queries + q;
        const Real lse = q < p.queries ? static_cast<const Real*>(p.row_lse)[row] : Real(infinity());
        const Real delta = q < p.queries ? static_cast<const Real*>(p.row_delta)[row] : Real(0);
        Real s[rows], dP[rows];
        __syncthreads();  // the queries of the step before have been used
        load_rows<real_step, D, stride, real_threads>(buffer, p.Q, Q, first_query, p.queries, p.head_dim);
        __syncthreads();
        score_rows<D, stride>(s, Ks, buffer);
        __syncthreads();
        load_rows<real_step, Dv, stride, real_threads>(buffer, p.d_out, dO, first_query, p.queries, p.value_dim);
        __syncthreads();
        score_rows<Dv, stride>(dP, Vs, buffer);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const index kv = first_key + warp_row + r;
          const bool kept = kv < p.keys && q < p.queries && (full || mask.keep(b, h, q, kv));
          const Real x = s[r] * scale;
          s[r] = kept ? real_exp(score_of(score, b, h, q, kv, x) - lse) : Real(0);
          dP[r] = kept ? score_adjoint(score, b, h, q, kv, x, s[r] * (dP[r] - delta)) : Real(0);
        }
        add_weighted<stride>(dV, s, buffer);
        __syncthreads();
        load_rows<real_step, D, stride, real_threads>(buffer, p.Q, Q, first_query, p.queries, p.head_dim);
        __syncthreads();
        add_weighted<stride>(dK, dP, buffer);
      }
    });
  }
  store_real_rows(dK, p.dK, head_data<Real>(p.dK, b, g), first_key + warp_row, p.keys, p.head_dim, scales);
  store_real_rows(dV, p.dV, head_data<Real>(p.dV, b, g), first_key + warp_row, p.keys, p.value_dim, ones);
}

}  // namespace samite
)cuh"},
    {"attention_sm90.cuh",
     R"cuh(// attention_sm90.cuh: forward attention of bf16 and f16 tensors on sm_90a: wgmma, TMA, one warp that loads, warpgroups that compute.
//
// A block works on items of 128 (heads up to 64 channels: 192) queries of one head, fetched from a counter until none is left. Its first
// warpgroup loads: an item's Q into one of two buffers, then tiles of keys and values through two stages each, on into the next item
// without a pause. The others own 64 queries each: while the tensor cores multiply P V of one tile and Q K^T of the next, the softmax
// of the tile between runs. Which tiles are visited, and which of their pairs are kept, is data: lists of runs, and for undecided
// tiles one bit a pair in the order of the accumulators ("bit tiles"), which attention_bits fills once for a mask. The kernel does not
// depend on the mask.
// Dynamic shared memory: sm90_shared_bytes.
// source  Shah et al. 2024, arXiv:2407.08608, sections 3.1 and 3.2
#pragma once
#include "attention.cuh"
#include "attention_bits.cuh"
#include "hopper.cuh"

namespace samite {

// Head dims padded to multiples of 64.
template <int D, int Dv> struct sm90_shape {
  static constexpr int widest = D > Dv ? D : Dv;
  static constexpr int groups = widest > 64 ? 2 : 3;    // warpgroups that compute
  static constexpr int rows = 64 * groups, threads = 128 * (groups + 1);
  static constexpr int keys = widest > 128 ? 64 : 128;  // a tile
  static constexpr int buffers = widest > 128 ? 1 : 2;  // of Q
  static constexpr int loader_registers = groups == 3 ? 32 : 40, registers = groups == 3 ? 160 : 232;
  static constexpr int query_bytes = rows * widest * 2, key_bytes = keys * D * 2, value_bytes = keys * Dv * 2;
};
template <int D, int Dv> constexpr int sm90_shared_bytes =
    1024 + sm90_shape<D, Dv>::buffers * sm90_shape<D, Dv>::query_bytes + 2 * (sm90_shape<D, Dv>::key_bytes + sm90_shape<D, Dv>::value_bytes) + 256;

struct sm90_lists {
  const tile_run* runs;
  const i64* begin;               // [lists + 1]
  index batch_lists, head_lists;  // lists from one batch or head to the next; 0 where they share
  const uint2* bits;              // [bit tiles][2 * rows threads]: the thread's first and second row
  index section;                  // heads whose keys and values stay in the L2 together
  u32* counter;                   // [2]: items fetched, blocks at their end; both 0 between launches
};
struct sm90_parameters {
  tensor_map Q, K, V;
  attention_parameters p;
  sm90_lists lists;
};

// Heads of a section follow one another at the same tile, the last tile first: causal masks give it the most work, and the blocks that
// run at one time share keys in the L2. Items fit 32 bits.
struct item_place {
  i32 b, h, tile;
  __device__ item_place(const sm90_parameters& a, i32 item, i32 tiles) {
    const i32 all = i32(a.p.heads * a.p.batch), in_section = i32(a.lists.section), section = item / (in_section * tiles), first = section * in_section;
    const i32 heads = all - first < in_section ? all - first : in_section, rest = item - first * tiles, head = first + rest % heads;
    tile = tiles - 1 - rest / heads;
    h = head % i32(a.p.heads), b = head / i32(a.p.heads);
  }
};

// Bits of the columns before `limit` among a thread's in a row of a tile.
__device__ inline u32 columns_below(i32 limit) {
  const i32 c = limit - i32(threadIdx.x % 4 * 2), count = c <= 0 ? 0 : c / 8 * 2 + (c % 8 < 2 ? c % 8 : 2);
  return count >= 32 ? ~0u : (1u << count) - 1;
}

template <class T, int D, int Dv> __device__ inline void attention_forward_sm90(const sm90_parameters& a) {
  using shape = sm90_shape<D, Dv>;
  constexpr int keys = shape::keys, columns = keys / 2, values = Dv / 2;  // accumulators of a thread
  constexpr int query_chunk = shape::rows * 128, key_chunk = keys * 128;
  const attention_parameters& p = a.p;
  extern __shared__ uint4 shared[];
  const u32 Qs = (shared_address(shared) + 1023) & ~1023u, Ks = Qs + shape::buffers * shape::query_bytes, Vs = Ks + 2 * shape::key_bytes;
  const u32 query_full = Vs + 2 * shape::value_bytes, query_empty = query_full + 16, key_full = query_full + 32, key_empty = query_full + 48, value_full = query_full + 64, value_empty = query_full + 80;
  const u32 tile_of = query_full + 96;   // [2 stages][key tile, bit tile or -1]
  const u32 item_of = query_full + 112;  // [2 buffers][item or -1 for the end, its tiles]

  const i32 query_tiles = i32((p.queries + shape::rows - 1) / shape::rows), items = query_tiles * i32(p.heads * p.batch);
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 16; i += 8) {
      barrier_init(query_full + i, 1), barrier_init(key_full + i, 1), barrier_init(value_full + i, 1);
      barrier_init(query_empty + i, shape::groups), barrier_init(key_empty + i, shape::groups), barrier_init(value_empty + i, shape::groups);
    }
    barrier_init_visible();
    prefetch(a.Q), prefetch(a.K), prefetch(a.V);
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);

  if (group == 0) {
    give_registers<shape::loader_registers>();
    if (threadIdx.x != 0) return;
    u32 loaded = 0, started = 0;  // tiles, items; "empty" passes in the first round
    const auto buffer = [&] { return started % shape::buffers; };
    for (;; ++started) {
      const i32 item = i32(atomicAdd(a.lists.counter, 1u));
      barrier_wait(query_empty + 8 * buffer(), (started / shape::buffers & 1) ^ 1);
      if (item >= items) break;
      const item_place at(a, item, query_tiles);
      const i64* begin = a.lists.begin + at.b * a.lists.batch_lists + at.h * a.lists.head_lists + at.tile;
      i32 run = i32(begin[0]);
      const i32 end = i32(begin[1]);
      i32 tiles = 0;
#pragma unroll 1
      for (i32 r = run; r < end; ++r) tiles += a.lists.runs[r].last - a.lists.runs[r].first;
      store_shared(item_of + 8 * buffer(), item, tiles);
      barrier_expect(query_full + 8 * buffer(), shape::rows * D * 2);
#pragma unroll 1
      for (int c = 0; c < D / 64; ++c) copy_box(Qs + buffer() * shape::query_bytes + c * query_chunk, a.Q, query_full + 8 * buffer(), c * 64, at.tile * shape::rows, at.h, at.b);
      const i32 g = at.h / i32(p.heads / p.key_heads);
#pragma unroll 1
      for (; run < end; ++run) {
        const tile_run r = a.lists.runs[run];
        const i32 none = -0x7fffffff, bits = r.bits < 0 ? none : r.bits - r.first;
#pragma unroll 1
        for (i32 tile = r.first; tile < r.last; ++tile, ++loaded) {
          const u32 stage = loaded & 1, parity = (loaded / 2 & 1) ^ 1;
          barrier_wait(key_empty + 8 * stage, parity);
          store_shared(tile_of + 8 * stage, tile, bits == none ? -1 : bits + tile);
          barrier_expect(key_full + 8 * stage, shape::key_bytes);
#pragma unroll 1
          for (int c = 0; c < D / 64; ++c) copy_box(Ks + stage * shape::key_bytes + c * key_chunk, a.K, key_full + 8 * stage, c * 64, tile * keys, g, at.b);
          barrier_wait(value_empty + 8 * stage, parity);
          barrier_expect(value_full + 8 * stage, shape::value_bytes);
#pragma unroll 1
          for (int c = 0; c < Dv / 64; ++c) copy_box(Vs + stage * shape::value_bytes + c * key_chunk, a.V, value_full + 8 * stage, c * 64, tile * keys, g, at.b);
        }
      }
    }
    store_shared(item_of + 8 * buffer(), -1, 0);
    barrier_arrive(query_full + 8 * buffer());
    // The last block to get here leaves the counters as the next launch wants them: every block has fetched its last item.
    if (atomicAdd(a.lists.counter + 1, 1u) == gridDim.x - 1) a.lists.counter[0] = 0, a.lists.counter[1] = 0;
    return;
  }

  take_registers<shape::registers>();
  const int part = group - 1, lane = threadIdx.x % 32, row_low = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const bool first_thread = threadIdx.x % 128 == 0;
  const float scale = float(p.scale) * log2_e;
  const i32 tail = i32(p.keys % keys), last_tile = i32((p.keys - 1) / keys);
  const u64 all_queries = operand(Qs + part * 64 * 128, 16), key = operand(Ks, 16), value = operand(Vs, key_chunk);
  float o[values], s[columns], largest[2], total[2], rescale[2];
  u32 weights[columns / 2];
  u32 stage = 0, parity = 0, value_stage = 0, value_parity = 0, buffer = 0, buffer_parity = 0;
  i32 key_tile, bit_tile;
  u64 query;

  const auto scores = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      warpgroup_product<T, keys>::product(s, query + (k / 4 * query_chunk + k % 4 * 32) / 16, key + (stage * shape::key_bytes + k / 4 * key_chunk + k % 4 * 32) / 16, k != 0);
    products_commit();
  };
  const auto weighted = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) warpgroup_product<T, Dv>::product_columns(o, weights + 4 * k, value + (value_stage * shape::value_bytes + k * 2048) / 16);
    products_commit();
  };
  const auto next_stage = [](u32& at_stage, u32& at_parity) __attribute__((always_inline)) {
    at_stage ^= 1;
    if (at_stage == 0) at_parity ^= 1;
  };
  const auto next_tile = [&]() __attribute__((always_inline)) {
    const int2 tile = load_shared(tile_of + 8 * stage);
    key_tile = tile.x, bit_tile = tile.y;
  };
  // Hides pairs, and turns scores into weights relative to the row's new maximum.
  const auto softmax = [&]() __attribute__((always_inline)) {
    if (bit_tile >= 0 || (tail != 0 && key_tile == last_tile)) {
      uint2 bits = {~0u, ~0u};
      if (bit_tile >= 0) bits = a.lists.bits[index(bit_tile) * (2 * shape::rows) + part * 128 + threadIdx.x % 128];
      if (tail != 0 && key_tile == last_tile) {
        const u32 inside = columns_below(tail);
        bits.x &= inside, bits.y &= inside;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < columns / 2; ++i) {
          float& x = s[i / 2 * 4 + 2 * r + i % 2];
          x = ((r == 0 ? bits.x : bits.y) >> i & 1u) != 0 ? x : -infinity();
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float tops[4] = {largest[r], -infinity(), -infinity(), -infinity()};  // chains that don't wait for one another
#pragma unroll
      for (int i = 0; i < columns; i += 4) tops[i / 4 % 4] = ::fmaxf(tops[i / 4 % 4], ::fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
      float top = ::fmaxf(::fmaxf(tops[0], tops[1]), ::fmaxf(tops[2], tops[3]));
      top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float shift = top == -infinity() ? 0.0f : top * scale;  // no key seen yet: keeps -inf - -inf from being NaN
      rescale[r] = power_of_2(largest[r] * scale - shift);
      largest[r] = top;
      float sums[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < columns; i += 4) {
        s[i + 2 * r] = power_of_2(s[i + 2 * r] * scale - shift);
        s[i + 2 * r + 1] = power_of_2(s[i + 2 * r + 1] * scale - shift);
        sums[i / 4 % 4] += s[i + 2 * r] + s[i + 2 * r + 1];
      }
      total[r] = total[r] * rescale[r] + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
  };
  const auto pack = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < columns; i += 2) weights[i / 2] = storage<T>::pair(s[i], s[i + 1]);
  };

  for (;;) {
    barrier_wait(query_full + 8 * buffer, buffer_parity);
    const int2 work = load_shared(item_of + 8 * buffer);
    const i32 item = work.x, tiles = work.y;
    if (item < 0) break;
    query = all_queries + buffer * (shape::query_bytes / 16);
    largest[0] = largest[1] = -infinity(), total[0] = total[1] = 0;
#pragma unroll
    for (int i = 0; i < values; ++i) o[i] = 0;
    if (tiles > 0) {
      barrier_wait(key_full + 8 * stage, parity);
      next_tile();
      pin(s);
      products_begin();
      scores();
      products_wait<0>();
      pin(s);
      if (first_thread) barrier_arrive(key_empty + 8 * stage);
      next_stage(stage, parity);
      softmax();
      pack();
      for (i32 visited = 1; visited < tiles; ++visited) {
        barrier_wait(key_full + 8 * stage, parity);
        next_tile();
        pin(s);
        products_begin();
        scores();
        barrier_wait(value_full + 8 * value_stage, value_parity);
        pin(o);
        products_begin();
        weighted();
        products_wait<1>();
        pin(s);
        if (first_thread) barrier_arrive(key_empty + 8 * stage);
        next_stage(stage, parity);
        softmax();
        products_wait<0>();
        pin(o);
        if (first_thread) barrier_arrive(value_empty + 8 * value_stage);
        next_stage(value_stage, value_parity);
        pack();
#pragma unroll
        for (int i = 0; i < values; ++i) o[i] *= rescale[i % 4 / 2];
      }
      barrier_wait(value_full + 8 * value_stage, value_parity);
      pin(o);
      products_begin();
      weighted();
      products_wait<0>();
      pin(o);
      if (first_thread) barrier_arrive(value_empty + 8 * value_stage);
      next_stage(value_stage, value_parity);
    }

    // O goes over this warpgroup's rows of Q, in chunks of 64 columns as Q is, then in whole rows to global memory.
    const item_place at(a, item, query_tiles);
    const i32 first_query = at.tile * shape::rows + part * 64;
    const u32 staged = Qs + buffer * shape::query_bytes + part * 64 * 128;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = total[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const row_result<float> result(p, at.h, sum, sum == 0 ? -infinity() : largest[r] * float(p.scale) + real_log(sum));
      factor[r] = result.factor;
      const index q = first_query + row_low + r * 8;
      if (q < p.queries && lane % 4 == 0) static_cast<float*>(p.lse)[(index(at.b) * p.heads + at.h) * p.queries + q] = result.lse;
    }
#pragma unroll
    for (int i = 0; i < values; i += 2) {
      const int row = row_low + i % 4 / 2 * 8, unit = i / 4;
      store_shared(staged + unit / 8 * query_chunk + row * 128 + ((unit % 8 ^ (row & 7)) << 4) + lane % 4 * 4, storage<T>::pair(o[i] * factor[i % 4 / 2], o[i + 1] * factor[i % 4 / 2]));
    }
    warpgroup_sync(1 + part);
    T* const out = head_data<T>(p.out, at.b, at.h);
#pragma unroll 1
    for (int i = threadIdx.x % 128; i < 64 * (Dv / 8); i += 128) {
      const int row = i / (Dv / 8), unit = i % (Dv / 8);
      const index q = first_query + row;
      if (q >= p.queries || unit * 8 >= p.value_dim) continue;
      const uint4 x = load_shared_16(staged + unit / 8 * query_chunk + row * 128 + ((unit % 8 ^ (row & 7)) << 4));
      if (p.out.vectors) {
        *reinterpret_cast<uint4*>(out + q * p.out.row_stride + unit * 8) = x;
      } else {
        const T* elements = reinterpret_cast<const T*>(&x);
        for (int e = 0; e < 8 && unit * 8 + e < p.value_dim; ++e) out[q * p.out.row_stride + (unit * 8 + e) * p.out.column_stride] = elements[e];
      }
    }
    copies_follow();
    warpgroup_sync(1 + part);
    if (first_thread) barrier_arrive(query_empty + 8 * buffer);
    buffer = (buffer + 1) % shape::buffers;
)cuh"
     R"cuh(    if (buffer == 0) buffer_parity ^= 1;
  }
}

}  // namespace samite
)cuh"},
    {"copy.cuh",
     R"cuh(// copy.cuh: strided copies, the moving part of copy, concat, pad, assign and append.
//
// One thread an element; consecutive threads take consecutive elements of the last axis. Extents and strides are in elements.
// Grid: any number of blocks of 256 threads.
#pragma once
#include "core.cuh"

namespace samite {

constexpr int copy_axes = 6;

struct copy_parameters {
  void* to;
  const void* from;
  index size;  // elements
  i32 axes;
  index extents[copy_axes], to_strides[copy_axes], from_strides[copy_axes];
};

template <class T> __device__ inline void copy_strided(const copy_parameters& p) {
  const index step = index(gridDim.x) * blockDim.x;
  for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += step) {
    index rest = i, to = 0, from = 0;
    for (int a = p.axes - 1; a > 0; --a) {
      const index at = rest % p.extents[a];
      rest /= p.extents[a];
      to += at * p.to_strides[a], from += at * p.from_strides[a];
    }
    to += rest * p.to_strides[0], from += rest * p.from_strides[0];
    static_cast<T*>(p.to)[to] = static_cast<const T*>(p.from)[from];
  }
}

extern "C" __global__ void copy_1(const __grid_constant__ copy_parameters p) { copy_strided<u8>(p); }
extern "C" __global__ void copy_2(const __grid_constant__ copy_parameters p) { copy_strided<u16>(p); }
extern "C" __global__ void copy_4(const __grid_constant__ copy_parameters p) { copy_strided<u32>(p); }
extern "C" __global__ void copy_8(const __grid_constant__ copy_parameters p) { copy_strided<u64>(p); }
extern "C" __global__ void copy_16(const __grid_constant__ copy_parameters p) { copy_strided<uint4>(p); }

}  // namespace samite
)cuh"},
    {"core.cuh",
     R"cuh(// core.cuh: integer and storage types, conversions, arithmetic on indices and reals. Every other device source starts from it.
//
// No host or vendor header is included: a header costs more compile time than all the kernels here together.
#pragma once

namespace samite {

using index = long long;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using u8 = unsigned char;
using i32 = int;
using i64 = long long;
using f32 = float;
using f64 = double;

struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};

// ---- conversions between storage and arithmetic; rounding is to nearest, ties to even ----------------------------------

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(double x) { return float(x); }
__device__ inline float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
__device__ inline float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

template <class T> struct storage;
template <> struct storage<float> {
  static __device__ inline float from(float x) { return x; }
  static __device__ inline float from(double x) { return float(x); }
};
template <> struct storage<double> {
  static __device__ inline double from(float x) { return x; }
  static __device__ inline double from(double x) { return x; }
};
template <> struct storage<bf16> {
  static __device__ inline bf16 from(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
  static __device__ inline bf16 from(double x) { return from(float(x)); }
  // The first argument becomes the lower half.
  static __device__ inline u32 pair(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
  }
};
template <> struct storage<f16> {
  static __device__ inline f16 from(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
  static __device__ inline f16 from(double x) { return from(float(x)); }
  static __device__ inline u32 pair(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
  }
};

// Reals and indices as the kernel's arithmetic sees them.
template <class Real> struct arithmetic {
  static __device__ inline Real load(float x) { return Real(x); }
  static __device__ inline Real load(double x) { return Real(x); }
  static __device__ inline Real load(bf16 x) { return Real(to_float(x)); }
  static __device__ inline Real load(f16 x) { return Real(to_float(x)); }
  static __device__ inline Real load(i32 x) { return Real(x); }
  static __device__ inline Real load(i64 x) { return Real(x); }
  static __device__ inline Real load(u8 x) { return Real(x); }
};

template <class T> __device__ inline void put(T& to, float x) { to = storage<T>::from(x); }
template <class T> __device__ inline void put(T& to, double x) { to = storage<T>::from(x); }
__device__ inline void put(i32& to, float x) { to = i32(x); }
__device__ inline void put(i32& to, double x) { to = i32(x); }
__device__ inline void put(i64& to, float x) { to = i64(x); }
__device__ inline void put(i64& to, double x) { to = i64(x); }
__device__ inline void put(u8& to, float x) { to = u8(x); }
__device__ inline void put(u8& to, double x) { to = u8(x); }

// A real rounded to what the storage type can hold.
template <class T, class Real> __device__ inline Real rounded_to(Real x) { return arithmetic<Real>::load(storage<T>::from(x)); }

// ---- indices: quotients round towards minus infinity, divisors are positive ---------------------------------------------

__device__ inline index floor_div(index a, index b) {
  const index quotient = a / b;
  return quotient - (a % b < 0 ? 1 : 0);
}
__device__ inline index floor_mod(index a, index b) {
  const index remainder = a % b;
  return remainder < 0 ? remainder + b : remainder;
}
__device__ inline index index_abs(index a) { return a < 0 ? -a : a; }
__device__ inline index index_min(index a, index b) { return b < a ? b : a; }
__device__ inline index index_max(index a, index b) { return a < b ? b : a; }
__device__ inline index clamp(index x, index low, index high) { return x < low ? low : (x > high ? high : x); }

// ---- reals: as the CPU backend computes them, so no fast approximations; min and max keep the first of two NaN-free equals --

__device__ inline float real_exp(float x) { return ::expf(x); }
__device__ inline double real_exp(double x) { return ::exp(x); }
__device__ inline float real_log(float x) { return ::logf(x); }
__device__ inline double real_log(double x) { return ::log(x); }
__device__ inline float real_sqrt(float x) { return ::sqrtf(x); }
__device__ inline double real_sqrt(double x) { return ::sqrt(x); }
__device__ inline float real_rsqrt(float x) { return ::rsqrtf(x); }
__device__ inline double real_rsqrt(double x) { return ::rsqrt(x); }
__device__ inline float real_tanh(float x) { return ::tanhf(x); }
__device__ inline double real_tanh(double x) { return ::tanh(x); }
__device__ inline float real_sin(float x) { return ::sinf(x); }
__device__ inline double real_sin(double x) { return ::sin(x); }
__device__ inline float real_cos(float x) { return ::cosf(x); }
__device__ inline double real_cos(double x) { return ::cos(x); }
// These hide the global functions: a NaN is treated as `value` in ir/ops.hpp treats it.
__device__ inline float fabs(float x) { return ::fabsf(x); }
__device__ inline double fabs(double x) { return ::fabs(x); }
__device__ inline float fmin(float a, float b) { return b < a ? b : a; }
__device__ inline double fmin(double a, double b) { return b < a ? b : a; }
__device__ inline float fmax(float a, float b) { return a < b ? b : a; }
__device__ inline double fmax(double a, double b) { return a < b ? b : a; }

__device__ inline float infinity() { return __uint_as_float(0x7f800000u); }
// A constant that has no decimal spelling.
__device__ inline double real_bits(u64 bits) { return __longlong_as_double(i64(bits)); }

// ---- errors that a kernel finds in its data; the host reads the report when it waits for the device ------------------------

struct error_report {
  i32 code;    // 0: none
  i32 source;  // which launch
  i64 value, position, bound;
};

// The first to come wins; the others would say the same.
__device__ inline void report_error(error_report* report, i32 code, i32 source, i64 value, i64 position, i64 bound) {
  if (atomicCAS(&report->code, 0, code) != 0) return;
  report->source = source, report->value = value, report->position = position, report->bound = bound;
}

}  // namespace samite
)cuh"},
    {"embedding.cuh",
     R"cuh(// embedding.cuh: rows of a table by id, and the gradient of that.
//
// Ids are checked here, since the host must not read them: a bad id is reported and its row becomes zeros.
#pragma once
#include "core.cuh"

namespace samite {

constexpr int embedding_threads = 256;
constexpr i32 error_bad_index = 1;

struct embedding_parameters {
  const void* ids;
  const void* from;  // embedding: the table; gradient: d_out [T,H]
  void* to;          // embedding: out [T,H]; gradient: [V,H], zero before
  index tokens, rows, width;
  error_report* report;
  i32 source;
};

// One block a token in strides.
template <class Id, class Bits> __device__ inline void embedding_rows(const embedding_parameters& p) {
  for (index t = blockIdx.x; t < p.tokens; t += gridDim.x) {
    const index id = static_cast<const Id*>(p.ids)[t];
    const bool good = id >= 0 && id < p.rows;
    if (!good && threadIdx.x == 0) report_error(p.report, error_bad_index, p.source, id, t, p.rows);
    const Bits* from = static_cast<const Bits*>(p.from) + (good ? id * p.width : 0);
    Bits* to = static_cast<Bits*>(p.to) + t * p.width;
    for (index c = threadIdx.x; c < p.width; c += embedding_threads) to[c] = good ? from[c] : Bits(0);
  }
}

// The block of the first token with an id adds up the rows of all tokens with it, in the order of the tokens. Every block
// reads the ids before its token, and the first ones those after it: O(T^2 / 256) comparisons a block, but no atomics, no
// sorting and no scratch memory.
template <class Id, class Element, class Sum> __device__ inline void embedding_gradient_rows(const embedding_parameters& p) {
  __shared__ u32 hits[embedding_threads / 32];
  const Id* ids = static_cast<const Id*>(p.ids);
  for (index t = blockIdx.x; t < p.tokens; t += gridDim.x) {
    const index id = ids[t];
    if (id < 0 || id >= p.rows) {
      if (threadIdx.x == 0) report_error(p.report, error_bad_index, p.source, id, t, p.rows);
      continue;
    }
    bool seen = false;
    for (index base = 0; base < t && !seen; base += embedding_threads) {
      const index other = base + threadIdx.x;
      seen = __syncthreads_or(other < t && ids[other] == id);
    }
    if (seen) continue;
    Sum* to = static_cast<Sum*>(p.to) + id * p.width;
    for (index base = t; base < p.tokens; base += embedding_threads) {
      const index other = base + threadIdx.x;
      const u32 hit = __ballot_sync(0xffffffffu, other < p.tokens && ids[other] == id);
      __syncthreads();  // the hits of the chunk before have been used
      if (threadIdx.x % 32 == 0) hits[threadIdx.x / 32] = hit;
      __syncthreads();
      for (int word = 0; word < embedding_threads / 32; ++word)
        for (u32 rest = hits[word]; rest != 0; rest &= rest - 1) {
          const index token = base + word * 32 + (__ffs(int(rest)) - 1);
          const Element* from = static_cast<const Element*>(p.from) + token * p.width;
          for (index c = threadIdx.x; c < p.width; c += embedding_threads) to[c] += arithmetic<Sum>::load(from[c]);
        }
    }
  }
}

}  // namespace samite
)cuh"},
    {"hopper.cuh",
     R"cuh(// hopper.cuh: what sm_90a adds: matrix products of a warpgroup (wgmma), tensor copies (TMA), barriers in shared memory.
//
// Tiles in shared memory are chunks of 64 columns, [rows][64] of 16-bit elements with 128-byte rows, in the 128-byte swizzle; chunks
// begin at multiples of 1024 bytes. A product of a warpgroup has 64 rows; element (i, e) of a thread's accumulators is in row
// 16 * warp + lane / 4 + (e / 2) * 8 and column 8 i + lane % 4 * 2 + e % 2.
// source  PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor Memory Access"
#pragma once
#include "mma.cuh"

namespace samite {

// ---- barriers in shared memory ------------------------------------------------------------------------------------------------

// Barriers and tiles are named by their addresses in shared memory.
__device__ inline void barrier_init(u32 barrier, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory"); }
__device__ inline void barrier_init_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(u32 barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait_%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ inline void store_shared(u32 address, i32 a, i32 b) { asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory"); }
__device__ inline int2 load_shared(u32 address) {
  int2 x;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ inline void store_shared(u32 address, u32 x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory"); }
__device__ inline uint4 load_shared_16(u32 address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}

// ---- tensor copies -------------------------------------------------------------------------------------------------------------

struct alignas(64) tensor_map {
  u64 words[16];
};
__device__ inline void prefetch(const tensor_map& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
// A box of the map at column, row, head and batch to shared memory; its bytes count in the barrier. One thread.
__device__ inline void copy_box(u32 to, const tensor_map& map, u32 barrier, i32 column, i32 row, i32 head, i32 batch) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(&map),
               "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

// What this thread read and wrote in shared memory comes before the copies that a barrier lets follow.
__device__ inline void copies_follow() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers of a warpgroup ----------------------------------------------------------------------------------------------------

template <int Count> __device__ inline void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count)); }
template <int Count> __device__ inline void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count)); }
__device__ inline void warpgroup_sync(int name) { asm volatile("bar.sync %0, 128;" ::"r"(name) : "memory"); }

// 2^x, with 2^-inf = 0; relative error 2^-22.
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- products --------------------------------------------------------------------------------------------------------------------

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending> __device__ inline void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory"); }
// Keeps the compiler from moving arithmetic on accumulators over a wait or a begin.
template <int N> __device__ inline void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// Descriptor of an operand in shared memory. Rows of k (K-major): `lead` is not read. Columns of k: `lead` is the distance of chunks.
__device__ inline u64 operand(u32 tile, u32 lead) {
  return u64((tile & 0x3ffff) >> 4) | u64(lead >> 4) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

// c[64, 8 N'] (+)= a b for 16 steps of k. In `product`, a and b are descriptors and both are K-major; in `product_columns`, a are
// registers and b has the steps of k as rows.
template <class T, int N> struct warpgroup_product;

// Registers by number, and the accumulators that they are.
#define SAMITE_REGISTERS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SAMITE_REGISTERS_64 SAMITE_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SAMITE_REGISTERS_96 SAMITE_REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SAMITE_REGISTERS_128 SAMITE_REGISTERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SAMITE_SUMS_8(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define SAMITE_SUMS_32 SAMITE_SUMS_8(0), SAMITE_SUMS_8(8), SAMITE_SUMS_8(16), SAMITE_SUMS_8(24)
#define SAMITE_SUMS_64 SAMITE_SUMS_32, SAMITE_SUMS_8(32), SAMITE_SUMS_8(40), SAMITE_SUMS_8(48), SAMITE_SUMS_8(56)
#define SAMITE_SUMS_96 SAMITE_SUMS_64, SAMITE_SUMS_8(64), SAMITE_SUMS_8(72), SAMITE_SUMS_8(80), SAMITE_SUMS_8(88)
#define SAMITE_SUMS_128 SAMITE_SUMS_96, SAMITE_SUMS_8(96), SAMITE_SUMS_8(104), SAMITE_SUMS_8(112), SAMITE_SUMS_8(120)

// The numbers behind the accumulators are those of the other operands.
#define SAMITE_PRODUCT(T, N, COUNT, A, B, ADD)                                                                    \
  static __device__ inline void product(float (&c)[COUNT], u64 a, u64 b, int add) {                               \
    asm volatile(                                                                                                 \
        "{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                         \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " "                                           \
        "{" SAMITE_REGISTERS_##COUNT "}, "                                                                        \
        A ", " B ", p, 1, 1, 0, 0;\n}"                                                                            \
        : SAMITE_SUMS_##COUNT                                                                                     \
        : "l"(a), "l"(b), "r"(add));                                                                              \
  }
#define SAMITE_PRODUCT_COLUMNS(T, N, COUNT, A, B)                                                                 \
  static __device__ inline void product_columns(float (&c)[COUNT], const u32* a, u64 b) {                         \
    asm volatile(                                                                                                 \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " "                                           \
        "{" SAMITE_REGISTERS_##COUNT "}, "                                                                        \
        "{" A "}, " B ", 1, 1, 1, 1;"                                                                             \
        : SAMITE_SUMS_##COUNT                                                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                    \
  }
#define SAMITE_PRODUCTS(T)                                                                                        \
  template <> struct warpgroup_product<T, 64> {                                                                   \
    SAMITE_PRODUCT(T, 64, 32, "%32", "%33", "%34")                                                                \
    SAMITE_PRODUCT_COLUMNS(T, 64, 32, "%32, %33, %34, %35", "%36")                                                \
  };                                                                                                              \
  template <> struct warpgroup_product<T, 128> {                                                                  \
    SAMITE_PRODUCT(T, 128, 64, "%64", "%65", "%66")                                                               \
    SAMITE_PRODUCT_COLUMNS(T, 128, 64, "%64, %65, %66, %67", "%68")                                               \
  };                                                                                                              \
  template <> struct warpgroup_product<T, 192> {                                                                  \
    SAMITE_PRODUCT_COLUMNS(T, 192, 96, "%96, %97, %98, %99", "%100")                                              \
  };                                                                                                              \
  template <> struct warpgroup_product<T, 256> {                                                                  \
    SAMITE_PRODUCT_COLUMNS(T, 256, 128, "%128, %129, %130, %131", "%132")                                         \
  };
SAMITE_PRODUCTS(bf16)
SAMITE_PRODUCTS(f16)

}  // namespace samite
)cuh"},
    {"mma.cuh",
     R"cuh(// mma.cuh: 16-bit matrix products of one warp on tensor cores (sm_80 and newer) and their operand loads.
//
// Fragments of m16n8k16, with g = lane / 4 and t = lane % 4: A holds rows g, g + 8 and columns 2t, 2t + 1 (+8); B rows (of k)
// 2t, 2t + 1 (+8) and column g; C rows g (c0, c1) and g + 8 (c2, c3), columns 2t, 2t + 1. Two neighbouring C tiles are one A
// operand after packing.  source  PTX ISA, "Matrix Fragments for mma.m16n8k16"
#pragma once
#include "core.cuh"

namespace samite {

// c += a b, all threads of the warp.
template <class T> __device__ inline void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <> __device__ inline void multiply_add<bf16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ inline void multiply_add<f16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

// Four 8x8 matrices; lanes 8i to 8i + 7 name the rows of matrix i, 16 bytes each.
__device__ inline void load_matrices(u32 (&x)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
}
__device__ inline void load_matrices_transposed(u32 (&x)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
}

// Tiles in shared memory are row-major with 8 elements (16 bytes) of padding: rows of any multiple of 32 bytes then start in
// different banks, and the eight rows of a matrix are read without a conflict.
template <int Columns> constexpr int padded = Columns + 8;

// A operand: rows first_row to +15, columns first_column to +15 of a tile.
template <int Columns, class T> __device__ inline void load_a(u32 (&a)[4], const T* tile, int first_row, int first_column) {
  const int lane = threadIdx.x % 32, matrix = lane / 8;
  load_matrices(a, shared_address(tile + (first_row + matrix % 2 * 8 + lane % 8) * padded<Columns> + first_column + matrix / 2 * 8));
}
// B operands of two n8 tiles where n are the tile's rows and k its columns: b[0], b[1] for rows 0 to 7; b[2], b[3] for 8 to 15.
template <int Columns, class T> __device__ inline void load_b(u32 (&b)[4], const T* tile, int first_row, int first_column) {
  const int lane = threadIdx.x % 32, matrix = lane / 8;
  load_matrices(b, shared_address(tile + (first_row + matrix / 2 * 8 + lane % 8) * padded<Columns> + first_column + matrix % 2 * 8));
}
// The same where k are the tile's rows and n its columns.
template <int Columns, class T> __device__ inline void load_b_transposed(u32 (&b)[4], const T* tile, int first_row, int first_column) {
  const int lane = threadIdx.x % 32, matrix = lane / 8;
  load_matrices_transposed(b, shared_address(tile + (first_row + matrix % 2 * 8 + lane % 8) * padded<Columns> + first_column + matrix / 2 * 8));
}

// s[16 rows][8 * N] += a_tile[first_row..][Columns] * b_tile[first_b..][Columns]^T.
template <int Columns, int N, class T>
__device__ inline void multiply_rows(float (&s)[N][4], const T* a_tile, int first_row, const T* b_tile, int first_b) {
#pragma unroll
  for (int k = 0; k < Columns; k += 16) {
    u32 a[4];
    load_a<Columns>(a, a_tile, first_row, k);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      u32 b[4];
      load_b<Columns>(b, b_tile, first_b + n * 8, k);
      multiply_add<T>(s[n], a, b[0], b[1]);
      multiply_add<T>(s[n + 1], a, b[2], b[3]);
    }
  }
}

// out[16 rows][8 * M] += p[16 rows][8 * N] (rounded to T) * tile[8 * N rows from first_row][columns from first_column].
template <int Columns, int N, int M, class T>
__device__ inline void multiply_columns(float (&out)[M][4], const float (&p)[N][4], const T* tile, int first_row, int first_column) {
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    const u32 a[4] = {storage<T>::pair(p[n][0], p[n][1]), storage<T>::pair(p[n][2], p[n][3]),
                      storage<T>::pair(p[n + 1][0], p[n + 1][1]), storage<T>::pair(p[n + 1][2], p[n + 1][3])};
#pragma unroll
    for (int m = 0; m < M; m += 2) {
      u32 b[4];
      load_b_transposed<Columns>(b, tile, first_row + n * 8, first_column + m * 8);
      multiply_add<T>(out[m], a, b[0], b[1]);
      multiply_add<T>(out[m + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace samite
)cuh"},
    {"row.cuh",
     R"cuh(// row.cuh: what generated row kernels share: where rows lie, who works on a row, reductions over a row.
//
// A kernel runs over `rows` rows of `columns` columns. The axes before the last are merged where all tensors allow it; up to
// five remain. A team of 1, 32 (a warp) or 256 (a block) threads works on a row, all in blocks of 256. Grid: any size.
#pragma once
#include "core.cuh"

namespace samite {

constexpr int row_threads = 256, row_axes = 5;

struct row_space {
  index rows, columns;
  i32 axes;                 // of extents and row strides that are in use
  index extents[row_axes];  // from the slowest to the fastest
};

struct row_tensor {
  void* data;
  index row_strides[row_axes];
  index column_stride;
};

// Element offset of a row.
__device__ inline index row_offset(const row_space& space, const row_tensor& tensor, index row) {
  if (space.axes == 1) return row * tensor.row_strides[0];
  index offset = 0;
  for (int i = row_axes - 1; i > 0; --i) {
    if (i >= space.axes) continue;
    offset += row % space.extents[i] * tensor.row_strides[i];
    row /= space.extents[i];
  }
  return offset + row * tensor.row_strides[0];
}

template <int Team> __device__ inline index first_row() {
  return index(blockIdx.x) * (row_threads / Team) + threadIdx.x / Team;
}
template <int Team> __device__ inline index row_step() { return index(gridDim.x) * (row_threads / Team); }
template <int Team> __device__ inline int team_lane() { return int(threadIdx.x % Team); }

struct sum_of {
  template <class T> static __device__ inline T combine(T a, T b) { return a + b; }
};
struct max_of {
  template <class T> static __device__ inline T combine(T a, T b) { return fmax(a, b); }
};
struct min_of {
  template <class T> static __device__ inline T combine(T a, T b) { return fmin(a, b); }
};

// Combines one value of each thread of the team; all of them get the result. The order is fixed, so results repeat bitwise.
template <class Op, int Team, class T> __device__ inline T team_reduce(T x) {
  if constexpr (Team >= 32)
    for (int distance = 16; distance > 0; distance /= 2) x = Op::combine(x, __shfl_xor_sync(0xffffffffu, x, distance));
  if constexpr (Team == row_threads) {
    __shared__ T warps[row_threads / 32];
    __syncthreads();  // the values of an earlier reduction have been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = warps[0];
    for (int i = 1; i < row_threads / 32; ++i) x = Op::combine(x, warps[i]);
  }
  return x;
}

}  // namespace samite
)cuh"},
    {"score.cuh",
     R"cuh(// score.cuh: what emitted score functions call: elements of captured tensors and tables, and sums of their gradients.
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
  static constexpr bool identity = true;
  static constexpr int held = 0;
};

}  // namespace samite
)cuh"},
    {"sum_to.cuh",
     R"cuh(// sum_to.cuh: sums over axes of a row-major tensor, in an order that depends on the shape alone.
//
// An output element is the sum of `terms` inputs. They are cut into chunks of `chunk_terms`; sum_chunks writes one partial sum
// a (chunk, output), sum_partials adds the chunks in order. No atomics: results repeat bitwise.
//   sum_chunks    grid x: outputs (one a thread, or one a block where outputs are few), y: chunks in strides; 256 threads
//   sum_partials  one thread an output
// The text that includes this defines the types: element_type, sum_type, out_type.
#pragma once
#include "core.cuh"

namespace samite {

constexpr int sum_axes = 6, sum_threads = 256;

struct sum_parameters {
  const void* from;
  void* partials;  // [chunks][outputs] sum_type
  void* to;
  index outputs, terms, chunk_terms, chunks;
  i32 kept_axes, summed_axes;
  index kept_extents[sum_axes], kept_strides[sum_axes];  // of the input, slowest first
  index summed_extents[sum_axes], summed_strides[sum_axes];
};

__device__ inline index offset_in(index i, int axes, const index* extents, const index* strides) {
  index offset = 0;
  for (int a = axes - 1; a > 0; --a) {
    offset += i % extents[a] * strides[a];
    i /= extents[a];
  }
  return axes > 0 ? offset + i * strides[0] : offset;
}

template <class Element, class Sum> __device__ inline void sum_chunks_by_thread(const sum_parameters& p) {
  const Element* from = static_cast<const Element*>(p.from);
  const index output = index(blockIdx.x) * sum_threads + threadIdx.x;
  if (output >= p.outputs) return;
  const index base = offset_in(output, p.kept_axes, p.kept_extents, p.kept_strides);
  for (index chunk = blockIdx.y; chunk < p.chunks; chunk += gridDim.y) {
    const index end = index_min(p.terms, (chunk + 1) * p.chunk_terms);
    Sum total = 0;
    for (index t = chunk * p.chunk_terms; t < end; ++t)
      total += arithmetic<Sum>::load(from[base + offset_in(t, p.summed_axes, p.summed_extents, p.summed_strides)]);
    static_cast<Sum*>(p.partials)[chunk * p.outputs + output] = total;
  }
}

// One block an output: thread i sums terms i, i + 256, ..; then a tree over the threads.
template <class Element, class Sum> __device__ inline void sum_chunks_by_block(const sum_parameters& p) {
  __shared__ Sum totals[sum_threads];
  const Element* from = static_cast<const Element*>(p.from);
  const index output = blockIdx.x;
  const index base = offset_in(output, p.kept_axes, p.kept_extents, p.kept_strides);
  for (index chunk = blockIdx.y; chunk < p.chunks; chunk += gridDim.y) {
    const index end = index_min(p.terms, (chunk + 1) * p.chunk_terms);
    Sum total = 0;
    for (index t = chunk * p.chunk_terms + threadIdx.x; t < end; t += sum_threads)
      total += arithmetic<Sum>::load(from[base + offset_in(t, p.summed_axes, p.summed_extents, p.summed_strides)]);
    totals[threadIdx.x] = total;
    __syncthreads();
    for (int half = sum_threads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) totals[threadIdx.x] += totals[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) static_cast<Sum*>(p.partials)[chunk * p.outputs + output] = totals[0];
    __syncthreads();  // before the next chunk overwrites the totals
  }
}

template <class Sum, class Out> __device__ inline void sum_partials_in_order(const sum_parameters& p) {
  const index output = index(blockIdx.x) * sum_threads + threadIdx.x;
  if (output >= p.outputs) return;
  Sum total = 0;
  for (index chunk = 0; chunk < p.chunks; ++chunk) total += static_cast<const Sum*>(p.partials)[chunk * p.outputs + output];
  put(static_cast<Out*>(p.to)[output], total);
}

}  // namespace samite
)cuh"},
};

}  // namespace samite::detail

