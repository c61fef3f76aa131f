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
  i32 full;         // 1; 0: undecided. In lists for sm_90a also -1 - p: one undecided tile, whose kept pairs are in its columns 32 p to 32 p + 31; it comes first. In
                    // those by keys: undecided, kept pairs only with the first (-1) or the last 64 keys (-2)
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

// The block's place: tiles of one head follow one another, so that they share its keys in L2; the last tile of queries comes first,
// and the first one of keys, since causal masks give it the most work.
struct block_place {
  index b, h, tile;
  __device__ block_place(index tiles, index heads, bool last_first = true) {
    index rest = blockIdx.x;
    tile = last_first ? tiles - 1 - rest % tiles : rest % tiles;
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
  if (a == Real(-infinity())) return b;
  if (b == Real(-infinity())) return a;
  const Real top = fmax(a, b);
  return top + real_log(real_exp(a - top) + real_exp(b - top));
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

// d_sink[h] = -sum over the head's rows of exp(sink - lse) * row_delta: the sink's weight, whose value is 0. A block a head;
// row_lse and row_delta have `stride` rows a head.
template <class Real> __device__ inline void sink_gradient(const attention_parameters& p, void* d_sink, Real unit, index stride) {
  const index h = blockIdx.x;
  const Real sink = static_cast<const Real*>(p.sink)[h];
  Real sum = 0;
  for (index i = threadIdx.x; i < p.batch * p.queries; i += 256) {
    const index row = (i / p.queries * p.heads + h) * stride + i % p.queries;
    sum -= real_exp(sink - static_cast<const Real*>(p.row_lse)[row] / unit) * static_cast<const Real*>(p.row_delta)[row];
  }
  sum = block_sum<256>(sum);
  if (threadIdx.x == 0) static_cast<Real*>(d_sink)[h] = sum;
}

// row_lse = lse * unit, row_delta = rowsum(d_out * out) - d_lse. Grid: any number of blocks of 256 threads, which take 64 rows of a head at a time, a row
// for 16 threads. Heads of the same rows follow one another: where tokens are stored head beside head, their rows are neighbours.
// A row without a kept key gets lse +infinity, so that exp(score - lse) is 0 and not exp(-inf + inf), and Delta 0.
template <class T, class Real> __device__ inline void prepare_gradient(const attention_parameters& p, Real unit) {
  constexpr int lanes = 16, groups = 256 / lanes, rows = attention_tile / groups;
  const int lane = threadIdx.x % lanes;
  const index tiles = tiles_of(p.queries);
  for (index i = blockIdx.x; i < p.batch * p.heads * tiles; i += gridDim.x) {
    const index h = i % p.heads, b = i / p.heads / tiles, first = i / p.heads % tiles * attention_tile + threadIdx.x / lanes;
    const T *const out = head_data<const T>(p.out, b, h), *const d_out = head_data<const T>(p.d_out, b, h);
    Real sums[rows] = {};
    if (p.out.vectors && p.d_out.vectors) {
      constexpr int unit = 16 / sizeof(T);
      for (int d = lane * unit; d < p.value_dim; d += lanes * unit) {
        uint4 x[rows], y[rows];  // all loads before their use
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const index q = first + r * groups;
          x[r] = y[r] = {0, 0, 0, 0};
          if (q < p.queries) x[r] = *reinterpret_cast<const uint4*>(out + q * p.out.row_stride + d), y[r] = *reinterpret_cast<const uint4*>(d_out + q * p.d_out.row_stride + d);
        }
#pragma unroll
        for (int r = 0; r < rows; ++r)
#pragma unroll
          for (int e = 0; e < unit; ++e) sums[r] += arithmetic<Real>::load(reinterpret_cast<const T*>(&x[r])[e]) * arithmetic<Real>::load(reinterpret_cast<const T*>(&y[r])[e]);
      }
    } else {
      for (int d = lane; d < p.value_dim; d += lanes)
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const index q = first + r * groups;
          if (q < p.queries) sums[r] += arithmetic<Real>::load(out[q * p.out.row_stride + d * p.out.column_stride]) * arithmetic<Real>::load(d_out[q * p.d_out.row_stride + d * p.d_out.column_stride]);
        }
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      for (int distance = lanes / 2; distance > 0; distance /= 2) sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], distance);
      const index q = first + r * groups, row = (b * p.heads + h) * p.queries + q;
      if (lane != 0 || q >= p.queries) continue;
      const Real lse = static_cast<const Real*>(p.lse)[row];
      const bool hidden = lse == Real(-infinity());
      static_cast<Real*>(p.row_lse)[row] = hidden ? Real(infinity()) : lse * unit;
      static_cast<Real*>(p.row_delta)[row] = hidden ? Real(0) : sums[r] - (p.d_lse != nullptr ? static_cast<const Real*>(p.d_lse)[row] : Real(0));
    }
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

// The bits of one undecided tile by a block of 2 * Rows threads, at least Columns; a thread's are those of its accumulators in
// attention_sm90.cuh, whose rows are queries, or ByKeys in the dK, dV kernel of attention_sm90_gradient.cuh, whose rows are keys. What the
// mask makes of a column alone is computed once for the tile. Where rows are queries, each stands there for `pack` query heads; a tile has as many as
// fit whole. All threads of the block.
template <int Rows, int Columns, bool ByKeys, class Mask> __device__ inline uint2 bits_of_tile(const undecided_tile& t, index queries, index keys, const Mask& mask, int pack = 1) {
  static_assert(2 * Rows >= Columns, "a thread a column");
  const auto head = mask.head(t.b, t.h);
  // The mask's parts for a row and a column of the accumulators.
  const auto row_part = [&](index i) {
    if constexpr (ByKeys) return mask.column(t.b, t.h, i, head);
    else return mask.row(t.b, t.h, i, head);
  };
  const auto column_part = [&](index i) {
    if constexpr (ByKeys) return mask.row(t.b, t.h, i, head);
    else return mask.column(t.b, t.h, i, head);
  };
  __shared__ decltype(column_part(0)) columns[Columns];
  const int lane = threadIdx.x % 32;
  const int local = threadIdx.x / 32 * 16 + lane / 4, tokens = Rows / pack;
  const index start = index(ByKeys ? t.key_tile : t.query_tile) * tokens, row = start + local / pack, row_below = start + (local + 8) / pack, first = index(ByKeys ? t.query_tile : t.key_tile) * Columns;
  const index row_end = ByKeys ? keys : queries, column_end = ByKeys ? queries : keys;
  __syncthreads();  // the tile before has been read
  if (threadIdx.x < Columns) columns[threadIdx.x] = column_part(first + threadIdx.x);
  const auto upper = row_part(row), lower = row_part(row_below);
  const auto keeps = [&](index r, index c, const decltype(row_part(0))& of_row, const decltype(column_part(0))& of_column) {
    if constexpr (ByKeys) return mask.keep(t.b, t.h, c, r, head, of_column, of_row);
    else return mask.keep(t.b, t.h, r, c, head, of_row, of_column);
  };
  __syncthreads();
  uint2 found = {0, 0};
#pragma unroll 1
  for (int i = 0; i < Columns / 4; ++i) {
    const int column = i / 2 * 8 + i % 2 + lane % 4 * 2;
    const index c = first + column;
    if (c >= column_end) break;
    if (row < row_end && keeps(row, c, upper, columns[column])) found.x |= 1u << i;
    if (row_below < row_end && keeps(row_below, c, lower, columns[column])) found.y |= 1u << i;
  }
  return found;
}

// What a warpgroup needs of a tile whose rows 64 g to 64 g + 63 are its own: byte g says whether there are kept pairs in these, and hidden ones.
constexpr u32 needs_pairs = 1, needs_bits = 2;

// Into *needs, from a thread's bits of the tile. All threads of the block.
template <int Columns> __device__ inline void fill_needs(u32* needs, uint2 bits) {
  constexpr u32 all = Columns == 128 ? ~0u : (1u << Columns / 4) - 1;
  __shared__ u32 found;
  if (threadIdx.x == 0) found = 0;
  const u32 of_warp = __reduce_or_sync(~0u, ((bits.x | bits.y) != 0 ? needs_pairs : 0) | ((bits.x & bits.y) != all ? needs_bits : 0));
  __syncthreads();
  if (threadIdx.x % 32 == 0) atomicOr(&found, of_warp << threadIdx.x / 128 * 8);
  __syncthreads();
  if (threadIdx.x == 0) *needs = found;
}

// needs: of each tile, or null.
template <int Rows, int Columns, bool ByKeys, class Mask> __device__ inline void fill_bits(const undecided_tile* tiles, uint2* bits, u32* needs, index queries, index keys, int pack, const Mask& mask) {
  const uint2 found = bits_of_tile<Rows, Columns, ByKeys>(tiles[blockIdx.x], queries, keys, mask, pack);
  bits[index(blockIdx.x) * (2 * Rows) + threadIdx.x] = found;
  if (needs != nullptr) fill_needs<Columns>(needs + blockIdx.x, found);
}

}  // namespace samite
)cuh"},
    {"attention_copies.cuh",
     R"cuh(// attention_copies.cuh: tiles into shared memory while the block computes, by cp.async (sm_80 and newer).
#pragma once
#include "attention.cuh"
#include "mma.cuh"

namespace samite {

// 16 bytes from global to shared memory; zeros where nothing exists.
__device__ inline void copy_async(void* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
// 4 bytes.
__device__ inline void copy_async_4(void* to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the thread's last N groups of copies are done.
template <int N> __device__ inline void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// `Rows` rows from `first` on, by `Threads` threads of which this is `thread`.
template <int Rows, int Columns, int Threads, class T>
__device__ inline void copy_rows(T* to, const attention_tensor& t, const T* head, index first, index length, int columns, int thread) {
  constexpr int units = Columns / 8, copies = (Rows * units + Threads - 1) / Threads;
  if (t.vectors) {
    const i32 left = length - first < Rows ? i32(length - first) : Rows;  // rows that exist, if positive
    if constexpr (Threads % units == 0) {  // each thread stays in its column, so that its addresses are sums
      constexpr int row_step = Threads / units;
      const int row = thread / units, column = thread % units * 8;
      const index step = row_step * t.row_stride;
      const T* from = head + (first + row) * t.row_stride + column;
      T* const mine = to + row * padded<Columns> + column;
      const i32 end = column < columns ? left - row : 0;  // of rows from this thread's first on
#pragma unroll
      for (int i = 0; i < copies; ++i, from += step)
        if (Rows % row_step == 0 || row + i * row_step < Rows) copy_async(mine + i * row_step * padded<Columns>, i * row_step < end ? from : head, i * row_step < end);
    } else {
#pragma unroll
      for (int i = 0; i < copies; ++i) {
        const int row = (i * Threads + thread) / units, column = (i * Threads + thread) % units * 8;
        const bool exists = row < left && column < columns;
        if (Rows * units % Threads == 0 || row < Rows) copy_async(to + row * padded<Columns> + column, exists ? head + (first + row) * t.row_stride + column : head, exists);
      }
    }
    return;
  }
#pragma unroll 1
  for (int i = thread; i < Rows * Columns; i += Threads) {
    const int row = i / Columns, column = i % Columns;
    T x{};
    if (first + row < length && column < columns) x = head[(first + row) * t.row_stride + column * t.column_stride];
    to[row * padded<Columns> + column] = x;
  }
}

// threadIdx.x, read anew: what is made of it isn't kept in registers over a loop.
__device__ inline int thread_anew() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// The tiles of one list in ascending order, one ahead of their use.
struct tile_walk {
  const tile_run* next;
  i32 left = 0, tile = 0, last = 0;  // runs behind this one; the tile, and the end of its run
  bool full = true;
  __device__ tile_walk(const tile_lists& lists, index b, index h, index list, index tiles) : next(lists.runs) {
    if (next == nullptr) {
      last = i32(tiles);
      return;
    }
    const i64* begin = lists.begin + b * lists.batch_lists + h * lists.head_lists + list;
    next += begin[0], left = i32(begin[1] - begin[0]);
    enter();
  }
  __device__ void enter() {
    if (left == 0) return;
    const tile_run run = *next++;
    tile = run.first, last = run.last, full = run.full != 0, --left;
  }
  __device__ bool is_done() const { return tile >= last; }
  __device__ void advance() {
    if (++tile >= last) enter();
  }
};

}  // namespace samite
)cuh"},
    {"attention_decode.cuh",
     R"cuh(// attention_decode.cuh: attention of few queries over many keys, forward, on mma.sync m16n8k16, for sm_80 and newer: decoding, and the
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
)cuh"},
    {"attention_decode_parts.cuh",
     R"cuh(// attention_decode_parts.cuh: what the kernels for few queries over many keys share: packed rows, parts of a list of key tiles, and the merge of
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
)cuh"},
    {"attention_decode_sm90.cuh",
     R"cuh(// attention_decode_sm90.cuh: attention of few queries over many keys, forward, on sm_90a: wgmma, TMA, one warp that loads, two warpgroups that compute.
//
// A block has a part of a pair's keys and 64 or 128 packed rows (attention_decode_parts.cuh), and a multiprocessor one block. Up to 64 rows, both
// warpgroups have all of them and take tiles of 64 keys by turns; else each has 64 rows and takes every tile. One thread copies keys and values through
// rings of `stages` tiles each, so far ahead that memory never waits for products. While the tensor cores multiply P V of one tile and Q K^T of the next,
// the softmax of the latter runs. The mask is evaluated in undecided tiles.
// Dynamic shared memory: decode_sm90_shared_bytes.
#pragma once
#include "attention_decode_parts.cuh"
#include "hopper.cuh"

namespace samite {

struct decode_sm90_parameters {
  tensor_map K, V;
  decode_parameters d;  // rows: 64 or 128
};

// Head dims padded to multiples of 64.
template <int D, int Dv> struct decode_sm90_shape {
  static constexpr int key_bytes = attention_tile * D * 2, value_bytes = attention_tile * Dv * 2, most_stages = 8;
  static constexpr bool is_wide = D > 128 || Dv > 128;  // the loading warp is then a warpgroup that gives its registers to the others
  static constexpr int barrier_bytes = 4 * 8 * most_stages + 8 * most_stages;
  static constexpr int ring_limit = 232448 - 1024 - barrier_bytes;  // a block's shared memory but the tiles' alignment
  template <int Rows> static constexpr int fitting = (ring_limit - Rows * D * 2) / (key_bytes + value_bytes);
  template <int Rows> static constexpr int stages = fitting<Rows> < most_stages ? fitting<Rows> : most_stages;
  template <int Rows> static constexpr int bytes = Rows * D * 2 + stages<Rows> * (key_bytes + value_bytes);
  static constexpr int shared_bytes = 1024 + barrier_bytes + (bytes<64> > bytes<128> ? bytes<64> : bytes<128>);
  static_assert(128 * (row_sums<Dv>::stride + 2) * 4 <= (bytes<64> < bytes<128> ? bytes<64> : bytes<128>), "the warpgroups' sums take the tiles' place");
};
template <int D, int Dv> constexpr int decode_sm90_shared_bytes = decode_sm90_shape<D, Dv>::shared_bytes;

constexpr int decode_sm90_computing = 256;  // threads

// Eight columns of a packed row; zeros past the end.
template <bool Vectors, class T> __device__ inline uint4 packed_unit(const attention_parameters& p, const decode_place& at, i32 group, int row, int column) {
  if (row >= at.rows || column >= p.head_dim) return {0, 0, 0, 0};
  const i32 packed_row = at.first_row + row;
  const T* const from = head_data<const T>(p.Q, at.b, at.g * group + packed_row % group) + packed_row / group * p.Q.row_stride;
  if constexpr (Vectors) return *reinterpret_cast<const uint4*>(from + column);
  u32 words[4] = {0, 0, 0, 0};
#pragma unroll
  for (int c = 0; c < 8; ++c)
    if (column + c < p.head_dim) words[c / 2] |= u32(from[(column + c) * p.Q.column_stride].bits) << (16 * (c % 2));
  return {words[0], words[1], words[2], words[3]};
}

// The packed rows of a block as chunks of 64 columns in the 128-byte swizzle. All threads that compute.
template <int D, bool Vectors, class T> __device__ inline void load_packed_queries(const attention_parameters& p, const decode_place& at, T* to, int rows) {
  constexpr int at_once = D / 64 * 2;  // loads under way: all of 64 rows
  const i32 group = i32(p.heads / p.key_heads);
#pragma unroll 1
  for (int first = threadIdx.x; first < rows * (D / 8); first += at_once * decode_sm90_computing) {
    uint4 bits[at_once];
#pragma unroll
    for (int j = 0; j < at_once; ++j) bits[j] = packed_unit<Vectors, T>(p, at, group, (first + j * decode_sm90_computing) / (D / 8), (first + j * decode_sm90_computing) % (D / 8) * 8);
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const int row = (first + j * decode_sm90_computing) / (D / 8), unit = (first + j * decode_sm90_computing) % (D / 8);
      *reinterpret_cast<uint4*>(to + unit / 8 * (rows * 64) + row * 64 + ((unit % 8 ^ (row & 7)) << 3)) = bits[j];
    }
  }
}

// Copies the part's tiles in order, then tells each of the parts of the keys that there are no more. One thread.
template <int D, int Dv> __device__ inline void copy_part(const decode_sm90_parameters& a, const decode_place& at, const decode_run& first_run, u32 Ks, u32 Vs, u32 barriers, int stages, int key_parts) {
  using shape = decode_sm90_shape<D, Dv>;
  const u32 key_full = barriers, value_full = key_full + 8 * stages, key_empty = value_full + 8 * stages, value_empty = key_empty + 8 * stages, tile_of = value_empty + 8 * stages;
  int stage = 0;
  u32 parity = 1;  // "empty" passes in the first round
  const auto advance = [&] {
    if (++stage == stages) stage = 0, parity ^= 1;
  };
#pragma unroll 1
  for (part_walk<1> walk(first_run); !walk.is_done(); walk.advance(a.d.runs), advance()) {
    barrier_wait(key_empty + 8 * stage, parity);
    store_shared(tile_of + 8 * stage, walk.tile, walk.run.full);
    barrier_expect(key_full + 8 * stage, shape::key_bytes);
#pragma unroll 1
    for (int c = 0; c < D / 64; ++c) copy_box(Ks + stage * shape::key_bytes + c * attention_tile * 128, a.K, key_full + 8 * stage, c * 64, walk.tile * attention_tile, i32(at.g), i32(at.b));
    barrier_wait(value_empty + 8 * stage, parity);
    barrier_expect(value_full + 8 * stage, shape::value_bytes);
#pragma unroll 1
    for (int c = 0; c < Dv / 64; ++c) copy_box(Vs + stage * shape::value_bytes + c * attention_tile * 128, a.V, value_full + 8 * stage, c * 64, walk.tile * attention_tile, i32(at.g), i32(at.b));
  }
#pragma unroll 1
  for (int i = 0; i < key_parts; ++i, advance()) {
    barrier_wait(key_empty + 8 * stage, parity);
    store_shared(tile_of + 8 * stage, -1, 1);
    barrier_arrive(key_full + 8 * stage);
  }
}

template <class T, int D, int Dv, bool ByHead, class Mask> __device__ inline void attention_decode_sm90(const decode_sm90_parameters& a, const Mask& mask) {
  using shape = decode_sm90_shape<D, Dv>;
  constexpr int columns = attention_tile / 2, values = Dv / 2;  // accumulators of a thread
  extern __shared__ uint4 shared[];
  const attention_parameters& p = a.d.p;
  const decode_place at(a.d);
  const int rows = a.d.rows, key_parts = 128 / rows, stages = rows == 64 ? shape::template stages<64> : shape::template stages<128>;
  const u32 Qs = (shared_address(shared) + 1023) & ~1023u, Ks = Qs + rows * D * 2, Vs = Ks + stages * shape::key_bytes, barriers = Vs + stages * shape::value_bytes;
  const u32 key_full = barriers, value_full = key_full + 8 * stages, key_empty = value_full + 8 * stages, value_empty = key_empty + 8 * stages, tile_of = value_empty + 8 * stages;

  if (a.d.splits > 1) let_next_start();  // the merge
  const decode_run first_run = at.first_run(a.d);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      barrier_init(key_full + 8 * i, 1), barrier_init(value_full + 8 * i, 1);
      barrier_init(key_empty + 8 * i, (3 - key_parts) * warp_arrivals), barrier_init(value_empty + 8 * i, (3 - key_parts) * group_arrivals);  // those that use a tile
    }
    barrier_init_visible();
    prefetch(a.K), prefetch(a.V);
  }
  wait_for_last();
  if (at.split > 0 && first_run.first >= first_run.last) return;  // the pair has fewer parts
  __syncthreads();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp >= decode_sm90_computing / 32) {
    if constexpr (shape::is_wide) give_registers<40>();
    if (threadIdx.x == decode_sm90_computing) copy_part<D, Dv>(a, at, first_run, Ks, Vs, barriers, stages, key_parts);
    return;
  }
  if constexpr (shape::is_wide) take_registers<232>();

  T* const queries = reinterpret_cast<T*>(reinterpret_cast<char*>(shared) + (Qs - shared_address(shared)));
  p.Q.vectors ? load_packed_queries<D, true>(p, at, queries, rows) : load_packed_queries<D, false>(p, at, queries, rows);
  copies_follow();  // wgmma reads what was written
  block_sync(1, decode_sm90_computing);

  const int group = warp / 4, part_row = key_parts == 1 ? group * 64 : 0, lane = threadIdx.x % 32, row_low = part_row + warp % 4 * 16 + lane / 4;
  const i32 warp_row = at.first_row + part_row + warp % 4 * 16;
  const float scale = float(p.scale) * log2_e;
  const u64 query = operand(Qs + part_row * 128, 16), key = operand(Ks, 16), value = operand(Vs, attention_tile * 128);
  float o[values], s[columns], base[2] = {-infinity(), -infinity()}, total[2] = {0, 0}, rescale[2] = {1, 1};  // base: what is subtracted from a row's scores
  u32 weights[columns / 2];
#pragma unroll
  for (int i = 0; i < values; ++i) o[i] = 0;
  int stage = key_parts == 1 ? 0 : group;
  u32 parity = 0, visible;
  bool hides;

  const auto next_tile = [&]() __attribute__((always_inline)) {
    barrier_wait(key_full + 8 * stage, parity);
    const int2 tile = load_shared(tile_of + 8 * stage);
    if (tile.x < 0) return false;
    hides = tile.y == 0 || index(tile.x + 1) * attention_tile > p.keys;
    visible = packed_visible<columns / 4, ByHead>(p, mask, at.b, at.g, warp_row, index(tile.x) * attention_tile, tile.y != 0);
    return true;
  };
  const auto advance = [&]() __attribute__((always_inline)) {
    stage += key_parts;
    if (stage >= stages) stage -= stages, parity ^= 1;
  };
  const auto scores = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      warpgroup_product<T, attention_tile>::product(s, query + (k / 4 * rows * 128 + k % 4 * 32) / 16, key + (stage * shape::key_bytes + k / 4 * attention_tile * 128 + k % 4 * 32) / 16, k != 0);
    products_commit();
  };
  const auto weighted = [&](int value_stage) __attribute__((always_inline)) {
#pragma unroll
    for (int k = 0; k < attention_tile / 16; ++k) warpgroup_product<T, Dv>::product_columns(o, weights + 4 * k, value + (value_stage * shape::value_bytes + k * 2048) / 16);
    products_commit();
  };
  // Turns scores into weights. The base follows the largest score only where that grows by much: weights stay below 2^8.
  const auto softmax = [&]() __attribute__((always_inline)) {
    if (hides) {
#pragma unroll
      for (int i = 0; i < columns; ++i)
        if ((visible >> i & 1u) == 0) s[i] = -infinity();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float tops[2] = {-infinity(), -infinity()};
#pragma unroll
      for (int i = 0; i < columns; i += 4) tops[i / 4 % 2] = ::fmaxf(tops[i / 4 % 2], ::fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
      float top = ::fmaxf(tops[0], tops[1]);
      top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 2)) * scale;
      rescale[r] = 1;
      if (top > base[r] + 8) rescale[r] = power_of_2(base[r] - top), base[r] = top;
      const float shift = base[r] == -infinity() ? 0.0f : base[r];  // no key seen yet: keeps -inf - -inf from being NaN
      float sums[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < columns; i += 4) {
        s[i + 2 * r] = power_of_2(s[i + 2 * r] * scale - shift), s[i + 2 * r + 1] = power_of_2(s[i + 2 * r + 1] * scale - shift);
        sums[i / 4 % 2] += s[i + 2 * r] + s[i + 2 * r + 1];
      }
      total[r] = total[r] * rescale[r] + (sums[0] + sums[1]);
    }
  };
  const auto pack = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < columns; i += 2) weights[i / 2] = storage<T>::pair(s[i], s[i + 1]);
  };

  if (next_tile()) {
    pin(s);
    products_begin();
    scores();
    products_wait<0>();
    pin(s);
    warp_arrive(key_empty + 8 * stage);
    softmax();
    pack();
    int value_stage = stage;
    u32 value_parity = parity;
    advance();
    while (next_tile()) {
      pin(s);
      products_begin();
      scores();
      barrier_wait(value_full + 8 * value_stage, value_parity);
      pin(o);
      products_begin();
      weighted(value_stage);
      products_wait<1>();
      pin(s);
      warp_arrive(key_empty + 8 * stage);
      softmax();
      products_wait<0>();
      pin(o);
      group_arrive(value_empty + 8 * value_stage);
      pack();
      if (__any_sync(~0u, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
        for (int i = 0; i < values; ++i) o[i] *= rescale[i % 4 / 2];
      }
      value_stage = stage, value_parity = parity;
      advance();
    }
    barrier_wait(value_full + 8 * value_stage, value_parity);
    pin(o);
    products_begin();
    weighted(value_stage);
    products_wait<0>();
    pin(o);
  }

  // ---- what the warpgroups have of each row, in the tiles' place
  block_sync(1, decode_sm90_computing);  // all tiles have come and have been used
  float* const sums = reinterpret_cast<float*>(queries);
  float2* const statistics = reinterpret_cast<float2*>(sums + 128 * row_sums<Dv>::stride);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = row_low + r * 8, place = (key_parts == 1 ? 0 : group * 64) + row;
    float sum = total[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (row >= at.rows) continue;
    if (lane % 4 == 0) statistics[place] = {base[r], sum};
#pragma unroll
    for (int i = 0; i < values; i += 4) *reinterpret_cast<float2*>(sums + place * row_sums<Dv>::stride + i * 2 + lane % 4 * 2) = {o[i + 2 * r], o[i + 2 * r + 1]};
  }
  block_sync(1, decode_sm90_computing);
  finish_rows<T, Dv, 2>(a.d, at, sums, statistics, key_parts, rows, decode_sm90_computing / 32);
}

}  // namespace samite
)cuh"},
    {"attention_mma.cuh",
     R"cuh(// attention_mma.cuh: attention of bf16 and f16 tensors on mma.sync m16n8k16, for sm_80 and newer; its gradients are in attention_mma_gradient.cuh.
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
)cuh"},
    {"attention_mma_gradient.cuh",
     R"cuh(// attention_mma_gradient.cuh: the gradients of attention of bf16 and f16 tensors on mma.sync m16n8k16, for sm_80 and newer. Blocks have 128 threads.
//
//   dK, dV   a block for 64 keys (128 for heads of at most 64 channels, 32 past 128) walks the query heads of the group, 64 or 32 queries a step, copied while
//            others are used. A warp owns 16 or 32 keys and computes S^T and dP^T, so that P^T and dS^T are operands as they are. No atomics.
//   fused    a block also multiplies dS by K and adds it to an fp32 dQ, in whatever order blocks get there; a pass over dQ ends it. Head dims to 128, no score
//            function. To 64 channels it is the kernel above, with dS in shared memory too. Beyond, a warp computes S and dP of 32 queries and 32 keys, and what it
//            multiplies then are halves of P and dS of all warps: fewer reads of shared memory, which limits the other form there.
//   dQ       a block for 64 queries, a warp for 16; 64 keys a step (32 where a head dim passes 96, 16 past 192); S and dP computed anew
// Dynamic shared memory: see *_shared_bytes; at most 101376 bytes, which every served device has.
// source  Dao 2023, arXiv:2307.08691, algorithm 2; the dK/dV and dQ split into two kernels is for determinism
#pragma once
#include "attention_mma.cuh"

namespace samite {

// The dK, dV kernel. Steps shrink as the accumulators grow, or registers spill.
template <int D, int Dv, bool Scored, bool Fused> struct key_gradient_shape {
  static constexpr int largest = D > Dv ? D : Dv;
  static constexpr bool narrow = largest <= 64, wide = largest > 128, shares = Fused && !narrow;  // shares: P and dS through shared memory
  static constexpr int parts = narrow && !Scored ? 2 : 1;  // of 16 keys, a warp
  static constexpr int column_parts = wide ? 2 : 1;        // pairs of warps share 16 keys and keep half of the columns each
  static constexpr int keys = 64 * parts / column_parts;
  static constexpr int queries = narrow || shares ? 64 : 32;                                      // in shared memory
  static constexpr int query_part = wide || (Scored && largest > 96) ? 16 : shares ? queries : 32;  // of them in registers at once
  static constexpr int stages = largest > 192 || shares ? 1 : 2;
  static constexpr int row_bytes = stages * 2 * queries * 4;  // row_lse and row_delta
  static constexpr int pair_bytes = shares ? 2 * queries * padded<keys> * 2 : Fused ? keys * padded<queries> * 2 : 0;
  static constexpr int shared_bytes = row_bytes + (keys + stages * queries) * (padded<D> + padded<Dv>) * 2 + pair_bytes;
};

// What a block of keys works on. It stands in shared memory: registers are scarcer.
struct key_block {
  i32 b, key_head, first_head, end_head, list, first_key;
  // All threads of the block.
  template <int Keys> __device__ void enter(const attention_parameters& p) {
    constexpr int list_keys = Keys < attention_tile ? attention_tile : Keys, blocks = list_keys / Keys;
    const block_place at((p.keys + list_keys - 1) / list_keys * blocks, p.key_heads, false);
    const i32 group = i32(p.heads / p.key_heads);
    if (threadIdx.x == 0) b = i32(at.b), key_head = i32(at.h), first_head = key_head * group, end_head = first_head + group, list = i32(at.tile) / blocks, first_key = i32(at.tile) * Keys;
    __syncthreads();
  }
};

// The steps of a block of keys, over the heads of its group and the tiles of their lists.
template <int Step> struct step_walk {
  const attention_parameters& p;
  const key_block& block;
  i32 h, first = 0;
  tile_walk tiles;
  __device__ step_walk(const attention_parameters& parameters, const key_block& of)
      : p(parameters), block(of), h(of.first_head), tiles(parameters.lists, of.b, of.first_head, of.list, tiles_of(parameters.queries)) {
    settle();
  }
  __device__ bool is_done() const { return h >= block.end_head; }
  __device__ i32 first_query() const { return Step < attention_tile ? tiles.tile * attention_tile + first : tiles.tile * attention_tile; }
  __device__ void settle() {
    while (tiles.is_done() && ++h < block.end_head) tiles = tile_walk(p.lists, block.b, h, block.list, tiles_of(p.queries));
  }
  __device__ void advance() {
    if constexpr (Step < attention_tile) {
      first += Step;
      if (first < attention_tile && first_query() < p.queries) return;
      first = 0;
    }
    tiles.advance();
    settle();
  }
};

// A 16x8 tile of dQ's sums: the numbers of a thread's accumulators side by side where they are added at once, else those of a warp.
constexpr bool adds_vectors = __CUDA_ARCH__ >= 900;
__device__ inline void add_to_sums(float* tile, const float (&x)[4]) {
  const int lane = threadIdx.x % 32;
  if constexpr (adds_vectors) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(tile + lane * 4), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) atomicAdd(tile + e * 32 + lane, x[e]);
  }
}
// A head's sums from a query on: tiles of 64 queries.
template <int D> __device__ inline float* sums_from(float* sums, const attention_parameters& p, index b, index h, index first_query) {
  return sums + ((b * p.heads + h) * tiles_of(p.queries) * attention_tile + first_query) * D;
}

// What a warp has of 16-column units of a product whose rows are cut into pieces of 32.
template <int Columns, int Rows> struct warp_share {
  static constexpr int row_warps = Rows / 32, column_warps = 4 / row_warps, units = Columns / 16, most = (units + column_warps - 1) / column_warps;
  int row, first_unit;
  __device__ explicit warp_share(int warp) : row(warp % row_warps * 32), first_unit(warp / row_warps * most) {}
  __device__ bool has(int i) const { return most * column_warps == units || first_unit + i < units; }
};

// out += a times the warp's columns of b: a [32 rows from the share's][K], or stored transposed, [K][rows], in a tile of AColumns columns; b [K][Columns].
template <int Columns, int K, int AColumns, bool Transposed, class Share, int M, class T>
__device__ inline void multiply_share(float (&out)[2][M][4], const Share& share, const T* a_tile, const T* b_tile) {
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    u32 a[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (Transposed) load_a_transposed<AColumns>(a[r], a_tile, k, share.row + 16 * r);
      else load_a<AColumns>(a[r], a_tile, share.row + 16 * r, k);
    }
#pragma unroll
    for (int i = 0; i < M / 2; ++i) {
      if (!share.has(i)) continue;
      u32 b[4];
      load_b_transposed<Columns>(b, b_tile, k, (share.first_unit + i) * 16);
#pragma unroll
      for (int r = 0; r < 2; ++r) multiply_add<T>(out[r][2 * i], a[r], b[0], b[1]), multiply_add<T>(out[r][2 * i + 1], a[r], b[2], b[3]);
    }
  }
}

// dS times K of a step, added to its sums. All threads of the block.
template <int D, int Keys, int Queries, bool Transposed, class T> __device__ inline void add_query_gradient(float* sums, const T* dSs, const T* Ks, int warp) {
  using share_of_dQ = warp_share<D, Queries>;
  const share_of_dQ share(warp);
  float dQ[2][2 * share_of_dQ::most][4] = {};
  multiply_share<D, Keys, Transposed ? Queries : Keys, Transposed>(dQ, share, dSs, Ks);
  float* const tiles = sums + (share.row / 16 * (D / 8) + share.first_unit * 2) * 128;
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int i = 0; i < 2 * share_of_dQ::most; ++i)
      if (share.has(i / 2)) add_to_sums(tiles + (r * (D / 8) + i) * 128, dQ[r][i]);
}

// Q, dO, row_lse and row_delta of a step. All threads of the block.
template <int Step, int D, int Dv, class T> __device__ inline void copy_queries(T* Qs, T* dOs, float* rows, const attention_parameters& p, i32 b, i32 h, i32 first) {
  const i32 thread = thread_anew();
  copy_rows<Step, D, mma_threads>(Qs, p.Q, head_data<const T>(p.Q, b, h), first, p.queries, p.head_dim, thread);
  copy_rows<Step, Dv, mma_threads>(dOs, p.d_out, head_data<const T>(p.d_out, b, h), first, p.queries, p.value_dim, thread);
  if (thread >= 2 * Step) return;
  const i32 q = first + thread % Step;
  const float* from = static_cast<const float*>(thread < Step ? p.row_lse : p.row_delta);
  copy_async_4(rows + thread, from + (q < p.queries ? (b * p.heads + h) * p.queries + q : 0), q < p.queries);
}

// sums  fp32, fused only: [batch, heads, query tiles, 4, D / 8] tiles of 16x8
template <class T, int D, int Dv, bool Fused, class Mask, class Score>
__device__ inline void key_gradient_by_keys(const attention_parameters& p, const Mask& mask, const Score& score, float* sums) {
  using shape = key_gradient_shape<D, Dv, !Score::identity, Fused>;
  constexpr int step = shape::queries, query_tiles = shape::query_part / 8, parts = shape::parts, stages = shape::stages, d_score_stride = padded<step>;
  constexpr int head_tiles = D / 8 / shape::column_parts, value_tiles = Dv / 8 / shape::column_parts, key_warps = shape::keys / (16 * parts);
  extern __shared__ uint4 shared[];
  float* const rows = reinterpret_cast<float*>(shared);  // of each stage row_lse, then row_delta
  T* Ks = reinterpret_cast<T*>(rows + stages * 2 * step);
  T* Vs = Ks + shape::keys * padded<D>;
  T* const Qs = Vs + shape::keys * padded<Dv>;
  T* const dOs = Qs + stages * step * padded<D>;
  T* const dSs = dOs + stages * step * padded<Dv>;
  __shared__ key_block block;
  block.enter<shape::keys>(p);
  const float scale = Score::identity ? float(p.scale) * log2_e : float(p.scale);
  step_walk<step> walk(p, block);

  const auto copy_step = [&](int stage) {
    if (!walk.is_done()) copy_queries<step, D, Dv>(Qs + stage * step * padded<D>, dOs + stage * step * padded<Dv>, rows + stage * 2 * step, p, block.b, walk.h, walk.first_query());
    end_copies();
  };
  copy_rows<shape::keys, D, mma_threads>(Ks, p.K, head_data<const T>(p.K, block.b, block.key_head), block.first_key, p.keys, p.head_dim, threadIdx.x);
  copy_rows<shape::keys, Dv, mma_threads>(Vs, p.V, head_data<const T>(p.V, block.b, block.key_head), block.first_key, p.keys, p.value_dim, threadIdx.x);
  if constexpr (stages == 2) copy_step(0);
  float dK[parts][head_tiles][4] = {}, dV[parts][value_tiles][4] = {};

  int stage = 0;
#pragma unroll 1
  while (!walk.is_done()) {
    const i32 h = walk.h, first_query = walk.first_query();
    const bool full = walk.tiles.full;
    if constexpr (stages == 2) {
      wait_copies<0>();
      __syncthreads();  // the queries are there, and those before have been used
      walk.advance();
      copy_step(stage ^ 1);
    } else {
      __syncthreads();  // the queries before have been used
      copy_step(0);
      walk.advance();
      wait_copies<0>();
      __syncthreads();
    }
    const float *const lse = rows + stage * 2 * step, *const delta = lse + step;
#pragma unroll 1
    for (int first = 0; first < step; first += shape::query_part) {
      const int thread = thread_anew(), lane = thread % 32, warp = thread / 32, warp_row = warp % key_warps * 16 * parts, part = warp / key_warps;
      const T *const Q_part = Qs + (stage * step + first) * padded<D>, *const dO_part = dOs + (stage * step + first) * padded<Dv>;
      u32 visible[parts], any = 0;  // before there are scores, which take the registers
#pragma unroll
      for (int r = 0; r < parts; ++r) any |= visible[r] = visible_pairs<query_tiles, true>(p, mask, block.b, h, block.first_key + warp_row + 16 * r, first_query + first, full);
      u32* const dS_row = reinterpret_cast<u32*>(dSs + (warp_row + lane / 4) * d_score_stride + first + lane % 4 * 2);
      if (!__any_sync(0xffffffffu, any != 0)) {
        if constexpr (Fused) {
#pragma unroll
          for (int i = 0; i < 2 * parts * query_tiles; ++i) dS_row[(i / query_tiles * 8 * d_score_stride + i % query_tiles * 8) / 2] = 0;
        }
        continue;
      }
      float P[parts][query_tiles][4] = {}, dS[parts][query_tiles][4] = {};  // transposed: rows are keys
      u32 weights[parts][query_tiles][2];
      multiply_rows<D>(P, Ks, warp_row, Q_part);
      multiply_rows<Dv>(dS, Vs, warp_row, dO_part);
#pragma unroll
      for (int r = 0; r < parts; ++r)
#pragma unroll
        for (int n = 0; n < query_tiles; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int q = first + n * 8 + lane % 4 * 2 + e % 2;
            const bool kept = (visible[r] >> (4 * n + e) & 1u) != 0;
            const float x = P[r][n][e] * scale;
            if constexpr (Score::identity) {
              P[r][n][e] = kept ? power_of_2(x - lse[q]) : 0.0f;
              dS[r][n][e] = kept ? P[r][n][e] * (dS[r][n][e] - delta[q]) : 0.0f;
            } else {
              const pair_place at_pair(block.first_key + warp_row + 16 * r, first_query + first, n, e);
              P[r][n][e] = kept ? power_of_2(score.value(block.b, h, at_pair.column, at_pair.row, x) * log2_e - lse[q]) : 0.0f;
              dS[r][n][e] = kept ? score.adjoint(block.b, h, at_pair.column, at_pair.row, x, P[r][n][e] * (dS[r][n][e] - delta[q])) : 0.0f;
            }
          }
          weights[r][n][0] = storage<T>::pair(P[r][n][0], P[r][n][1]), weights[r][n][1] = storage<T>::pair(P[r][n][2], P[r][n][3]);
        }
      multiply_columns<Dv>(dV, weights, dO_part + part * value_tiles * 8);
#pragma unroll
      for (int r = 0; r < parts; ++r)
#pragma unroll
        for (int n = 0; n < query_tiles; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            weights[r][n][half] = storage<T>::pair(dS[r][n][2 * half], dS[r][n][2 * half + 1]);
            if constexpr (Fused) dS_row[((16 * r + 8 * half) * d_score_stride + n * 8) / 2] = weights[r][n][half];
          }
      multiply_columns<D>(dK, weights, Q_part + part * head_tiles * 8);
    }
    if constexpr (Fused) {
      __syncthreads();  // all of dS is there
      add_query_gradient<D, shape::keys, step, true>(sums_from<D>(sums, p, block.b, h, first_query), dSs, Ks, thread_anew() / 32);
    }
    if constexpr (stages == 2) stage ^= 1;
  }
  wait_copies<0>();
  const int warp = threadIdx.x / 32, warp_row = warp % key_warps * 16 * parts, part = warp / key_warps;
#pragma unroll
  for (int r = 0; r < parts; ++r) {
    const index row = block.first_key + warp_row + 16 * r;
    store_rows(dK[r], p.dK, head_data<T>(p.dK, block.b, block.key_head), row, p.keys, part * head_tiles * 8, p.head_dim, float(p.scale), float(p.scale));
    store_rows(dV[r], p.dV, head_data<T>(p.dV, block.b, block.key_head), row, p.keys, part * value_tiles * 8, p.value_dim, 1.0f, 1.0f);
  }
}

// The same where P and dS go through shared memory. Two lines are for some archs only: there ptxas 13.0 spills fewer registers, or none.
template <class T, int D, int Dv, class Mask>
__device__ inline void key_gradient_by_shares(const attention_parameters& p, const Mask& mask, float* sums) {
  using shape = key_gradient_shape<D, Dv, false, true>;
  constexpr int step = shape::queries, keys = shape::keys, key_tiles = 4;
  using share_of_dK = warp_share<D, keys>;
  using share_of_dV = warp_share<Dv, keys>;
)cuh"
     R"cuh(  extern __shared__ uint4 shared[];
  float* const rows = reinterpret_cast<float*>(shared);
  T* const Ks = reinterpret_cast<T*>(rows + 2 * step);
  T* const Vs = Ks + keys * padded<D>;
  T* const Qs = Vs + keys * padded<Dv>;
  T* const dOs = Qs + step * padded<D>;
  T* const Ps = dOs + step * padded<Dv>;
  T* const dSs = Ps + step * padded<keys>;
  __shared__ key_block block;
  block.enter<keys>(p);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_row = warp % 2 * 32, warp_key = warp / 2 * 32;
  const float scale = float(p.scale) * log2_e;
  step_walk<step> walk(p, block);
  copy_rows<keys, D, mma_threads>(Ks, p.K, head_data<const T>(p.K, block.b, block.key_head), block.first_key, p.keys, p.head_dim, threadIdx.x);
  copy_rows<keys, Dv, mma_threads>(Vs, p.V, head_data<const T>(p.V, block.b, block.key_head), block.first_key, p.keys, p.value_dim, threadIdx.x);
  float dK[2][2 * share_of_dK::most][4] = {}, dV[2][2 * share_of_dV::most][4] = {};

#pragma unroll 1
  while (!walk.is_done()) {
    if constexpr (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ / 100 == 10) lane = thread_anew() % 32, warp = thread_anew() / 32, warp_row = warp % 2 * 32, warp_key = warp / 2 * 32;
    __syncthreads();  // the queries before have been used
    copy_queries<step, D, Dv>(Qs, dOs, rows, p, block.b, walk.h, walk.first_query());
    end_copies();
    wait_copies<0>();
    __syncthreads();  // the queries are there
    u32 visible = 0;  // 16 bits of each part of 16 rows
#pragma unroll
    for (int r = 0; r < 2; ++r) visible |= (visible_pairs<key_tiles, false>(p, mask, block.b, walk.h, walk.first_query() + warp_row + 16 * r, block.first_key + warp_key, walk.tiles.full) & 0xffffu) << 16 * r;
    float P[2][key_tiles][4] = {}, dS[2][key_tiles][4] = {};
    multiply_rows<D>(P, Qs, warp_row, Ks + warp_key * padded<D>);
    multiply_rows<Dv>(dS, dOs, warp_row, Vs + warp_key * padded<Dv>);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + 16 * r + lane / 4 + 8 * half;
        const float row_lse = rows[row], row_delta = rows[step + row];
#pragma unroll
        for (int n = 0; n < key_tiles; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const bool kept = (visible >> (16 * r + 4 * n + e) & 1u) != 0;
            P[r][n][e] = kept ? power_of_2(P[r][n][e] * scale - row_lse) : 0.0f;
            dS[r][n][e] = kept ? P[r][n][e] * (dS[r][n][e] - row_delta) : 0.0f;
          }
          const int to = row * padded<keys> + warp_key + n * 8 + lane % 4 * 2;
          *reinterpret_cast<u32*>(Ps + to) = storage<T>::pair(P[r][n][2 * half], P[r][n][2 * half + 1]);
          *reinterpret_cast<u32*>(dSs + to) = storage<T>::pair(dS[r][n][2 * half], dS[r][n][2 * half + 1]);
        }
      }
    __syncthreads();  // all of P and dS is there
    multiply_share<Dv, step, keys, true>(dV, share_of_dV(warp), Ps, dOs);
    add_query_gradient<D, keys, step, false>(sums_from<D>(sums, p, block.b, walk.h, walk.first_query()), dSs, Ks, warp);  // dK follows while sums are added
    if constexpr (__CUDA_ARCH__ < 1200) __syncwarp();
    multiply_share<D, step, keys, true>(dK, share_of_dK(warp), dSs, Qs);
    walk.advance();
  }
  wait_copies<0>();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const index row = block.first_key + share_of_dK(warp).row + 16 * r;
    store_rows(dK[r], p.dK, head_data<T>(p.dK, block.b, block.key_head), row, p.keys, share_of_dK(warp).first_unit * 16, p.head_dim, float(p.scale), float(p.scale));
    store_rows(dV[r], p.dV, head_data<T>(p.dV, block.b, block.key_head), row, p.keys, share_of_dV(warp).first_unit * 16, p.value_dim, 1.0f, 1.0f);
  }
}

template <class T, int D, int Dv, class Mask, class Score> __device__ inline void attention_key_gradient(const attention_parameters& p, const Mask& mask, const Score& score) {
  key_gradient_by_keys<T, D, Dv, false>(p, mask, score, nullptr);
}
template <class T, int D, int Dv, class Mask, class Score> __device__ inline void attention_fused_gradient(const attention_parameters& p, const Mask& mask, const Score& score, float* sums) {
  if constexpr (key_gradient_shape<D, Dv, false, true>::shares) key_gradient_by_shares<T, D, Dv>(p, mask, sums);
  else key_gradient_by_keys<T, D, Dv, true>(p, mask, score, sums);
}

// dQ = scale * the sums, in the tensor's type. Grid: any number of blocks of 256 threads, which take 64 rows of a head at a time, a warp for 16 rows and half of the columns.
template <class T, int D> __device__ inline void finish_query_gradient(const attention_parameters& p, const float* sums) {
  constexpr int units = D / 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 4, first_unit = warp / 4 * units;
  const index tiles = tiles_of(p.queries);
  for (index i = blockIdx.x; i < p.batch * p.heads * tiles; i += gridDim.x) {
    const index head = i / tiles, first = i % tiles * attention_tile + row * 16;
    if (first >= p.queries) continue;
    const float* const from = sums + ((i * 4 + row) * (D / 8) + first_unit) * 128;
    float dQ[units][4];
#pragma unroll
    for (int n = 0; n < units; ++n) {
      if constexpr (adds_vectors) {
        const float4 x = reinterpret_cast<const float4*>(from)[n * 32 + lane];
        dQ[n][0] = x.x, dQ[n][1] = x.y, dQ[n][2] = x.z, dQ[n][3] = x.w;
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) dQ[n][e] = from[n * 128 + e * 32 + lane];
      }
    }
    store_rows(dQ, p.dQ, head_data<T>(p.dQ, head / p.heads, head % p.heads), first, p.queries, first_unit * 8, p.head_dim, float(p.scale), float(p.scale));
  }
}

template <int D, int Dv> constexpr int query_gradient_keys = D > 192 || Dv > 192 ? 16 : D > 96 || Dv > 96 ? 32 : 64;
template <int D, int Dv> constexpr int query_gradient_shared_bytes = (attention_tile + query_gradient_keys<D, Dv>) * (padded<D> + padded<Dv>) * 2;

template <class T, int D, int Dv, class Mask, class Score>
__device__ inline void attention_query_gradient(const attention_parameters& p, const Mask& mask, const Score& score) {
  constexpr int step = query_gradient_keys<D, Dv>, key_tiles = step / 8, head_tiles = D / 8;
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

// What the mask makes of the warp's rows alone, once for a whole head; `column_parts` where they are keys.
template <class Mask, int Rows> struct row_parts {
  decltype(Mask().head(0, 0)) head;
  decltype(Mask().row(0, 0, 0, head)) rows[Rows];
  __device__ row_parts(const Mask& mask, index b, index h, index first) : head(mask.head(b, h)) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) rows[r] = mask.row(b, h, first + r, head);
  }
};
template <class Mask, int Rows> struct column_parts {
  decltype(Mask().head(0, 0)) head;
  decltype(Mask().column(0, 0, 0, head)) columns[Rows];
  __device__ column_parts(const Mask& mask, index b, index h, index first) : head(mask.head(b, h)) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) columns[r] = mask.column(b, h, first + r, head);
  }
};

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
  const row_parts<Mask, rows> lines(mask, b, h, first_query + warp_row);

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
      const auto column = mask.column(b, h, kv, lines.head);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const index q = first_query + warp_row + r;
        const bool kept = kv < p.keys && q < p.queries && (full || mask.keep(b, h, q, kv, lines.head, lines.rows[r], column));
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
  const row_parts<Mask, rows> lines(mask, b, h, first_query + warp_row);

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
      const auto column = mask.column(b, h, kv, lines.head);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const index q = first_query + warp_row + r;
        const bool kept = kv < p.keys && q < p.queries && (full || mask.keep(b, h, q, kv, lines.head, lines.rows[r], column));
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
    const column_parts<Mask, rows> lines(mask, b, h, first_key + warp_row);
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
        const auto row_part = mask.row(b, h, q, lines.head);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const index kv = first_key + warp_row + r;
          const bool kept = kv < p.keys && q < p.queries && (full || mask.keep(b, h, q, kv, lines.head, row_part, lines.columns[r]));
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
// A block works on items of 128 (heads up to 64 channels: 192) rows, fetched from a counter until none is left. Rows are the queries of one head,
// or, packed, those of `pack` heads that share their keys: row r is token r / pack of head r % pack. So an item spans fewer tokens, and a sparse mask has
// it visit fewer tiles. The first warpgroup loads. One of its threads fetches the next item and its list while another loads tiles of the one before: an item's Q into
// one of two buffers, then tiles of keys and values through two stages each, on into the next item without a pause. The others own 64 rows
// each: while the tensor cores multiply P V of one tile and Q K^T of the next, the softmax of the tile between runs.
// Which tiles are visited, and which of their pairs are kept, is data: lists of runs, and for undecided tiles one bit a pair in the order of the
// accumulators ("bit tiles"), which attention_bits fills once for a mask. The kernel does not depend on the mask. A list may begin with a tile whose kept
// pairs are all in 32 of its columns (a block's own keys, say): only these are loaded and multiplied, in the place of the first tile, whose softmax nothing
// hides. A warpgroup passes over undecided tiles without a kept pair of its rows. A score function is compiled into the kernel and works on the accumulators
// (score_tile.cuh); where it is known to stay near 0, weights are relative to 2^0 and no largest score of a row is looked for.
// Dynamic shared memory: sm90_shared_bytes.
// source  Shah et al. 2024, arXiv:2407.08608, sections 3.1 and 3.2
#pragma once
#include "attention_sm90_tiles.cuh"

namespace samite {

struct sm90_parameters {
  tensor_map Q, K, V, narrow_K, narrow_V, out;  // Q and out: [batch][heads / pack][tokens][pack][D]; out in boxes of 64 rows
  index boxes_out;                              // whether out is such a map: else each thread stores what it has
  attention_parameters p;
  sm90_lists lists;
};

// Heads of a section follow one another at the same rank in the order of their tiles, so that long lists come first and the blocks that
// run at one time share keys in the L2. Items fit 32 bits.
struct item_place {
  i32 b, h, rank;
  __device__ item_place(const sm90_parameters& a, i32 item, i32 tiles) {
    const i32 heads_of_batch = i32(a.p.heads) / i32(a.lists.pack), all = heads_of_batch * i32(a.p.batch), in_section = i32(a.lists.section), section = item / (in_section * tiles), first = section * in_section;
    const i32 heads = all - first < in_section ? all - first : in_section, rest = item - first * tiles, head = first + rest % heads;
    rank = rest / heads;
    h = head % heads_of_batch, b = head / heads_of_batch;
  }
};

template <class T, int D, int Dv, class Score = no_score> __device__ inline void attention_forward_sm90(const sm90_parameters& a, const Score& score = {}) {
  using shape = sm90_shape<D, Dv, Score::fills_registers>;
  constexpr int keys = shape::keys, columns = keys / 2, values = Dv / 2;  // accumulators of a thread
  constexpr int query_chunk = shape::rows * 128, key_chunk = keys * 128;
  constexpr bool narrows = Score::identity && keys == 128;  // else a narrow tile is as any other that hides pairs
  constexpr bool passes = narrows;                          // whether a warpgroup passes over tiles without a kept pair of its rows
  const attention_parameters& p = a.p;
  extern __shared__ uint4 shared[];
  const u32 Qs = (shared_address(shared) + 1023) & ~1023u, Ks = Qs + shape::buffers * shape::query_bytes, Vs = Ks + 2 * shape::key_bytes;
  const u32 query_full = Vs + 2 * shape::value_bytes, query_empty = query_full + 16, key_full = query_full + 32, key_empty = query_full + 48, value_full = query_full + 64, value_empty = query_full + 80;
  const u32 tile_of = query_full + 96;   // [2 stages][key tile, bit tile or -1, what the warpgroups need of the bit tile, unused]
  const u32 item_of = query_full + 128;  // [2 buffers][item or -1 for the end, its tiles, its query tile, tiles that hide pairs; negative if the first is narrow, head, batch]
  const u32 plan_full = query_full + 192, plan_read = query_full + 200;
  const u32 plan_of = query_full + 256;  // [2][item or -1 for the end, query tile, its runs' begin and end, head, batch, tiles, tiles that hide pairs, the first runs]
  const row_packing packing(a.lists);
  const i32 pack = packing.pack, tokens = shape::rows / pack, query_tiles = i32((p.queries + tokens - 1) / tokens), items = query_tiles * (i32(p.heads) / pack * i32(p.batch));
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 16; i += 8) {
      barrier_init(query_full + i, 1), barrier_init(key_full + i, 1), barrier_init(value_full + i, 1);
      barrier_init(query_empty + i, shape::groups * group_arrivals), barrier_init(key_empty + i, shape::groups * group_arrivals), barrier_init(value_empty + i, shape::groups * group_arrivals);
    }
    barrier_init(plan_full, 1), barrier_init(plan_read, 1);
    barrier_init_visible();
    prefetch(a.Q), prefetch(a.K), prefetch(a.V), prefetch(a.out);
    if (narrows) prefetch(a.narrow_K), prefetch(a.narrow_V);
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);

  if (group == 0) {
    give_registers<shape::loader_registers>();
    // The last tile of keys hides what is past the end.
    const i32 whole = p.keys % keys != 0 ? i32(p.keys / keys) : 0x7fffffff;  // tiles before one that is cut
    if (threadIdx.x == 32) {
      // Fetches the next item and its list while the last tiles of the one before are loaded: five reads of memory that wait for one another. Not sooner,
      // or a block would keep an item that another has time for.
      for (u32 planned = 0;; ++planned) {
        const u32 plan = plan_of + (planned & 1) * sm90_plan_bytes;
        if (planned > 0) barrier_wait(plan_read, (planned & 1) ^ 1);
        const i32 item = i32(atomicAdd(a.lists.counter, 1u));
        if (item >= items) {
          store_shared(plan, -1, 0);
          barrier_arrive(plan_full);
          break;
        }
        const item_place at(a, item, query_tiles);
        const index list = at.b * a.lists.batch_lists + at.h * a.lists.head_lists;
        const i32 query_tile = a.lists.order != nullptr ? a.lists.order[list + at.rank] : query_tiles - 1 - at.rank;
        const i64* begin = a.lists.begin + list + query_tile;
        const i32 run = i32(begin[0]), end = i32(begin[1]);
        i32 tiles = 0, hiding = 0;
#pragma unroll 4
        for (i32 r = run; r < end; ++r) {
          const tile_run here = a.lists.runs[r];
          tiles += here.last - here.first;
          hiding += here.bits >= 0 ? here.last - here.first : here.last > whole ? 1 : 0;
          if (r - run < sm90_plan_runs) store_shared(plan + 32 + 16 * (r - run), here.first, here.last), store_shared(plan + 40 + 16 * (r - run), here.full, here.bits);
        }
        store_shared(plan, item, query_tile), store_shared(plan + 8, run, end), store_shared(plan + 16, at.h, at.b), store_shared(plan + 24, tiles, hiding);
        barrier_arrive(plan_full);
      }
      // The last block to get here leaves the counters as the next launch wants them: every block has fetched its last item.
      if (atomicAdd(a.lists.counter + 1, 1u) == gridDim.x - 1) a.lists.counter[0] = 0, a.lists.counter[1] = 0;
      return;
    }
    if (threadIdx.x != 0) return;
    u32 loaded = 0, started = 0;  // tiles, items; "empty" passes in the first round
    const auto buffer = [&] { return started % shape::buffers; };
    for (;; ++started) {
      const u32 plan = plan_of + (started & 1) * sm90_plan_bytes;
      barrier_wait(plan_full, started & 1);
      const int2 head = load_shared(plan), list = load_shared(plan + 8), place = load_shared(plan + 16), counts = load_shared(plan + 24);
      barrier_wait(query_empty + 8 * buffer(), (started / shape::buffers & 1) ^ 1);
      if (head.x < 0) break;
      if (counts.x <= sm90_plan_ahead) barrier_arrive(plan_read);
      const i32 query_tile = head.y, run = list.x, end = list.y, tiles = counts.x, hiding = counts.y;
      i32 left = tiles;  // to be loaded
      const auto run_at = [&](i32 r) {
        if (r - run >= sm90_plan_runs) return a.lists.runs[r];
        const int2 tiles_of = load_shared(plan + 32 + 16 * (r - run)), kind = load_shared(plan + 40 + 16 * (r - run));
        return tile_run{tiles_of.x, tiles_of.y, kind.x, kind.y};
      };
      const bool starts_narrow = narrows && tiles > 0 && run_at(run).full < 0;
      store_shared(item_of + 32 * buffer(), head.x, tiles), store_shared(item_of + 32 * buffer() + 8, query_tile, starts_narrow ? -hiding : hiding), store_shared(item_of + 32 * buffer() + 16, place.x, place.y);
      barrier_expect(query_full + 8 * buffer(), tokens * pack * D * 2);
#pragma unroll 1
      for (int c = 0; c < D / 64; ++c) copy_packed_box(Qs + buffer() * shape::query_bytes + c * query_chunk, a.Q, query_full + 8 * buffer(), c * 64, query_tile * tokens, place.x, place.y);
      const i32 g = place.x * pack / i32(p.heads / p.key_heads);
      // Tiles that hide pairs come first, so that the loop over the others has no code for hiding.
#pragma unroll 1
      for (int pass = hiding > 0 ? 0 : 1; pass < (hiding < tiles ? 2 : 1); ++pass)
#pragma unroll 1
        for (i32 at_run = run; at_run < end; ++at_run) {
          const tile_run r = run_at(at_run);
          const bool decided = r.bits < 0;
          // A run of whole tiles may end with the cut one.
          const i32 first = pass == 0 && decided ? (r.last > whole ? whole : r.last) : r.first, last = pass == 0 ? r.last : !decided ? r.first : r.last > whole ? whole : r.last;
#pragma unroll 1
          for (i32 tile = first; tile < last; ++tile, ++loaded) {
            if (left-- == sm90_plan_ahead + 1) barrier_arrive(plan_read);
            const u32 stage = loaded & 1, parity = (loaded / 2 & 1) ^ 1;
            const i32 bit_tile = decided ? -1 : r.bits + (tile - r.first);
            u32 needs = 0;
            if (passes && !decided) needs = a.lists.needs != nullptr ? a.lists.needs[bit_tile] : ~0u;
            barrier_wait(key_empty + 8 * stage, parity);
            const bool narrow = narrows && r.full < 0;
            const i32 first_key = tile * keys + (narrow ? (-1 - r.full) * sm90_narrow : 0);
            store_shared(tile_of + 16 * stage, narrow ? first_key / sm90_narrow : tile, bit_tile);
            if (passes) store_shared(tile_of + 16 * stage + 8, needs);
            barrier_expect(key_full + 8 * stage, narrow ? sm90_narrow * D * 2 : shape::key_bytes);
#pragma unroll 1
            for (int c = 0; c < D / 64; ++c) copy_box(Ks + stage * shape::key_bytes + c * key_chunk, narrow ? a.narrow_K : a.K, key_full + 8 * stage, c * 64, first_key, g, place.y);
            barrier_wait(value_empty + 8 * stage, parity);
            barrier_expect(value_full + 8 * stage, narrow ? sm90_narrow * Dv * 2 : shape::value_bytes);
#pragma unroll 1
            for (int c = 0; c < Dv / 64; ++c) copy_box(Vs + stage * shape::value_bytes + c * key_chunk, narrow ? a.narrow_V : a.V, value_full + 8 * stage, c * 64, first_key, g, place.y);
          }
        }
    }
    store_shared(item_of + 32 * buffer(), -1, 0);
    barrier_arrive(query_full + 8 * buffer());
    return;
  }

  take_registers<shape::registers>();
  const int part = group - 1, lane = threadIdx.x % 32, row_low = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const bool first_thread = threadIdx.x % 128 == 0;
  float scale = float(p.scale) * log2_e;
  const i32 tail = i32(p.keys % keys), last_tile = i32((p.keys - 1) / keys);
  const u64 all_queries = operand(Qs + part * 64 * 128, 16), key = operand(Ks, 16), value = operand(Vs, key_chunk);
  float o[values], s[columns], largest[2], total[2], rescale[2];
  u32 weights[columns / 2];
  u32 stage = 0, parity = 0, value_stage = 0, value_parity = 0, buffer = 0, buffer_parity = 0;
  i32 key_tile, bit_tile;
  bool is_cut;           // by the last key
  bool bounded = false;  // whether weights are relative to 2^0, not to a row's largest score
  u32 needs;             // of this warpgroup: needs_pairs, needs_bits
  int steps = 0;         // of 16 keys whose weights still meet their values
  u64 query;
  scored_rows<Score> rows;

  const auto scores = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      warpgroup_product<T, keys>::product(s, query + (k / 4 * query_chunk + k % 4 * 32) / 16, key + (stage * shape::key_bytes + k / 4 * key_chunk + k % 4 * 32) / 16, Score::begins || k != 0);
    products_commit();
  };
  const auto weighted_all = [&]() __attribute__((always_inline)) {
    pin(o);
    products_begin();
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) warpgroup_product<T, Dv>::product_columns(o, weights + 4 * k, value + (value_stage * shape::value_bytes + k * 2048) / 16);
    products_commit();
  };
  const auto weighted = [&]() __attribute__((always_inline)) {
    if constexpr (passes) {
      pin(o);
      warpgroup_product<T, Dv>::product_columns_of(o, weights, value + value_stage * shape::value_bytes / 16, steps);
    } else {
      weighted_all();
    }
  };
  const auto next_stage = [](u32& at_stage, u32& at_parity) __attribute__((always_inline)) {
    at_stage ^= 1;
    if (at_stage == 0) at_parity ^= 1;
  };
  const auto next_tile = [&]() __attribute__((always_inline)) {
    const int2 tile = load_shared(tile_of + 16 * stage);
    key_tile = tile.x, bit_tile = tile.y;
    is_cut = tail != 0 && key_tile == last_tile;
    if constexpr (passes) needs = bit_tile >= 0 ? u32(load_shared(tile_of + 16 * stage + 8).x) >> 8 * part : needs_pairs | (is_cut ? needs_bits : 0);
  };
  const auto hides_pairs = [&]() __attribute__((always_inline)) { return passes ? (needs & needs_bits) != 0 : bit_tile >= 0 || is_cut; };
  const auto begin_scores = [&]() __attribute__((always_inline)) {
    if constexpr (Score::begins) score_beginnings(scored_tile<Score>(score, rows, key_tile * keys), s);
  };
  // Of an undecided tile; asked for before its scores are computed, so that it comes beside them.
  const auto bits_of_tile = [&]() __attribute__((always_inline)) {
    uint2 bits = {~0u, ~0u};
    if (bit_tile >= 0 && hides_pairs()) bits = a.lists.bits[index(bit_tile) * (2 * shape::rows) + part * 128 + threadIdx.x % 128];
    return bits;
  };
  const auto place_bits = [&](uint2& bits) __attribute__((always_inline)) {
    if (is_cut) {
      const u32 inside = columns_below(tail);
      bits.x &= inside, bits.y &= inside;
    }
  };
  const auto pack_weights = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < columns; i += 2) weights[i / 2] = storage<T>::pair(s[i], s[i + 1]);
  };
  const auto keys_are_read = [&]() __attribute__((always_inline)) {
    group_arrive(key_empty + 8 * stage);
    next_stage(stage, parity);
  };
)cuh"
     R"cuh(  const auto values_are_read = [&]() __attribute__((always_inline)) {
    group_arrive(value_empty + 8 * value_stage);
    next_stage(value_stage, value_parity);
  };

  const auto wait_for_keys = [&]() __attribute__((always_inline)) {
    barrier_wait(key_full + 8 * stage, parity);
    next_tile();
  };
  // What is done beside the scores of a tile, and beside its softmax. alone: nothing; some: as many steps as the tile before has, not all.
  const auto begin_values = [&](bool alone, bool some) __attribute__((always_inline)) {
    if (alone) {
      products_wait<0>();
      return;
    }
    barrier_wait(value_full + 8 * value_stage, value_parity);
    if (some) weighted();
    else weighted_all();
    products_wait<1>();
  };
  const auto end_values = [&](bool alone, bool rescales) __attribute__((always_inline)) {
    if (!alone) {
      products_wait<0>();
      pin(o);
      values_are_read();
    }
    if (rescales)
#pragma unroll
      for (int i = 0; i < values; ++i) o[i] *= rescale[i % 4 / 2];
  };

  // One more tile: its scores, and beside their softmax the weighted values of the tile before. The calls differ in what they need not look at: pairs that are
  // hidden, a row's largest score (relates), sums before it (rescales).
  const auto visit = [&](bool alone, bool some, bool hides, bool relates, bool rescales) __attribute__((always_inline)) {
    uint2 bits = {~0u, ~0u};
    if (hides) bits = bits_of_tile();
    begin_scores();
    pin(s);
    products_begin();
    scores();
    begin_values(alone, some);
    pin(s);
    keys_are_read();
    if (hides) place_bits(bits);
    if (relates) tile_weights(s, score, rows, key_tile * keys, hides && hides_pairs(), bits, scale, largest, total, rescale, hides && bounded);
    else bounded_tile_weights(s, score, rows, key_tile * keys, scale, total);
    end_values(alone, rescales);
    pack_weights();
    steps = keys / 16;
  };

  // The first tile of an item, if it is narrow: its softmax is all that no product hides.
  const auto visit_narrow = [&]() __attribute__((always_inline)) {
    float few[sm90_narrow / 2];
    barrier_wait(key_full + 8 * stage, parity);
    const int2 tile = load_shared(tile_of + 16 * stage);
    uint2 bits = a.lists.bits[index(tile.y) * (2 * shape::rows) + part * 128 + threadIdx.x % 128];
    pin(few);
    products_begin();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      warpgroup_product<T, sm90_narrow>::product(few, query + (k / 4 * query_chunk + k % 4 * 32) / 16, key + (stage * shape::key_bytes + k / 4 * key_chunk + k % 4 * 32) / 16, k != 0);
    products_commit();
    products_wait<0>();
    pin(few);
    keys_are_read();
    narrow_bits(bits, tile.x, i32(p.keys), keys);
    hide_pairs(few, bits);
    tile_softmax(few, scale, largest, total, rescale);
#pragma unroll
    for (int i = 0; i < sm90_narrow / 2; i += 2) weights[i / 2] = storage<T>::pair(few[i], few[i + 1]);
    steps = sm90_narrow / 16;
  };
  // The weighted values of an item's last tile, or of one before a tile that this warpgroup doesn't need.
  const auto finish = [&]() __attribute__((always_inline)) {
    barrier_wait(value_full + 8 * value_stage, value_parity);
    weighted();
    products_wait<0>();
    pin(o);
    values_are_read();
    steps = 0;
  };

  // The buffer whose rows of O are being stored is given back once they have been read: in the item that follows, unless that one waits for it.
  bool is_storing = false;
  const auto give_back = [&]() __attribute__((always_inline)) {
    if (is_storing) {
      if (first_thread) boxes_wait_read();
      group_arrive(query_empty + 8 * (shape::buffers - 1 - buffer));
    }
    is_storing = false;
  };

  for (;;) {
    barrier_wait(query_full + 8 * buffer, buffer_parity);
    const int2 work = load_shared(item_of + 32 * buffer), more = load_shared(item_of + 32 * buffer + 8);
    const i32 item = work.x, tiles = work.y, first_token = more.x * tokens;
    const bool starts_narrow = narrows && more.y < 0;
    const i32 hiding = starts_narrow ? -more.y : more.y;
    if (item < 0) break;
    query = all_queries + buffer * (shape::query_bytes / 16);
    largest[0] = largest[1] = -infinity(), total[0] = total[1] = 0;
#pragma unroll
    for (int i = 0; i < values; ++i) o[i] = 0;
    if constexpr (!Score::identity) {
      const int2 place = load_shared(item_of + 32 * buffer + 16);
      const int row = part * 64 + row_low;  // and the one 8 below it: of one head, since 8 is a multiple of pack here
      rows.begin(score, place.y, place.x * pack + packing.head(row), float(p.scale), first_token + packing.token(row), first_token + packing.token(row + 8));
      scale = score.scale_of(rows.head);
      bounded = Score::bounded && !shape::one_loop && scale <= sm90_bound;
      if (bounded) largest[0] = largest[1] = 0;
    }
    if (tiles > 0) {
      i32 visited = 0;
      if constexpr (passes) {
        if (starts_narrow) visit_narrow(), visited = 1;
        for (; visited < tiles && (visited < hiding || steps != keys / 16); ++visited) {
          wait_for_keys();
          if ((needs & needs_pairs) == 0) {
            if (steps != 0) finish();
            barrier_wait(value_full + 8 * value_stage, value_parity);
            warpgroup_sync(1 + part);  // no product tells that all its threads have seen the tile
            keys_are_read();
            values_are_read();
          } else if (steps == 0) {
            visit(true, true, true, true, visited > 0);
          } else {
            visit(false, true, true, true, true);
          }
          give_back();
        }
        give_back();
      } else {
        wait_for_keys();
        visit(true, false, true, true, false);
        give_back();
        visited = 1;
        for (const i32 end = shape::one_loop ? tiles : hiding; visited < end; ++visited) wait_for_keys(), visit(false, false, true, true, true);
      }
      if constexpr (!shape::one_loop) {
        if (bounded)
          for (; visited < tiles; ++visited) wait_for_keys(), visit(false, false, false, false, false);
        else
          for (; visited < tiles; ++visited) wait_for_keys(), visit(false, false, false, true, true);
      }
      if (!passes || steps != 0) finish();
    }

    // O goes over this warpgroup's rows of Q, in chunks of 64 columns as Q is, then in whole rows to global memory.
    const int2 place = load_shared(item_of + 32 * buffer + 16);
    const i32 first_head = place.x * pack;
    const u32 staged = Qs + buffer * shape::query_bytes + part * 64 * 128;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = total[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      float log_sum = sum == 0 ? -infinity() : largest[r] * (Score::identity ? float(p.scale) : scale * ln_2) + real_log(sum);
      if constexpr (!Score::identity) log_sum += score.offset_of(rows.head) * ln_2;
      const int row = part * 64 + row_low + r * 8;
      const index head = first_head + packing.head(row), q = first_token + packing.token(row);
      const row_result<float> result(p, head, sum, log_sum);
      factor[r] = result.factor;
      if (packing.token(row) < tokens && q < p.queries && lane % 4 == 0) static_cast<float*>(p.lse)[(index(place.y) * p.heads + head) * p.queries + q] = result.lse;
    }
    const int block_row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < values; i += 8) {
      const int unit = i / 4 + lane / 16;
      store_blocks(staged + i / 32 * query_chunk + block_row * 128 + ((unit % 8 ^ (block_row & 7)) << 4), storage<T>::pair(o[i] * factor[0], o[i + 1] * factor[0]), storage<T>::pair(o[i + 2] * factor[1], o[i + 3] * factor[1]),
                   storage<T>::pair(o[i + 4] * factor[0], o[i + 5] * factor[0]), storage<T>::pair(o[i + 6] * factor[1], o[i + 7] * factor[1]));
    }
    if (a.boxes_out) {
      give_back();  // of an item without a tile
      copies_follow();
      warpgroup_sync(1 + part);
      if (first_thread) {
#pragma unroll 1
        for (int c = 0; c < Dv / 64; ++c) store_packed_box(a.out, staged + c * query_chunk, c * 64, first_token + packing.token(part * 64), place.x, place.y);
        boxes_commit();
      }
      is_storing = true;
      buffer = (buffer + 1) % shape::buffers;
      if (buffer == 0) buffer_parity ^= 1;
      if (shape::buffers == 1) give_back();
      continue;
    }
    warpgroup_sync(1 + part);
    T* const heads = head_data<T>(p.out, place.y, first_head);
#pragma unroll 1
    for (int i = threadIdx.x % 128; i < 64 * (Dv / 8); i += 128) {
      const int row = i / (Dv / 8), unit = i % (Dv / 8);
      const i32 token = packing.token(part * 64 + row);
      const index q = first_token + token;
      if (token >= tokens || q >= p.queries || unit * 8 >= p.value_dim) continue;
      T* const out = heads + packing.head(part * 64 + row) * p.out.head_stride;
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
    group_arrive(query_empty + 8 * buffer);
    buffer = (buffer + 1) % shape::buffers;
    if (buffer == 0) buffer_parity ^= 1;
  }
  if (is_storing && first_thread) boxes_wait_read();  // memory outlives what reads it
}

}  // namespace samite
)cuh"},
    {"attention_sm90_gradient.cuh",
     R"cuh(// attention_sm90_gradient.cuh: gradients of attention of bf16 and f16 tensors on sm_90a, heads of at most 256 channels: what their kernels
// share, and the passes before and after them.
//
//   prepare   row_lse and row_delta, padded to whole tiles
//   dK, dV    (attention_sm90_keys.cuh) a block of 128 keys of one key head walks the query tiles of its list, over the query heads of the group. One warp loads; two
//             warpgroups own 64 keys each and hold S^T, dP^T, dK and dV in registers: P^T and dS^T are register operands as they are.
//   dQ        (attention_sm90_queries.cuh) a block of 128 rows, packed as forward, walks the key tiles of its list: S and dP are computed anew. No atomics: every bit repeats.
//   fused     the dK, dV kernel also multiplies dS by K and adds it to an fp32 dQ, in whatever order blocks get there; a pass over dQ ends it.
//             Fewer products (5 for 7) but more traffic: for long lists.
// Which pairs are kept is data, as in attention_sm90.cuh; the key-major kernels read bit tiles of S^T.
// source  Dao 2023, arXiv:2307.08691, algorithm 2; Shah et al. 2024, arXiv:2407.08608, section 3
#pragma once
#include "attention_sm90_tiles.cuh"
#include "score_tile.cuh"

namespace samite {

// What a block of the key-major kernel computes. Wide heads take two kernels: registers hold one of dK and dV.
enum class gradient_of : int { keys_and_values, all, keys, values };

template <int D, int Dv> struct sm90_gradient_shape {
  static constexpr int widest = D > Dv ? D : Dv;
  static constexpr bool wide = widest > 128;
  static constexpr int keys = 128, rows = 128;            // of a tile of the dK, dV kernel; queries of one of the dQ kernel
  static constexpr int queries = widest > 64 ? 64 : 128;  // of a tile of the dK, dV kernel
  static constexpr int key_step = wide ? 64 : 128;        // keys of a tile of the dQ kernel
  static constexpr int value_stages = wide ? 1 : 2;       // there
  static constexpr int threads = 384, loader_registers = widest > 64 ? 24 : 40, registers = widest > 64 ? 240 : 232;  // as little as spills nothing
  static constexpr int query_bytes = queries * D * 2, d_out_bytes = queries * Dv * 2, row_bytes = queries * 4, d_score_bytes = queries * keys * 2;
};
// The tiles of row_lse and row_delta are whole ones of the longest kind.
constexpr int sm90_row_padding = 128;
template <int D, int Dv, gradient_of What> struct sm90_key_gradient_shape : sm90_gradient_shape<D, Dv> {
  using base = sm90_gradient_shape<D, Dv>;
  static constexpr bool gives_keys = What != gradient_of::values, gives_values = What != gradient_of::keys;
  static constexpr int d_out_stages = What == gradient_of::keys ? 1 : 2;
  // Where results are staged too.
  static constexpr int key_bytes = base::keys * (gives_keys || D > Dv ? D : Dv) * 2, value_bytes = gives_keys ? base::keys * Dv * 2 : 0;
  static constexpr int shared_bytes = 1024 + key_bytes + value_bytes + 2 * base::query_bytes + d_out_stages * base::d_out_bytes + (What == gradient_of::all ? 2 * base::d_score_bytes : 0) + 4 * base::row_bytes + 160;
};
template <int D, int Dv> constexpr int sm90_query_gradient_bytes =
    1024 + sm90_gradient_shape<D, Dv>::rows * (D + Dv) * 2 + sm90_gradient_shape<D, Dv>::key_step * (2 * D + sm90_gradient_shape<D, Dv>::value_stages * Dv) * 2 + 128;

struct sm90_gradient_parameters {
  tensor_map Q, K, V, d_out, narrow_K, narrow_V;  // boxes of as many rows as the kernel's tiles have; in the dQ kernel Q and d_out are packed as forward
  attention_parameters p;
  sm90_lists lists;           // of key tiles in the dK, dV kernel, of query tiles in the dQ kernel
  index row_stride;           // of row_lse and row_delta: queries, padded
  float* dQ_sums;             // [batch * heads][tiles][2 warpgroups][8][128 threads][4], fused only
};

// Blocks: heads of a section follow one another at the same rank in the order of their tiles, the longest list first.
struct sm90_block {
  i32 b, h, tile;
  // heads_a_list: query heads that a block takes, whose first one's order holds
  __device__ sm90_block(const sm90_gradient_parameters& a, i32 heads_of_batch, i32 tiles, i32 heads_a_list) {
    const i32 all = heads_of_batch * i32(a.p.batch), in_section = i32(a.lists.section), item = i32(blockIdx.x), section = item / (in_section * tiles), first = section * in_section;
    const i32 heads = all - first < in_section ? all - first : in_section, rest = item - first * tiles, head = first + rest % heads;
    h = head % heads_of_batch, b = head / heads_of_batch;
    tile = a.lists.order != nullptr ? a.lists.order[b * a.lists.batch_lists + h * heads_a_list * a.lists.head_lists + rest / heads] : rest / heads;
  }
};

// row_lse = lse * log2(e), row_delta = rowsum(d_out * out) - d_lse; +infinity and 0 in rows without a kept key and past the end. A block
// of 256 threads for sm90_row_padding rows of a head, a row for as many lanes as 16-byte loads make it up. Heads of the same rows follow one
// another: where tokens are stored head beside head, their rows are neighbours.
template <class T, int Dv> __device__ inline void prepare_gradient_sm90(const sm90_gradient_parameters& a) {
  constexpr int lanes = Dv >= 128 ? 16 : 8, apart = 256 / lanes, rows = sm90_row_padding / apart;
  const attention_parameters& p = a.p;
  const i32 tiles = i32(a.row_stride / sm90_row_padding), h = i32(blockIdx.x) % i32(p.heads), rest = i32(blockIdx.x) / i32(p.heads), b = rest / tiles, lane = threadIdx.x % lanes;
  const index first = index(rest % tiles) * sm90_row_padding + threadIdx.x / lanes, head = b * p.heads + h;
  const T *out = head_data<const T>(p.out, b, h), *d_out = head_data<const T>(p.d_out, b, h);
  float sums[rows] = {}, lse[rows], d_lse[rows];
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const index q = first + i * apart;
    lse[i] = q < p.queries ? static_cast<const float*>(p.lse)[head * p.queries + q] : -infinity();
    d_lse[i] = q < p.queries && p.d_lse != nullptr ? static_cast<const float*>(p.d_lse)[head * p.queries + q] : 0.0f;
  }
  if (p.out.vectors && p.d_out.vectors) {
#pragma unroll
    for (int d = lane * 8; d < Dv; d += lanes * 8) {
      if (d >= p.value_dim) break;
      uint4 x[rows], y[rows];  // all loads before their use
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const index q = first + i * apart;
        x[i] = y[i] = {0, 0, 0, 0};
        if (q < p.queries) x[i] = *reinterpret_cast<const uint4*>(out + q * p.out.row_stride + d), y[i] = *reinterpret_cast<const uint4*>(d_out + q * p.d_out.row_stride + d);
      }
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const T *xs = reinterpret_cast<const T*>(&x[i]), *ys = reinterpret_cast<const T*>(&y[i]);
#pragma unroll
        for (int e = 0; e < 8; ++e) sums[i] += arithmetic<float>::load(xs[e]) * arithmetic<float>::load(ys[e]);
      }
    }
  } else {
    for (int d = lane; d < p.value_dim; d += lanes)
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const index q = first + i * apart;
        if (q < p.queries) sums[i] += arithmetic<float>::load(out[q * p.out.row_stride + d * p.out.column_stride]) * arithmetic<float>::load(d_out[q * p.d_out.row_stride + d * p.d_out.column_stride]);
      }
  }
#pragma unroll
  for (int i = 0; i < rows; ++i) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], distance);
    if (lane != 0) continue;
    const index to = head * a.row_stride + first + i * apart;
    const bool hidden = lse[i] == -infinity();
    static_cast<float*>(p.row_lse)[to] = hidden ? infinity() : lse[i] * log2_e;
    static_cast<float*>(p.row_delta)[to] = hidden ? 0.0f : sums[i] - d_lse[i];
  }
}

// Puts 0 where a pair's bit is 0, whatever stood there, NaN too: in operands made of accumulators.
template <int N> __device__ inline void hide_operands(u32 (&x)[N], uint2 bits) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] &= (is_kept(bits, 2 * i) ? 0xffffu : 0u) | (is_kept(bits, 2 * i + 1) ? 0xffff0000u : 0u);
}

// Accumulators of 64 rows go to shared memory in chunks of 64 columns, then in whole rows to global memory. `staged` is the warpgroup's
// part of a [rows][64] chunk, chunks are `chunk` bytes apart; row_of(r) is where row r goes, null if nowhere.
template <class T, int Columns, int N, class RowOf>
__device__ inline void store_warpgroup_rows(const float (&x)[N], float factor, u32 staged, u32 chunk, int barrier, const attention_tensor& t, const RowOf& row_of, int columns) {
  const int lane = threadIdx.x % 32, row_low = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const int row = row_low + i % 4 / 2 * 8, unit = i / 4;
    store_shared(staged + unit / 8 * chunk + row * 128 + ((unit % 8 ^ (row & 7)) << 4) + lane % 4 * 4, storage<T>::pair(x[i] * factor, x[i + 1] * factor));
  }
  warpgroup_sync(barrier);
#pragma unroll 1
  for (int i = threadIdx.x % 128; i < 64 * (Columns / 8); i += 128) {
    const int row = i / (Columns / 8), unit = i % (Columns / 8);
    T* const to = row_of(row);
    if (to == nullptr || unit * 8 >= columns) continue;
    const uint4 bits = load_shared_16(staged + unit / 8 * chunk + row * 128 + ((unit % 8 ^ (row & 7)) << 4));
    if (t.vectors) {
      *reinterpret_cast<uint4*>(to + unit * 8) = bits;
    } else {
      const T* elements = reinterpret_cast<const T*>(&bits);
      for (int e = 0; e < 8 && unit * 8 + e < columns; ++e) to[(unit * 8 + e) * t.column_stride] = elements[e];
    }
  }
}

// dQ = scale * the sums, in the tensor's type. A block of 256 threads a tile of 8192 sums.
template <class T, int D> __device__ inline void finish_query_gradient_sm90(const sm90_gradient_parameters& a) {
  constexpr int queries = sm90_gradient_shape<D, D>::queries;
  const attention_parameters& p = a.p;
  __shared__ T rows[queries][D + 8];
  const int lane = threadIdx.x % 32, part = threadIdx.x / 128, row_low = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const float4* sums = reinterpret_cast<const float4*>(a.dQ_sums) + index(blockIdx.x) * 2048 + part * 1024 + threadIdx.x % 128;
  const float scale = float(p.scale);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 x = sums[i * 128];
    const int row = (queries == 128 ? part * 64 : 0) + row_low, column = (queries == 128 ? 0 : part * 64) + i * 8 + lane % 4 * 2;
    *reinterpret_cast<u32*>(&rows[row][column]) = storage<T>::pair(x.x * scale, x.y * scale);
    *reinterpret_cast<u32*>(&rows[row + 8][column]) = storage<T>::pair(x.z * scale, x.w * scale);
  }
  __syncthreads();
  const index row = index(blockIdx.x) * queries, head = row / a.row_stride, first = row % a.row_stride;
  T* const dQ = head_data<T>(p.dQ, head / p.heads, head % p.heads);
#pragma unroll 1
  for (int i = threadIdx.x; i < queries * (D / 8); i += 256) {
    const int r = i / (D / 8), column = i % (D / 8) * 8;
    const index q = first + r;
    if (q >= p.queries || column >= p.head_dim) continue;
    if (p.dQ.vectors) {
      *reinterpret_cast<uint4*>(dQ + q * p.dQ.row_stride + column) = *reinterpret_cast<const uint4*>(&rows[r][column]);
    } else {
      for (int e = 0; e < 8 && column + e < p.head_dim; ++e) dQ[q * p.dQ.row_stride + (column + e) * p.dQ.column_stride] = rows[r][column + e];
    }
  }
}

}  // namespace samite
)cuh"},
    {"attention_sm90_keys.cuh",
     R"cuh(// attention_sm90_keys.cuh: gradients of keys and values on sm_90a, and fused with them those of queries; see attention_sm90_gradient.cuh.
#pragma once
#include "attention_sm90_gradient.cuh"

namespace samite {

template <class T, int D, int Dv, gradient_of What, class Score = no_score> __device__ inline void key_gradient_sm90(const sm90_gradient_parameters& a, const Score& score = {}) {
  using shape = sm90_key_gradient_shape<D, Dv, What>;
  constexpr int registers = Score::identity ? shape::registers : 240, loader_registers = Score::identity ? shape::loader_registers : 24;
  constexpr bool fused = What == gradient_of::all, gives_keys = shape::gives_keys, gives_values = shape::gives_values;
  constexpr int queries = shape::queries, keys = shape::keys, columns = queries / 2;  // accumulators of S^T of a thread
  constexpr int key_chunk = keys * 128, query_chunk = queries * 128;
  constexpr int alone_at = 28;  // bit tiles are fewer than 2^28
  const attention_parameters& p = a.p;
  extern __shared__ uint4 shared[];
  const u32 Ks = (shared_address(shared) + 1023) & ~1023u, Vs = Ks + shape::key_bytes, Qs = Vs + shape::value_bytes, dOs = Qs + 2 * shape::query_bytes, dSs = dOs + shape::d_out_stages * shape::d_out_bytes;
  const u32 lse_rows = dSs + (fused ? 2 * shape::d_score_bytes : 0), delta_rows = lse_rows + 2 * shape::row_bytes;
  const u32 query_full = delta_rows + 2 * shape::row_bytes, query_empty = query_full + 16, d_out_full = query_full + 32, d_out_empty = query_full + 48;
  const u32 d_score_full = query_full + 64, d_score_empty = query_full + 80, keys_full = query_full + 96;
  const u32 tile_of = query_full + 112;   // [2 stages][row of the sums' tile or -1 for the end, bit tile or -1; above its number which warpgroup alone has kept pairs, 0 for both]
  const u32 place_of = query_full + 128;  // [2 stages][query head, first query], for score functions

  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 16; i += 8) {
      constexpr u32 arrivals = 2 * (fused ? group_arrivals : warp_arrivals);
      barrier_init(query_full + i, 1), barrier_init(d_out_full + i, 1), barrier_init(query_empty + i, arrivals), barrier_init(d_out_empty + i, arrivals);
      barrier_init(d_score_full + i, 2 * group_arrivals), barrier_init(d_score_empty + i, 2 * group_arrivals);
    }
    barrier_init(keys_full, 1);
    barrier_init_visible();
    prefetch(a.Q), prefetch(a.K), prefetch(a.V), prefetch(a.d_out);
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const sm90_block at(a, i32(p.key_heads), i32((p.keys + keys - 1) / keys), i32(p.heads / p.key_heads));

  if (group == 0) {
    give_registers<loader_registers>();
    if (threadIdx.x != 0) return;
    barrier_expect(keys_full, keys * D * 2 + shape::value_bytes);
#pragma unroll 1
    for (int c = 0; c < D / 64; ++c) copy_box(Ks + c * key_chunk, a.K, keys_full, c * 64, at.tile * keys, at.h, at.b);
#pragma unroll 1
    for (int c = 0; gives_keys && c < Dv / 64; ++c) copy_box(Vs + c * key_chunk, a.V, keys_full, c * 64, at.tile * keys, at.h, at.b);
    const i32 heads = i32(p.heads / p.key_heads);
    u32 loaded = 0;
#pragma unroll 1
    for (i32 h = at.h * heads; h < (at.h + 1) * heads; ++h) {
      const i64* begin = a.lists.begin + at.b * a.lists.batch_lists + h * a.lists.head_lists + at.tile;
      const index head = at.b * p.heads + h;
#pragma unroll 1
      for (i32 run = i32(begin[0]), end = i32(begin[1]); run < end; ++run) {
        const tile_run r = a.lists.runs[run];
        const i32 none = -0x7fffffff, bits = r.bits < 0 ? none : r.bits - r.first;
#pragma unroll 1
        for (i32 tile = r.first; tile < r.last; ++tile, ++loaded) {
          const u32 stage = loaded & 1, parity = (loaded / 2 & 1) ^ 1;
          const index first_row = head * a.row_stride + index(tile) * queries;
          barrier_wait(query_empty + 8 * stage, parity);
          store_shared(tile_of + 8 * stage, i32(first_row / queries), bits == none ? -1 : bits + tile + (r.full < 0 ? -r.full << alone_at : 0));
          if constexpr (!Score::identity) store_shared(place_of + 8 * stage, h, tile * queries);
          barrier_expect(query_full + 8 * stage, shape::query_bytes + shape::row_bytes);
#pragma unroll 1
          for (int c = 0; c < D / 64; ++c) copy_box(Qs + stage * shape::query_bytes + c * query_chunk, a.Q, query_full + 8 * stage, c * 64, tile * queries, h, at.b);
          copy_bytes(lse_rows + stage * shape::row_bytes, static_cast<const float*>(p.row_lse) + first_row, shape::row_bytes, query_full + 8 * stage);
          const u32 d_out_stage = shape::d_out_stages == 2 ? stage : 0, d_out_parity = shape::d_out_stages == 2 ? parity : (loaded & 1) ^ 1;
          barrier_wait(d_out_empty + 8 * d_out_stage, d_out_parity);
          barrier_expect(d_out_full + 8 * d_out_stage, shape::d_out_bytes + (gives_keys ? shape::row_bytes : 0));
#pragma unroll 1
          for (int c = 0; c < Dv / 64; ++c) copy_box(dOs + d_out_stage * shape::d_out_bytes + c * query_chunk, a.d_out, d_out_full + 8 * d_out_stage, c * 64, tile * queries, h, at.b);
          if (gives_keys) copy_bytes(delta_rows + d_out_stage * shape::row_bytes, static_cast<const float*>(p.row_delta) + first_row, shape::row_bytes, d_out_full + 8 * d_out_stage);
        }
      }
    }
    const u32 stage = loaded & 1;
    barrier_wait(query_empty + 8 * stage, (loaded / 2 & 1) ^ 1);
    store_shared(tile_of + 8 * stage, -1, -1);
    barrier_arrive(query_full + 8 * stage);
    return;
  }

  take_registers<registers>();
  const int part = group - 1, lane = threadIdx.x % 32;
  const float scale = float(p.scale) * log2_e;
  const i32 first_key = at.tile * keys + part * 64, row_low = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const bool ragged = first_key + 64 > p.keys;
  const u64 key = operand(Ks + part * 64 * 128, 16), value = operand(Vs + part * 64 * 128, 16);
  float dK[gives_keys ? D / 2 : 1], dV[gives_values ? Dv / 2 : 1], s[columns], ds[gives_keys ? columns : 1];
  u32 P[columns / 2], dS[columns / 2];
  u32 stage = 0, parity = 0, d_out_stage = 0, d_out_parity = 0;
  scored_rows<Score> rows;
  i32 sums_before = -1;  // the tile of dQ whose product is still to come; at first one of zeros that goes nowhere
#pragma unroll
  for (float& x : dK) x = 0;
#pragma unroll
  for (float& x : dV) x = 0;
  if constexpr (fused) {
    for (int i = threadIdx.x % 128; i < query_chunk / 8; i += 128) store_shared(dSs + shape::d_score_bytes + part * query_chunk + i * 8, 0, 0);
    copies_follow();
    warpgroup_sync(2 + part);
    group_arrive(d_score_full + 8);
  }
  barrier_wait(keys_full, 0);

  // dQ of the tile before: by now both warpgroups have stored its dS. A warpgroup takes half of dQ's columns; with 128 queries half of its
  // rows.
  constexpr bool by_rows = queries == 128;
  const auto multiply_dQ = [&](float (&dQ)[32], u32 at_stage) __attribute__((always_inline)) {
    const u64 d_score = operand(dSs + at_stage * shape::d_score_bytes + (by_rows ? part * 64 * 128 : 0), 16), key_rows = operand(Ks + (by_rows ? 0 : part * key_chunk), key_chunk);
    pin(dQ);
    products_begin();
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) warpgroup_product<T, 64>::product_by_columns(dQ, d_score + (k / 4 * query_chunk + k % 4 * 32) / 16, key_rows + k * 2048 / 16, k != 0);
    products_commit();
  };
  const auto add_dQ = [&](float (&dQ)[32]) __attribute__((always_inline)) {
    if (sums_before < 0) return;
    float* sums = a.dQ_sums + (index(sums_before) * 2 + part) * 4096 + threadIdx.x % 128 * 4;
#pragma unroll
    for (int i = 0; i < 32; i += 4) add_global(sums + i * 128, dQ[i], dQ[i + 1], dQ[i + 2], dQ[i + 3]);
  };

  // dS^T goes to shared memory as dS, [queries][64 keys] chunks.
  const auto store_d_scores = [&]() __attribute__((always_inline)) {
    barrier_wait(d_score_empty + 8 * stage, parity ^ stage ^ 1);
    const u32 dS_tile = dSs + stage * shape::d_score_bytes;
    const int n = threadIdx.x % 128 / 32 * 16 + (lane >> 3 & 1) * 8;
#pragma unroll
    for (int j = 0; j < queries / 8; j += 2) {
      const int m = (j + (lane >> 4)) * 8 + (lane & 7);
      store_transposed(dS_tile + part * query_chunk + m * 128 + ((n * 2) ^ ((m & 7) << 4)), dS + 2 * j);
    }
    copies_follow();
    warpgroup_sync(2 + part);
    group_arrive(d_score_full + 8 * stage);
  };
  // What a tile brought has been read. In the fused kernel a warpgroup has met since, in store_d_scores, so that one thread speaks for it.
  const auto release = [&](u32 barrier) __attribute__((always_inline)) {
    if constexpr (fused) group_arrive(barrier);
    else warp_arrive(barrier);
  };
  const auto next_tile = [&]() __attribute__((always_inline)) {
    stage ^= 1;
    if (stage == 0) parity ^= 1;
    if (shape::d_out_stages == 2) d_out_stage = stage;
    if (shape::d_out_stages == 1 || stage == 0) d_out_parity ^= 1;
  };

  for (;;) {
    barrier_wait(query_full + 8 * stage, parity);
    const int2 work = load_shared(tile_of + 8 * stage);
    const i32 sums_tile = work.x, alone = work.y < 0 ? 0 : work.y >> alone_at, bit_tile = work.y < 0 ? -1 : work.y & ((1 << alone_at) - 1);
    if (sums_tile < 0) break;
    if (alone != 0 && alone != part + 1) {  // no kept pair of this warpgroup's keys
      barrier_wait(d_out_full + 8 * d_out_stage, d_out_parity);
      if constexpr (!fused) {
        release(d_out_empty + 8 * d_out_stage), release(query_empty + 8 * stage);
      } else {
        float dQ[32];
#pragma unroll
        for (u32& x : dS) x = 0;
        store_d_scores();
        release(d_out_empty + 8 * d_out_stage), release(query_empty + 8 * stage);
        barrier_wait(d_score_full + 8 * (stage ^ 1), parity);
        multiply_dQ(dQ, stage ^ 1);
        products_wait<0>();
        pin(dQ);
        group_arrive(d_score_empty + 8 * (stage ^ 1));
        add_dQ(dQ);
        sums_before = sums_tile;
      }
      next_tile();
      continue;
    }
    uint2 bits = {~0u, ~0u};  // long before their use
    if (bit_tile >= 0) bits = a.lists.bits[index(bit_tile) * 256 + part * 128 + threadIdx.x % 128];
    int2 place = {0, 0};
    if constexpr (!Score::identity) {
      place = load_shared(place_of + 8 * stage);
      rows.begin(score, at.b, place.x, float(p.scale), first_key + row_low, first_key + row_low + 8);
    }
    const u32 Q = Qs + stage * shape::query_bytes, dO = dOs + d_out_stage * shape::d_out_bytes;
    const u64 query = operand(Q, 16), d_out = operand(dO, 16), query_rows = operand(Q, query_chunk), d_out_rows = operand(dO, query_chunk);
    pin(s);
    products_begin();
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      warpgroup_product<T, queries>::product(s, key + (k / 4 * key_chunk + k % 4 * 32) / 16, query + (k / 4 * query_chunk + k % 4 * 32) / 16, k != 0);
    products_commit();
    barrier_wait(d_out_full + 8 * d_out_stage, d_out_parity);
    if constexpr (gives_keys) {
      pin(ds);
      products_begin();
#pragma unroll
      for (int k = 0; k < Dv / 16; ++k)
        warpgroup_product<T, queries>::product(ds, value + (k / 4 * key_chunk + k % 4 * 32) / 16, d_out + (k / 4 * query_chunk + k % 4 * 32) / 16, k != 0);
      products_commit();
    }
    const u32 lse_at = lse_rows + stage * shape::row_bytes + lane % 4 * 8, delta_at = delta_rows + d_out_stage * shape::row_bytes + lane % 4 * 8;
    if constexpr (Score::identity) {
      products_wait<gives_keys ? 1 : 0>();
      pin(s);
      if (bit_tile >= 0 || ragged) {
        if (first_key + row_low >= p.keys) bits.x = 0;
        if (first_key + row_low + 8 >= p.keys) bits.y = 0;
        hide_pairs(s, bits);
      }
#pragma unroll
      for (int i = 0; i < columns; i += 4) {
        const float2 lse = load_shared_pair(lse_at + i * 8);
        s[i] = power_of_2(s[i] * scale - lse.x), s[i + 1] = power_of_2(s[i + 1] * scale - lse.y);
        s[i + 2] = power_of_2(s[i + 2] * scale - lse.x), s[i + 3] = power_of_2(s[i + 3] * scale - lse.y);
      }
      if constexpr (gives_keys) {
        products_wait<0>();
        pin(ds);
  #pragma unroll
        for (int i = 0; i < columns; i += 4) {
          const float2 delta = load_shared_pair(delta_at + i * 8);
          if (gives_values) P[i / 2] = storage<T>::pair(s[i], s[i + 1]), P[i / 2 + 1] = storage<T>::pair(s[i + 2], s[i + 3]);
          dS[i / 2] = storage<T>::pair(s[i] * (ds[i] - delta.x), s[i + 1] * (ds[i + 1] - delta.y));
          dS[i / 2 + 1] = storage<T>::pair(s[i + 2] * (ds[i + 2] - delta.x), s[i + 3] * (ds[i + 3] - delta.y));
        }
      } else {
#pragma unroll
        for (int i = 0; i < columns; i += 2) P[i / 2] = storage<T>::pair(s[i], s[i + 1]);
      }
    } else {
      const i32 cut = i32(p.queries) - place.y;  // queries before the end
      const bool hides = bit_tile >= 0 || ragged || cut < queries;
      if (first_key + row_low >= p.keys) bits.x = 0;
      if (first_key + row_low + 8 >= p.keys) bits.y = 0;
      if (cut < queries) bits.x &= columns_below(cut), bits.y &= columns_below(cut);
      // Where the adjoint needs the score, both products come first; else the weights are computed beside the second one.
      constexpr bool together = Score::keeps_score && gives_keys;
      const float unit = score.unit_of(rows.head);
      if constexpr (!together) {
        products_wait<gives_keys ? 1 : 0>();
        pin(s);
        score_values<true>(scored_tile<Score>(score, rows, place.y), s);
#pragma unroll
        for (int i = 0; i < columns; i += 4) {
          const float2 lse = load_shared_pair(lse_at + i * 8);
          s[i] = power_of_2(s[i] * unit - lse.x), s[i + 1] = power_of_2(s[i + 1] * unit - lse.y);
          s[i + 2] = power_of_2(s[i + 2] * unit - lse.x), s[i + 3] = power_of_2(s[i + 3] * unit - lse.y);
        }
      }
      if constexpr (gives_keys) {
        products_wait<0>();
        if (together) pin(s);
        pin(ds);
          const scored_tile<Score> pairs(score, rows, as_new(place.y));
#pragma unroll
        for (int i = 0; i < columns; i += 4) {
          if (i % 8 == 0) __syncwarp();
          const float2 delta = load_shared_pair(delta_at + i * 8);
          float2 lse = {0, 0};
          if (together) lse = load_shared_pair(lse_at + i * 8);
#pragma unroll
          for (int e = i; e < i + 4; ++e) {
            const float x = s[e];
            if (together) s[e] = power_of_2(pairs.value_in_units(e, x) * unit - (e % 2 == 0 ? lse.x : lse.y));
            ds[e] = pairs.adjoint(e, x, s[e] * (ds[e] - (e % 2 == 0 ? delta.x : delta.y)));
          }
          if (gives_values) P[i / 2] = storage<T>::pair(s[i], s[i + 1]), P[i / 2 + 1] = storage<T>::pair(s[i + 2], s[i + 3]);
          dS[i / 2] = storage<T>::pair(ds[i], ds[i + 1]), dS[i / 2 + 1] = storage<T>::pair(ds[i + 2], ds[i + 3]);
        }
        if (hides) hide_operands(dS, bits);
      } else {
#pragma unroll
        for (int i = 0; i < columns; i += 2) P[i / 2] = storage<T>::pair(s[i], s[i + 1]);
      }
      if (gives_values && hides) hide_operands(P, bits);
    }
    if (!gives_values) release(d_out_empty + 8 * d_out_stage);  // one stage
)cuh"
     R"cuh(    float dQ[32];
    if constexpr (fused) {
      store_d_scores();
      barrier_wait(d_score_full + 8 * (stage ^ 1), parity);
      multiply_dQ(dQ, stage ^ 1);
    }
    if constexpr (gives_values) {
      pin(dV);
      products_begin();
#pragma unroll
      for (int k = 0; k < queries / 16; ++k) warpgroup_product<T, Dv>::product_columns(dV, P + 4 * k, d_out_rows + k * 2048 / 16);
      products_commit();
    }
    if constexpr (gives_keys) {
      pin(dK);
      products_begin();
#pragma unroll
      for (int k = 0; k < queries / 16; ++k) warpgroup_product<T, D>::product_columns(dK, dS + 4 * k, query_rows + k * 2048 / 16);
      products_commit();
    }
    if constexpr (fused) {
      products_wait<2>();
      pin(dQ);
      group_arrive(d_score_empty + 8 * (stage ^ 1));
      add_dQ(dQ);
      sums_before = sums_tile;
    }
    if constexpr (gives_values) {
      products_wait<gives_keys ? 1 : 0>();
      release(d_out_empty + 8 * d_out_stage);
    }
    products_wait<0>();
    pin(dV);
    pin(dK);
    release(query_empty + 8 * stage);
    next_tile();
  }
  if constexpr (fused) {
    float dQ[32];
    barrier_wait(d_score_full + 8 * (stage ^ 1), parity);
    multiply_dQ(dQ, stage ^ 1);
    products_wait<0>();
    pin(dQ);
    add_dQ(dQ);
    block_sync(1, 256);  // dQ has read all rows of K; other products of a warpgroup read only its own rows
  }
  const auto key_row = [&](const attention_tensor& t, int row) __attribute__((always_inline)) -> T* {
    return first_key + row < p.keys ? head_data<T>(t, at.b, at.h) + (first_key + row) * t.row_stride : nullptr;
  };
  const auto row_of_dK = [&](int row) __attribute__((always_inline)) { return key_row(p.dK, row); };
  const auto row_of_dV = [&](int row) __attribute__((always_inline)) { return key_row(p.dV, row); };
  if constexpr (gives_keys) store_warpgroup_rows<T, D>(dK, float(p.scale), Ks + part * 64 * 128, key_chunk, 2 + part, p.dK, row_of_dK, p.head_dim);
  if constexpr (gives_values) store_warpgroup_rows<T, Dv>(dV, 1.0f, (gives_keys ? Vs : Ks) + part * 64 * 128, key_chunk, 2 + part, p.dV, row_of_dV, p.value_dim);
}

}  // namespace samite
)cuh"},
    {"attention_sm90_queries.cuh",
     R"cuh(// attention_sm90_queries.cuh: gradients of queries on sm_90a, in a kernel of their own; see attention_sm90_gradient.cuh.
#pragma once
#include "attention_sm90_gradient.cuh"

namespace samite {

template <class T, int D, int Dv, class Score = no_score> __device__ inline void query_gradient_sm90(const sm90_gradient_parameters& a, const Score& score = {}) {
  using shape = sm90_gradient_shape<D, Dv>;
  constexpr int registers = Score::identity ? shape::registers : 240, loader_registers = Score::identity ? shape::loader_registers : 24;
  constexpr int keys = shape::key_step, rows = shape::rows, columns = keys / 2, query_chunk = rows * 128, key_chunk = keys * 128, value_stages = shape::value_stages;
  constexpr int key_bytes = keys * D * 2, value_bytes = keys * Dv * 2;
  const attention_parameters& p = a.p;
  extern __shared__ uint4 shared[];
  const u32 Qs = (shared_address(shared) + 1023) & ~1023u, dOs = Qs + rows * D * 2, Ks = dOs + rows * Dv * 2, Vs = Ks + 2 * key_bytes;
  const u32 key_full = Vs + value_stages * value_bytes, key_empty = key_full + 16, value_full = key_full + 32, value_empty = key_full + 48, queries_full = key_full + 64;
  const u32 tile_of = key_full + 80;  // [2 stages][key tile, -1 for the end or, narrow, -2 - the number of its columns; bit tile or -1]
  constexpr bool narrows = Score::identity && keys == 128;

  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 16; i += 8) barrier_init(key_full + i, 1), barrier_init(value_full + i, 1), barrier_init(key_empty + i, 2 * warp_arrivals), barrier_init(value_empty + i, 2 * group_arrivals);
    barrier_init(queries_full, 1);
    barrier_init_visible();
    prefetch(a.Q), prefetch(a.K), prefetch(a.V), prefetch(a.d_out);
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const row_packing packing(a.lists);
  const i32 pack = packing.pack, tokens = rows / pack;
  const sm90_block at(a, i32(p.heads) / pack, i32((p.queries + tokens - 1) / tokens), 1);

  if (group == 0) {
    give_registers<loader_registers>();
    if (threadIdx.x != 0) return;
    barrier_expect(queries_full, tokens * pack * (D + Dv) * 2);
#pragma unroll 1
    for (int c = 0; c < D / 64; ++c) copy_packed_box(Qs + c * query_chunk, a.Q, queries_full, c * 64, at.tile * tokens, at.h, at.b);
#pragma unroll 1
    for (int c = 0; c < Dv / 64; ++c) copy_packed_box(dOs + c * query_chunk, a.d_out, queries_full, c * 64, at.tile * tokens, at.h, at.b);
    const i64* begin = a.lists.begin + at.b * a.lists.batch_lists + at.h * a.lists.head_lists + at.tile;
    const i32 g = at.h * pack / i32(p.heads / p.key_heads);
    u32 loaded = 0;
#pragma unroll 1
    for (i32 run = i32(begin[0]), end = i32(begin[1]); run < end; ++run) {
      const tile_run r = a.lists.runs[run];
      const i32 none = -0x7fffffff, bits = r.bits < 0 ? none : r.bits - r.first;
#pragma unroll 1
      for (i32 tile = r.first; tile < r.last; ++tile, ++loaded) {
        const u32 stage = loaded & 1, parity = (loaded / 2 & 1) ^ 1;
        barrier_wait(key_empty + 8 * stage, parity);
        const bool narrow = narrows && r.full < 0;
        const i32 first_key = tile * keys + (narrow ? (-1 - r.full) * sm90_narrow : 0);
        store_shared(tile_of + 8 * stage, narrow ? -2 - first_key / sm90_narrow : tile, bits == none ? -1 : bits + tile);
        barrier_expect(key_full + 8 * stage, narrow ? sm90_narrow * D * 2 : key_bytes);
#pragma unroll 1
        for (int c = 0; c < D / 64; ++c) copy_box(Ks + stage * key_bytes + c * key_chunk, narrow ? a.narrow_K : a.K, key_full + 8 * stage, c * 64, first_key, g, at.b);
        const u32 value_stage = value_stages == 2 ? stage : 0;
        barrier_wait(value_empty + 8 * value_stage, value_stages == 2 ? parity : (loaded & 1) ^ 1);
        barrier_expect(value_full + 8 * value_stage, narrow ? sm90_narrow * Dv * 2 : value_bytes);
#pragma unroll 1
        for (int c = 0; c < Dv / 64; ++c) copy_box(Vs + value_stage * value_bytes + c * key_chunk, narrow ? a.narrow_V : a.V, value_full + 8 * value_stage, c * 64, first_key, g, at.b);
      }
    }
    const u32 stage = loaded & 1;
    barrier_wait(key_empty + 8 * stage, (loaded / 2 & 1) ^ 1);
    store_shared(tile_of + 8 * stage, -1, -1);
    barrier_arrive(key_full + 8 * stage);
    return;
  }

  take_registers<registers>();
  const int part = group - 1, lane = threadIdx.x % 32, row_low = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const float scale = float(p.scale) * log2_e;
  const i32 tail = i32(p.keys % keys), last_tile = i32((p.keys - 1) / keys), first_token = at.tile * tokens;
  float lse[2], delta[2];
  bool outside[2];  // rows that are no query
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = part * 64 + row_low + 8 * r;
    const i32 token = packing.token(row);
    const index from = (at.b * p.heads + at.h * pack + packing.head(row)) * a.row_stride + first_token + token;
    outside[r] = token >= tokens || first_token + token >= p.queries;
    lse[r] = outside[r] ? infinity() : static_cast<const float*>(p.row_lse)[from], delta[r] = outside[r] ? 0.0f : static_cast<const float*>(p.row_delta)[from];
  }
  const u64 query = operand(Qs + part * 64 * 128, 16), d_out = operand(dOs + part * 64 * 128, 16);
  float dQ[D / 2], s[columns], ds[columns];
  u32 dS[columns / 2];
  u32 stage = 0, parity = 0, value_stage = 0, value_parity = 0;
#pragma unroll
  for (int i = 0; i < D / 2; ++i) dQ[i] = 0;
  scored_rows<Score> pair_rows;
  float held[Score::held + 1] = {};  // sums of captured elements' gradients that all pairs of a head share
  if constexpr (!Score::identity) {
    const int row = part * 64 + row_low;  // and the one 8 below it: of one head, since 8 is a multiple of pack here
    pair_rows.begin(score, at.b, at.h * pack + packing.head(row), float(p.scale), first_token + packing.token(row), first_token + packing.token(row + 8));
  }
  barrier_wait(queries_full, 0);
  const auto next_tile = [&]() __attribute__((always_inline)) {
    stage ^= 1;
    if (stage == 0) parity ^= 1;
    if (value_stages == 2) value_stage = stage;
    if (value_stages == 1 || stage == 0) value_parity ^= 1;
  };

  for (;;) {
    barrier_wait(key_full + 8 * stage, parity);
    const int2 work = load_shared(tile_of + 8 * stage);
    const i32 key_tile = work.x, bit_tile = work.y;
    if (key_tile == -1) break;
    uint2 bits = {~0u, ~0u};  // long before their use
    if (bit_tile >= 0) bits = a.lists.bits[index(bit_tile) * 256 + part * 128 + threadIdx.x % 128];
    const u64 key = operand(Ks + stage * key_bytes, 16), value = operand(Vs + value_stage * value_bytes, 16), key_rows = operand(Ks + stage * key_bytes, key_chunk);
    if (narrows && key_tile < 0) {
      constexpr int few = sm90_narrow / 2;
      float x[few], dx[few];
      u32 dX[few / 2];
      pin(x);
      products_begin();
#pragma unroll
      for (int k = 0; k < D / 16; ++k) warpgroup_product<T, sm90_narrow>::product(x, query + (k / 4 * query_chunk + k % 4 * 32) / 16, key + (k / 4 * key_chunk + k % 4 * 32) / 16, k != 0);
      products_commit();
      barrier_wait(value_full + 8 * value_stage, value_parity);
      pin(dx);
      products_begin();
#pragma unroll
      for (int k = 0; k < Dv / 16; ++k) warpgroup_product<T, sm90_narrow>::product(dx, d_out + (k / 4 * query_chunk + k % 4 * 32) / 16, value + (k / 4 * key_chunk + k % 4 * 32) / 16, k != 0);
      products_commit();
      products_wait<0>();
      pin(x);
      pin(dx);
      group_arrive(value_empty + 8 * value_stage);
      narrow_bits(bits, -2 - key_tile, i32(p.keys), keys);
      hide_pairs(x, bits);
#pragma unroll
      for (int i = 0; i < few; i += 2) {
        const int r = i % 4 / 2;
        dX[i / 2] = storage<T>::pair(power_of_2(x[i] * scale - lse[r]) * (dx[i] - delta[r]), power_of_2(x[i + 1] * scale - lse[r]) * (dx[i + 1] - delta[r]));
      }
      pin(dQ);
      products_begin();
#pragma unroll
      for (int k = 0; k < sm90_narrow / 16; ++k) warpgroup_product<T, D>::product_columns(dQ, dX + 4 * k, key_rows + k * 2048 / 16);
      products_commit();
      products_wait<0>();
      pin(dQ);
      warp_arrive(key_empty + 8 * stage);
      next_tile();
      continue;
    }
    pin(s);
    products_begin();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) warpgroup_product<T, keys>::product(s, query + (k / 4 * query_chunk + k % 4 * 32) / 16, key + (k / 4 * key_chunk + k % 4 * 32) / 16, k != 0);
    products_commit();
    barrier_wait(value_full + 8 * value_stage, value_parity);
    pin(ds);
    products_begin();
#pragma unroll
    for (int k = 0; k < Dv / 16; ++k) warpgroup_product<T, keys>::product(ds, d_out + (k / 4 * query_chunk + k % 4 * 32) / 16, value + (k / 4 * key_chunk + k % 4 * 32) / 16, k != 0);
    products_commit();
    if constexpr (Score::identity) {
      products_wait<1>();
      pin(s);
      if (bit_tile >= 0 || (tail != 0 && key_tile == last_tile)) {
        if (tail != 0 && key_tile == last_tile) {
          const u32 inside = columns_below(tail);
          bits.x &= inside, bits.y &= inside;
        }
        hide_pairs(s, bits);
      }
#pragma unroll
      for (int i = 0; i < columns; ++i) s[i] = power_of_2(s[i] * scale - lse[i % 4 / 2]);
      products_wait<0>();
      pin(ds);
      group_arrive(value_empty + 8 * value_stage);
#pragma unroll
      for (int i = 0; i < columns; i += 2) dS[i / 2] = storage<T>::pair(s[i] * (ds[i] - delta[i % 4 / 2]), s[i + 1] * (ds[i + 1] - delta[i % 4 / 2]));
    } else {
      const bool cut = tail != 0 && key_tile == last_tile, hides = bit_tile >= 0 || cut || outside[0] || outside[1];
      if (cut) bits.x &= columns_below(tail), bits.y &= columns_below(tail);
      if (outside[0]) bits.x = 0;
      if (outside[1]) bits.y = 0;
      const float unit = score.unit_of(pair_rows.head);
      constexpr bool together = Score::keeps_score;  // as in attention_sm90_keys.cuh
      if constexpr (!together) {
        products_wait<1>();
        pin(s);
        score_values<true>(scored_tile<Score>(score, pair_rows, key_tile * keys), s);
#pragma unroll
        for (int i = 0; i < columns; ++i) s[i] = power_of_2(s[i] * unit - lse[i % 4 / 2]);
      }
      products_wait<0>();
      if (together) pin(s);
      pin(ds);
      group_arrive(value_empty + 8 * value_stage);
      const scored_tile<Score> pairs(score, pair_rows, as_new(key_tile * keys));
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        if (i % 8 == 0) __syncwarp();
        const float x = s[i], weight = together ? power_of_2(pairs.value_in_units(i, x) * unit - lse[i % 4 / 2]) : x, dy = weight * (ds[i] - delta[i % 4 / 2]);
        if constexpr (Score::held > 0) {
          float terms[Score::held] = {};
          pairs.gradient(i, x, dy, terms);
#pragma unroll
          for (int k = 0; k < Score::held; ++k) held[k] += is_kept(bits, i) ? terms[k] : 0.0f;
        }
        ds[i] = pairs.adjoint(i, x, dy);
        if (i % 2 == 1) dS[i / 2] = storage<T>::pair(ds[i - 1], ds[i]);
      }
      if (hides) hide_operands(dS, bits);
    }
    pin(dQ);
    products_begin();
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) warpgroup_product<T, D>::product_columns(dQ, dS + 4 * k, key_rows + k * 2048 / 16);
    products_commit();
    products_wait<0>();
    pin(dQ);
    warp_arrive(key_empty + 8 * stage);
    next_tile();
  }
  if constexpr (Score::held > 0) add_held_sums(score, at.b, at.h, held);
  const auto row_of = [&](int row) __attribute__((always_inline)) -> T* {
    const i32 token = packing.token(part * 64 + row);
    if (token >= tokens || first_token + token >= p.queries) return nullptr;
    return head_data<T>(p.dQ, at.b, at.h * pack + packing.head(part * 64 + row)) + (first_token + token) * p.dQ.row_stride;
  };
  store_warpgroup_rows<T, D>(dQ, float(p.scale), Qs + part * 64 * 128, query_chunk, 2 + part, p.dQ, row_of, p.head_dim);
}

}  // namespace samite
)cuh"},
    {"attention_sm90_tiles.cuh",
     R"cuh(// attention_sm90_tiles.cuh: sizes of the forward kernel for sm_90a, and what it shares with the gradient's: lists of tiles, rows of packed heads, bits of
// tiles, the softmax of a tile.
#pragma once
#include "attention.cuh"
#include "attention_bits.cuh"
#include "hopper.cuh"
#include "score_tile.cuh"

namespace samite {

constexpr int sm90_narrow = 32;  // columns of a narrow tile

// Head dims padded to multiples of 64. Some score functions leave too few registers for three warpgroups that compute.
template <int D, int Dv, bool Full = false> struct sm90_shape {
  static constexpr int widest = D > Dv ? D : Dv;
  static constexpr int groups = widest > 64 || Full ? 2 : 3;
  static constexpr int rows = 64 * groups, threads = 128 * (groups + 1);
  static constexpr int keys = widest > 128 ? 64 : 128;  // a tile
  static constexpr int buffers = widest > 128 ? 1 : 2;  // of Q
  static constexpr bool one_loop = widest > 128;        // for tiles that hide pairs and tiles that don't: faster there
  static constexpr int loader_registers = groups == 3 ? 32 : 40, registers = groups == 3 ? 160 : 232;
  static constexpr int query_bytes = rows * widest * 2, key_bytes = keys * D * 2, value_bytes = keys * Dv * 2;
};
constexpr int sm90_plan_runs = 16, sm90_plan_bytes = 32 + 16 * sm90_plan_runs;  // of an item that is to be loaded next
constexpr int sm90_plan_ahead = 3;  // tiles of the one before that are still to be loaded when it is fetched
template <int D, int Dv, bool Full = false> constexpr int sm90_shared_bytes =
    1024 + sm90_shape<D, Dv, Full>::buffers * sm90_shape<D, Dv, Full>::query_bytes + 2 * (sm90_shape<D, Dv, Full>::key_bytes + sm90_shape<D, Dv, Full>::value_bytes) + 256 + 2 * sm90_plan_bytes;

struct sm90_lists {
  const tile_run* runs;
  const i64* begin;               // [lists + 1]
  index batch_lists, head_lists;  // lists from one batch or head to the next; 0 where they share
  const uint2* bits;              // [bit tiles][2 * rows threads]: the thread's first and second row
  index section;                  // heads whose keys and values stay in the L2 together
  u32* counter;                   // [2]: items fetched, blocks at their end; both 0 between launches
  const i32* order;               // [lists]: the tiles of a head that lists are for, the longest list first; or null: the last first
  index pack;                     // query heads whose rows take turns in a tile; what is a "head" above is so many
  const u32* needs;               // [bit tiles]: what warpgroups need of them (attention_bits.cuh); or null: all
};

// Which token of a tile a row is, and which of the heads packed in it.
struct row_packing {
  i32 pack, inverse;
  __device__ explicit row_packing(const sm90_lists& lists) : pack(i32(lists.pack)), inverse((65535 + pack) / pack) {}
  __device__ i32 token(int row) const { return row * inverse >> 16; }  // row / pack, for fewer than 256 rows
  __device__ i32 head(int row) const { return row - token(row) * pack; }
};

// Bits of the columns before `limit` among a thread's in a row of a tile.
__device__ inline u32 columns_below(i32 limit) {
  const i32 c = limit - i32(threadIdx.x % 4 * 2), count = c <= 0 ? 0 : c / 8 * 2 + (c % 8 < 2 ? c % 8 : 2);
  return count >= 32 ? ~0u : (1u << count) - 1;
}

// From a tile's bits to those of a narrow one; part: its number among narrow ones of all keys.
__device__ inline void narrow_bits(uint2& bits, i32 part, i32 keys, int tile_keys) {
  const u32 inside = columns_below(keys - part * sm90_narrow);
  const int before = part % (tile_keys / sm90_narrow) * (sm90_narrow / 4);  // bits of the columns before these
  bits.x = bits.x >> before & inside, bits.y = bits.y >> before & inside;
}

// Whether the pair of accumulator i has its bit.
__device__ inline bool is_kept(uint2 bits, int i) { return ((i % 4 / 2 == 0 ? bits.x : bits.y) >> (i / 4 * 2 + i % 2) & 1u) != 0; }

// Turns a tile's scores into weights relative to the new maximum of each of the thread's two rows; `rescale` takes what was summed before to it.
template <int N> __attribute__((always_inline)) __device__ inline void tile_softmax(float (&s)[N], float scale, float (&largest)[2], float (&total)[2], float (&rescale)[2], bool bounded = false) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float tops[4] = {largest[r], -infinity(), -infinity(), -infinity()};  // chains that don't wait for one another
#pragma unroll
    for (int i = 0; i < N; i += 4) tops[i / 4 % 4] = ::fmaxf(tops[i / 4 % 4], ::fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
    float top = ::fmaxf(::fmaxf(tops[0], tops[1]), ::fmaxf(tops[2], tops[3]));
    top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    if (bounded) top = 0;
    const float shift = top == -infinity() ? 0.0f : top * scale;  // no key seen yet: keeps -inf - -inf from being NaN
    rescale[r] = power_of_2(largest[r] * scale - shift);
    largest[r] = top;
    float sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      s[i + 2 * r] = power_of_2(s[i + 2 * r] * scale - shift);
      s[i + 2 * r + 1] = power_of_2(s[i + 2 * r + 1] * scale - shift);
      sums[i / 4 % 4] += s[i + 2 * r] + s[i + 2 * r + 1];
    }
    total[r] = total[r] * rescale[r] + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
}

// 2^(x scale) on the units for products: for |x scale| < 126, relative error 8 10^-5. Of NaN it makes the largest number, which bf16 rounds to infinity.
__device__ inline float power_by_products(float x, float scale) {
  constexpr float magic = 12582912.0f;  // 1.5 * 2^23: a sum with it ends in the nearest whole number
  const float whole = __fmaf_rn(x, scale, magic), rest = __fmaf_rn(x, scale, -(whole - magic));
  const float power = __fmaf_rn(__fmaf_rn(__fmaf_rn(0.05517167f, rest, 0.24261112f), rest, 0.69326099f), rest, 0.99992807f);
  return __int_as_float(__float_as_int(power) + (__float_as_int(whole) << 23));
}

// The weights of scores that are known to lie within sm90_bound of 0, in powers of 2: no larger one changes what was summed before, and their
// sums have 2^50 to spare on either side. Half of the powers are taken from the exponential unit, which tanh keeps busy.
constexpr float sm90_bound = 73;
template <int N> __attribute__((always_inline)) __device__ inline void bounded_weights(float (&s)[N], float scale, float (&total)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < N; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[i + 2 * r + e];
        x = i / 4 % 2 == 0 ? power_by_products(x, scale) : power_of_2(x * scale);
      }
      sums[i / 4 % 4] += s[i + 2 * r] + s[i + 2 * r + 1];
    }
    total[r] += (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
}

// Puts -infinity where a pair's bit is 0: x of the thread's first row, y of its second.
template <int N> __device__ inline void hide_pairs(float (&scores)[N], uint2 bits) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      float& x = scores[i / 2 * 4 + 2 * r + i % 2];
      x = ((r == 0 ? bits.x : bits.y) >> i & 1u) != 0 ? x : -infinity();
    }
}

// From the products of a tile's columns to their weights.
template <class Score, int N>
__attribute__((always_inline)) __device__ inline void tile_weights(float (&s)[N], const Score& score, const scored_rows<Score>& rows, i32 first_column, bool hides, uint2 bits, float scale, float (&largest)[2], float (&total)[2], float (&rescale)[2], bool bounded) {
  if constexpr (!Score::identity && !Score::begins) score_values<false>(scored_tile<Score>(score, rows, first_column), s);
  if (hides) hide_pairs(s, bits);
  tile_softmax(s, scale, largest, total, rescale, bounded);
}

// The same of a tile that hides nothing, where bounded_weights serves.
template <class Score, int N> __attribute__((always_inline)) __device__ inline void bounded_tile_weights(float (&s)[N], const Score& score, const scored_rows<Score>& rows, i32 first_column, float scale, float (&total)[2]) {
  if constexpr (Score::bounded) {
    score_values<false>(scored_tile<Score>(score, rows, first_column), s);
    bounded_weights(s, scale, total);
  }
}

}  // namespace samite
)cuh"},
    {"box_judge.cuh",
     R"cuh(// box_judge.cuh: what a mask is over a whole box of (b, h, q, kv): the rules of include/samite/ir/bounds.hpp and ir/table.hpp, step by
// step, so that host and device give the same verdict on every box.
//
// A mask is a list of steps that the host made for the numbers of this run (emit/tile_map.hpp); each step leaves an interval, or a
// verdict, in a slot of its own, and the last step is the mask. Compiles for the host too, with __device__ defined away.
#pragma once
#include "integers.cuh"

namespace samite {

constexpr index lowest_bound = -(index(1) << 61), highest_bound = (index(1) << 61) - 1;  // bounds saturate here

enum verdict : i32 { keeps_none, keeps_all, is_undecided };

struct bounds {
  index low, high;
};

struct map_box {
  bounds of[4];  // b, h, q, kv
};

enum class step_code : i32 {
  symbol, constant, sum, quotient, remainder, multiply, minimum, maximum, absolute, addition, difference, negation, left_shift, right_shift, anything, gather, select,
  // verdicts
  leaf, all, any, choice, known, opaque
};

struct map_step {
  step_code code;
  i32 a, b, c;       // slots of operands, -1: none; of a leaf: its form, and two table values whose difference the form is
  i32 first, count;  // its part of the words: (slot, factor) of a sum's terms; modulus, start, count and intervals of a leaf; slots of parts
  i32 shift;         // of a quotient or remainder: log2 of the divisor, or -1
  i32 padding;
  index imm;         // symbol, constant, divisor, table
};

struct map_cell {  // of a table's pyramid, and of the whole table
  index low, high;
  u64 residues;
};

struct map_table {
  const i32* values;
  const map_cell* pyramid;  // of rows that are not sorted
  const u8* sorted;         // for each row: its values never fall
  index dims[3];
  index leaves;
  map_cell whole;
};

/// What the host writes for one run, in front of the tables, the steps and the words.
struct map_header {
  index queries, keys;
  index last_batch, last_head;   // B - 1, H - 1
  i32 batches, heads;            // maps that differ; 1 where all share one
  i32 tiles[2], tile[2];         // of queries and of keys: how many, and how long one is
  i32 budget, steps, tables, words;
  i32 thresholds[2], threshold_count[2];  // in the words: where comparisons of q and of kv change
  i32 grains[2], grain_count[2];          // in the words: divisor, offset and shift of each quotient of q and of kv
};

struct map_program {
  const map_header* header;
  const map_table* tables;
  const map_step* steps;
  const index* words;
  __device__ explicit map_program(const void* block) : header(static_cast<const map_header*>(block)) {
    tables = reinterpret_cast<const map_table*>(header + 1);
    steps = reinterpret_cast<const map_step*>(tables + header->tables);
    words = reinterpret_cast<const index*>(steps + header->steps);
  }
};

// One thread's slots: three words each, `stride` words apart.
struct map_slots {
  index* at;
  int stride;
  __device__ bounds range(int slot) const { return {at[(3 * slot) * stride], at[(3 * slot + 1) * stride]}; }
  __device__ u64 residues(int slot) const { return u64(at[(3 * slot + 2) * stride]); }
  __device__ verdict found(int slot) const { return verdict(at[(3 * slot) * stride]); }
  __device__ void put(int slot, bounds x) const { at[(3 * slot) * stride] = x.low, at[(3 * slot + 1) * stride] = x.high; }
  __device__ void put(int slot, verdict v) const { at[(3 * slot) * stride] = v; }
  __device__ void put_residues(int slot, u64 bits) const { at[(3 * slot + 2) * stride] = index(bits); }
};

// ---- intervals --------------------------------------------------------------------------------------------------------------

__device__ inline index saturated(index x) { return clamp(x, lowest_bound, highest_bound); }

__device__ inline index saturated_product(index a, index b) {
  const index low = index(u64(a) * u64(b)), high = __mul64hi(a, b);
  if (high == (low >> 63)) return saturated(low);
  return high < 0 ? lowest_bound : highest_bound;
}

__device__ inline bounds product(bounds x, bounds y) {
  const index p = saturated_product(x.low, y.low), q = saturated_product(x.low, y.high), r = saturated_product(x.high, y.low), s = saturated_product(x.high, y.high);
  return {index_min(index_min(p, q), index_min(r, s)), index_max(index_max(p, q), index_max(r, s))};
}

__device__ inline bounds times(bounds x, index factor) {
  if (factor == 1) return x;
  if (factor == -1) return {-x.high, -x.low};
  const index p = saturated_product(x.low, factor), q = saturated_product(x.high, factor);
  return {index_min(p, q), index_max(p, q)};
}

// shift: log2 of the divisor, or -1
__device__ inline index divided(index x, index divisor, int shift) { return shift >= 0 ? x >> shift : floor_div(x, divisor); }

// ---- tables -------------------------------------------------------------------------------------------------------------------

__device__ inline u64 residue_bit(index value) { return u64(1) << (u64(value) & 63u); }

// Residues modulo 64 of every integer of a range.
__device__ inline u64 residues_of(bounds x) {
  const index count = x.high - x.low + 1;
  if (count >= 64) return ~u64(0);
  const u64 ones = (u64(1) << count) - 1;
  const int turn = int(u64(x.low) & 63u);
  return turn == 0 ? ones : ones << turn | ones >> (64 - turn);
}

__device__ inline void merge(map_cell& into, const map_cell& other) {
  into.low = index_min(into.low, other.low), into.high = index_max(into.high, other.high), into.residues |= other.residues;
}

__device__ inline map_cell range_of_row(const map_table& t, index row, index low, index high) {
  constexpr index leaf_values = 16;
  const i32* values = t.values + row * t.dims[2];
  if (low == high) return {values[low], values[low], residue_bit(values[low])};
  if (t.sorted[row] != 0) {
    const bounds range{values[low], values[high]};
    return {range.low, range.high, residues_of(range)};
  }
  map_cell found{values[low], values[low], residue_bit(values[low])};
  index first = low / leaf_values + 1, last = high / leaf_values;  // leaves [first, last) lie wholly inside
  const index before = first >= last ? high + 1 : first * leaf_values, after = first >= last ? high + 1 : last * leaf_values;
  for (index x = low; x <= high; x = x + 1 == before ? after : x + 1) merge(found, {values[x], values[x], residue_bit(values[x])});
  const map_cell* tree = t.pyramid + row * 2 * t.leaves;
  for (first += t.leaves, last += t.leaves; first < last; first >>= 1, last >>= 1) {
    if (first & 1) merge(found, tree[first++]);
    if (last & 1) merge(found, tree[--last]);
  }
  return found;
}

__device__ inline bounds clamped_into(bounds x, index count) { return {clamp(x.low, 0, count - 1), clamp(x.high, 0, count - 1)}; }

__device__ inline map_cell range_of(const map_table& t, bounds i, bounds j, bounds k) {
  if (t.dims[0] * t.dims[1] * t.dims[2] == 0) return {0, 0, 1};
  i = clamped_into(i, t.dims[0]), j = clamped_into(j, t.dims[1]), k = clamped_into(k, t.dims[2]);
  if ((i.high - i.low + 1) * (j.high - j.low + 1) > 32) return t.whole;
  map_cell found{highest_bound, lowest_bound, 0};
  for (index a = i.low, c = j.low; a <= i.high; c == j.high ? (++a, c = j.low) : ++c) merge(found, range_of_row(t, a * t.dims[1] + c, k.low, k.high));
  return found;
}

// ---- steps --------------------------------------------------------------------------------------------------------------------

// Whether all, none or some of a stretch of integers are in the intervals and the residue class of a leaf.
__device__ inline verdict verdict_of_stretch(const index* words, int parts, bounds range) {
  const index modulus = words[0], start = words[1], count = words[2];
  bool some = false;
  for (int i = 0; i < parts; ++i) {
    const bounds inside{index_max(range.low, words[3 + 2 * i]), index_min(range.high, words[4 + 2 * i])};
    if (inside.low > inside.high) continue;
    const bool whole = inside.low == range.low && inside.high == range.high;
    if (count >= modulus) {
      if (whole) return keeps_all;
      some = true;
      continue;
    }
    const index offset = floor_mod(inside.low - start, modulus), extent = inside.high - inside.low;
    if (whole && offset + extent < count) return keeps_all;
    some = some || offset < count || offset + extent >= modulus;
  }
  return some ? is_undecided : keeps_none;
}

__device__ inline verdict verdict_of_leaf(const map_program& p, const map_step& s, const map_slots& slots) {
  const bounds range = slots.range(s.a);
  const index* words = p.words + s.first;
  const verdict found = verdict_of_stretch(words, s.count, range);
  if (found != is_undecided || s.b < 0 || (slots.residues(s.b) & slots.residues(s.c)) != 0) return found;
  // The two tables hold no common value here: only the difference 0 is ruled out.
  if (s.count == 1 && words[3] == 0 && words[4] == 0) return keeps_none;
  const bool all_but_zero = s.count == 2 && words[4] == -1 && words[5] == 1 && words[3] <= range.low && range.high <= words[6];
  return all_but_zero && words[2] >= words[0] ? keeps_all : found;
}

__device__ inline verdict verdict_of_parts(const map_program& p, const map_step& s, const map_slots& slots, verdict neutral) {
  bool open = false;
  for (int i = 0; i < s.count; ++i) {
    const verdict next = slots.found(int(p.words[s.first + i]));
    if (next == is_undecided) open = true;
    else if (next != neutral) return next;
  }
  return open ? is_undecided : neutral;
}

__device__ inline verdict verdict_of_choice(const map_step& s, const map_slots& slots) {
  const verdict condition = slots.found(s.a);
  if (condition == keeps_all) return slots.found(s.b);
  if (condition == keeps_none) return slots.found(s.c);
  return slots.found(s.b) == slots.found(s.c) ? slots.found(s.b) : is_undecided;
}

__device__ inline bounds bounds_of_step(const map_program& p, const map_step& s, const map_slots& slots, const map_box& box) {
  constexpr bounds everything{lowest_bound, highest_bound};
  switch (s.code) {
    case step_code::symbol: return box.of[s.imm];
    case step_code::constant: return {s.imm, s.imm};
    case step_code::sum: {
      bounds total{s.imm, s.imm};
      for (int i = 0; i < s.count; ++i) {
        const bounds x = times(slots.range(int(p.words[s.first + 2 * i])), p.words[s.first + 2 * i + 1]);
        total = {saturated(total.low + x.low), saturated(total.high + x.high)};
      }
      return total;
    }
    case step_code::select: {
      const verdict condition = slots.found(s.a);
      if (condition == keeps_all) return slots.range(s.b);
      const bounds otherwise = slots.range(s.c);
      if (condition == keeps_none) return otherwise;
      const bounds x = slots.range(s.b);
      return {index_min(x.low, otherwise.low), index_max(x.high, otherwise.high)};
    }
    default: break;
  }
  const bounds x = s.a < 0 ? everything : slots.range(s.a), y = s.b < 0 ? x : slots.range(s.b);
  switch (s.code) {
    case step_code::quotient: return {divided(x.low, s.imm, s.shift), divided(x.high, s.imm, s.shift)};
    case step_code::remainder: {
      const index whole = divided(x.low, s.imm, s.shift);
      if (whole != divided(x.high, s.imm, s.shift)) return {0, s.imm - 1};
      return {x.low - whole * s.imm, x.high - whole * s.imm};
    }
    case step_code::minimum: return {index_min(x.low, y.low), index_min(x.high, y.high)};
    case step_code::maximum: return {index_max(x.low, y.low), index_max(x.high, y.high)};
    case step_code::absolute: return x.low >= 0 ? x : x.high <= 0 ? bounds{-x.high, -x.low} : bounds{0, index_max(-x.low, x.high)};
    case step_code::addition: return {saturated(x.low + y.low), saturated(x.high + y.high)};
    case step_code::difference: return {saturated(x.low - y.high), saturated(x.high - y.low)};
    case step_code::negation: return {-x.high, -x.low};
    case step_code::multiply: return product(x, y);
    case step_code::left_shift: return y.low == y.high ? times(x, index(1) << y.low) : everything;
    case step_code::right_shift: return y.low == y.high ? bounds{x.low >> y.low, x.high >> y.low} : everything;
    default: return everything;
  }
}

/// The mask's verdict on a box: sound, and the one that box_judge::judge gives on the host.
__device__ inline verdict judge(const map_program& p, const map_slots& slots, const map_box& box) {
  const int steps = p.header->steps;
  for (int i = 0; i < steps; ++i) {
    const map_step& s = p.steps[i];
    switch (s.code) {
      case step_code::leaf: slots.put(i, verdict_of_leaf(p, s, slots)); break;
      case step_code::all: slots.put(i, verdict_of_parts(p, s, slots, keeps_all)); break;
      case step_code::any: slots.put(i, verdict_of_parts(p, s, slots, keeps_none)); break;
      case step_code::choice: slots.put(i, verdict_of_choice(s, slots)); break;
      case step_code::known: slots.put(i, s.imm != 0 ? keeps_all : keeps_none); break;
      case step_code::opaque: slots.put(i, is_undecided); break;
      case step_code::gather: {
        // Indices of fewer than three dimensions are the last ones.
        bounds x{0, 0}, y{0, 0}, z = slots.range(s.a);
        if (s.b >= 0) y = z, z = slots.range(s.b);
        if (s.c >= 0) x = y, y = z, z = slots.range(s.c);
        const map_cell found = range_of(p.tables[s.imm], x, y, z);
        slots.put(i, bounds{found.low, found.high});
        slots.put_residues(i, found.residues);
        break;
      }
      default: slots.put(i, bounds_of_step(p, s, slots, box)); break;
    }
  }
  return slots.found(steps - 1);
}

/// Where a box is cut in two: the second part begins at `at` of the axis.
struct map_cut {
  int axis;  // 2: q, 3: kv, 0: a single pair, which is not cut
  index at;
  __device__ map_box part(const map_box& box, bool second) const {
    map_box out = box;
    if (second) (axis == 2 ? out.of[2] : out.of[3]).low = at;
    else (axis == 2 ? out.of[2] : out.of[3]).high = at - 1;
    return out;
  }
};

/// The place at which box_judge cuts a box: where a part of the mask changes, else in the middle.
__device__ inline map_cut cut_of(const map_program& p, const bounds q, const bounds kv) {
  const map_header& h = *p.header;
  for (int a = 0; a < 2; ++a) {
    const bounds range = a == 0 ? q : kv;
    for (int i = 0; i < h.threshold_count[a]; ++i) {
      const index at = p.words[h.thresholds[a] + i];
      if (range.low < at && at <= range.high) return {2 + a, at};
    }
  }
  const index rows = q.high - q.low, columns = kv.high - kv.low;
  if (rows == 0 && columns == 0) return {0, 0};
  for (int a = 0; a < 2; ++a) {
    const bounds range = a == 0 ? q : kv;
    for (int i = 0; i < h.grain_count[a]; ++i) {
      const index* grain = p.words + h.grains[a] + 3 * i;
      const index divisor = grain[0], offset = grain[1], shift = grain[2];
      const index low = divided(range.low + offset, divisor, int(shift)), high = divided(range.high + offset, divisor, int(shift));
      if (low != high) return {2 + a, (low + (high - low + 1) / 2) * divisor - offset};
)cuh"
     R"cuh(    }
  }
  const bounds range = rows >= columns ? q : kv;
  return {rows >= columns ? 2 : 3, range.low + (range.high - range.low + 1) / 2};
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
     R"cuh(// core.cuh: storage types, conversions, arithmetic on reals. Every other device source starts from it.
//
// No host or vendor header is included: a header costs more compile time than all the kernels here together.
#pragma once
#include "integers.cuh"

namespace samite {

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
__device__ inline void put(u8& to, double x) { to = u8(x > 0 ? (x < 255 ? x : 255) : 0); }  // 0 for NaN, as the conversions to i32 and i64 give
__device__ inline void put(u8& to, float x) { put(to, double(x)); }

// A real rounded to what the storage type can hold.
template <class T, class Real> __device__ inline Real rounded_to(Real x) { return arithmetic<Real>::load(storage<T>::from(x)); }

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
// Who tells a barrier that a tile has been read, how many that are of a warpgroup: a thread for all of it, after they have met or for what came before a product, which all
// take part in; or one of each warp. racecheck believes only the threads that arrive: with SAMITE_EVERY_THREAD_ARRIVES all do.
#ifdef SAMITE_EVERY_THREAD_ARRIVES
constexpr u32 group_arrivals = 128, warp_arrivals = 128;
__device__ inline void group_arrive(u32 barrier) { barrier_arrive(barrier); }
__device__ inline void warp_arrive(u32 barrier) { barrier_arrive(barrier); }
#else
constexpr u32 group_arrivals = 1, warp_arrivals = 4;
__device__ inline void group_arrive(u32 barrier) {
  if (threadIdx.x % 128 == 0) barrier_arrive(barrier);
}
__device__ inline void warp_arrive(u32 barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}
#endif
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

__device__ inline float2 load_shared_pair(u32 address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
// Four 8x8 blocks of 16-bit elements: lane 8 i + j has the address of row j of block i, x[i] this lane's two elements of block i: row lane / 4, columns lane % 4 * 2 and
// the next.
__device__ inline void store_blocks(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// Four 8x8 blocks of 16-bit elements, transposed: lane 8 i + j has the address of row j of block i, x[i] this lane's two elements of block i.
__device__ inline void store_transposed(u32 address, const u32* x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
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

// The same of a map whose rows have one more axis, taken whole: heads of a group beside one another in each token's place.
__device__ inline void copy_packed_box(u32 to, const tensor_map& map, u32 barrier, i32 column, i32 row, i32 head, i32 batch) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %7, %4, %5, %6}], [%2];" ::"r"(to), "l"(&map),
               "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(0)
               : "memory");
}

// The way back, which clips what is outside of the map. One thread, after copies_follow of those that wrote the box; it waits until a box has been read.
__device__ inline void store_packed_box(const tensor_map& map, u32 from, i32 column, i32 row, i32 head, i32 batch) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %6, %3, %4, %5}], [%1];" ::"l"(&map), "r"(from), "r"(column), "r"(row), "r"(head),
               "r"(batch), "r"(0)
               : "memory");
}
__device__ inline void boxes_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void boxes_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// `bytes` at a multiple of 16 bytes, as many as 16 divides. One thread.
__device__ inline void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ inline void add_global(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// What this thread read and wrote in shared memory comes before the copies that a barrier lets follow.
__device__ inline void copies_follow() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers of a warpgroup ----------------------------------------------------------------------------------------------------

template <int Count> __device__ inline void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count)); }
template <int Count> __device__ inline void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count)); }
__device__ inline void block_sync(int name, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory"); }
__device__ inline void warpgroup_sync(int name) { block_sync(name, 128); }

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

// c[64, 8 N'] (+)= a b for 16 steps of k. In `product`, a and b are descriptors and both are K-major; in `product_by_columns` b has the
// steps of k as rows; so it has in `product_columns`, where a are registers. `product_columns_of` takes the first 8 or 2 steps of k that begin at b, as a group
// that is begun and committed. It is one text, since the assembler lets accumulators in flight meet at the end of branches only where no instruction
// copies them, and the compiler before it would.
template <class T, int N> struct warpgroup_product;

// Registers by number, and the accumulators that they are.
#define SAMITE_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SAMITE_REGISTERS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SAMITE_REGISTERS_64 SAMITE_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SAMITE_REGISTERS_96 SAMITE_REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SAMITE_REGISTERS_128 SAMITE_REGISTERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SAMITE_SUMS_8(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define SAMITE_SUMS_16 SAMITE_SUMS_8(0), SAMITE_SUMS_8(8)
#define SAMITE_SUMS_32 SAMITE_SUMS_8(0), SAMITE_SUMS_8(8), SAMITE_SUMS_8(16), SAMITE_SUMS_8(24)
#define SAMITE_SUMS_64 SAMITE_SUMS_32, SAMITE_SUMS_8(32), SAMITE_SUMS_8(40), SAMITE_SUMS_8(48), SAMITE_SUMS_8(56)
#define SAMITE_SUMS_96 SAMITE_SUMS_64, SAMITE_SUMS_8(64), SAMITE_SUMS_8(72), SAMITE_SUMS_8(80), SAMITE_SUMS_8(88)
#define SAMITE_SUMS_128 SAMITE_SUMS_96, SAMITE_SUMS_8(96), SAMITE_SUMS_8(104), SAMITE_SUMS_8(112), SAMITE_SUMS_8(120)

// The numbers behind the accumulators are those of the other operands.
#define SAMITE_PRODUCT(T, N, COUNT, A, B, ADD) SAMITE_PRODUCT_AS(product, "0", T, N, COUNT, A, B, ADD)
#define SAMITE_PRODUCT_BY_COLUMNS(T, N, COUNT, A, B, ADD) SAMITE_PRODUCT_AS(product_by_columns, "1", T, N, COUNT, A, B, ADD)
#define SAMITE_PRODUCT_AS(NAME, ROWS, T, N, COUNT, A, B, ADD)                                                     \
  static __device__ inline void NAME(float (&c)[COUNT], u64 a, u64 b, int add) {                                  \
    asm volatile(                                                                                                 \
        "{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                         \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " "                                           \
        "{" SAMITE_REGISTERS_##COUNT "}, "                                                                        \
        A ", " B ", p, 1, 1, 0, " ROWS ";\n}"                                                                     \
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
#define SAMITE_STEP(T, N, COUNT, A, B, AT)                                                                        \
  "add.s64 d, " B ", " #AT ";\n"                                                                                  \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" SAMITE_REGISTERS_##COUNT "}, {" A "}, d, 1, 1, 1, 1;\n"
#define SAMITE_PRODUCT_COLUMNS_OF(T, N, COUNT, A0, A1, A2, A3, A4, A5, A6, A7, B, STEPS)                          \
  static __device__ inline void product_columns_of(float (&c)[COUNT], const u32 (&a)[32], u64 b, int steps) {     \
    asm volatile(                                                                                                 \
        "{\n.reg .pred p;\n.reg .b64 d;\n"                                                                        \
        "setp.gt.s32 p, " STEPS ", 2;\n@!p bra two_%=;\nwgmma.fence.sync.aligned;\n"                             \
        SAMITE_STEP(T, N, COUNT, A0, B, 0) SAMITE_STEP(T, N, COUNT, A1, B, 128)                                   \
        SAMITE_STEP(T, N, COUNT, A2, B, 256) SAMITE_STEP(T, N, COUNT, A3, B, 384)                                 \
        SAMITE_STEP(T, N, COUNT, A4, B, 512) SAMITE_STEP(T, N, COUNT, A5, B, 640)                                 \
        SAMITE_STEP(T, N, COUNT, A6, B, 768) SAMITE_STEP(T, N, COUNT, A7, B, 896)                                 \
        "wgmma.commit_group.sync.aligned;\nbra.uni done_%=;\n"                                                    \
        "two_%=:\nwgmma.fence.sync.aligned;\n"                                                                    \
        SAMITE_STEP(T, N, COUNT, A0, B, 0) SAMITE_STEP(T, N, COUNT, A1, B, 128)                                   \
        "wgmma.commit_group.sync.aligned;\ndone_%=:\n}"                                                           \
)cuh"
     R"cuh(        : SAMITE_SUMS_##COUNT                                                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(a[8]), "r"(a[9]), "r"(a[10]),      \
          "r"(a[11]), "r"(a[12]), "r"(a[13]), "r"(a[14]), "r"(a[15]), "r"(a[16]), "r"(a[17]), "r"(a[18]), "r"(a[19]), "r"(a[20]),       \
          "r"(a[21]), "r"(a[22]), "r"(a[23]), "r"(a[24]), "r"(a[25]), "r"(a[26]), "r"(a[27]), "r"(a[28]), "r"(a[29]), "r"(a[30]),       \
          "r"(a[31]), "l"(b), "r"(steps)                                                                          \
        : "memory");                                                                                              \
  }
#define SAMITE_PRODUCTS(T)                                                                                        \
  template <> struct warpgroup_product<T, 32> {                                                                   \
    SAMITE_PRODUCT(T, 32, 16, "%16", "%17", "%18")                                                                \
  };                                                                                                              \
  template <> struct warpgroup_product<T, 64> {                                                                   \
    SAMITE_PRODUCT(T, 64, 32, "%32", "%33", "%34")                                                                \
    SAMITE_PRODUCT_BY_COLUMNS(T, 64, 32, "%32", "%33", "%34")                                                     \
    SAMITE_PRODUCT_COLUMNS(T, 64, 32, "%32, %33, %34, %35", "%36")                                                \
    SAMITE_PRODUCT_COLUMNS_OF(T, 64, 32, "%32, %33, %34, %35", "%36, %37, %38, %39", "%40, %41, %42, %43", "%44, %45, %46, %47",         \
                              "%48, %49, %50, %51", "%52, %53, %54, %55", "%56, %57, %58, %59", "%60, %61, %62, %63", "%64", "%65")      \
  };                                                                                                              \
  template <> struct warpgroup_product<T, 128> {                                                                  \
    SAMITE_PRODUCT(T, 128, 64, "%64", "%65", "%66")                                                               \
    SAMITE_PRODUCT_COLUMNS(T, 128, 64, "%64, %65, %66, %67", "%68")                                               \
    SAMITE_PRODUCT_COLUMNS_OF(T, 128, 64, "%64, %65, %66, %67", "%68, %69, %70, %71", "%72, %73, %74, %75", "%76, %77, %78, %79",        \
                              "%80, %81, %82, %83", "%84, %85, %86, %87", "%88, %89, %90, %91", "%92, %93, %94, %95", "%96", "%97")      \
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
    {"integers.cuh",
     R"cuh(// integers.cuh: integer types and arithmetic on indices. Compiles for the host too, with __device__ defined away.
#pragma once

namespace samite {

using index = long long;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using u8 = unsigned char;
using i32 = int;
using i64 = long long;

// Quotients round towards minus infinity, divisors are positive.
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

// 2^x, with 2^-inf = 0; relative error 2^-22.
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
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
// A operand of a tile stored transposed: its rows are k (first_k to +15), its columns the operand's rows.
template <int Columns, class T> __device__ inline void load_a_transposed(u32 (&a)[4], const T* tile, int first_k, int first_row) {
  const int lane = threadIdx.x % 32, matrix = lane / 8;
  load_matrices_transposed(a, shared_address(tile + (first_k + matrix / 2 * 8 + lane % 8) * padded<Columns> + first_row + matrix % 2 * 8));
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

// The same for `Parts` times 16 rows from first_row on, which share what is read of b_tile.
template <int Columns, int N, int Parts, class T>
__device__ inline void multiply_rows(float (&s)[Parts][N][4], const T* a_tile, int first_row, const T* b_tile) {
#pragma unroll
  for (int k = 0; k < Columns; k += 16) {
    u32 a[Parts][4];
#pragma unroll
    for (int r = 0; r < Parts; ++r) load_a<Columns>(a[r], a_tile, first_row + 16 * r, k);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      u32 b[4];
      load_b<Columns>(b, b_tile, n * 8, k);
#pragma unroll
      for (int r = 0; r < Parts; ++r) multiply_add<T>(s[r][n], a[r], b[0], b[1]), multiply_add<T>(s[r][n + 1], a[r], b[2], b[3]);
    }
  }
}

// out[16 rows of each part][8 * M] += p[..][8 * N], packed in pairs of T, * tile[8 * N rows][8 * M columns].
template <int Columns, int N, int M, int Parts, class T>
__device__ inline void multiply_columns(float (&out)[Parts][M][4], const u32 (&p)[Parts][N][2], const T* tile) {
#pragma unroll
  for (int n = 0; n < N; n += 2)
#pragma unroll
    for (int m = 0; m < M; m += 2) {
      u32 b[4];
      load_b_transposed<Columns>(b, tile, n * 8, m * 8);
#pragma unroll
      for (int r = 0; r < Parts; ++r) {
        const u32 a[4] = {p[r][n][0], p[r][n][1], p[r][n + 1][0], p[r][n + 1][1]};
        multiply_add<T>(out[r][m], a, b[0], b[1]), multiply_add<T>(out[r][m + 1], a, b[2], b[3]);
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
  static constexpr bool identity = true, begins = false, bounded = false, fills_registers = false;
  static constexpr int held = 0;
};

}  // namespace samite
)cuh"},
    {"score_tile.cuh",
     R"cuh(// score_tile.cuh: score functions on the accumulators of a warpgroup (hopper.cuh), whose rows are queries, or keys in the kernels that
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
    {"tile_map.cuh",
     R"cuh(// tile_map.cuh: the tile lists of a mask, made on the device: the lists of include/samite/mask/tile_map.hpp, bit for bit, for numbers and
// tables that may change between replays of a captured graph. The host reads nothing back.
//
// classify_tiles  a block a list (a row of tiles, or a column). Stretches of tiles are judged first, then the tiles of the undecided ones,
//                 a thread each; a warp cuts what stays undecided. Leaves the list's runs in a pool, in no order between lists.
// pack_tiles      a block a list: copies its runs to where the host would have them, and names the undecided tiles in order.
// The kernel that fills the bit tiles is emitted for the mask (emit/tile_map.hpp); it walks the undecided tiles in strides.
// Both run in blocks of map_threads, grids for the capacity of both directions, dynamic shared memory as map_layout says. Lists beyond the
// capacity leave every list empty and say so in the totals.
#pragma once
#include "attention.cuh"
#include "attention_bits.cuh"
#include "box_judge.cuh"

namespace samite {

constexpr int map_threads = 128, map_warps = map_threads / 32;

struct list_counts {
  i32 runs, undecided, place, padding;  // place: of the first run in the pool
};

/// What the kernels count with; all 0 before the first launch and between launches.
struct map_counters {
  i32 runs[2], undecided, done;
  i32 groups[2][2][1024];  // by direction: runs and undecided tiles of 128 lists each
};

/// What the last map has.
struct map_totals {
  i32 runs[2], undecided, overflow;  // overflow 1: runs or undecided tiles are more than the capacity, all lists are empty
  i32 needed_runs[2], needed_undecided, padding;
  index batch_lists[2], head_lists[2];  // lists from one batch or head to the next; 0 where they share
};

struct map_parameters {
  const u64* block;  // map_header and what follows it
  i32 block_words;   // at most
  i32 most_tiles, most_steps, most_budget;
  i32 lists[2], run_limit[2], undecided_limit;  // capacities
  i32 padding;
  tile_run* pool[2];
  list_counts* counts[2];
  tile_run* runs[2];
  i64* begin[2];
  undecided_tile* undecided;
  map_counters* counters;
  map_totals* totals;
};

// Boxes inside a tile, from its first row and key on.
struct small_box {
  i32 q_low, q_high, kv_low, kv_high;
};

// Where each part lies in dynamic shared memory, in bytes; most_tiles is even.
struct map_layout {
  int slots, queue, open, kinds, bytes;
  __device__ explicit map_layout(const map_parameters& p) {
    slots = p.block_words * 8;
    queue = slots + p.most_steps * 3 * 8 * map_threads;
    open = queue + map_warps * p.most_budget * int(sizeof(small_box));
    kinds = open + p.most_tiles * 2;
    bytes = kinds + p.most_tiles;
  }
};

// ---- classification ------------------------------------------------------------------------------------------------------------

// The verdict that box_judge::judge_finely gives on an undecided tile. Where all its pairs agree, the host's search ends decided if the
// boxes that it cuts are at most budget - 4, in whatever order they are looked at; where they don't, any search ends undecided. So boxes
// are looked at 32 at once, level by level, after 32 single pairs that settle most tiles. All threads of the warp. (Going five cuts down at
// once took longer: 99 instead of 64 us for the DFlash mask with documents at 8192 x 16384, H200, 2026-11-30.)
__device__ inline verdict search_tile(const map_program& p, const map_slots& slots, const map_box& tile, small_box* queue) {
  const int lane = threadIdx.x % 32, limit = p.header->budget - 4;
  const bounds q = tile.of[2], kv = tile.of[3];
  const index rows = q.high - q.low + 1, columns = kv.high - kv.low + 1;
  bool kept = false, hidden = false;
  const auto put = [&](int at, const map_box& x) {
    queue[at] = {i32(x.of[2].low - q.low), i32(x.of[2].high - q.low), i32(x.of[3].low - kv.low), i32(x.of[3].high - kv.low)};
  };
  map_box box = tile;
  const index row = q.low + (lane < 4 ? (lane & 1) * (rows - 1) : (lane * 2654435769u >> 8) % rows);
  const index column = kv.low + (lane < 4 ? (lane >> 1) * (columns - 1) : (lane * 2246822519u >> 8) % columns);
  box.of[2] = {row, row}, box.of[3] = {column, column};
  int head = 0, tail = 0;
  for (bool is_sample = true; is_sample || head < tail; is_sample = false) {
    const bool active = is_sample || head + lane < tail;
    if (!is_sample) {
      __syncwarp();  // what was put is seen
      const small_box mine = queue[active ? head + lane : head];
      head = head + 32 < tail ? head + 32 : tail;
      box.of[2] = {q.low + mine.q_low, q.low + mine.q_high}, box.of[3] = {kv.low + mine.kv_low, kv.low + mine.kv_high};
    }
    const verdict found = judge(p, slots, box);
    kept = kept || __any_sync(0xffffffffu, active && found == keeps_all);
    hidden = hidden || __any_sync(0xffffffffu, active && found == keeps_none);
    if (kept && hidden) return is_undecided;
    // After the samples the tile itself is cut, by the first lane; then what was found undecided.
    if (is_sample) box = tile;
    const bool splits = is_sample ? lane == 0 : active && found == is_undecided;
    const map_cut place = cut_of(p, box.of[2], box.of[3]);
    const u32 splitting = __ballot_sync(0xffffffffu, splits);
    if (__any_sync(0xffffffffu, splits && place.axis == 0) || tail + 2 * __popc(splitting) > limit) return is_undecided;
    const int at = tail + 2 * __popc(splitting & ((1u << lane) - 1));
    if (splits) put(at, place.part(box, false)), put(at + 1, place.part(box, true));
    tail += 2 * __popc(splitting);
  }
  return kept ? keeps_all : keeps_none;
}

// Tiles [first, end) of a list of direction d as a box.
__device__ inline map_box stretch_of(const map_header& h, int d, int list, index first, index end) {
  const int maps_list = list / h.tiles[d], tile = list % h.tiles[d], batch = maps_list / h.heads, head = maps_list % h.heads, other = 1 - d;
  const index length[2] = {h.queries, h.keys};
  map_box box;
  box.of[0] = h.batches > 1 ? bounds{batch, batch} : bounds{0, h.last_batch};
  box.of[1] = h.heads > 1 ? bounds{head, head} : bounds{0, h.last_head};
  box.of[2 + d] = {index(tile) * h.tile[d], index_min((index(tile) + 1) * h.tile[d], length[d]) - 1};
  box.of[2 + other] = {first * h.tile[other], index_min(end * h.tile[other], length[other]) - 1};
  return box;
}

// How many of a block's flags are set, and how many before this thread. All threads of the block.
struct flag_ranks {
  i32 total, before;
  __device__ flag_ranks(bool flag, i32 (&sums)[map_warps]) : total(0), before(0) {
    const u32 ballot = __ballot_sync(0xffffffffu, flag);
    __syncthreads();  // the sums before have been read
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = __popc(ballot);
    __syncthreads();
    for (int w = 0; w < map_warps; ++w) {
      if (w < int(threadIdx.x) / 32) before += sums[w];
      total += sums[w];
    }
    before += __popc(ballot & ((1u << threadIdx.x % 32) - 1));
  }
};

__device__ inline void classify_tiles(const map_parameters& p) {
  extern __shared__ u64 shared[];
  __shared__ i32 sums[map_warps], pool_place, next;
  const map_layout layout(p);
  const int d = int(blockIdx.x) < p.lists[0] ? 0 : 1, list = int(blockIdx.x) - d * p.lists[0];
  const map_header& there = *reinterpret_cast<const map_header*>(p.block);
  const int maps = there.batches * there.heads, other = 1 - d;
  if (list >= maps * there.tiles[d]) return;

  // The steps, once for the block.
  const int words = int((sizeof(map_header) + there.tables * sizeof(map_table) + there.steps * sizeof(map_step)) / 8) + there.words;
  for (int i = threadIdx.x; i < words; i += map_threads) shared[i] = p.block[i];
  if (threadIdx.x == 0) next = 0;
  __syncthreads();
  const map_program program(shared);
  const map_header& h = *program.header;
  char* bytes = reinterpret_cast<char*>(shared);
  const map_slots slots{reinterpret_cast<index*>(bytes + layout.slots) + threadIdx.x, map_threads};
  small_box* queue = reinterpret_cast<small_box*>(bytes + layout.queue) + threadIdx.x / 32 * p.most_budget;
  u16* open = reinterpret_cast<u16*>(bytes + layout.open);
  u8* kinds = reinterpret_cast<u8*>(bytes + layout.kinds);
  const int tiles = h.tiles[other];

  // Stretches of tiles, a thread each; those of decided ones are known. Then the tiles of the others.
  const int stretch = (tiles + map_threads - 1) / map_threads;
  i32 open_count = tiles == 0 ? 0 : (tiles + stretch - 1) / stretch;
  for (int length = stretch; length > 0; length = length > 1 ? 1 : 0) {
    const bool is_first = length == stretch;
    const int count = is_first ? open_count : open_count * stretch;
    for (int i = threadIdx.x; i < count; i += map_threads) {
      const int first = is_first ? i * length : open[i / stretch] * stretch + i % stretch, end = first + length < tiles ? first + length : tiles;
      if (first >= tiles) continue;
      const u8 found = u8(judge(program, slots, stretch_of(h, d, list, first, end)));
      for (int t = first; t < end; ++t) kinds[t] = found;
    }
    __syncthreads();
    open_count = 0;
    for (int first = 0; first < tiles; first += map_threads * length) {
      const int t = first + int(threadIdx.x) * length;
      const bool is_open = t < tiles && kinds[t] == is_undecided;
      const flag_ranks ranks(is_open, sums);
      if (is_open) open[open_count + ranks.before] = u16(t / length);
      open_count += ranks.total;
    }
    __syncthreads();
  }
  // What is undecided, a warp each; the next one goes to the warp that is free, since a search takes one step or many.
  for (;;) {
    i32 i = 0;
    if (threadIdx.x % 32 == 0) i = atomicAdd(&next, 1);
    i = __shfl_sync(0xffffffffu, i, 0);
    if (i >= open_count) break;
    const int tile = open[i];
    const verdict found = search_tile(program, slots, stretch_of(h, d, list, tile, tile + 1), queue);
    if (threadIdx.x % 32 == 0) kinds[tile] = u8(found);
  }
  __syncthreads();

  // Runs: counted, given a place in the pool, written.
  const auto starts = [&](int t) { return t < tiles && kinds[t] != keeps_none && (t == 0 || kinds[t - 1] != kinds[t]); };
  const auto ends = [&](int t) { return t < tiles && kinds[t] != keeps_none && (t + 1 == tiles || kinds[t + 1] != kinds[t]); };
  i32 runs = 0, undecided = 0;
  for (int first = 0; first < tiles; first += map_threads) {
    const int t = first + int(threadIdx.x);
    runs += flag_ranks(starts(t), sums).total;
    undecided += flag_ranks(t < tiles && kinds[t] == is_undecided, sums).total;
  }
  if (threadIdx.x == 0) {
    pool_place = atomicAdd(&p.counters->runs[d], runs);
    if (d == 0) atomicAdd(&p.counters->undecided, undecided);
    atomicAdd(&p.counters->groups[d][0][list / 128], runs);
    atomicAdd(&p.counters->groups[d][1][list / 128], undecided);
    p.counts[d][list] = {runs, undecided, pool_place, 0};
  }
  __syncthreads();
  if (pool_place > p.run_limit[d] - runs) return;
  tile_run* out = p.pool[d] + pool_place;
  i32 run = 0, bits = 0;
  for (int first = 0; first < tiles; first += map_threads) {
    const int t = first + int(threadIdx.x);
    const flag_ranks start(starts(t), sums), bit(t < tiles && kinds[t] == is_undecided, sums);
    const i32 before = run + start.before;
    if (starts(t)) out[before].first = t, out[before].full = kinds[t] == keeps_all, out[before].bits = bits + bit.before;
    if (ends(t)) out[starts(t) ? before : before - 1].last = t + 1;
    run += start.total, bits += bit.total;
  }
}

// ---- packing ---------------------------------------------------------------------------------------------------------------------

__device__ inline i32 block_total(i32 x, i32 (&sums)[map_warps]) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  __syncthreads();  // the sums before have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int w = 0; w < map_warps; ++w) x += sums[w];
  return x;
}

__device__ inline void pack_list(const map_parameters& p, const map_header& h, int d, int list, bool overflow) {
  __shared__ i32 sums[map_warps];
  const int lists = h.batches * h.heads * h.tiles[d];
  if (threadIdx.x == 0 && list == 0 && lists == 0) p.begin[d][0] = 0;
  if (list >= lists) return;
  // What stands before this list: whole groups of lists, then the lists of its own.
  i32 runs_before = 0, bits_before = 0;
  for (int g = threadIdx.x; g < list / 128; g += map_threads) runs_before += p.counters->groups[d][0][g], bits_before += p.counters->groups[d][1][g];
  const int in_group = list / 128 * 128 + int(threadIdx.x);
  if (in_group < list) runs_before += p.counts[d][in_group].runs, bits_before += p.counts[d][in_group].undecided;
  runs_before = block_total(runs_before, sums), bits_before = block_total(bits_before, sums);
  const list_counts mine = p.counts[d][list];
  if (threadIdx.x == 0) {
    p.begin[d][list] = overflow ? 0 : runs_before;
    if (list + 1 == lists) p.begin[d][lists] = overflow ? 0 : runs_before + mine.runs;
  }
  if (overflow) return;
  const int map = list / h.tiles[d], batch = map / h.heads, head = map % h.heads;
  for (int i = threadIdx.x; i < mine.runs; i += map_threads) {
    tile_run run = p.pool[d][mine.place + i];
    run.bits = run.full ? -1 : bits_before + run.bits;
    p.runs[d][runs_before + i] = run;
    if (d != 0 || run.full || p.undecided == nullptr) continue;
    for (i32 t = run.first; t < run.last; ++t) p.undecided[run.bits + t - run.first] = {batch, head, list % h.tiles[0], t};
  }
}

__device__ inline void pack_tiles(const map_parameters& p) {
  __shared__ bool is_last;
  const int d = int(blockIdx.x) < p.lists[0] ? 0 : 1, list = int(blockIdx.x) - d * p.lists[0];
  const map_header& h = *reinterpret_cast<const map_header*>(p.block);
  map_counters& c = *p.counters;
  const bool overflow = c.runs[0] > p.run_limit[0] || c.runs[1] > p.run_limit[1] || (p.undecided != nullptr && c.undecided > p.undecided_limit);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    map_totals& t = *p.totals;
    for (int i = 0; i < 2; ++i) {
      t.runs[i] = overflow ? 0 : c.runs[i], t.needed_runs[i] = c.runs[i];
      t.batch_lists[i] = h.batches > 1 ? index(h.heads) * h.tiles[i] : 0, t.head_lists[i] = h.heads > 1 ? h.tiles[i] : 0;
    }
    t.undecided = overflow ? 0 : c.undecided, t.needed_undecided = c.undecided, t.overflow = overflow;
  }
  pack_list(p, h, d, list, overflow);
  // The last block to end clears the counters for the next launch.
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&c.done, 1) == int(gridDim.x) - 1;
  __syncthreads();
  if (!is_last) return;
  i32* words = reinterpret_cast<i32*>(&c);
  for (int i = threadIdx.x; i < int(sizeof(map_counters) / 4); i += map_threads) words[i] = 0;
}

// ---- bit tiles ---------------------------------------------------------------------------------------------------------------------

)cuh"
     R"cuh(// Bits of every undecided tile; any grid of blocks of 2 * Rows threads. `mask` is in device memory, because its numbers may change.
template <int Rows, int Keys, class Mask>
__device__ inline void fill_map_bits(const map_parameters& p, const Mask* mask, uint2* bits) {
  static_assert(sizeof(Mask) % 8 == 0, "copied in words");
  __shared__ u64 words[sizeof(Mask) / 8];
  for (int i = threadIdx.x; i < int(sizeof(Mask) / 8); i += 2 * Rows) words[i] = reinterpret_cast<const u64*>(mask)[i];
  __syncthreads();
  const Mask& here = *reinterpret_cast<const Mask*>(words);
  const map_header& h = *reinterpret_cast<const map_header*>(p.block);
  for (int t = blockIdx.x; t < p.totals->undecided; t += gridDim.x)
    bits[index(t) * (2 * Rows) + threadIdx.x] = bits_of_tile<Rows, Keys, false>(p.undecided[t], h.queries, h.keys, here);
}

}  // namespace samite
)cuh"},
};

}  // namespace samite::detail

