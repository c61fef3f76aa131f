// tile_map.cuh: the tile lists of a mask, made on the device: the lists of include/samite/mask/tile_map.hpp, bit for bit, for numbers and
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

// Bits of every undecided tile; any grid of blocks of 2 * Rows threads. `mask` is in device memory, because its numbers may change.
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
