// samite/run/attention_packing.hpp: which query heads share a tile of the kernels for sm_90a, and which tiles are narrow.
#pragma once
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <samite/mask/tile_map.hpp>

namespace samite::detail {

/// Columns of a narrow tile: sm90_narrow of the kernels.
inline constexpr index_t narrow_columns = 32;

/// Whether a mask sees no difference between query heads h of one h / pack.
inline bool heads_agree(const program& mask, index_t pack) {
  const auto is_head = [&](node_id id) { return id != no_node && mask[id].code == op::symbol && mask[id].imm == index_t(symbol_id::h); };
  for (const node& n : mask.nodes()) {
    const bool is_key_head = n.code == op::div && is_head(n.operands[0]) && mask[n.operands[1]].code == op::constant && mask[n.operands[1]].imm > 0 && mask[n.operands[1]].imm % pack == 0;
    if (!is_key_head && std::any_of(std::begin(n.operands), std::end(n.operands), is_head)) return false;
  }
  return true;
}

/// Query heads of a group that may share a tile: as many as divide the group, at most 8, below which lists get little shorter.
///
/// has_score  a thread's two rows, 8 apart, then are to have one head
inline index_t heads_to_pack(const program& mask, index_t group, bool has_score) {
  for (index_t pack = std::min<index_t>(8, group); pack > 1; --pack)
    if (group % pack == 0 && (!has_score || 8 % pack == 0) && heads_agree(mask, pack)) return pack;
  return 1;
}

/// For each list of query tiles the number of a tile that is alone among those that one of `parts` times as many keys joins, the last such; or -1.
inline std::vector<std::int32_t> find_lone_parts(const tile_map& fine, index_t parts) {
  std::vector<std::int32_t> found;
  const std::span<const std::int32_t> starts = fine.row_starts();
  found.reserve(starts.size() - 1);
  for (std::size_t list = 0; list + 1 < starts.size(); ++list) {
    std::int32_t lone = -1, part = -1;
    index_t joined = -1, count = 0;
    const auto see = [&](index_t first, index_t last) {  // in one joined tile
      if (first / parts != joined && count == 1) lone = part;
      if (first / parts != joined) joined = first / parts, count = 0;
      part = std::int32_t(first), count += last - first + 1;
    };
    for (const tile_run& run : fine.row_runs().subspan(std::size_t(starts[list]), std::size_t(starts[list + 1] - starts[list]))) {
      const index_t end_of_first = (run.first / parts + 1) * parts - 1;
      see(run.first, std::min<index_t>(run.last, end_of_first));
      if (run.last > end_of_first) see(run.last / parts * parts, run.last);  // those between are listed whole
    }
    found.push_back(count == 1 ? part : lone);
  }
  return found;
}

/// What tiles of `rows` times as many queries would cost for each of the tiles that they join, beside the tiles of a map: by the number of tiles, narrow ones
/// half.
///
/// narrow  of each list, -1 for none; or empty
struct packing_costs {
  index_t packed = 0, unpacked = 0;

  packing_costs(const tile_map& map, index_t rows, const std::vector<std::int32_t>& narrow) {
    std::vector<std::pair<std::int32_t, std::int32_t>> spans;
    for (index_t m = 0; m < map.maps(); ++m)
      for (index_t first = 0; first < map.q_tiles(); first += rows) {
        spans.clear();
        for (index_t i = m * map.q_tiles() + first, end = m * map.q_tiles() + std::min(first + rows, map.q_tiles()); i < end; ++i)
          for (std::int32_t r = map.row_starts()[std::size_t(i)]; r < map.row_starts()[std::size_t(i) + 1]; ++r) spans.emplace_back(map.row_runs()[std::size_t(r)].first, map.row_runs()[std::size_t(r)].last);
        std::sort(spans.begin(), spans.end());
        std::int32_t reached = -1;
        for (const auto& [from, to] : spans)
          if (to > reached) unpacked += 2 * (to - std::max(from - 1, reached)), reached = to;
      }
    unpacked *= rows;
    packed = 2 * (map.counts().full + map.counts().undecided) - std::count_if(narrow.begin(), narrow.end(), [](std::int32_t tile) { return tile >= 0; });
  }
  /// A hundredth is what a map of more lists is worth; dense and causal masks gain nothing.
  bool is_worth_packing() const { return packed * 100 <= unpacked * 99; }
};

/// For each undecided tile of the lists of key tiles, in their order, which half of its keys alone has kept pairs: -1 the first, -2 the second, 0 both.
///
/// halves  the map whose tiles of keys `joined` has in pairs; both with columns
inline std::vector<std::int32_t> find_lone_halves(const tile_map& halves, const tile_map& joined) {
  std::vector<std::int32_t> found;
  for (index_t m = 0; m < joined.maps(); ++m)
    for (index_t j = 0; j < joined.k_tiles(); ++j) {
      std::span<const tile_run> half[2];
      for (index_t k = 0; k < 2 && 2 * j + k < halves.k_tiles(); ++k) {
        const std::size_t list = std::size_t(m * halves.k_tiles() + 2 * j + k);
        half[k] = halves.column_runs().subspan(std::size_t(halves.column_starts()[list]), std::size_t(halves.column_starts()[list + 1] - halves.column_starts()[list]));
      }
      const std::size_t list = std::size_t(m * joined.k_tiles() + j);
      for (const tile_run& run : joined.column_runs().subspan(std::size_t(joined.column_starts()[list]), std::size_t(joined.column_starts()[list + 1] - joined.column_starts()[list])))
        for (std::int32_t i = run.first; run.kind == tile_kind::undecided && i <= run.last; ++i) {
          bool has[2];
          for (int k = 0; k < 2; ++k) {
            while (!half[k].empty() && half[k].front().last < i) half[k] = half[k].subspan(1);
            has[k] = !half[k].empty() && half[k].front().first <= i;
          }
          found.push_back(has[0] == has[1] ? 0 : has[0] ? -1 : -2);
        }
    }
  return found;
}

/// What the kernels are told of undecided tiles.
struct tile_marks {
  std::vector<std::int32_t> narrow;  // of each list: the number of a part of a tile that holds all kept pairs of it, or -1; or empty
  std::int32_t parts = 1;            // of a tile
  std::vector<std::int32_t> halves;  // of each undecided tile, as find_lone_halves; or empty
};

/// The tiles of a mask as the kernels for sm_90a walk them.
struct packed_tiles {
  tile_map map;
  tile_marks marks;
  index_t pack = 1;  // query heads that share a tile

  /// For blocks of 128 or 192 rows of queries.
  ///
  /// most_pack  of heads_to_pack; narrows: whether narrow tiles are looked for
  static packed_tiles by_queries(const any_mask& mask, const tile_options& sizes, index_t most_pack, bool narrows) {
    const index_t parts = narrows ? sizes.tile_k / narrow_columns : 1;
    const auto find = [&](index_t pack) {
      tile_options fine = sizes;
      fine.tile_q /= pack, fine.tile_k /= parts;
      packed_tiles found{tile_map::as_fine_as(mask, fine, sizes), {}, 1};
      if (found.map.options().tile_q == fine.tile_q) found.pack = pack;
      if (parts == 1 || found.map.options().tile_k != fine.tile_k) return found;
      found.marks = {find_lone_parts(found.map, parts), std::int32_t(parts), {}};
      found.map = found.map.with_joined_keys(parts);
      return found;
    };
    if (most_pack > 1) {
      packed_tiles found = find(most_pack);
      if (found.pack == 1 || packing_costs(found.map, most_pack, found.marks.narrow).is_worth_packing()) return found;
    }
    return find(1);
  }

  /// For blocks of 128 keys; with columns.
  static packed_tiles by_keys(const any_mask& mask, const tile_options& sizes) {
    tile_options fine = sizes;
    fine.tile_k /= 2;
    packed_tiles found{tile_map::as_fine_as(mask, fine, sizes), {}, 1};
    if (found.map.options().tile_k == fine.tile_k) {
      tile_map joined = found.map.with_joined_keys(2);
      found.map.build_columns(), joined.build_columns();
      found.marks.halves = find_lone_halves(found.map, joined);
      found.map = std::move(joined);
    }
    found.map.build_columns();
    return found;
  }
};

}  // namespace samite::detail
