// samite/mask/tile_map.hpp: which tiles of the score matrix exist, as runs, from the bounds of the mask.
//
// The whole matrix is judged first; undecided boxes split in four, down to tile size, so that the cost follows the
// boundary of the mask and not its area. A run is a stretch of tiles of one kind; empty tiles are in no run.
#pragma once
#include <samite/ir/bounds.hpp>
#include <samite/mask/any_mask.hpp>

namespace samite {

/// Sizes of the score matrix and of its tiles.
struct tile_options {
  index_t B = 1, H = 1;        // batch and query heads
  index_t Q = 0, K = 0;        // query rows and key columns
  index_t tile_q = 128, tile_k = 128;
  int budget = 96;             // verdicts that one undecided tile may cost before it stays undecided
};

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

  const tile_options& options() const { return options_; }
  index_t q_tiles() const { return q_tiles_; }
  index_t k_tiles() const { return k_tiles_; }
  /// Maps that differ: 1, or B, H or B * H if the mask mentions b, h or both.
  index_t maps() const { return batches_ * heads_; }
  /// Number of the map of a batch and head.
  index_t map_of(index_t b, index_t h) const { return (batches_ == 1 ? 0 : b) * heads_ + (heads_ == 1 ? 0 : h); }

  std::span<const tile_run> row(index_t b, index_t h, index_t q_tile) const { return list(rows_, map_of(b, h) * q_tiles_ + q_tile); }
  std::span<const tile_run> column(index_t b, index_t h, index_t k_tile) const {
    ensure(has_columns_, "tile_map::build_columns runs before column() is read");
    return list(columns_, map_of(b, h) * k_tiles_ + k_tile);
  }
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
  std::optional<tile_kind> kind_of(index_t b, index_t h, index_t q_tile, index_t k_tile) const {
    for (const tile_run& r : row(b, h, q_tile))
      if (r.first <= k_tile && k_tile <= r.last) return r.kind;
    return std::nullopt;
  }
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

  // Lists that grow at their ends, all in one block of memory; packed when they are complete.
  class growing_lists {
   public:
    explicit growing_lists(index_t count) : first_(std::size_t(count), -1), last_(std::size_t(count), -1) {}
    void append(index_t to, tile_kind kind, index_t first, index_t last) {
      const std::int32_t end = last_[std::size_t(to)];
      if (end >= 0 && links_[std::size_t(end)].run.kind == kind && links_[std::size_t(end)].run.last + 1 == first) {
        links_[std::size_t(end)].run.last = std::int32_t(last);
        return;
      }
      ensure(links_.size() < std::size_t(std::numeric_limits<std::int32_t>::max()), "a tile map has fewer than 2^31 runs");
      const auto id = std::int32_t(links_.size());
      links_.push_back({{kind, std::int32_t(first), std::int32_t(last)}, -1});
      (end >= 0 ? links_[std::size_t(end)].next : first_[std::size_t(to)]) = id;
      last_[std::size_t(to)] = id;
    }
    run_lists packed() const {
      run_lists out;
      out.runs.reserve(links_.size());
      out.starts.reserve(first_.size() + 1);
      for (std::int32_t at : first_) {
        out.starts.push_back(std::int32_t(out.runs.size()));
        for (; at >= 0; at = links_[std::size_t(at)].next) out.runs.push_back(links_[std::size_t(at)].run);
      }
      out.starts.push_back(std::int32_t(out.runs.size()));
      return out;
    }

   private:
    struct link {
      tile_run run;
      std::int32_t next;
    };
    std::vector<link> links_;
    std::vector<std::int32_t> first_, last_;
  };

  struct builder {
    const tile_options& options;
    box_judge& judge;
    growing_lists& rows;
    tile_counts& counts;
    index_box box;
    index_t first_row;

    // Tiles [i0, i1) x [j0, j1). Left halves come before right ones, so that every row's runs arrive in order.
    void visit(index_t i0, index_t i1, index_t j0, index_t j1) {
      box.q = {i0 * options.tile_q, std::min(i1 * options.tile_q, options.Q) - 1};
      box.kv = {j0 * options.tile_k, std::min(j1 * options.tile_k, options.K) - 1};
      const bool is_tile = i1 - i0 == 1 && j1 - j0 == 1;
      const verdict found = is_tile ? judge.judge_finely(box, options.budget) : judge.judge(box);
      if (found == verdict::empty) return;
      if (found == verdict::full || is_tile) {
        const bool is_full = found == verdict::full;
        for (index_t i = i0; i < i1; ++i) rows.append(first_row + i, is_full ? tile_kind::full : tile_kind::undecided, j0, j1 - 1);
        (is_full ? counts.full : counts.undecided) += (i1 - i0) * (j1 - j0);
        return;
      }
      const index_t i = i1 - i0 > 1 ? i0 + (i1 - i0) / 2 : i1, j = j1 - j0 > 1 ? j0 + (j1 - j0) / 2 : j1;
      visit(i0, i, j0, j);
      if (j < j1) visit(i0, i, j, j1);
      if (i == i1) return;
      visit(i, i1, j0, j);
      if (j < j1) visit(i, i1, j, j1);
    }
  };

  tile_options options_;
  index_t q_tiles_ = 0, k_tiles_ = 0, batches_ = 1, heads_ = 1;
  run_lists rows_, columns_;
  tile_counts counts_;
  bool has_columns_ = false;
};

inline tile_map::tile_map(const any_mask& mask, const tile_options& options) : options_(options) {
  const index_t limit = index_t(1) << 40;
  if (options.B < 1 || options.H < 1 || options.Q < 0 || options.K < 0 || options.Q > limit || options.K > limit || options.B > limit || options.H > limit)
    raise("E-MASK-TILE", "tile_map: sizes B ", options.B, ", H ", options.H, ", Q ", options.Q, ", K ", options.K,
          " must be at least 1, 1, 0, 0 and at most 2^40");
  if (options.tile_q < 1 || options.tile_k < 1)
    raise("E-MASK-TILE", "tile_map: tiles of ", options.tile_q, " x ", options.tile_k, " rows and columns; both must be at least 1");
  q_tiles_ = (options.Q + options.tile_q - 1) / options.tile_q;
  k_tiles_ = (options.K + options.tile_k - 1) / options.tile_k;
  batches_ = mask.uses(symbol_id::b) ? options.B : 1;
  heads_ = mask.uses(symbol_id::h) ? options.H : 1;
  const __int128 lists = __int128(batches_) * heads_ * std::max<index_t>(1, std::max(q_tiles_, k_tiles_));
  if (lists > std::numeric_limits<std::int32_t>::max() / 4 || k_tiles_ > std::numeric_limits<std::int32_t>::max())
    raise("E-MASK-TILE", "tile_map: ", batches_, " batches x ", heads_, " heads x ", q_tiles_, " x ", k_tiles_,
          " tiles are too many; use larger tiles or fewer batches a map");
  growing_lists rows(batches_ * heads_ * q_tiles_);
  if (options.Q > 0 && options.K > 0) {
    box_judge judge(mask.program());
    judge.check(index_box::whole(options.B, options.H, options.Q, options.K));
    for (index_t b = 0; b < batches_; ++b)
      for (index_t h = 0; h < heads_; ++h) {
        // A mask that does not mention b (or h) is judged for all of them at once.
        index_box box = index_box::whole(options.B, options.H, 1, 1);
        if (batches_ > 1) box.b = interval::point(b);
        if (heads_ > 1) box.h = interval::point(h);
        builder{options_, judge, rows, counts_, box, (b * heads_ + h) * q_tiles_}.visit(0, q_tiles_, 0, k_tiles_);
      }
  }
  rows_ = rows.packed();
  counts_.empty = batches_ * heads_ * q_tiles_ * k_tiles_ - counts_.full - counts_.undecided;
}

// Sweeps the rows downwards and closes a column's run where its kind changes. Only the columns where a row differs from
// the one above are touched.
inline void tile_map::build_columns() {
  if (has_columns_) return;
  growing_lists columns(maps() * k_tiles_);
  struct open_run {
    std::int32_t since = -1;  // -1: the tile above is empty
    tile_kind kind = tile_kind::full;
  };
  std::vector<open_run> open;
  for (index_t m = 0; m < maps(); ++m) {
    open.assign(std::size_t(k_tiles_), {});
    std::span<const tile_run> above;
    for (index_t i = 0; i <= q_tiles_; ++i) {
      const std::span<const tile_run> here = i < q_tiles_ ? list(rows_, m * q_tiles_ + i) : std::span<const tile_run>{};
      std::size_t x = 0, y = 0;
      for (index_t j = 0; j < k_tiles_;) {
        while (x < above.size() && above[x].last < j) ++x;
        while (y < here.size() && here[y].last < j) ++y;
        const auto end_of = [&](std::span<const tile_run> runs, std::size_t at) -> index_t {
          return at >= runs.size() ? k_tiles_ : runs[at].first > j ? runs[at].first : runs[at].last + 1;
        };
        const index_t end = std::min(end_of(above, x), end_of(here, y));
        const bool was = x < above.size() && above[x].first <= j, is = y < here.size() && here[y].first <= j;
        if (was != is || (is && above[x].kind != here[y].kind))
          for (index_t c = j; c < end; ++c) {
            open_run& run = open[std::size_t(c)];
            if (was) columns.append(m * k_tiles_ + c, run.kind, run.since, i - 1);
            if (is) run = {std::int32_t(i), here[y].kind};
          }
        j = end;
      }
      above = here;
    }
  }
  columns_ = columns.packed();
  has_columns_ = true;
}

}  // namespace samite
