// samite/run/strided.hpp: copies and sums over strided tensors on the CPU.
#pragma once
#include <cstring>
#include <vector>

#include <samite/run/backend.hpp>
#include <samite/run/row_loops.hpp>
#include <samite/runtime/thread_pool.hpp>

namespace samite::detail {

/// Part of a view: `length` elements of one axis from `begin`.
inline tensor_view narrowed(tensor_view v, int axis, index_t begin, index_t length) {
  v.data += begin * v.strides[std::size_t(axis)] * index_t(size_of(v.type));
  v.dims[std::size_t(axis)] = length;
  return v;
}

/// Offset in elements of the row with the given number, counting all axes but the last.
inline index_t row_offset(const tensor_view& v, index_t row) {
  index_t offset = 0;
  for (std::size_t i = v.dims.size() - 1; i-- > 0;) {
    offset += row % v.dims[i] * v.strides[i];
    row /= v.dims[i];
  }
  return offset;
}

/// Copies `from` into `to`: equal extents and dtype, any strides.
inline void copy_strided(const tensor_view& from, const tensor_view& to) {
  const index_t total = to.size();
  if (total == 0) return;
  const std::size_t element = size_of(to.type);
  if (to.dims.empty()) return void(std::memcpy(to.data, from.data, element));
  const index_t columns = to.dims.back(), rows = total / columns;
  const index_t from_step = from.strides.back(), to_step = to.strides.back();
  const index_t block = std::max<index_t>(1, 16384 / columns);
  parallel_for((rows + block - 1) / block, [&](index_t i) {
    for (index_t r = i * block; r < std::min(rows, (i + 1) * block); ++r) {
      const std::byte* x = from.data + row_offset(from, r) * index_t(element);
      std::byte* y = to.data + row_offset(to, r) * index_t(element);
      if (from_step == 1 && to_step == 1) std::memcpy(y, x, std::size_t(columns) * element);
      else
        for (index_t c = 0; c < columns; ++c) std::memcpy(y + c * to_step * index_t(element), x + c * from_step * index_t(element), element);
    }
  });
}

inline void fill_zero(const tensor_view& v) {
  // Outputs of nodes are dense, so their bytes can be cleared in one go.
  std::memset(v.data, 0, std::size_t(v.size()) * size_of(v.type));
}

/// Sums row-major `from` to the extents of row-major `to` (equal or 1, aligned from the right), in double and in an order
/// that depends on the shape alone.
inline void sum_strided(const tensor_view& from, const tensor_view& to) {
  // Adjacent axes that are all kept or all summed act as one.
  std::vector<index_t> extent;
  std::vector<char> kept;
  const std::size_t missing = from.dims.size() - to.dims.size();
  for (std::size_t i = 0; i < from.dims.size(); ++i) {
    const bool keep = i >= missing && to.dims[i - missing] == from.dims[i];
    if (from.dims[i] == 1) continue;
    if (!extent.empty() && kept.back() == char(keep)) extent.back() *= from.dims[i];
    else extent.push_back(from.dims[i]), kept.push_back(char(keep));
  }
  std::vector<double> data(std::size_t(from.size()));
  parallel_for((from.size() + 65535) / 65536, [&](index_t i) {
    const index_t first = i * 65536, n = std::min<index_t>(65536, from.size() - first);
    load_row(data.data() + first, from.data + first * index_t(size_of(from.type)), from.type, 1, n);
  });
  while (!extent.empty()) {
    std::size_t axis = extent.size();
    while (axis > 0 && kept[axis - 1]) --axis;
    if (axis-- == 0) break;
    index_t outer = 1, inner = 1;
    for (std::size_t i = 0; i < axis; ++i) outer *= extent[i];
    for (std::size_t i = axis + 1; i < extent.size(); ++i) inner *= extent[i];
    const index_t length = extent[axis];
    std::vector<double> reduced(std::size_t(outer * inner), 0.0);
    constexpr index_t rows_per_part = 256;
    const index_t parts = (length + rows_per_part - 1) / rows_per_part;
    std::vector<double> partial(std::size_t(outer * parts * inner), 0.0);
    parallel_for(outer * parts, [&](index_t task) {
      const index_t o = task / parts, first = task % parts * rows_per_part;
      double* sum = partial.data() + task * inner;
      for (index_t r = first; r < std::min(length, first + rows_per_part); ++r) {
        const double* x = data.data() + (o * length + r) * inner;
        for (index_t c = 0; c < inner; ++c) sum[c] += x[c];
      }
    });
    for (index_t o = 0; o < outer; ++o)
      for (index_t part = 0; part < parts; ++part)
        for (index_t c = 0; c < inner; ++c) reduced[std::size_t(o * inner + c)] += partial[std::size_t((o * parts + part) * inner + c)];
    data = std::move(reduced);
    extent.erase(extent.begin() + std::ptrdiff_t(axis)), kept.erase(kept.begin() + std::ptrdiff_t(axis));
  }
  if (from.size() == 0) data.assign(std::size_t(to.size()), 0.0);
  store_row(to.data, to.type, data.data(), to.size());
}

}  // namespace samite::detail
