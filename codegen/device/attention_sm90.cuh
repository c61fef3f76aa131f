// attention_sm90.cuh: forward attention of bf16 and f16 tensors on sm_90a: wgmma, TMA, one warp that loads, two warpgroups that compute.
//
// A block of 384 threads owns 128 queries of one head. Its first warpgroup loads: Q once, then tiles of `keys` keys and values through
// two stages each. The others own 64 queries each: while the tensor cores multiply P V of one tile and Q K^T of the next, the softmax
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

constexpr int sm90_threads = 384;
// Head dims padded to multiples of 64.
template <int D, int Dv> struct sm90_shape {
  static constexpr int widest = D > Dv ? D : Dv;
  static constexpr int keys = widest > 128 ? 64 : 128;  // a tile
  static constexpr int loader_registers = widest > 128 ? 56 : 40, registers = widest > 128 ? 224 : 232;
  static constexpr int query_bytes = sm90_rows * widest * 2, key_bytes = keys * D * 2, value_bytes = keys * Dv * 2;
};
template <int D, int Dv> constexpr int sm90_shared_bytes = 1024 + sm90_shape<D, Dv>::query_bytes + 2 * (sm90_shape<D, Dv>::key_bytes + sm90_shape<D, Dv>::value_bytes) + 256;

struct sm90_lists {
  const tile_run* runs;
  const i64* begin;               // [lists + 1]
  index batch_lists, head_lists;  // lists from one batch or head to the next; 0 where they share
  const uint2* bits;              // [bit tiles][256 threads]: the thread's first and second row
  index section;                  // heads whose keys and values stay in the L2 together
};
struct sm90_parameters {
  tensor_map Q, K, V;
  attention_parameters p;
  sm90_lists lists;
};

// Heads of a section follow one another at the same tile, the last tile first: causal masks give it the most work, and the blocks that
// run at one time share keys in the L2.
struct section_place {
  index b, h, tile;
  __device__ section_place(const sm90_parameters& a, index tiles) {
    const index all = a.p.heads * a.p.batch, whole = a.lists.section * tiles, section = blockIdx.x / whole, first = section * a.lists.section;
    const index heads = all - first < a.lists.section ? all - first : a.lists.section, rest = blockIdx.x - section * whole;
    tile = tiles - 1 - rest / heads;
    const index head = first + rest % heads;
    h = head % a.p.heads, b = head / a.p.heads;
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
  const attention_parameters& p = a.p;
  extern __shared__ uint4 shared[];
  char* const base = reinterpret_cast<char*>((reinterpret_cast<u64>(shared) + 1023) & ~u64(1023));
  char* const Qs = base;
  char* const Ks = Qs + shape::query_bytes;
  char* const Vs = Ks + 2 * shape::key_bytes;
  u64* const query_full = reinterpret_cast<u64*>(Vs + 2 * shape::value_bytes);
  u64 *const key_full = query_full + 1, *const value_full = key_full + 2, *const key_empty = value_full + 2, *const value_empty = key_empty + 2;
  i32* const tile_of = reinterpret_cast<i32*>(value_empty + 2);  // [2 stages][key tile or -1 for the end, bit tile or -1]

  const section_place at(a, (p.queries + sm90_rows - 1) / sm90_rows);
  const i32 first_query = i32(at.tile) * sm90_rows;
  if (threadIdx.x == 0) {
    barrier_init(query_full, 1);
    for (int s = 0; s < 2; ++s) barrier_init(key_full + s, 1), barrier_init(value_full + s, 1), barrier_init(key_empty + s, 2), barrier_init(value_empty + s, 2);
    barrier_init_visible();
    prefetch(a.Q), prefetch(a.K), prefetch(a.V);
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);

  if (group == 0) {
    give_registers<shape::loader_registers>();
    if (threadIdx.x != 0) return;
    const i32 b = i32(at.b), h = i32(at.h), g = i32(at.h / (p.heads / p.key_heads));
    barrier_expect(query_full, sm90_rows * D * 2);
    for (int c = 0; c < D / 64; ++c) copy_box(Qs + c * sm90_rows * 128, a.Q, query_full, c * 64, first_query, h, b);
    const i64* begin = a.lists.begin + at.b * a.lists.batch_lists + at.h * a.lists.head_lists + at.tile;
    u32 stage = 0, parity = 1;  // of "empty": the first round passes
    for (i64 run = begin[0]; run < begin[1]; ++run) {
      const tile_run r = a.lists.runs[run];
      for (i32 tile = r.first; tile < r.last; ++tile) {
        barrier_wait(key_empty + stage, parity);
        tile_of[2 * stage] = tile, tile_of[2 * stage + 1] = r.bits < 0 ? -1 : r.bits + tile - r.first;
        barrier_expect(key_full + stage, shape::key_bytes);
        for (int c = 0; c < D / 64; ++c) copy_box(Ks + stage * shape::key_bytes + c * keys * 128, a.K, key_full + stage, c * 64, tile * keys, g, b);
        barrier_wait(value_empty + stage, parity);
        barrier_expect(value_full + stage, shape::value_bytes);
        for (int c = 0; c < Dv / 64; ++c) copy_box(Vs + stage * shape::value_bytes + c * keys * 128, a.V, value_full + stage, c * 64, tile * keys, g, b);
        stage ^= 1;
        if (stage == 0) parity ^= 1;
      }
    }
    barrier_wait(key_empty + stage, parity);
    tile_of[2 * stage] = -1;
    barrier_arrive(key_full + stage);
    return;
  }

  take_registers<shape::registers>();
  const int half = group - 1, lane = threadIdx.x % 32;
  const bool first_thread = threadIdx.x % 128 == 0;
  const float scale = float(p.scale) * log2_e;
  const i32 tail = i32(p.keys % keys), last_tile = i32((p.keys - 1) / keys);
  float o[values], s[columns], largest[2] = {-infinity(), -infinity()}, total[2] = {0, 0}, rescale[2];
  u32 weights[columns / 2];
#pragma unroll
  for (int i = 0; i < values; ++i) o[i] = 0;

  const u64 query = operand(Qs + half * 64 * 128, 16), key = operand(Ks, 16), value = operand(Vs, keys * 128);
  u32 stage = 0, parity = 0, value_stage = 0, value_parity = 0;
  i32 key_tile, bit_tile;

  const auto scores = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      warpgroup_product<T, keys>::product(s, query + (k / 4 * sm90_rows * 128 + k % 4 * 32) / 16, key + (stage * shape::key_bytes + k / 4 * keys * 128 + k % 4 * 32) / 16, k != 0);
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
  // Hides pairs, and turns scores into weights relative to the row's new maximum.
  const auto softmax = [&]() __attribute__((always_inline)) {
    if (bit_tile >= 0 || (tail != 0 && key_tile == last_tile)) {
      uint2 bits = {~0u, ~0u};
      if (bit_tile >= 0) bits = a.lists.bits[index(bit_tile) * 256 + half * 128 + threadIdx.x % 128];
      if (tail != 0 && key_tile == last_tile) {
        const u32 inside = columns_below(tail);
        bits.x &= inside, bits.y &= inside;
      }
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        const u32 row = i % 4 < 2 ? bits.x : bits.y;
        s[i] = (row >> (i / 4 * 2 + i % 2) & 1u) != 0 ? s[i] : -infinity();
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = largest[r];
#pragma unroll
      for (int i = 0; i < columns; i += 4) top = ::fmaxf(top, ::fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
      top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float shift = top == -infinity() ? 0.0f : top * scale;  // no key seen yet: keeps -inf - -inf from being NaN
      rescale[r] = power_of_2(largest[r] * scale - shift);
      largest[r] = top;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < columns; i += 4) {
        s[i + 2 * r] = power_of_2(s[i + 2 * r] * scale - shift);
        s[i + 2 * r + 1] = power_of_2(s[i + 2 * r + 1] * scale - shift);
        sum += s[i + 2 * r] + s[i + 2 * r + 1];
      }
      total[r] = total[r] * rescale[r] + sum;
    }
  };
  const auto pack = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < columns; i += 2) weights[i / 2] = storage<T>::pair(s[i], s[i + 1]);
  };

  barrier_wait(query_full, 0);
  barrier_wait(key_full + 0, 0);
  key_tile = tile_of[0], bit_tile = tile_of[1];
  if (key_tile >= 0) {
    products_begin();
    scores();
    products_wait<0>();
    pin(s);
    if (first_thread) barrier_arrive(key_empty + stage);
    next_stage(stage, parity);
    softmax();
    pack();
    for (;;) {
      barrier_wait(key_full + stage, parity);
      key_tile = tile_of[2 * stage], bit_tile = tile_of[2 * stage + 1];
      if (key_tile < 0) break;
      pin(s);
      products_begin();
      scores();
      barrier_wait(value_full + value_stage, value_parity);
      pin(o);
      products_begin();
      weighted();
      products_wait<1>();
      pin(s);
      if (first_thread) barrier_arrive(key_empty + stage);
      next_stage(stage, parity);
      softmax();
      products_wait<0>();
      pin(o);
      if (first_thread) barrier_arrive(value_empty + value_stage);
      next_stage(value_stage, value_parity);
      pack();
#pragma unroll
      for (int i = 0; i < values; ++i) o[i] *= rescale[i % 4 / 2];
    }
    barrier_wait(value_full + value_stage, value_parity);
    pin(o);
    products_begin();
    weighted();
    products_wait<0>();
    pin(o);
  }

  // O through shared memory, in 16-byte units with the unit's number xor the row, then whole rows to global memory.
  const int row_low = threadIdx.x % 128 / 32 * 16 + lane / 4;
  char* const staged = Qs + half * 64 * shape::widest * 2;
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = total[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const row_result<float> result(p, at.h, sum, sum == 0 ? -infinity() : largest[r] * float(p.scale) + real_log(sum));
    factor[r] = result.factor;
    const index q = first_query + half * 64 + row_low + r * 8;
    if (q < p.queries && lane % 4 == 0) static_cast<float*>(p.lse)[(at.b * p.heads + at.h) * p.queries + q] = result.lse;
  }
  // Both warpgroups have read Q before either overwrites it.
  asm volatile("bar.sync 1, 256;" ::: "memory");
#pragma unroll
  for (int i = 0; i < values; i += 2) {
    const int row = row_low + i % 4 / 2 * 8, unit = i / 4;
    *reinterpret_cast<u32*>(staged + row * Dv * 2 + ((unit ^ (row & 7)) << 4) + lane % 4 * 4) = storage<T>::pair(o[i] * factor[i % 4 / 2], o[i + 1] * factor[i % 4 / 2]);
  }
  warpgroup_sync(2 + half);
  T* const out = head_data<T>(p.out, at.b, at.h);
  for (int i = threadIdx.x % 128; i < 64 * (Dv / 8); i += 128) {
    const int row = i / (Dv / 8), unit = i % (Dv / 8);
    const index q = first_query + half * 64 + row;
    if (q >= p.queries || unit * 8 >= p.value_dim) continue;
    const uint4 x = *reinterpret_cast<const uint4*>(staged + row * Dv * 2 + ((unit ^ (row & 7)) << 4));
    if (p.out.vectors) {
      *reinterpret_cast<uint4*>(out + q * p.out.row_stride + unit * 8) = x;
    } else {
      const T* elements = reinterpret_cast<const T*>(&x);
      for (int e = 0; e < 8 && unit * 8 + e < p.value_dim; ++e) out[q * p.out.row_stride + (unit * 8 + e) * p.out.column_stride] = elements[e];
    }
  }
}

}  // namespace samite
