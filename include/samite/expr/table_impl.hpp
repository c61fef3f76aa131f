// samite/expr/table_impl.hpp: making and updating tables.
#pragma once
#include <limits>

#include <samite/expr/table.hpp>

namespace samite {

SAMITE_IMPL std::vector<index_t> table_ref::dims() const {
  const auto now = contents();
  return {now->dims().end() - rank(), now->dims().end()};
}

SAMITE_IMPL void table_ref::update(std::initializer_list<index_t> values, std::vector<index_t> dims) {
  update(std::span<const index_t>(values.begin(), values.size()), std::move(dims));
}

SAMITE_IMPL void table_ref::update(const std::vector<bool>& values, std::vector<index_t> dims) {
  update(std::vector<std::uint8_t>(values.begin(), values.end()), std::move(dims));
}

SAMITE_IMPL void table_ref::replace(detail::integer_list values, std::vector<index_t> dims) {
  if (dims.empty()) {
    dims = this->dims();
    if (rank() == 1) dims = {index_t(values.size)};
  }
  shared_->replace(values, dims, {});
}

namespace detail {

SAMITE_IMPL table_ref table_of(integer_list values, std::vector<index_t> dims, const std::vector<index_t>& strides) {
  if (dims.empty()) dims = {index_t(values.size)};
  return table_ref(std::make_shared<index_table>(values, dims, strides));
}

SAMITE_IMPL void row_list::add(integer_list row) {
  if (rows_ == 0) length_ = index_t(row.size);
  if (index_t(row.size) != length_)
    raise("E-MASK-TABLE-SHAPE", "table: row ", rows_, " has ", row.size, " values and row 0 has ", length_, "; all rows of a table are equally long, so fill the shorter ones up");
  for (std::size_t i = 0; i < row.size; ++i) {
    const __int128 value = row.read(row.data, i);
    numbers_.push_back(value > std::numeric_limits<index_t>::max() ? std::numeric_limits<index_t>::max() : index_t(value));  // refused below: no 32 bits hold it
  }
  ++rows_;
}

SAMITE_IMPL table_ref row_list::made() const { return table(numbers_, {rows_, length_}); }

}  // namespace detail

SAMITE_IMPL table_ref table(const std::vector<bool>& values, std::vector<index_t> dims, const std::vector<index_t>& strides) {
  return table(std::vector<std::uint8_t>(values.begin(), values.end()), std::move(dims), strides);
}

SAMITE_IMPL table_ref table(std::initializer_list<index_t> values, std::vector<index_t> dims) {
  return table(std::span<const index_t>(values.begin(), values.size()), std::move(dims));
}

}  // namespace samite
