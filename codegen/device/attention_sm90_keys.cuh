// attention_sm90_keys.cuh: gradients of keys and values on sm_90a, and fused with them those of queries; see attention_sm90_gradient.cuh.
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
    float dQ[32];
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
