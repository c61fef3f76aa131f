// samite/run/decode_parts.hpp: how the key tiles of a decode step are cut into parts, one a block.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <samite/mask/tile_map.hpp>

namespace samite::detail {

/// Mirror of decode_run in codegen/device/attention_decode.cuh: tiles `first` to `last` - 1, and the place of the run behind them, 0 if none.
struct device_decode_run {
  std::int32_t first, last, full, next;
  friend bool operator==(const device_decode_run&, const device_decode_run&) = default;
};

/// What a decode step's blocks share.
struct decode_grid {
  index_t pairs = 1;            // batches times key heads
  index_t row_tiles = 1;        // blocks that read the same keys
  index_t multiprocessors = 1;
  index_t resident = 1;         // blocks that one of them runs at once
  index_t rows = 1;             // that a block takes
  bool is_alone = false;        // blocks that keep a multiprocessor busy by themselves: no other hides the time that one takes to start
};

/// Tiles of a part. Many parts fill the device and even out lists of different lengths; few save what the parts of a row write and read until they
/// are merged. The estimate is in the time that a multiprocessor takes for a tile at its share of the bandwidth; its numbers are fitted to an H200
/// (docs/benchmarks.md).
///
/// tiles  of each different list, at least one of them; each list serves equally many pairs
inline index_t part_tiles(const std::vector<index_t>& tiles, const decode_grid& grid) {
  const index_t longest = std::max<index_t>(1, *std::max_element(tiles.begin(), tiles.end()));
  const double repeats = double(grid.pairs) * double(grid.row_tiles) / double(tiles.size()), processors = double(std::max<index_t>(1, grid.multiprocessors));
  constexpr index_t most_parts = 256;
  index_t best = longest;
  double least = std::numeric_limits<double>::infinity();
  const auto judge = [&](index_t parts) {
    const index_t chunk = (longest + parts - 1) / parts;
    double blocks = 0, work = 0;
    for (const index_t n : tiles) blocks += double(std::max<index_t>(1, (n + chunk - 1) / chunk)), work += double(n);
    blocks *= repeats, work *= repeats;
    const bool at_once = blocks <= processors * double(grid.resident), even = tiles.size() == 1;
    // All at once, or one after another on each multiprocessor, and equal, the fullest multiprocessor ends last; else the last part is on average half done when the others are.
    double time = (at_once || grid.is_alone) && even ? std::ceil(blocks / processors) * double(chunk) : std::max(double(chunk), work / processors + 0.5 * double(chunk));
    if (blocks < 1.5 * processors && !grid.is_alone) time *= grid.rows > 16 ? 1.3 : 1.02;  // a block alone leaves the tensor cores, or only its copies, waiting
    if (!at_once) time += (grid.is_alone ? 4.0 : 0.3) * blocks / processors;  // the starts of blocks
    if (parts > 1) time += 0.03 * double(parts) + blocks / processors * double(grid.rows) / 64;
    if (time < least) least = time, best = chunk;
  };
  for (index_t parts = 1; parts <= std::min(longest, most_parts); parts += parts < 16 ? 1 : parts / 8) judge(parts);
  for (index_t each = 1; each <= grid.resident; ++each) {  // as many as just fit at once
    const index_t fitting = index_t(double(each) * processors / (double(grid.pairs) * double(grid.row_tiles)));
    if (fitting >= 1) judge(std::min({fitting, longest, most_parts}));
  }
  return best;
}

/// The tile lists of one row of query tiles, cut into parts.
struct decode_parts {
  std::vector<device_decode_run> runs;  // the first of each part, `splits` places a list; then those behind them
  std::vector<std::int32_t> parts;      // of each list, at least 1
  index_t splits = 1;
  index_t batch_lists = 0, head_lists = 0;  // lists from one batch or key head to the next; 0 where they share
};

/// The tiles that a query head of the group sees, full where each of them sees all of it.
inline std::vector<tile_run> tiles_of_group(const tile_map& map, index_t b, index_t first_head, index_t group) {
  const auto row_of = [&](index_t h) { return map.row(b, h, 0); };
  if (group == 1 || map.map_of(b, first_head) == map.map_of(b, first_head + group - 1)) return {row_of(first_head).begin(), row_of(first_head).end()};
  std::vector<index_t> seen(std::size_t(map.k_tiles()), 0), full = seen;
  for (index_t h = first_head; h < first_head + group; ++h)
    for (const tile_run& run : row_of(h))
      for (std::int32_t t = run.first; t <= run.last; ++t) ++seen[std::size_t(t)], full[std::size_t(t)] += run.kind == tile_kind::full;
  std::vector<tile_run> out;
  for (std::int32_t t = 0; t < std::int32_t(seen.size()); ++t) {
    if (seen[std::size_t(t)] == 0) continue;
    const tile_kind kind = full[std::size_t(t)] == group ? tile_kind::full : tile_kind::undecided;
    if (!out.empty() && out.back().last == t - 1 && out.back().kind == kind) out.back().last = t;
    else out.push_back({kind, t, t});
  }
  return out;
}

/// Whether all batches, or all heads, have one map.
inline bool shares_batches(const tile_map& map) { return map.options().B <= 1 || map.map_of(1, 0) == 0; }
inline bool shares_heads(const tile_map& map) { return map.options().H <= 1 || map.map_of(0, 1) == 0; }

/// map  of one row of query tiles
inline decode_parts cut_parts(const tile_map& map, index_t group, const decode_grid& grid) {
  const index_t B = map.options().B, key_heads = map.options().H / group;
  const bool one_batch = shares_batches(map), one_head = shares_heads(map);
  decode_parts out;
  out.head_lists = one_head ? 0 : 1, out.batch_lists = one_batch ? 0 : one_head ? 1 : key_heads;
  std::vector<std::vector<tile_run>> lists;
  std::vector<index_t> tiles;
  for (index_t b = 0; b < (one_batch ? 1 : B); ++b)
    for (index_t g = 0; g < (one_head ? 1 : key_heads); ++g) {
      lists.push_back(tiles_of_group(map, b, g * group, group));
      tiles.push_back(0);
      for (const tile_run& run : lists.back()) tiles.back() += run.last - run.first + 1;
    }
  const index_t chunk = part_tiles(tiles, grid);
  for (const index_t n : tiles) {
    out.parts.push_back(std::int32_t(std::max<index_t>(1, (n + chunk - 1) / chunk)));
    out.splits = std::max<index_t>(out.splits, out.parts.back());
  }
  out.runs.assign(lists.size() * std::size_t(out.splits), {0, 0, 0, 0});
  for (std::size_t list = 0; list < lists.size(); ++list) {
    std::size_t place = list * std::size_t(out.splits);  // of the run written last, or of the part's first
    index_t part = 0, taken = 0;                         // tiles of that part so far
    for (const tile_run& run : lists[list])
      for (std::int32_t first = run.first; first <= run.last;) {
        if (taken == chunk) place = list * std::size_t(out.splits) + std::size_t(++part), taken = 0;
        const std::int32_t last = std::int32_t(std::min<index_t>(run.last + 1, first + chunk - taken));
        const device_decode_run piece{first, last, run.kind == tile_kind::full, 0};
        if (taken == 0) {
          out.runs[place] = piece;
        } else {
          out.runs[place].next = std::int32_t(out.runs.size());
          place = out.runs.size();
          out.runs.push_back(piece);
        }
        taken += last - first, first = last;
      }
  }
  return out;
}

}  // namespace samite::detail
