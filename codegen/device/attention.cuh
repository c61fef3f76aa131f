// attention.cuh: what the attention kernels share: tensors, tile lists, loads of tiles, and the pass that prepares backward.
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
