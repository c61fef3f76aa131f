// samite/mask/bit_tiles.hpp: which undecided tiles of a map need bits of their own.
#pragma once
#include <cstdint>
#include <vector>

#include <samite/mask/tile_map.hpp>

namespace samite {

/// Whether the mask stays the same when q and kv move by `step` together: it looks at their distance alone, or at blocks that divide the step.
bool repeats_along_diagonal(const program& mask, index_t step);

/// The undecided tiles of a map, equal ones once. Tiles at the same distance from the diagonal are equal if the mask repeats along it; of a
/// causal mask one tile is left, of a window two or three, at any length. Other masks keep a tile each.
struct bit_tiles {
  struct tile {
    std::int32_t b, h, query_tile, key_tile;
    friend bool operator==(const tile&, const tile&) = default;
  };
  std::vector<tile> distinct;         // one of each
  // Into `distinct`, of every undecided tile in the order of the map's rows. Those of a run rise by one but where a tile is cut by the last
  // key; 0, 1, 2, ... where no two are equal.
  std::vector<std::int32_t> numbers;
};

/// errors  E-MASK-TILE beyond 2^31 undecided tiles
bit_tiles number_bit_tiles(const any_mask& mask, const tile_map& map);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/mask/bit_tiles_impl.hpp>
#endif
