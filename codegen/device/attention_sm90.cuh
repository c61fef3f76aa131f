// attention_sm90.cuh: forward attention of bf16 and f16 tensors on sm_90a: wgmma, TMA, one warp that loads, warpgroups that compute.
//
// A block works on items of 128 (heads up to 64 channels: 192) queries of one head, fetched from a counter until none is left. Its first
// warpgroup loads: an item's Q into one of two buffers, then tiles of keys and values through two stages each, on into the next item
// without a pause. The others own 64 queries each: while the tensor cores multiply P V of one tile and Q K^T of the next, the softmax
// of the tile between runs. Which tiles are visited, and which of their pairs are kept, is data: lists of runs, and for undecided
// tiles one bit a pair in the order of the accumulators ("bit tiles"), which attention_bits fills once for a mask. The kernel does not
// depend on the mask. A score function is compiled into it and works on the accumulators (score_tile.cuh).
// Dynamic shared memory: sm90_shared_bytes.
// source  Shah et al. 2024, arXiv:2407.08608, sections 3.1 and 3.2
#pragma once
#include "attention.cuh"
#include "attention_bits.cuh"
#include "hopper.cuh"
#include "score_tile.cuh"

namespace samite {

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
template <int D, int Dv, bool Full = false> constexpr int sm90_shared_bytes =
    1024 + sm90_shape<D, Dv, Full>::buffers * sm90_shape<D, Dv, Full>::query_bytes + 2 * (sm90_shape<D, Dv, Full>::key_bytes + sm90_shape<D, Dv, Full>::value_bytes) + 256;

struct sm90_lists {
  const tile_run* runs;
  const i64* begin;               // [lists + 1]
  index batch_lists, head_lists;  // lists from one batch or head to the next; 0 where they share
  const uint2* bits;              // [bit tiles][2 * rows threads]: the thread's first and second row
  index section;                  // heads whose keys and values stay in the L2 together
  u32* counter;                   // [2]: items fetched, blocks at their end; both 0 between launches
  const i32* order;               // [lists]: the tiles of a head that lists are for, the longest list first; or null: the last first
};
struct sm90_parameters {
  tensor_map Q, K, V;
  attention_parameters p;
  sm90_lists lists;
};

// Heads of a section follow one another at the same rank in the order of their tiles, so that long lists come first and the blocks that
// run at one time share keys in the L2. Items fit 32 bits.
struct item_place {
  i32 b, h, rank;
  __device__ item_place(const sm90_parameters& a, i32 item, i32 tiles) {
    const i32 all = i32(a.p.heads * a.p.batch), in_section = i32(a.lists.section), section = item / (in_section * tiles), first = section * in_section;
    const i32 heads = all - first < in_section ? all - first : in_section, rest = item - first * tiles, head = first + rest % heads;
    rank = rest / heads;
    h = head % i32(a.p.heads), b = head / i32(a.p.heads);
  }
};

// Bits of the columns before `limit` among a thread's in a row of a tile.
__device__ inline u32 columns_below(i32 limit) {
  const i32 c = limit - i32(threadIdx.x % 4 * 2), count = c <= 0 ? 0 : c / 8 * 2 + (c % 8 < 2 ? c % 8 : 2);
  return count >= 32 ? ~0u : (1u << count) - 1;
}

// Whether the pair of accumulator i has its bit.
__device__ inline bool is_kept(uint2 bits, int i) { return ((i % 4 / 2 == 0 ? bits.x : bits.y) >> (i / 4 * 2 + i % 2) & 1u) != 0; }

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

template <class T, int D, int Dv, class Score = no_score> __device__ inline void attention_forward_sm90(const sm90_parameters& a, const Score& score = {}) {
  using shape = sm90_shape<D, Dv, Score::fills_registers>;
  constexpr int keys = shape::keys, columns = keys / 2, values = Dv / 2;  // accumulators of a thread
  constexpr int query_chunk = shape::rows * 128, key_chunk = keys * 128;
  const attention_parameters& p = a.p;
  extern __shared__ uint4 shared[];
  const u32 Qs = (shared_address(shared) + 1023) & ~1023u, Ks = Qs + shape::buffers * shape::query_bytes, Vs = Ks + 2 * shape::key_bytes;
  const u32 query_full = Vs + 2 * shape::value_bytes, query_empty = query_full + 16, key_full = query_full + 32, key_empty = query_full + 48, value_full = query_full + 64, value_empty = query_full + 80;
  const u32 tile_of = query_full + 96;   // [2 stages][key tile, bit tile or -1]
  const u32 item_of = query_full + 112;  // [2 buffers][item or -1 for the end, its tiles, its query tile, tiles that hide pairs]

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
      const index list = at.b * a.lists.batch_lists + at.h * a.lists.head_lists;
      const i32 query_tile = a.lists.order != nullptr ? a.lists.order[list + at.rank] : query_tiles - 1 - at.rank;
      const i64* begin = a.lists.begin + list + query_tile;
      i32 run = i32(begin[0]);
      const i32 end = i32(begin[1]);
      // Tiles that hide pairs come first, so that the loop over the others has no code for hiding. The last tile of keys hides what is past
      // the end.
      const i32 whole = p.keys % keys != 0 ? i32(p.keys / keys) : 0x7fffffff;  // tiles before one that is cut
      i32 tiles = 0, hiding = 0;
#pragma unroll 1
      for (i32 r = run; r < end; ++r) {
        const tile_run here = a.lists.runs[r];
        tiles += here.last - here.first;
        hiding += here.bits >= 0 ? here.last - here.first : here.last > whole ? 1 : 0;
      }
      store_shared(item_of + 16 * buffer(), item, tiles), store_shared(item_of + 16 * buffer() + 8, query_tile, hiding);
      barrier_expect(query_full + 8 * buffer(), shape::rows * D * 2);
#pragma unroll 1
      for (int c = 0; c < D / 64; ++c) copy_box(Qs + buffer() * shape::query_bytes + c * query_chunk, a.Q, query_full + 8 * buffer(), c * 64, query_tile * shape::rows, at.h, at.b);
      const i32 g = at.h / i32(p.heads / p.key_heads);
#pragma unroll 1
      for (int pass = hiding > 0 ? 0 : 1; pass < (hiding < tiles ? 2 : 1); ++pass)
#pragma unroll 1
        for (i32 at_run = run; at_run < end; ++at_run) {
          const tile_run r = a.lists.runs[at_run];
          const bool decided = r.bits < 0;
          // A run of whole tiles may end with the cut one.
          const i32 first = pass == 0 && decided ? (r.last > whole ? whole : r.last) : r.first, last = pass == 0 ? r.last : !decided ? r.first : r.last > whole ? whole : r.last;
#pragma unroll 1
          for (i32 tile = first; tile < last; ++tile, ++loaded) {
            const u32 stage = loaded & 1, parity = (loaded / 2 & 1) ^ 1;
            barrier_wait(key_empty + 8 * stage, parity);
            store_shared(tile_of + 8 * stage, tile, decided ? -1 : r.bits + (tile - r.first));
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
    store_shared(item_of + 16 * buffer(), -1, 0);
    barrier_arrive(query_full + 8 * buffer());
    // The last block to get here leaves the counters as the next launch wants them: every block has fetched its last item.
    if (atomicAdd(a.lists.counter + 1, 1u) == gridDim.x - 1) a.lists.counter[0] = 0, a.lists.counter[1] = 0;
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
  u64 query;
  scored_rows<Score> rows;

  const auto scores = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      warpgroup_product<T, keys>::product(s, query + (k / 4 * query_chunk + k % 4 * 32) / 16, key + (stage * shape::key_bytes + k / 4 * key_chunk + k % 4 * 32) / 16, Score::begins || k != 0);
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
  const auto begin_scores = [&]() __attribute__((always_inline)) {
    if constexpr (Score::begins) score_beginnings(scored_tile<Score>(score, rows, key_tile * keys), s);
  };
  const auto apply_score = [&]() __attribute__((always_inline)) {
    if constexpr (!Score::identity && !Score::begins) {
      score_values<false>(scored_tile<Score>(score, rows, key_tile * keys), s);
    }
  };
  // Of an undecided tile; asked for before its scores are computed, so that it comes beside them.
  const auto bits_of_tile = [&]() __attribute__((always_inline)) {
    uint2 bits = {~0u, ~0u};
    if (bit_tile >= 0) bits = a.lists.bits[index(bit_tile) * (2 * shape::rows) + part * 128 + threadIdx.x % 128];
    return bits;
  };
  const auto hide = [&](uint2 bits) __attribute__((always_inline)) {
    if (bit_tile >= 0 || (tail != 0 && key_tile == last_tile)) {
      if (tail != 0 && key_tile == last_tile) {
        const u32 inside = columns_below(tail);
        bits.x &= inside, bits.y &= inside;
      }
      hide_pairs(s, bits);
    }
  };
  // Turns scores into weights relative to the row's new maximum.
  const auto softmax = [&]() __attribute__((always_inline)) {
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

  // One more tile: its scores, and beside their softmax the weighted values of the tile before.
  const auto visit = [&](bool hides) __attribute__((always_inline)) {
    barrier_wait(key_full + 8 * stage, parity);
    next_tile();
    uint2 bits = {~0u, ~0u};
    if (hides) bits = bits_of_tile();
    begin_scores();
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
    apply_score();
    if (hides) hide(bits);
    softmax();
    products_wait<0>();
    pin(o);
    if (first_thread) barrier_arrive(value_empty + 8 * value_stage);
    next_stage(value_stage, value_parity);
    pack();
#pragma unroll
    for (int i = 0; i < values; ++i) o[i] *= rescale[i % 4 / 2];
  };

  for (;;) {
    barrier_wait(query_full + 8 * buffer, buffer_parity);
    const int2 work = load_shared(item_of + 16 * buffer);
    const i32 item = work.x, tiles = work.y, first_query = load_shared(item_of + 16 * buffer + 8).x * shape::rows + part * 64, hiding = load_shared(item_of + 16 * buffer + 8).y;
    if (item < 0) break;
    query = all_queries + buffer * (shape::query_bytes / 16);
    largest[0] = largest[1] = -infinity(), total[0] = total[1] = 0;
#pragma unroll
    for (int i = 0; i < values; ++i) o[i] = 0;
    if constexpr (!Score::identity) {
      const item_place at(a, item, query_tiles);
      rows.begin(score, at.b, at.h, float(p.scale), first_query + row_low);
      scale = score.scale_of(rows.head);
    }
    if (tiles > 0) {
      barrier_wait(key_full + 8 * stage, parity);
      next_tile();
      const uint2 bits = bits_of_tile();
      begin_scores();
      pin(s);
      products_begin();
      scores();
      products_wait<0>();
      pin(s);
      if (first_thread) barrier_arrive(key_empty + 8 * stage);
      next_stage(stage, parity);
      apply_score();
      hide(bits);
      softmax();
      pack();
      i32 visited = 1;
      for (const i32 end = shape::one_loop ? tiles : hiding; visited < end; ++visited) visit(true);
      for (; visited < tiles; ++visited) visit(false);
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
    const item_place at(a, item, query_tiles);  // once more, or registers run out
    const u32 staged = Qs + buffer * shape::query_bytes + part * 64 * 128;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = total[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      float log_sum = sum == 0 ? -infinity() : largest[r] * (Score::identity ? float(p.scale) : scale * ln_2) + real_log(sum);
      if constexpr (!Score::identity) log_sum += score.offset_of(rows.head) * ln_2;
      const row_result<float> result(p, at.h, sum, log_sum);
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
    if (buffer == 0) buffer_parity ^= 1;
  }
}

}  // namespace samite
