// samite/ir/table_impl.hpp: reading tables, and judging ranges of them.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <utility>

#include <samite/ir/table.hpp>

namespace samite {

namespace detail {

/// Residues of every integer of a short range; all bits for a long one.
constexpr std::uint64_t residues_of(interval range) {
  const index_t count = range.high - range.low + 1;
  return count >= 64 ? ~std::uint64_t(0) : std::rotl((std::uint64_t(1) << count) - 1, int(std::uint64_t(range.low) & 63u));
}

constexpr table_range merge(const table_range& a, const table_range& b) { return {hull(a.values, b.values), a.residues | b.residues}; }

// Held for the copy of one pointer; <mutex> would cost every including file more than the rest of this header.
struct short_lock {
  std::atomic_flag& flag;
  explicit short_lock(std::atomic_flag& f) : flag(f) {
    while (flag.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~short_lock() { flag.clear(std::memory_order_release); }
  short_lock(const short_lock&) = delete;
  short_lock& operator=(const short_lock&) = delete;
};

}  // namespace detail

SAMITE_IMPL table_contents::table_contents(std::vector<std::int32_t> values, const std::array<index_t, 3>& dims, std::uint64_t version) : values_(std::move(values)), dims_(dims), version_(version) {
  if (values_.empty()) return;
  sorted_.assign(std::size_t(rows()), 1);
  for (index_t row = 0; row < rows(); ++row) {
    const auto first = values_.begin() + row * length();
    sorted_[std::size_t(row)] = std::is_sorted(first, first + length());
    for (index_t k = 1; k < length() && gapless_; ++k) gapless_ = std::abs(index_t(first[k]) - first[k - 1]) <= 1;
  }
  if (!is_non_decreasing()) build_pyramid();
  whole_ = row_range(0, 0, length() - 1);
  for (index_t row = 1; row < rows(); ++row) whole_ = detail::merge(whole_, row_range(row, 0, length() - 1));
}

SAMITE_IMPL bool table_contents::is_non_decreasing() const {
  for (char sorted : sorted_)
    if (!sorted) return false;
  return true;
}

SAMITE_IMPL index_t table_contents::clamped(index_t i, index_t j, index_t k) const {
  if (values_.empty()) return 0;
  i = std::clamp<index_t>(i, 0, dims_[0] - 1), j = std::clamp<index_t>(j, 0, dims_[1] - 1), k = std::clamp<index_t>(k, 0, dims_[2] - 1);
  return values_[std::size_t((i * dims_[1] + j) * dims_[2] + k)];
}

SAMITE_IMPL table_range table_contents::range(interval i, interval j, interval k) const {
  if (values_.empty()) return {interval::point(0), 1};
  i = clamp_into(i, dims_[0]), j = clamp_into(j, dims_[1]), k = clamp_into(k, dims_[2]);
  const index_t count = (i.high - i.low + 1) * (j.high - j.low + 1);
  if (count > 32) return whole();
  table_range found = row_range(i.low * dims_[1] + j.low, k.low, k.high);
  if (count == 1) return found;
  for (index_t a = i.low; a <= i.high; ++a)
    for (index_t c = j.low; c <= j.high; ++c) found = detail::merge(found, row_range(a * dims_[1] + c, k.low, k.high));
  return found;
}

SAMITE_IMPL interval table_contents::clamp_into(interval x, index_t count) {
  return {std::clamp<index_t>(x.low, 0, count - 1), std::clamp<index_t>(x.high, 0, count - 1)};
}

SAMITE_IMPL table_range table_contents::row_range(index_t row, index_t low, index_t high) const {
  const std::int32_t* values = values_.data() + row * length();
  if (low == high) return {interval::point(values[low]), detail::residue_bit(values[low])};
  if (is_non_decreasing(row)) {
    const interval range{values[low], values[high]};
    return {range, detail::residues_of(range)};
  }
  table_range found{interval::point(values[low]), detail::residue_bit(values[low])};
  const auto scan = [&](index_t from, index_t to) {
    for (index_t x = from; x <= to; ++x) found = detail::merge(found, {interval::point(values[x]), detail::residue_bit(values[x])});
  };
  index_t first = low / leaf_values + 1, last = high / leaf_values;  // leaves [first, last) lie wholly inside
  if (first >= last) {
    scan(low, high);
    return found;
  }
  scan(low, first * leaf_values - 1);
  scan(last * leaf_values, high);
  const table_range* tree = pyramid_.data() + row * 2 * leaves_;
  for (first += leaves_, last += leaves_; first < last; first /= 2, last /= 2) {
    if (first & 1) found = detail::merge(found, tree[first++]);
    if (last & 1) found = detail::merge(found, tree[--last]);
  }
  return found;
}

SAMITE_IMPL void table_contents::build_pyramid() {
  leaves_ = (length() + leaf_values - 1) / leaf_values;
  pyramid_.resize(std::size_t(rows() * 2 * leaves_));
  for (index_t row = 0; row < rows(); ++row) {
    table_range* tree = pyramid_.data() + row * 2 * leaves_;
    const std::int32_t* values = values_.data() + row * length();
    for (index_t leaf = 0; leaf < leaves_; ++leaf) {
      table_range& cell = tree[leaves_ + leaf];
      for (index_t x = leaf * leaf_values; x < std::min(length(), (leaf + 1) * leaf_values); ++x) {
        const table_range one{interval::point(values[x]), detail::residue_bit(values[x])};
        cell = x == leaf * leaf_values ? one : detail::merge(cell, one);
      }
    }
    for (index_t at = leaves_ - 1; at >= 1; --at) tree[at] = detail::merge(tree[2 * at], tree[2 * at + 1]);
  }
}

SAMITE_IMPL index_table::index_table(detail::integer_list values, const std::vector<index_t>& dims, const std::vector<index_t>& strides)
    : rank_(int(dims.size())), contents_(make(values, dims, strides, 0)) {
  capacity_ = index_t(contents_->values().size());
}

SAMITE_IMPL void index_table::reserve(index_t elements) {
  constexpr index_t most = index_t(1) << 40;  // as of dimensions
  if (elements < 0 || elements > most) raise("E-MASK-TABLE-CAPACITY", "table.reserve(", elements, "): a table has room for 0 to 2^40 values");
  capacity_ = std::max(capacity_, elements);
}

SAMITE_IMPL std::shared_ptr<const table_contents> index_table::contents() const {
  const detail::short_lock lock(busy_);
  return contents_;
}

SAMITE_IMPL void index_table::replace(detail::integer_list values, const std::vector<index_t>& dims, const std::vector<index_t>& strides) {
  if (int(dims.size()) != rank_)
    raise("E-MASK-TABLE-RANK", "table.update: the new contents have rank ", dims.size(), " ", dims, ", but the table has rank ", rank_,
          "; make a new table for another rank");
  auto fresh = make(values, dims, strides, contents()->version() + 1);
  if (index_t(fresh->values().size()) > capacity_)
    raise("E-MASK-TABLE-CAPACITY", "table.update: ", fresh->values().size(), " values don't fit the capacity of ", capacity_,
          "; call reserve(", fresh->values().size(), ") on the table before its first run");
  const detail::short_lock lock(busy_);
  contents_.swap(fresh);  // `fresh` takes the old contents along; they are released after the lock
}

SAMITE_IMPL std::shared_ptr<const table_contents> index_table::make(const detail::integer_list& values, const std::vector<index_t>& dims,
                                                  const std::vector<index_t>& strides, std::uint64_t version) {
  if (dims.empty() || dims.size() > 3)
    raise("E-MASK-TABLE-RANK", "table: rank ", dims.size(), " ", dims, " is not supported; a table has one to three dimensions");
  if (!strides.empty() && strides.size() != dims.size())
    raise("E-MASK-TABLE-SHAPE", "table: ", strides.size(), " strides ", strides, " for ", dims.size(), " dimensions ", dims);
  std::array<index_t, 3> extent{1, 1, 1}, step{0, 0, 0};
  index_t packed = 1, count = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::size_t from_end = dims.size() - 1 - i;
    if (dims[from_end] < 0 || (dims[from_end] > 0 && count > (index_t(1) << 40) / dims[from_end]))
      raise("E-MASK-TABLE-SHAPE", "table: dimensions ", dims, " are negative or too large");
    extent[2 - i] = dims[from_end];
    step[2 - i] = strides.empty() ? packed : strides[from_end];
    packed *= dims[from_end], count *= dims[from_end];
  }
  index_t reach = count > 0 ? 1 : 0, below = 0;  // one past the highest, and the lowest element that is read
  for (std::size_t i = 0; i < 3 && count > 0; ++i) {
    const __int128 last = __int128(extent[i] - 1) * step[i];
    if (last > index_t(values.size) || -last > index_t(values.size))
      raise("E-MASK-TABLE-SHAPE", "table: dimensions ", dims, " with strides ", strides, " need more than the ", values.size, " values given");
    (last < 0 ? below : reach) += index_t(last);
  }
  if (!strides.empty() && (below < 0 || reach > index_t(values.size)))
    raise("E-MASK-TABLE-SHAPE", "table: dimensions ", dims, " with strides ", strides, " read the values from number ", below, " to ", reach - 1, ", but ", values.size,
          " were given, number 0 to ", index_t(values.size) - 1, "; a negative stride needs a view whose first value is not number 0, so reverse the values instead");
  if (reach > index_t(values.size) || (strides.empty() && count != index_t(values.size)))
    raise("E-MASK-TABLE-SHAPE", "table: dimensions ", dims, " hold ", count, " values, but ", values.size, " were given; ",
          "the product of the dimensions must be the number of values");
  std::vector<std::int32_t> held;
  held.reserve(std::size_t(count));
  for (index_t i = 0; i < extent[0]; ++i)
    for (index_t j = 0; j < extent[1]; ++j)
      for (index_t k = 0; k < extent[2]; ++k) {
        const __int128 value = values.read(values.data, std::size_t(i * step[0] + j * step[1] + k * step[2]));
        if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max()) {
          const std::array<index_t, 3> at{i, j, k};
          raise("E-MASK-TABLE-VALUE", "table: the value ", value < 0 ? concat_text(index_t(value)) : concat_text(std::uint64_t(value)), " at ", std::vector<index_t>(at.end() - std::ptrdiff_t(dims.size()), at.end()),
                " does not fit 32 bits; renumber the ids, e.g. 0, 1, 2, ... in order of appearance");
        }
        held.push_back(std::int32_t(value));
      }
  return std::make_shared<const table_contents>(std::move(held), extent, version);
}

}  // namespace samite
