// samite/ir/table.hpp: integer tables that masks and scores read: document ids, anchors, positions, lengths.
#pragma once
#include <array>
#include <atomic>
#include <concepts>
#include <memory>
#include <span>
#include <vector>

#include <samite/ir/interval.hpp>

namespace samite {

/// What a table holds over a box of indices: bounds of its values and the set of their residues modulo 64, which tells
/// unordered ids apart ({0, 2} against {1}) where bounds can't.
struct table_range {
  interval values;
  std::uint64_t residues = 0;
};

namespace detail {

constexpr std::uint64_t residue_bit(index_t value) { return std::uint64_t(1) << (std::uint64_t(value) & 63u); }

/// Integers of any type behind one that is not a template.
struct integer_list {
  const void* data = nullptr;
  std::size_t size = 0;
  __int128 (*read)(const void* data, std::size_t at) = nullptr;  // holds every value of signed and unsigned 64 bits
};

template <std::integral T>
integer_list list_of(std::span<const T> values) {
  return {values.data(), values.size(), [](const void* data, std::size_t at) -> __int128 { return static_cast<const T*>(data)[at]; }};
}

}  // namespace detail

/// The contents of a table at one moment; never changed, so that a run reads one state from start to end.
///
/// Dimensions are aligned to the right: a table of rank 1 and length n has dims {1, 1, n}.
class table_contents {
 public:
  table_contents(std::vector<std::int32_t> values, const std::array<index_t, 3>& dims, std::uint64_t version);

  const std::vector<std::int32_t>& values() const { return values_; }
  const std::array<index_t, 3>& dims() const { return dims_; }
  /// Counts the updates of the table; a device copy is stale when it differs.
  std::uint64_t version() const { return version_; }
  index_t rows() const { return dims_[0] * dims_[1]; }
  index_t length() const { return dims_[2]; }
  bool is_empty() const { return values_.empty(); }

  /// Whether the values of row `row` never fall.
  bool is_non_decreasing(index_t row) const { return sorted_[std::size_t(row)] != 0; }
  bool is_non_decreasing() const;
  /// Whether neighbours in every row differ by at most 1, so that a stretch of a row holds every value between its extremes.
  bool is_gapless() const { return gapless_; }

  /// The element at indices clamped into the table; 0 if it is empty.
  index_t clamped(index_t i, index_t j, index_t k) const;

  /// What the table holds over ranges of indices, clamped into the table.
  ///
  /// cost  O(1) in a row whose values never fall, else O(log length); up to 32 rows are looked at one by one, more of them
  ///       give the range of the whole table
  table_range range(interval i, interval j, interval k) const;

  /// Range of all values.
  const table_range& whole() const { return whole_; }

  /// What `range` reads, for a copy of the table elsewhere: a flag a row that says whether it is sorted, and ranges of more and more of
  /// each unsorted row, 2 * pyramid_leaves() a row; element n is over elements 2n and 2n + 1, a leaf over 16 values.
  const std::vector<char>& sorted_rows() const { return sorted_; }
  const std::vector<table_range>& pyramid() const { return pyramid_; }
  index_t pyramid_leaves() const { return leaves_; }

 private:
  // A leaf of the pyramid covers this many values: an ordinary loop over 16 is as fast as four more levels.
  static constexpr index_t leaf_values = 16;

  static interval clamp_into(interval x, index_t count);

  table_range row_range(index_t row, index_t low, index_t high) const;

  // Rows whose values never fall need no pyramid, but get one if another row does.
  void build_pyramid();

  std::vector<std::int32_t> values_;
  std::array<index_t, 3> dims_;
  std::uint64_t version_;
  std::vector<char> sorted_;
  bool gapless_ = true;
  index_t leaves_ = 0;
  std::vector<table_range> pyramid_;
  table_range whole_{interval::point(0), 1};
};

/// An integer table of rank 1 to 3 whose contents are read at each run. Values are held as int32.
///
/// errors   E-MASK-TABLE-RANK, E-MASK-TABLE-SHAPE, E-MASK-TABLE-VALUE (a value beyond 32 bits), E-MASK-TABLE-CAPACITY
/// threads  `update` may run beside readers; a run keeps the contents that it started with
class index_table {
 public:
  template <std::integral T>
  index_table(std::span<const T> values, const std::vector<index_t>& dims, const std::vector<index_t>& strides = {})
      : index_table(detail::list_of(values), dims, strides) {}
  index_table(detail::integer_list values, const std::vector<index_t>& dims, const std::vector<index_t>& strides);

  int rank() const { return rank_; }
  /// Elements that an update may bring; device copies are made for it.
  index_t capacity() const { return capacity_; }
  /// Raises the capacity; call it before the first run.
  void reserve(index_t elements);

  /// The contents now. Keep the pointer for as long as one state is wanted.
  std::shared_ptr<const table_contents> contents() const;

  /// Replaces the contents; masks made from the table see them at their next run, without a new kernel.
  ///
  /// dims  of the same rank as before; the element count stays within capacity()
  template <std::integral T>
  void update(std::span<const T> values, const std::vector<index_t>& dims, const std::vector<index_t>& strides = {}) {
    replace(detail::list_of(values), dims, strides);
  }
  void replace(detail::integer_list values, const std::vector<index_t>& dims, const std::vector<index_t>& strides);

 private:
  static std::shared_ptr<const table_contents> make(const detail::integer_list& values, const std::vector<index_t>& dims,
                                                    const std::vector<index_t>& strides, std::uint64_t version);

  int rank_;
  index_t capacity_ = 0;
  mutable std::atomic_flag busy_;
  std::shared_ptr<const table_contents> contents_;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/table_impl.hpp>
#endif
