// attention_sm90_gradient.cuh: gradients of attention of bf16 and f16 tensors on sm_90a, heads of at most 256 channels: what their kernels
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
