// samite/ir/tensor_ops_impl.hpp: shapes and checks of the structural operations.
#pragma once
#include <algorithm>
#include <utility>

#include <samite/ir/derivative.hpp>
#include <samite/ir/interval.hpp>
#include <samite/ir/tensor_ops.hpp>

namespace samite {

namespace detail {

inline int check_axis(const char* call, const value& x, int axis) {
  const int rank = x.rank();
  if (axis < -rank || axis >= rank)
    raise("E-SHAPE-AXIS", call, ": axis ", axis, " of a value of shape ", to_text(x.dims()), "; axes run from ", -rank, " to ", rank - 1);
  return axis < 0 ? axis + rank : axis;
}

inline dim product(const char* call, const shape& dims, std::size_t begin, std::size_t end) {
  dim total(1);
  for (std::size_t i = begin; i < end; ++i) {
    if (total.is_constant()) total = dims[i] * total.constant();
    else if (dims[i].is_constant()) total = total * dims[i].constant();
    else
      raise("E-SHAPE-PRODUCT", call, " of shape ", to_text(dims), ": two run-time lengths would be multiplied; a merged extent may hold only one of them");
  }
  return total;
}

/// Leading axes merged: [.., C] as rows x columns.
inline std::pair<dim, dim> as_matrix(const char* call, const value& x) {
  if (x.rank() == 0) raise("E-SHAPE-RANK", call, ": a scalar can't be read as a matrix; reshape it to [1,1]");
  return {product(call, x.dims(), 0, std::size_t(x.rank()) - 1), x.extent(-1)};
}

inline bool is_integer(dtype type) { return type == dtype::i32 || type == dtype::i64; }

}  // namespace detail

SAMITE_IMPL value contiguous(value x) {
  if (x.info().is_row_major()) return x;
  return x.owner().add(copy_node{}, {x}, {row_major(x.type(), x.dims())})[0];
}

SAMITE_IMPL value reshape(value x, shape dims) {
  for (const dim& extent : dims)
    if (extent.is_constant() && extent.constant() < 0) raise("E-SHAPE-CAPACITY", "reshape: ", to_text(dims), "; an extent is at least 0, and none is worked out from the others");
  x = contiguous(x);
  if (x.dims() == dims) return x;
  const dim before = detail::product("reshape", x.dims(), 0, x.dims().size()), after = detail::product("reshape", dims, 0, dims.size());
  if (!(before == after))
    raise("E-SHAPE-RESHAPE", "reshape: ", to_text(x.dims()), " can't become ", to_text(dims), ": the element counts differ; give extents whose product is the same");
  return x.owner().add(reshape_node{}, {x}, {row_major(x.type(), std::move(dims))})[0];
}

SAMITE_IMPL value transpose(value x, std::vector<int> axes) {
  std::vector<int> sorted = axes;
  std::sort(sorted.begin(), sorted.end());
  bool is_permutation = int(axes.size()) == x.rank();
  for (std::size_t i = 0; is_permutation && i < sorted.size(); ++i) is_permutation = sorted[i] == int(i);
  if (!is_permutation)
    raise("E-SHAPE-AXIS", "transpose: axes ", axes, " for a value of shape ", to_text(x.dims()), "; name every axis from 0 to ", x.rank() - 1, " once");
  value_info info{x.type(), {}, {}, x.info().dense};
  std::vector<int> place(axes.size());
  for (std::size_t i = 0; i < axes.size(); ++i) info.dims.push_back(x.extent(axes[i])), place[std::size_t(axes[i])] = int(i);
  for (int axis : x.info().order) info.order.push_back(place[std::size_t(axis)]);
  return x.owner().add(transpose_node{std::move(axes)}, {x}, {std::move(info)})[0];
}

SAMITE_IMPL value transpose(const value& x) {
  std::vector<int> axes;
  for (int i = 0; i < x.rank(); ++i) axes.push_back(i);
  if (axes.size() < 2) raise("E-SHAPE-RANK", "transpose: a value of shape ", to_text(x.dims()), " has fewer than two axes");
  std::swap(axes[axes.size() - 1], axes[axes.size() - 2]);
  return transpose(x, std::move(axes));
}

SAMITE_IMPL value slice(value x, int axis, dim begin, dim length) {
  axis = detail::check_axis("slice", x, axis);
  const dim& whole = x.extent(axis);
  if (begin == dim(0) && length == whole) return x;
  if (begin.is_constant() && length.is_constant() && whole.is_constant() &&
      (begin.constant() < 0 || length.constant() < 0 || begin.constant() > whole.constant() || length.constant() > whole.constant() - begin.constant()))
    raise("E-SHAPE-SLICE", "part of axis ", axis, " of shape ", to_text(x.dims()), ": elements ", begin.constant(), " to ",
          samite::saturate(__int128(begin.constant()) + length.constant() - 1), " don't all exist; begin and length must be at least 0 and their sum at most ", whole.constant());
  value_info info = x.info();
  info.dims[std::size_t(axis)] = length;
  info.dense = false;
  return x.owner().add(slice_node{axis, std::move(begin), std::move(length)}, {x}, {std::move(info)})[0];
}

SAMITE_IMPL value concat(const std::vector<value>& parts, int axis) {
  if (parts.empty()) raise("E-SHAPE-CONCAT", "concat: no values were given; give at least one");
  if (parts.size() == 1) return parts[0];
  axis = detail::check_axis("concat", parts[0], axis);
  value_info info = row_major(parts[0].type(), parts[0].dims());
  for (std::size_t i = 1; i < parts.size(); ++i) {
    bool fits = parts[i].rank() == parts[0].rank() && parts[i].type() == parts[0].type();
    for (int a = 0; fits && a < parts[0].rank(); ++a) fits = a == axis || parts[i].extent(a) == parts[0].extent(a);
    if (!fits)
      raise("E-SHAPE-CONCAT", "concat along axis ", axis, ": value ", i, " is ", name_of(parts[i].type()), " ", to_text(parts[i].dims()),
            " but value 0 is ", name_of(parts[0].type()), " ", to_text(parts[0].dims()), "; dtypes and all other extents must be equal");
    info.dims[std::size_t(axis)] = info.dims[std::size_t(axis)] + parts[i].extent(axis);
  }
  return parts[0].owner().add(concat_node{axis}, parts, {std::move(info)})[0];
}

SAMITE_IMPL value pad(value x, int axis, dim before, dim after) {
  axis = detail::check_axis("pad", x, axis);
  for (const dim* zeros : {&before, &after})
    if (zeros->is_constant() && zeros->constant() < 0)
      raise("E-SHAPE-SLICE", "pad: ", zeros->constant(), " zeros at an end of axis ", axis, " of shape ", to_text(x.dims()), "; pad makes an axis longer, use slice to cut it");
  value_info info = row_major(x.type(), x.dims());
  info.dims[std::size_t(axis)] = info.dims[std::size_t(axis)] + before + after;
  return x.owner().add(pad_node{axis, std::move(before), std::move(after)}, {x}, {std::move(info)})[0];
}

SAMITE_IMPL value matmul(value a, value b, matmul_options options) {
  auto [a_rows, a_columns] = detail::as_matrix("matmul", a);
  auto [b_rows, b_columns] = detail::as_matrix("matmul", b);
  const dim inner_a = options.trans_a ? a_rows : a_columns, inner_b = options.trans_b ? b_columns : b_rows;
  if (!(inner_a == inner_b))
    raise("E-SHAPE-INNER", "matmul", options.label.empty() ? "" : " \"" + options.label + "\"", ": the inner extents differ: a is ", to_text(a.dims()),
          options.trans_a ? " transposed" : "", " and b is ", to_text(b.dims()), options.trans_b ? " transposed" : "",
          "; columns of the first must equal rows of the second");
  if (a.type() != b.type() || !is_real(a.type()))
    raise("E-DTYPE-OPERANDS", "matmul", options.label.empty() ? "" : " \"" + options.label + "\"", ": a is ", name_of(a.type()), " and b is ", name_of(b.type()),
          "; both must have one real dtype, use cast(x, type)");
  shape dims;
  if (options.trans_a) dims = {a_columns};
  else dims.assign(a.dims().begin(), a.dims().end() - 1);
  dims.push_back(options.trans_b ? b_rows : b_columns);
  graph& g = a.owner();
  return g.add(matmul_node{options.trans_a, options.trans_b}, {contiguous(a), contiguous(b)},
               {row_major(options.out_type.value_or(a.type()), std::move(dims))}, options.label)[0];
}

SAMITE_IMPL value linear(value x, value w, std::string label) {
  if (x.rank() == 0 || w.rank() != 2 || !(x.extent(x.rank() - 1) == w.extent(1)))
    raise("E-SHAPE-INNER", "linear", label.empty() ? "" : " \"" + label + "\"", ": x is ", to_text(x.dims()), " and w is ", to_text(w.dims()), "; expected x [..,I] and w [O,I]: the last extents must be equal");
  return matmul(x, w, {.trans_b = true, .label = std::move(label)});
}

SAMITE_IMPL value embedding(value table, value ids, std::string label) {
  if (table.rank() != 2) raise("E-SHAPE-RANK", "embedding: the table has shape ", to_text(table.dims()), "; expected [V,H]");
  if (!detail::is_integer(ids.type())) raise("E-DTYPE-OPERANDS", "embedding: ids are ", name_of(ids.type()), "; expected i32 or i64");
  shape dims = ids.dims();
  dims.push_back(table.extent(1));
  return table.owner().add(embedding_node{}, {contiguous(table), contiguous(ids)}, {row_major(table.type(), std::move(dims))}, std::move(label))[0];
}

SAMITE_IMPL value sum_to(value x, shape dims) {
  if (x.dims() == dims) return x;
  const int missing = x.rank() - int(dims.size());
  bool fits = missing >= 0;
  for (int i = 0; fits && i < int(dims.size()); ++i) fits = dims[std::size_t(i)] == dim(1) || dims[std::size_t(i)] == x.extent(i + missing);
  if (!fits) raise("E-SHAPE-SUM", "sum_to: ", to_text(x.dims()), " can't be summed to ", to_text(dims), "; each extent must be the same or 1");
  return x.owner().add(sum_to_node{}, {contiguous(x)}, {row_major(x.type(), std::move(dims))})[0];
}

SAMITE_IMPL value assign(value state, value x) {
  if (!state.owner().node(state.node()).as<state_node>() && !state.owner().node(state.node()).as<parameter_node>())
    raise("E-GRAPH-ASSIGN", "assign: the target is of kind ", state.owner().node(state.node()).type_name(), "; only a state or parameter can be written");
  if (!(state.dims() == x.dims()) || state.type() != x.type())
    raise("E-GRAPH-ASSIGN", "assign: the state is ", name_of(state.type()), " ", to_text(state.dims()), " but the value is ", name_of(x.type()), " ",
          to_text(x.dims()), "; shape and dtype must be equal");
  return state.owner().add(assign_node{}, {state, contiguous(x)}, {state.info()})[0];
}

SAMITE_IMPL value append(value state, value rows, int axis, dim at) {
  axis = detail::check_axis("append", state, axis);
  bool fits = state.rank() == rows.rank() && state.type() == rows.type() && state.owner().node(state.node()).as<state_node>() != nullptr;
  for (int a = 0; fits && a < state.rank(); ++a) fits = a == axis || state.extent(a) == rows.extent(a);
  if (!fits)
    raise("E-GRAPH-APPEND", "append along axis ", axis, ": the state is ", name_of(state.type()), " ", to_text(state.dims()), " but the rows are ", name_of(rows.type()),
          " ", to_text(rows.dims()), "; the target must be a state, dtypes and all other extents must be equal");
  if (at.is_constant() && at.constant() < 0)
    raise("E-SHAPE-SLICE", "append: rows from ", at.constant(), " on of axis ", axis, " of a state ", to_text(state.dims()), "; the first row is 0");
  value_info info = state.info();
  info.dims[std::size_t(axis)] = at + rows.extent(axis);
  info.dense = false;
  return state.owner().add(append_node{axis, std::move(at)}, {state, rows}, {std::move(info)})[0];
}

SAMITE_IMPL shape broadcast(const char* call, const std::vector<value>& operands) {
  shape result;
  for (const value& v : operands) {
    while (result.size() < v.dims().size()) result.insert(result.begin(), dim(1));
    for (std::size_t i = 0; i < v.dims().size(); ++i) {
      dim& have = result[result.size() - v.dims().size() + i];
      const dim& next = v.dims()[i];
      if (have == dim(1)) have = next;
      else if (!(next == dim(1)) && !(next == have))
        raise("E-SHAPE-BROADCAST", call, ": shapes ", to_text(operands[0].dims()), " and ", to_text(v.dims()),
              " don't broadcast; aligned from the right, extents must be equal or 1");
    }
  }
  return result;
}

SAMITE_IMPL std::vector<value> fuse(graph& g, program fn, const std::vector<value>& operands, shape domain, const std::vector<dtype>& types, std::string label) {
  std::vector<char> varies;
  for (const value& v : operands) varies.push_back(v.rank() > 0 && !(v.extent(-1) == dim(1)));
  const std::vector<char> by_node = column_dependence(fn, varies);
  std::vector<value_info> outputs;
  for (std::size_t i = 0; i < fn.roots.size(); ++i) {
    value_info info = row_major(types[i], domain);
    if (!by_node[std::size_t(fn.roots[i])] && !info.dims.empty()) info.dims.back() = dim(1);
    outputs.push_back(std::move(info));
  }
  return g.add(fused_node{std::make_shared<const program>(std::move(fn)), std::move(domain)}, operands, std::move(outputs), std::move(label));
}

}  // namespace samite
