// samite/mask/tile_map.hpp: which tiles of the score matrix exist, as runs, from the bounds of the mask.
//
// The whole matrix is judged first; undecided boxes split in four, down to tile size, so that the cost follows the
// boundary of the mask and not its area. Rows of tiles are read whole where the mask allows (ir/tile_rows.hpp); the lists are the
// same. A run is a stretch of tiles of one kind; empty tiles are in no run.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <samite/mask/any_mask.hpp>

namespace samite {

namespace detail {
template <class... T>
constexpr void refuse_unnamed_sizes() {
  static_assert(never<T...>, "sizes without names, e.g. report(mask, {512, 512}): which are queries and keys? Name them: {.Q = 512, .K = 512}. [E-MASK-TILE]");
}
// Stands first in options whose order nobody remembers, so that what is given without a name meets it.
struct sizes_by_name {
  constexpr sizes_by_name() = default;
  template <std::integral T>
  constexpr sizes_by_name(T) {
    refuse_unnamed_sizes<T>();
  }
};
}  // namespace detail

/// Sizes of the score matrix and of its tiles, given by name: {.Q = 512, .K = 512}.
struct tile_options {
  [[no_unique_address]] detail::sizes_by_name names = {};
  index_t B = 1, H = 1;        // batch and query heads
  index_t Q = 0, K = 0;        // query rows and key columns
  index_t tile_q = 128, tile_k = 128;
  int budget = 96;             // verdicts that one undecided tile may cost before it stays undecided
};

namespace detail {
/// Raises E-MASK-TILE unless all sizes are in range. call: said in the message
void check_sizes(const char* call, const tile_options& sizes);
/// B * H * Q * K, all pairs. Raises E-MASK-TILE beyond 2^62.
index_t checked_pairs(const char* call, const tile_options& sizes);
}  // namespace detail

enum class tile_kind : std::uint8_t { undecided, full };

/// Tiles `first` to `last`, both included, of one kind.
struct tile_run {
  tile_kind kind;
  std::int32_t first, last;
  friend bool operator==(const tile_run&, const tile_run&) = default;
};

/// Tiles by kind.
struct tile_counts {
  index_t empty = 0, full = 0, undecided = 0;
  friend bool operator==(const tile_counts&, const tile_counts&) = default;
};

/// The tiles of a mask for one state of its arguments and tables.
///
/// `row(b, h, i)` lists the runs of key tiles of query tile i in ascending order; `column(b, h, j)` the runs of query
/// tiles of key tile j (build_columns first). Tiles at the edge are judged on the rows and columns that exist. An
/// undecided tile is kept in part, or could not be decided within the budget.
/// memory  12 bytes a run, and one index a row and column; one map serves all batches or heads that the mask does not tell apart
class tile_map {
 public:
  /// errors  E-MASK-TILE (sizes), E-MASK-TABLE-RANGE, E-MASK-OVERFLOW
  tile_map(const any_mask& mask, const tile_options& options);
  template <std::integral Q, std::integral K>
  tile_map(const any_mask&, Q, K) { detail::refuse_unnamed_sizes<Q, K>(); }
  /// A map in the tiles of `fine` if rows of tiles are read whole, which costs small tiles of keys little more than large ones; else in those of
  /// `coarse`.
  static tile_map as_fine_as(const any_mask& mask, const tile_options& fine, const tile_options& coarse);
  /// The same rows in tiles of `count` times as many keys. cost: proportional to the runs
  tile_map with_joined_keys(index_t count) const;

  const tile_options& options() const { return options_; }
  index_t q_tiles() const { return q_tiles_; }
  index_t k_tiles() const { return k_tiles_; }
  /// Maps that differ: 1, or B, H or B * H if the mask mentions b, h or both.
  index_t maps() const { return batches_ * heads_; }
  /// Number of the map of a batch and head.
  index_t map_of(index_t b, index_t h) const { return (batches_ == 1 ? 0 : b) * heads_ + (heads_ == 1 ? 0 : h); }

  /// errors  E-MASK-TILE for a batch, head or tile that is not there
  std::span<const tile_run> row(index_t b, index_t h, index_t q_tile) const {
    check("row", b, h, q_tile, q_tiles_);
    return list(rows_, map_of(b, h) * q_tiles_ + q_tile);
  }
  /// errors  as above, and before build_columns
  std::span<const tile_run> column(index_t b, index_t h, index_t k_tile) const;
  /// All runs and where each row's runs start: row r of map m is [starts[m * q_tiles + r], starts[m * q_tiles + r + 1]).
  std::span<const tile_run> row_runs() const { return rows_.runs; }
  std::span<const std::int32_t> row_starts() const { return rows_.starts; }
  std::span<const tile_run> column_runs() const { return columns_.runs; }
  std::span<const std::int32_t> column_starts() const { return columns_.starts; }

  /// Makes the transposed lists for dK and dV. cost: proportional to the runs of both lists
  void build_columns();
  bool has_columns() const { return has_columns_; }

  /// Tiles by kind, over all different maps.
  const tile_counts& counts() const { return counts_; }
  /// Kind of one tile; nothing for an empty one.
  std::optional<tile_kind> kind_of(index_t b, index_t h, index_t q_tile, index_t k_tile) const;
  std::size_t bytes() const {
    return (rows_.runs.size() + columns_.runs.size()) * sizeof(tile_run) + (rows_.starts.size() + columns_.starts.size()) * sizeof(std::int32_t);
  }

 private:
  struct run_lists {
    std::vector<tile_run> runs;
    std::vector<std::int32_t> starts;
  };
  static std::span<const tile_run> list(const run_lists& lists, index_t at) {
    const std::int32_t from = lists.starts[std::size_t(at)], to = lists.starts[std::size_t(at) + 1];
    return {lists.runs.data() + from, std::size_t(to - from)};
  }

  void check(const char* function, index_t b, index_t h, index_t tile, index_t tiles) const {
    if (b < 0 || b >= options_.B || h < 0 || h >= options_.H || tile < 0 || tile >= tiles) [[unlikely]] refuse(function, b, h, tile, tiles);
  }
  [[noreturn]] void refuse(const char* function, index_t b, index_t h, index_t tile, index_t tiles) const;

  class growing_lists;
  struct builder;

  tile_map() = default;
  bool make(const any_mask& mask, bool only_by_rows);
  tile_options options_;
  index_t q_tiles_ = 0, k_tiles_ = 0, batches_ = 1, heads_ = 1;
  run_lists rows_, columns_;
  tile_counts counts_;
  bool has_columns_ = false;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/mask/tile_map_impl.hpp>
#endif
