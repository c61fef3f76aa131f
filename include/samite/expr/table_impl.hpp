// samite/expr/table_impl.hpp: making and updating tables.
#pragma once
#include <samite/expr/table.hpp>

namespace samite {

SAMITE_IMPL std::vector<index_t> table_ref::dims() const {
  const auto now = contents();
  return {now->dims().end() - rank(), now->dims().end()};
}

SAMITE_IMPL void table_ref::update(std::initializer_list<index_t> values, std::vector<index_t> dims) {
  update(std::span<const index_t>(values.begin(), values.size()), std::move(dims));
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

}  // namespace detail

SAMITE_IMPL table_ref table(std::initializer_list<index_t> values, std::vector<index_t> dims) {
  return table(std::span<const index_t>(values.begin(), values.size()), std::move(dims));
}

}  // namespace samite
