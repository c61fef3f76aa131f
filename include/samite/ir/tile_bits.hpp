// samite/ir/tile_bits.hpp: which pairs of an undecided tile a predicate keeps, a bit each.
//
// Only the parts that the tile leaves open are evaluated. One that compares a value of the key with values of the query costs a
// search or a comparison a column for each row; any other sends the tile to the row evaluator.
#pragma once
#include <vector>

#include <samite/ir/bounds.hpp>
#include <samite/ir/evaluate.hpp>

namespace samite {

/// Judges one predicate pair by pair. Arguments and tables are read when it is made.
///
/// threads  one thread at a time; a copy serves another thread
class tile_bits {
 public:
  explicit tile_bits(const program& source);

  /// Bit c of words[r] is set if pair (q.low + r, kv.low + c) is kept.
  ///
  /// tile  b and h single, at most 64 keys; the program was checked over the run's sizes (box_judge::check)
  void evaluate(const index_box& tile, std::uint64_t* words);

 private:
  using steps = detail::box_steps;

  // What a leaf's terms of the key add up to in each column of the tile.
  struct key_values {
    bool is_rising = false;
    index_t at[64];
  };

  bool can_split(int id) const;
  void prepare(int id, const index_box& tile);
  std::uint64_t bits_of(int id);
  std::uint64_t bits_of_parts(const int* first, const int* last, bool all);
  std::uint64_t bits_of_leaf(int id);
  std::uint64_t bits_within(const key_values& keys, interval range) const;

  box_judge judge_;
  row_evaluator rows_;
  std::vector<key_values> keys_;  // by predicate step
  std::vector<std::uint8_t> splits_;  // by predicate step: whether each term of its leaves has the key or the query, not both
  index_t columns_ = 0;
  std::uint64_t every_ = 0;  // the bits of all columns
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/tile_bits_impl.hpp>
#endif
