// attention_decode_sm90.cuh: attention of few queries over many keys, forward, on sm_90a: wgmma, TMA, one warp that loads, two warpgroups that compute.
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
