// samite/ir/evaluate.hpp: the value of an index or boolean program on numbers: the reference that every other reading is
// compared with, and a faster reading by rows for the CPU.
#pragma once
#include <samite/ir/program.hpp>
#include <samite/ir/table.hpp>

namespace samite {

/// Values of a program at single points. Arguments and tables are read when it is made; evaluating allocates nothing.
///
/// threads  one thread at a time; a copy serves another thread
class evaluator {
 public:
  /// Reads root number `root`, which is boolean or an index.
  explicit evaluator(const program& source, std::size_t root = 0);

  /// The root's value; a predicate gives 0 or 1.
  ///
  /// errors  E-MASK-TABLE-RANGE if an index leaves its table
  index_t operator()(index_t b, index_t h, index_t q, index_t kv);

 private:
  index_t step(const node& n, const index_t* symbols) const;

  program program_;
  node_id root_;
  std::vector<std::shared_ptr<const table_contents>> tables_;
  std::vector<index_t> scratch_;
};

/// Visibility of whole rows: parts that don't depend on kv are computed once a row, the others in blocks of columns.
///
/// Indices that leave their table are clamped into it; check the program over the run's sizes before (box_judge::check).
/// threads  one thread at a time; a copy serves another thread
class row_evaluator {
 public:
  explicit row_evaluator(const program& source, std::size_t root = 0);

  /// keep[i] = 1 if the pair (q, k0 + i) is visible, else 0, for k0 <= kv < k1.
  void row(index_t b, index_t h, index_t q, index_t k0, index_t k1, std::uint8_t* keep);

 private:
  static constexpr int width = 128;

  index_t* lane(node_id id) { return lanes_.data() + std::size_t(lane_[std::size_t(id)]) * width; }

  index_t gather(const node& n, index_t x, index_t y, index_t z) const;

  index_t scalar(const node& n) const;

  // Operands that are the same along the row are read from `fixed_`: the loops see a plain number or a plain array.
  void block(node_id id, index_t k, int count);

  program program_;
  node_id root_;
  std::vector<std::shared_ptr<const table_contents>> tables_;
  std::vector<node_id> constant_, varying_;
  std::vector<int> lane_;
  std::vector<index_t> fixed_, lanes_;
  bool has_row_ = false;
  index_t b_ = 0, h_ = 0, q_ = 0;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/evaluate_impl.hpp>
#endif
