// samite/ir/bounds.hpp: what a predicate or index is over a whole box of (b, h, q, kv), without looking at its pairs.
//
// Always sound: `empty` and `full` are never wrong. Constraints on one linear form (q - kv, q/16 - kv/16, ...) are merged
// into one set of intervals, with at most one residue class, before they are judged; that makes the verdict exact where
// separate verdicts would stay undecided (a window written as two comparisons, for one).
#pragma once
#include <vector>

#include <samite/ir/box_steps.hpp>
#include <samite/ir/index_box.hpp>

namespace samite {

/// Numbers that a caller gives the ranges of q and kv of its boxes, from 1 on; see box_judge::remember. 0: not numbered.
struct box_cells {
  index_t q = 0, kv = 0;
};

/// Judges one program over many boxes. Arguments and tables are read when it is made, so that it describes one run.
///
/// errors   E-MASK-OVERFLOW from check(), E-MASK-TABLE-RANGE from check()
/// cost     making it: a few microseconds; judging a box: tens of nanoseconds, no allocation
/// threads  one thread at a time; a copy serves another thread
class box_judge {
 public:
  /// Reads root number `root` of the program: a predicate (judge) or an index (range).
  explicit box_judge(const program& source, std::size_t root = 0);

  /// Whether the predicate keeps nothing, everything or possibly a part of the box.
  verdict judge(const index_box& box);

  /// As `judge`, and until `leave` only boxes inside this one are judged: parts of the predicate that this box decides are not
  /// looked at again in them. Calls nest.
  verdict enter(const index_box& box, box_cells cells = {});
  void leave();

  /// Makes room for what is known of q_cells ranges of q and kv_cells of kv, each computed once however many boxes have it. A
  /// number always stands for the same range.
  void remember(index_t q_cells, index_t kv_cells);

  /// Bounds of the index.
  interval range(const index_box& box);

  /// As `judge`, but cuts an undecided box at the places where its parts change (thresholds, multiples of the divisors,
  /// then halves) until it is decided or `budget` verdicts were asked for. An answer `undecided` that came before the
  /// budget ended means that the box is kept in part.
  verdict judge_finely(const index_box& box, int budget, box_cells cells = {});

  /// Whether `judge` alone is exact: the predicate is one comparison of a form that takes every value between its bounds.
  bool is_exact() const { return steps_->is_exact; }

  /// Refuses a program whose table indices can leave their table in the box, or whose numbers can leave 62 bits.
  void check(const index_box& box);

 private:
  friend class tile_rows;
  friend class tile_bits;
  using steps = detail::box_steps;
  struct search;

  // A verdict, or that the box is known to be kept in part.
  enum class finding : std::uint8_t { empty, full, undecided, partial };

  void begin(const index_box& box, box_cells cells = {});
  finding find_inside(const index_box& box, box_cells cells = {});
  finding find(const index_box& box, box_cells cells = {});
  interval value(int id);
  interval sum(const steps::value_step& step, int without = -1);
  interval compute(const steps::value_step& step, std::uint64_t& residues);
  finding finding_of(int id);
  finding finding_of_parts(const int* first, const int* last, finding neutral);
  finding finding_of_select(const steps::predicate_step& step);
  finding finding_of_leaf(const steps::predicate_step& step);
  bool never_equal(const steps::predicate_step& step);
  index_t reach_of(const steps::predicate_step& step, int without);
  bool is_partial(const steps::predicate_step& step, interval range, index_t reach) const;
  bool cut(const index_box& box, index_box& first, index_box& second) const;
  verdict search_inside(const index_box& box, int budget);
  void refine(const index_box& box, search& state);

  // What the steps of one axis are over a range of it; low > high: not computed yet.
  struct known_range {
    interval values{1, 0};
    std::uint64_t residues = 0;  // of a gather
  };

  detail::bound_steps bound_;
  const steps* steps_;
  bool unresolved_ = false;
  // The current box, and what is known of its rows, its columns and its pairs. The first cell of rows and columns belongs to
  // the range that has no number.
  const interval* box_[symbol_count] = {};
  interval b_, h_, unnumbered_[2]{{1, 0}, {1, 0}};
  std::vector<known_range> cells_[3];
  known_range* known_ranges_[3] = {nullptr, nullptr, nullptr};
  // Predicate steps that a box around the current one decided, and in which order, so that `leave` forgets its own; and what
  // is left to ask of a box inside: all or any (`neutral` full or empty) of the open steps from `first_open` on.
  struct frame {
    std::size_t decided, first_open;
    finding neutral;
  };
  std::vector<finding> known_;
  std::vector<int> decided_, open_;
  std::vector<frame> frames_;
  bool is_entering_ = false, wants_partial_ = false;
};

/// Verdict of a predicate over one box; make a box_judge to ask more than once.
verdict judge(const program& p, const index_box& box);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/bounds_impl.hpp>
#endif
