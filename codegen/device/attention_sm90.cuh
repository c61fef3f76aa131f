// attention_sm90.cuh: forward attention of bf16 and f16 tensors on sm_90a: wgmma, TMA, one warp that loads, warpgroups that compute.
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
  const auto values_are_read = [&]() __attribute__((always_inline)) {
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
