// attention_sm90_queries.cuh: gradients of queries on sm_90a, in a kernel of their own; see attention_sm90_gradient.cuh.
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
