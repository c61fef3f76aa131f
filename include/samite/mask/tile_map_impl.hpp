// samite/mask/tile_map_impl.hpp: making tile maps.
#pragma once
#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include <samite/core/renamed_error.hpp>
#include <samite/ir/bounds.hpp>
#include <samite/ir/tile_rows.hpp>
#include <samite/mask/tile_map.hpp>

namespace samite {

SAMITE_IMPL std::span<const tile_run> tile_map::column(index_t b, index_t h, index_t k_tile) const {
  if (!has_columns_) raise("E-MASK-TILE", "tile_map::column: the lists of key tiles were not made; call build_columns() first");
  check("column", b, h, k_tile, k_tiles_);
  return list(columns_, map_of(b, h) * k_tiles_ + k_tile);
}

SAMITE_IMPL void tile_map::refuse(const char* function, index_t b, index_t h, index_t tile, index_t tiles) const {
  raise("E-MASK-TILE", "tile_map::", function, "(", b, ", ", h, ", ", tile, "): the map has batches 0 to ", options_.B - 1, ", heads 0 to ", options_.H - 1, " and tiles 0 to ", tiles - 1,
        "; ask for one of them");
}

SAMITE_IMPL std::optional<tile_kind> tile_map::kind_of(index_t b, index_t h, index_t q_tile, index_t k_tile) const {
  check("kind_of", b, h, k_tile, k_tiles_);
  for (const tile_run& r : row(b, h, q_tile))
    if (r.first <= k_tile && k_tile <= r.last) return r.kind;
  return std::nullopt;
}

// Lists that grow at their ends, all in one block of memory; packed when they are complete.
class tile_map::growing_lists {
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

struct tile_map::builder {
  const tile_options& options;
  box_judge& judge;
  growing_lists& rows;
  tile_counts& counts;
  index_box box;
  index_t first_row;

  // Tiles [i0, i1) x [j0, j1). Left halves come before right ones, so that every row's runs arrive in order.
  // cells: numbers of the two stretches; halves of number n have the numbers 2n and 2n + 1.
  void visit(index_t i0, index_t i1, index_t j0, index_t j1, box_cells cells = {1, 1}) {
    box.q = {i0 * options.tile_q, std::min(i1 * options.tile_q, options.Q) - 1};
    box.kv = {j0 * options.tile_k, std::min(j1 * options.tile_k, options.K) - 1};
    if (i1 - i0 == 1 && j1 - j0 == 1) return list(judge.judge_finely(box, options.budget, cells), i0, i1, j0, j1);
    const verdict found = judge.enter(box, cells);
    if (found == verdict::undecided) split(i0, i1, j0, j1, cells);
    else list(found, i0, i1, j0, j1);
    judge.leave();
  }

  void split(index_t i0, index_t i1, index_t j0, index_t j1, box_cells cells) {
    const bool halves_rows = i1 - i0 > 1, halves_columns = j1 - j0 > 1;
    const index_t i = halves_rows ? i0 + (i1 - i0) / 2 : i1, j = halves_columns ? j0 + (j1 - j0) / 2 : j1;
    const index_t q = halves_rows ? 2 * cells.q : cells.q, kv = halves_columns ? 2 * cells.kv : cells.kv;
    visit(i0, i, j0, j, {q, kv});
    if (halves_columns) visit(i0, i, j, j1, {q, kv + 1});
    if (!halves_rows) return;
    visit(i, i1, j0, j, {q + 1, kv});
    if (halves_columns) visit(i, i1, j, j1, {q + 1, kv + 1});
  }

  void read_rows(tile_rows& by_rows, index_t q_tiles) {
    for (index_t i = 0; i < q_tiles; ++i) {
      box.q = {i * options.tile_q, std::min((i + 1) * options.tile_q, options.Q) - 1};
      for (const tile_rows::stretch& s : by_rows.row(box, options.budget)) list(s.found, i, i + 1, s.first, s.end);
    }
  }

  void list(verdict found, index_t i0, index_t i1, index_t j0, index_t j1) {
    if (found == verdict::empty) return;
    const bool is_full = found == verdict::full;
    for (index_t i = i0; i < i1; ++i) rows.append(first_row + i, is_full ? tile_kind::full : tile_kind::undecided, j0, j1 - 1);
    (is_full ? counts.full : counts.undecided) += (i1 - i0) * (j1 - j0);
  }
};

SAMITE_IMPL void detail::check_sizes(const char* call, const tile_options& s) {
  constexpr index_t limit = index_t(1) << 40;  // sums of two such numbers, and of one with any tile's, stay far from 2^63
  if (s.B < 1 || s.H < 1 || s.Q < 0 || s.K < 0 || s.Q > limit || s.K > limit || s.B > limit || s.H > limit)
    raise("E-MASK-TILE", call, ": sizes B ", s.B, ", H ", s.H, ", Q ", s.Q, ", K ", s.K, " must be at least 1, 1, 0, 0 and at most 2^40");
  if (s.tile_q < 1 || s.tile_k < 1 || s.tile_q > limit || s.tile_k > limit)
    raise("E-MASK-TILE", call, ": tiles of ", s.tile_q, " x ", s.tile_k, " rows and columns; both must be at least 1 and at most 2^40");
  if (s.budget < 0) raise("E-MASK-TILE", call, ": a budget of ", s.budget, " verdicts a tile; it must be at least 0, which leaves every tile undecided that one verdict does not decide");
}

SAMITE_IMPL index_t detail::checked_pairs(const char* call, const tile_options& s) {
  check_sizes(call, s);
  index_t pairs = 1;
  for (const index_t size : {s.B, s.H, s.Q, s.K}) {
    if (size > 0 && pairs > (index_t(1) << 62) / size)
      raise("E-MASK-TILE", call, ": B ", s.B, " x H ", s.H, " x Q ", s.Q, " x K ", s.K, " pairs are more than 2^62; count a part of the matrix");
    pairs *= std::max<index_t>(size, 1);
  }
  return s.Q > 0 && s.K > 0 ? pairs : 0;
}

SAMITE_IMPL tile_map::tile_map(const any_mask& mask, const tile_options& options) : options_(options) { make(mask, false); }

SAMITE_IMPL tile_map tile_map::as_fine_as(const any_mask& mask, const tile_options& fine, const tile_options& coarse) {
  tile_map map;
  map.options_ = fine;
  return map.make(mask, true) ? map : tile_map(mask, coarse);
}

// Whether the map was made: rows of tiles may be a condition.
SAMITE_IMPL bool tile_map::make(const any_mask& mask, bool only_by_rows) {
  const tile_options& options = options_;
  detail::check_sizes("tile_map", options);
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
    detail::with_name("mask", detail::titled("mask", mask.label()), [&] { judge.check(index_box::whole(options.B, options.H, options.Q, options.K)); });
    // Rows of tiles are read whole where the mask allows; looking at all keys once pays only if there are enough rows.
    std::optional<tile_rows> by_rows;
    if (k_tiles_ <= 16 * q_tiles_) by_rows.emplace(judge, options.K, options.tile_k);
    else if (only_by_rows) return false;
    bool is_numbered = false;
    for (index_t b = 0; b < batches_; ++b)
      for (index_t h = 0; h < heads_; ++h) {
        // A mask that does not mention b (or h) is judged for all of them at once.
        index_box box = index_box::whole(options.B, options.H, 1, 1);
        if (batches_ > 1) box.b = interval::point(b);
        if (heads_ > 1) box.h = interval::point(h);
        builder build{options_, judge, rows, counts_, box, (b * heads_ + h) * q_tiles_};
        if (by_rows && by_rows->serve(box)) {
          build.read_rows(*by_rows, q_tiles_);
          continue;
        }
        if (only_by_rows) return false;
        const auto numbers = [](index_t tiles) { return index_t(2 * std::bit_ceil(std::uint64_t(tiles))); };
        if (!std::exchange(is_numbered, true)) judge.remember(numbers(q_tiles_), numbers(k_tiles_));
        build.visit(0, q_tiles_, 0, k_tiles_);
      }
  }
  rows_ = rows.packed();
  counts_.empty = batches_ * heads_ * q_tiles_ * k_tiles_ - counts_.full - counts_.undecided;
  return true;
}

// A joined tile is full if all its parts are, and listed if any is. A run's whole ones are taken at once; between them at most one is open.
SAMITE_IMPL tile_map tile_map::with_joined_keys(index_t count) const {
  tile_map out;
  out.options_ = options_, out.options_.tile_k = options_.tile_k * count;
  detail::check_sizes("tile_map::with_joined_keys", out.options_);
  out.q_tiles_ = q_tiles_, out.k_tiles_ = (k_tiles_ + count - 1) / count, out.batches_ = batches_, out.heads_ = heads_;
  growing_lists rows(maps() * q_tiles_);
  for (index_t at = 0; at < maps() * q_tiles_; ++at) {
    const auto add = [&](tile_kind kind, index_t first, index_t end) {
      rows.append(at, kind, first, end - 1);
      (kind == tile_kind::full ? out.counts_.full : out.counts_.undecided) += end - first;
    };
    index_t open = -1;
    const auto add_part = [&](index_t tile) {
      if (tile != open) add(tile_kind::undecided, tile, tile + 1);
      open = tile;
    };
    for (const tile_run& run : list(rows_, at)) {
      const index_t end = run.last + 1, whole_end = end == k_tiles_ ? out.k_tiles_ : end / count;
      index_t first = (run.first + count - 1) / count;  // that begins in the run
      if (run.first % count != 0) add_part(run.first / count);
      if (first < whole_end) add(run.kind, first, whole_end), first = whole_end;
      if (first * count < end) add_part(first);
    }
  }
  out.rows_ = rows.packed();
  out.counts_.empty = maps() * q_tiles_ * out.k_tiles_ - out.counts_.full - out.counts_.undecided;
  return out;
}

// Sweeps the rows downwards and closes a column's run where its kind changes. Only the columns where a row differs from
// the one above are touched.
SAMITE_IMPL void tile_map::build_columns() {
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
