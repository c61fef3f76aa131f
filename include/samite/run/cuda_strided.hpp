// samite/run/cuda_strided.hpp: the parameters of row kernels, copies and sums, as the device sources lay them out.
#pragma once
#include <algorithm>
#include <vector>

#include <samite/run/backend.hpp>

namespace samite::detail {

// Mirrors of codegen/device/row.cuh, copy.cuh, sum_to.cuh and embedding.cuh.

struct device_row_space {
  static constexpr int max_axes = 5;
  index_t rows = 0, columns = 0;
  std::int32_t axes = 1, padding = 0;
  index_t extents[max_axes] = {1, 1, 1, 1, 1};
};

struct device_row_tensor {
  const void* data = nullptr;
  index_t row_strides[device_row_space::max_axes] = {};
  index_t column_stride = 0;
};

struct device_copy {
  static constexpr int max_axes = 6;
  void* to = nullptr;
  const void* from = nullptr;
  index_t size = 0;
  std::int32_t axes = 1, padding = 0;
  index_t extents[max_axes] = {1, 1, 1, 1, 1, 1}, to_strides[max_axes] = {}, from_strides[max_axes] = {};
};

struct device_sum {
  static constexpr int max_axes = 6;
  const void* from = nullptr;
  void* partials = nullptr;
  void* to = nullptr;
  index_t outputs = 1, terms = 1, chunk_terms = 1, chunks = 1;
  std::int32_t kept_axes = 0, summed_axes = 0;
  index_t kept_extents[max_axes] = {}, kept_strides[max_axes] = {}, summed_extents[max_axes] = {}, summed_strides[max_axes] = {};
};

struct device_error_report {
  std::int32_t code = 0, source = 0;
  std::int64_t value = 0, position = 0, bound = 0;
};

struct device_embedding {
  const void* ids = nullptr;
  const void* from = nullptr;
  void* to = nullptr;
  index_t tokens = 0, rows = 0, width = 0;
  void* report = nullptr;
  std::int32_t source = 0, padding = 0;
};

/// Axes that several tensors share, with each tensor's strides; extents of 1 are left out.
struct joint_axes {
  extents dims;
  std::vector<extents> strides;  // by tensor

  explicit joint_axes(std::size_t tensors) : strides(tensors) {}

  /// Adds an axis on the fast side and joins it with the one before where every tensor steps through both as through one.
  void push(index_t extent, const std::vector<index_t>& steps) {
    if (extent == 1) return;
    bool joins = !dims.empty();
    for (std::size_t t = 0; joins && t < strides.size(); ++t) joins = strides[t].back() == steps[t] * extent;
    if (joins) dims.back() *= extent;
    else dims.push_back(extent);
    for (std::size_t t = 0; t < strides.size(); ++t) {
      if (joins) strides[t].back() = steps[t];
      else strides[t].push_back(steps[t]);
    }
  }
};

inline void check_axis_count(const char* what, std::size_t axes, int limit) {
  if (axes > std::size_t(limit))
    raise("E-SHAPE-RANK", what, ": ", axes, " axes with unrelated strides, but a kernel walks at most ", limit, "; make the operands contiguous first");
}

/// A tensor's stride along a domain axis, 0 where it broadcasts.
inline index_t domain_stride(const tensor_view& v, const extents& domain, std::size_t axis) {
  const std::size_t missing = domain.size() - v.dims.size();
  if (axis < missing || (v.dims[axis - missing] == 1 && domain[axis] != 1)) return 0;
  return v.strides[axis - missing];
}

/// Where the rows of all tensors lie. The last domain axis are the columns.
inline device_row_space lay_out_rows(const extents& domain, std::span<const tensor_view> tensors, std::vector<device_row_tensor>& out) {
  device_row_space space;
  joint_axes axes(tensors.size());
  space.columns = domain.empty() ? 1 : domain.back();
  space.rows = 1;
  for (std::size_t a = 0; a + 1 < domain.size(); ++a) {
    space.rows *= domain[a];
    std::vector<index_t> steps;
    for (const tensor_view& v : tensors) steps.push_back(domain_stride(v, domain, a));
    axes.push(domain[a], steps);
  }
  check_axis_count("row kernel", axes.dims.size(), device_row_space::max_axes);
  space.axes = std::int32_t(std::max<std::size_t>(1, axes.dims.size()));
  std::copy(axes.dims.begin(), axes.dims.end(), space.extents);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    device_row_tensor r;
    r.data = tensors[t].data;
    std::copy(axes.strides[t].begin(), axes.strides[t].end(), r.row_strides);
    if (!domain.empty()) r.column_stride = domain_stride(tensors[t], domain, domain.size() - 1);
    out.push_back(r);
  }
  return space;
}

/// A copy between views of equal extents and dtype, in elements of `element_bytes`: 16 where all addresses allow it.
inline device_copy lay_out_copy(const tensor_view& from, const tensor_view& to, std::size_t& element_bytes) {
  joint_axes axes(2);
  for (std::size_t a = 0; a < to.dims.size(); ++a) axes.push(to.dims[a], {to.strides[a], from.strides[a]});
  check_axis_count("copy", axes.dims.size(), device_copy::max_axes);
  device_copy c;
  c.to = to.data, c.from = from.data;
  c.size = to.size();
  element_bytes = size_of(to.type);
  c.axes = std::int32_t(std::max<std::size_t>(1, axes.dims.size()));
  std::copy(axes.dims.begin(), axes.dims.end(), c.extents);
  std::copy(axes.strides[0].begin(), axes.strides[0].end(), c.to_strides);
  std::copy(axes.strides[1].begin(), axes.strides[1].end(), c.from_strides);
  const index_t per_unit = index_t(16 / element_bytes);
  const std::size_t last = std::size_t(c.axes) - 1;
  bool whole = !axes.dims.empty() && c.to_strides[last] == 1 && c.from_strides[last] == 1 && c.extents[last] % per_unit == 0 &&
               reinterpret_cast<std::uintptr_t>(c.to) % 16 == 0 && reinterpret_cast<std::uintptr_t>(c.from) % 16 == 0;
  for (std::size_t a = 0; a < last; ++a) whole = whole && c.to_strides[a] % per_unit == 0 && c.from_strides[a] % per_unit == 0;
  if (!whole) return c;
  for (std::size_t a = 0; a < last; ++a) c.to_strides[a] /= per_unit, c.from_strides[a] /= per_unit;
  c.extents[last] /= per_unit, c.size /= per_unit, element_bytes = 16;
  return c;
}

/// A sum over the axes on which `to` is 1 or which it lacks. The kept axes of `to` are dense and row-major.
inline device_sum lay_out_sum(const tensor_view& from, const tensor_view& to) {
  joint_axes kept(1), summed(1);
  device_sum s;
  s.from = from.data, s.to = to.data, s.outputs = to.size();
  const std::size_t missing = from.dims.size() - to.dims.size();
  for (std::size_t a = 0; a < from.dims.size(); ++a) {
    const bool keep = a >= missing && to.dims[a - missing] == from.dims[a];
    (keep ? kept : summed).push(from.dims[a], {from.strides[a]});
    if (!keep) s.terms *= from.dims[a];
  }
  check_axis_count("sum_to", std::max(kept.dims.size(), summed.dims.size()), device_sum::max_axes);
  s.kept_axes = std::int32_t(kept.dims.size()), s.summed_axes = std::int32_t(summed.dims.size());
  std::copy(kept.dims.begin(), kept.dims.end(), s.kept_extents);
  std::copy(kept.strides[0].begin(), kept.strides[0].end(), s.kept_strides);
  std::copy(summed.dims.begin(), summed.dims.end(), s.summed_extents);
  std::copy(summed.strides[0].begin(), summed.strides[0].end(), s.summed_strides);
  return s;
}

}  // namespace samite::detail
