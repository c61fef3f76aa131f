// samite/ir/bounds.hpp: what a predicate or index is over a whole box of (b, h, q, kv), without looking at its pairs.
//
// Always sound: `empty` and `full` are never wrong. Constraints on one linear form (q - kv, q/16 - kv/16, ...) are merged
// into one set of intervals, with at most one residue class, before they are judged; that makes the verdict exact where
// separate verdicts would stay undecided (a window written as two comparisons, for one).
#pragma once
#include <vector>

#include <samite/ir/box_steps.hpp>

namespace samite {

/// A box of indices; every end is included.
struct index_box {
  interval b, h, q, kv;

  /// All rows and columns of a score matrix with these sizes, each at least 1.
  static index_box whole(index_t B, index_t H, index_t Q, index_t K) { return {{0, B - 1}, {0, H - 1}, {0, Q - 1}, {0, K - 1}}; }
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
  /// Bounds of the index.
  interval range(const index_box& box);

  /// As `judge`, but cuts an undecided box at the places where its parts change (thresholds, multiples of the divisors,
  /// then halves) until it is decided or `budget` verdicts were asked for. An answer `undecided` that came before the
  /// budget ended means that the box is kept in part.
  verdict judge_finely(const index_box& box, int budget);

  /// Whether `judge` alone is exact: the predicate is one comparison of a form whose symbols don't repeat.
  bool is_exact() const { return steps_.is_exact; }

  /// Refuses a program whose table indices can leave their table in the box, or whose numbers can leave 62 bits.
  void check(const index_box& box);

 private:
  using steps = detail::box_steps;
  struct search;

  void begin(const index_box& box);
  interval value(int id);
  interval compute(int id, const steps::value_step& step);
  verdict verdict_of(int id);
  verdict verdict_of_leaf(const steps::predicate_step& step);
  bool cut(const index_box& box, index_box& first, index_box& second) const;
  void refine(const index_box& box, search& state);

  steps steps_;
  bool unresolved_ = false;
  // The current box; a step's range and residues count if its stamp is the box's.
  interval box_[symbol_count];
  std::uint32_t stamp_ = 0;
  std::vector<std::uint32_t> stamps_;
  std::vector<interval> ranges_;
  std::vector<std::uint64_t> residues_;
};

/// Verdict of a predicate over one box; make a box_judge to ask more than once.
verdict judge(const program& p, const index_box& box);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/bounds_impl.hpp>
#endif
