// samite/ir/tile_rows.hpp: the verdicts of a whole row of tiles at once.
//
// Most masks compare one value of the key that never falls from tile to tile (its index, its block, its document) with values
// of the query. Such a comparison changes its verdict at most four times along a row of tiles: the places are searched from those
// of the row before, and the parts' stretches are joined. Verdicts are those of box_judge on each tile; a row costs what its
// stretches cost and not what its tiles cost.
#pragma once
#include <vector>

#include <samite/ir/bounds.hpp>

namespace samite {

/// Stretches of one verdict along rows of tiles of one judge's predicate.
class tile_rows {
 public:
  /// keys  K of the matrix; tile_keys: of a tile
  tile_rows(box_judge& judge, index_t keys, index_t tile_keys);

  /// Whether the predicate has the form that can be read by rows, for this batch and head. To be asked before `row`.
  bool serve(const index_box& box);

  /// Tiles [first, end) of one verdict.
  struct stretch {
    std::int32_t first, end;
    verdict found;
  };
  /// The stretches that are not empty, in ascending order, of the tiles of box.q over all keys. budget: as in judge_finely
  const std::vector<stretch>& row(const index_box& box, int budget);

 private:
  using steps = detail::box_steps;
  using finding = box_judge::finding;

  // A value of the key: its bounds in every tile.
  struct key_value {
    int id;
    std::vector<index_t> low, high;
    bool never_falls = false;
  };
  // A comparison: sign * key value + query values, with where its verdict changed in the row before.
  struct comparison {
    int key = -1;  // into keys_; -1: no key in it
    bool minus = false;
    interval others;         // the query values of this row
    bool is_solved = false;  // for all rows: no query in it
    std::int32_t seen = 0, all_from = 0, all_to = 0, gone = 0;  // tiles from which it is not empty, full, not full, empty
  };
  // A part of a row: a finding, and the only leaf that is undecided there or -1 if several are.
  struct piece {
    std::int32_t end;
    finding found;
    int leaf;
  };

  bool prepare(int id);
  bool prepare_leaf(int id);
  void look_at_keys(const index_box& box);
  void solve(int id);
  void solve_leaf(int id);
  void push_changes(int id);
  void join(std::size_t first, const std::vector<int>& parts, finding neutral);
  void push(std::size_t first, piece next);
  bool is_partial(int leaf, std::int32_t tile);

  box_judge& judge_;
  index_t keys_count_, tile_keys_;
  std::int32_t tiles_;
  bool has_form_ = false, is_ready_ = false, follows_rows_ = false;
  interval b_, h_;
  std::vector<key_value> keys_;
  std::vector<comparison> comparisons_;  // by predicate step
  std::vector<piece> pieces_;
  std::vector<std::size_t> starts_;
  std::vector<stretch> found_;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/tile_rows_impl.hpp>
#endif
