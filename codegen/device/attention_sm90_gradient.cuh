// attention_sm90_gradient.cuh: gradients of attention of bf16 and f16 tensors on sm_90a, heads of at most 256 channels.
//
//   prepare   row_lse and row_delta, padded to whole tiles
//   dK, dV    a block of 128 keys of one key head walks the query tiles of its list, over the query heads of the group. One warp loads; two
//             warpgroups own 64 keys each and hold S^T, dP^T, dK and dV in registers: P^T and dS^T are register operands as they are.
//   dQ        a block of 128 queries of one head walks the key tiles of its list: S and dP are computed anew. No atomics: every bit repeats.
//   fused     the dK, dV kernel also multiplies dS by K and adds it to an fp32 dQ, in whatever order blocks get there; a pass over dQ ends it.
//             Fewer products (5 for 7) but more traffic: for long lists.
// Which pairs are kept is data, as in attention_sm90.cuh; the key-major kernels read bit tiles of S^T.
// source  Dao 2023, arXiv:2307.08691, algorithm 2; Shah et al. 2024, arXiv:2407.08608, section 3
#pragma once
#include "attention_sm90.cuh"

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
  tensor_map Q, K, V, d_out;  // boxes of as many rows as the kernel's tiles have
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

// Accumulators of 64 rows go to shared memory in chunks of 64 columns, then in whole rows to global memory. `staged` is the warpgroup's
// part of a [rows][64] chunk, chunks are `chunk` bytes apart.
template <class T, int Columns, int N>
__device__ inline void store_warpgroup_rows(const float (&x)[N], float factor, u32 staged, u32 chunk, int barrier, const attention_tensor& t, T* head, index first_row, index rows, int columns) {
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
    const index r = first_row + row;
    if (r >= rows || unit * 8 >= columns) continue;
    const uint4 bits = load_shared_16(staged + unit / 8 * chunk + row * 128 + ((unit % 8 ^ (row & 7)) << 4));
    if (t.vectors) {
      *reinterpret_cast<uint4*>(head + r * t.row_stride + unit * 8) = bits;
    } else {
      const T* elements = reinterpret_cast<const T*>(&bits);
      for (int e = 0; e < 8 && unit * 8 + e < columns; ++e) head[r * t.row_stride + (unit * 8 + e) * t.column_stride] = elements[e];
    }
  }
}

// ---- dK, dV, and fused dQ -----------------------------------------------------------------------------------------------------

template <class T, int D, int Dv, gradient_of What> __device__ inline void key_gradient_sm90(const sm90_gradient_parameters& a) {
  using shape = sm90_key_gradient_shape<D, Dv, What>;
  constexpr bool fused = What == gradient_of::all, gives_keys = shape::gives_keys, gives_values = shape::gives_values;
  constexpr int queries = shape::queries, keys = shape::keys, columns = queries / 2;  // accumulators of S^T of a thread
  constexpr int key_chunk = keys * 128, query_chunk = queries * 128;
  const attention_parameters& p = a.p;
  extern __shared__ uint4 shared[];
  const u32 Ks = (shared_address(shared) + 1023) & ~1023u, Vs = Ks + shape::key_bytes, Qs = Vs + shape::value_bytes, dOs = Qs + 2 * shape::query_bytes, dSs = dOs + shape::d_out_stages * shape::d_out_bytes;
  const u32 lse_rows = dSs + (fused ? 2 * shape::d_score_bytes : 0), delta_rows = lse_rows + 2 * shape::row_bytes;
  const u32 query_full = delta_rows + 2 * shape::row_bytes, query_empty = query_full + 16, d_out_full = query_full + 32, d_out_empty = query_full + 48;
  const u32 d_score_full = query_full + 64, d_score_empty = query_full + 80, keys_full = query_full + 96;
  const u32 tile_of = query_full + 112;  // [2 stages][row of the sums' tile or -1 for the end, bit tile or -1]

  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 16; i += 8) {
      barrier_init(query_full + i, 1), barrier_init(d_out_full + i, 1), barrier_init(query_empty + i, 2), barrier_init(d_out_empty + i, 2);
      barrier_init(d_score_full + i, 2), barrier_init(d_score_empty + i, 2);
    }
    barrier_init(keys_full, 1);
    barrier_init_visible();
    prefetch(a.Q), prefetch(a.K), prefetch(a.V), prefetch(a.d_out);
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const sm90_block at(a, i32(p.key_heads), i32((p.keys + keys - 1) / keys), i32(p.heads / p.key_heads));

  if (group == 0) {
    give_registers<shape::loader_registers>();
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
          store_shared(tile_of + 8 * stage, i32(first_row / queries), bits == none ? -1 : bits + tile);
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

  take_registers<shape::registers>();
  const int part = group - 1, lane = threadIdx.x % 32;
  const bool first_thread = threadIdx.x % 128 == 0;
  const float scale = float(p.scale) * log2_e;
  const i32 first_key = at.tile * keys + part * 64, row_low = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const bool ragged = first_key + 64 > p.keys;
  const u64 key = operand(Ks + part * 64 * 128, 16), value = operand(Vs + part * 64 * 128, 16);
  float dK[gives_keys ? D / 2 : 1], dV[gives_values ? Dv / 2 : 1], s[columns], ds[gives_keys ? columns : 1];
  u32 P[columns / 2], dS[columns / 2];
  u32 stage = 0, parity = 0, d_out_stage = 0, d_out_parity = 0;
  i32 sums_before = -1;  // the tile of dQ whose product is still to come; at first one of zeros that goes nowhere
#pragma unroll
  for (float& x : dK) x = 0;
#pragma unroll
  for (float& x : dV) x = 0;
  if constexpr (fused) {
    for (int i = threadIdx.x % 128; i < query_chunk / 8; i += 128) store_shared(dSs + shape::d_score_bytes + part * query_chunk + i * 8, 0, 0);
    copies_follow();
    warpgroup_sync(2 + part);
    if (first_thread) barrier_arrive(d_score_full + 8);
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

  for (;;) {
    barrier_wait(query_full + 8 * stage, parity);
    const int2 work = load_shared(tile_of + 8 * stage);
    const i32 sums_tile = work.x, bit_tile = work.y;
    if (sums_tile < 0) break;
    uint2 bits = {~0u, ~0u};  // long before their use
    if (bit_tile >= 0) bits = a.lists.bits[index(bit_tile) * 256 + part * 128 + threadIdx.x % 128];
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
    products_wait<gives_keys ? 1 : 0>();
    pin(s);
    if (bit_tile >= 0 || ragged) {
      if (first_key + row_low >= p.keys) bits.x = 0;
      if (first_key + row_low + 8 >= p.keys) bits.y = 0;
      hide_pairs(s, bits);
    }
    const u32 lse_at = lse_rows + stage * shape::row_bytes + lane % 4 * 8, delta_at = delta_rows + d_out_stage * shape::row_bytes + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < columns; i += 4) {
      const float2 lse = load_shared_pair(lse_at + i * 8);
      s[i] = power_of_2(s[i] * scale - lse.x), s[i + 1] = power_of_2(s[i + 1] * scale - lse.y);
      s[i + 2] = power_of_2(s[i + 2] * scale - lse.x), s[i + 3] = power_of_2(s[i + 3] * scale - lse.y);
    }
    if constexpr (gives_keys) {
      products_wait<0>();
      pin(ds);
      if (!gives_values && first_thread) barrier_arrive(d_out_empty + 8 * d_out_stage);
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
    float dQ[32];
    if constexpr (fused) {
      // dS^T goes to shared memory as dS, [queries][64 keys] chunks.
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
      if (first_thread) barrier_arrive(d_score_full + 8 * stage);
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
      if (first_thread) barrier_arrive(d_score_empty + 8 * (stage ^ 1));
      add_dQ(dQ);
      sums_before = sums_tile;
    }
    if constexpr (gives_values) {
      products_wait<gives_keys ? 1 : 0>();
      if (first_thread) barrier_arrive(d_out_empty + 8 * d_out_stage);
    }
    products_wait<0>();
    pin(dV);
    pin(dK);
    if (first_thread) barrier_arrive(query_empty + 8 * stage);
    stage ^= 1;
    if (stage == 0) parity ^= 1;
    if (shape::d_out_stages == 2) d_out_stage = stage;
    if (shape::d_out_stages == 1 || stage == 0) d_out_parity ^= 1;
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
  if constexpr (gives_keys) store_warpgroup_rows<T, D>(dK, float(p.scale), Ks + part * 64 * 128, key_chunk, 2 + part, p.dK, head_data<T>(p.dK, at.b, at.h), first_key, p.keys, p.head_dim);
  if constexpr (gives_values)
    store_warpgroup_rows<T, Dv>(dV, 1.0f, (gives_keys ? Vs : Ks) + part * 64 * 128, key_chunk, 2 + part, p.dV, head_data<T>(p.dV, at.b, at.h), first_key, p.keys, p.value_dim);
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

// ---- dQ -----------------------------------------------------------------------------------------------------------------------

template <class T, int D, int Dv> __device__ inline void query_gradient_sm90(const sm90_gradient_parameters& a) {
  using shape = sm90_gradient_shape<D, Dv>;
  constexpr int keys = shape::key_step, rows = shape::rows, columns = keys / 2, query_chunk = rows * 128, key_chunk = keys * 128, value_stages = shape::value_stages;
  constexpr int key_bytes = keys * D * 2, value_bytes = keys * Dv * 2;
  const attention_parameters& p = a.p;
  extern __shared__ uint4 shared[];
  const u32 Qs = (shared_address(shared) + 1023) & ~1023u, dOs = Qs + rows * D * 2, Ks = dOs + rows * Dv * 2, Vs = Ks + 2 * key_bytes;
  const u32 key_full = Vs + value_stages * value_bytes, key_empty = key_full + 16, value_full = key_full + 32, value_empty = key_full + 48, queries_full = key_full + 64;
  const u32 tile_of = key_full + 80;  // [2 stages][key tile or -1 for the end, bit tile or -1]

  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 16; i += 8) barrier_init(key_full + i, 1), barrier_init(value_full + i, 1), barrier_init(key_empty + i, 2), barrier_init(value_empty + i, 2);
    barrier_init(queries_full, 1);
    barrier_init_visible();
    prefetch(a.Q), prefetch(a.K), prefetch(a.V), prefetch(a.d_out);
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const sm90_block at(a, i32(p.heads), i32((p.queries + rows - 1) / rows), 1);

  if (group == 0) {
    give_registers<shape::loader_registers>();
    if (threadIdx.x != 0) return;
    barrier_expect(queries_full, rows * (D + Dv) * 2);
#pragma unroll 1
    for (int c = 0; c < D / 64; ++c) copy_box(Qs + c * query_chunk, a.Q, queries_full, c * 64, at.tile * rows, at.h, at.b);
#pragma unroll 1
    for (int c = 0; c < Dv / 64; ++c) copy_box(dOs + c * query_chunk, a.d_out, queries_full, c * 64, at.tile * rows, at.h, at.b);
    const i64* begin = a.lists.begin + at.b * a.lists.batch_lists + at.h * a.lists.head_lists + at.tile;
    const i32 g = at.h / i32(p.heads / p.key_heads);
    u32 loaded = 0;
#pragma unroll 1
    for (i32 run = i32(begin[0]), end = i32(begin[1]); run < end; ++run) {
      const tile_run r = a.lists.runs[run];
      const i32 none = -0x7fffffff, bits = r.bits < 0 ? none : r.bits - r.first;
#pragma unroll 1
      for (i32 tile = r.first; tile < r.last; ++tile, ++loaded) {
        const u32 stage = loaded & 1, parity = (loaded / 2 & 1) ^ 1;
        barrier_wait(key_empty + 8 * stage, parity);
        store_shared(tile_of + 8 * stage, tile, bits == none ? -1 : bits + tile);
        barrier_expect(key_full + 8 * stage, key_bytes);
#pragma unroll 1
        for (int c = 0; c < D / 64; ++c) copy_box(Ks + stage * key_bytes + c * key_chunk, a.K, key_full + 8 * stage, c * 64, tile * keys, g, at.b);
        const u32 value_stage = value_stages == 2 ? stage : 0;
        barrier_wait(value_empty + 8 * value_stage, value_stages == 2 ? parity : (loaded & 1) ^ 1);
        barrier_expect(value_full + 8 * value_stage, value_bytes);
#pragma unroll 1
        for (int c = 0; c < Dv / 64; ++c) copy_box(Vs + value_stage * value_bytes + c * key_chunk, a.V, value_full + 8 * value_stage, c * 64, tile * keys, g, at.b);
      }
    }
    const u32 stage = loaded & 1;
    barrier_wait(key_empty + 8 * stage, (loaded / 2 & 1) ^ 1);
    store_shared(tile_of + 8 * stage, -1, -1);
    barrier_arrive(key_full + 8 * stage);
    return;
  }

  take_registers<shape::registers>();
  const int part = group - 1, lane = threadIdx.x % 32, row_low = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const bool first_thread = threadIdx.x % 128 == 0;
  const float scale = float(p.scale) * log2_e;
  const i32 tail = i32(p.keys % keys), last_tile = i32((p.keys - 1) / keys), first_query = at.tile * rows + part * 64;
  const index first_row = (at.b * p.heads + at.h) * a.row_stride + first_query + row_low;
  float lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) lse[r] = static_cast<const float*>(p.row_lse)[first_row + 8 * r], delta[r] = static_cast<const float*>(p.row_delta)[first_row + 8 * r];
  const u64 query = operand(Qs + part * 64 * 128, 16), d_out = operand(dOs + part * 64 * 128, 16);
  float dQ[D / 2], s[columns], ds[columns];
  u32 dS[columns / 2];
  u32 stage = 0, parity = 0, value_stage = 0, value_parity = 0;
#pragma unroll
  for (int i = 0; i < D / 2; ++i) dQ[i] = 0;
  barrier_wait(queries_full, 0);

  for (;;) {
    barrier_wait(key_full + 8 * stage, parity);
    const int2 work = load_shared(tile_of + 8 * stage);
    const i32 key_tile = work.x, bit_tile = work.y;
    if (key_tile < 0) break;
    uint2 bits = {~0u, ~0u};  // long before their use
    if (bit_tile >= 0) bits = a.lists.bits[index(bit_tile) * 256 + part * 128 + threadIdx.x % 128];
    const u64 key = operand(Ks + stage * key_bytes, 16), value = operand(Vs + value_stage * value_bytes, 16), key_rows = operand(Ks + stage * key_bytes, key_chunk);
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
    if (first_thread) barrier_arrive(value_empty + 8 * value_stage);
#pragma unroll
    for (int i = 0; i < columns; i += 2) dS[i / 2] = storage<T>::pair(s[i] * (ds[i] - delta[i % 4 / 2]), s[i + 1] * (ds[i + 1] - delta[i % 4 / 2]));
    pin(dQ);
    products_begin();
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) warpgroup_product<T, D>::product_columns(dQ, dS + 4 * k, key_rows + k * 2048 / 16);
    products_commit();
    products_wait<0>();
    pin(dQ);
    if (first_thread) barrier_arrive(key_empty + 8 * stage);
    stage ^= 1;
    if (stage == 0) parity ^= 1;
    if (value_stages == 2) value_stage = stage;
    if (value_stages == 1 || stage == 0) value_parity ^= 1;
  }
  store_warpgroup_rows<T, D>(dQ, float(p.scale), Qs + part * 64 * 128, query_chunk, 2 + part, p.dQ, head_data<T>(p.dQ, at.b, at.h), first_query, p.queries, p.head_dim);
}

}  // namespace samite
