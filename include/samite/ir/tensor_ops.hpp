// samite/ir/tensor_ops.hpp: structural operations on graph values: products, views, gathers and writes to state.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include <samite/ir/graph.hpp>

namespace samite {

/// The same elements in row-major memory order; free if they are so already.
value contiguous(value x);

/// The same elements, in the same order, under another shape of the same size. A view (after `contiguous`).
value reshape(value x, shape dims);

/// Axes in another order: out axis i is input axis axes[i]. A view.
value transpose(value x, std::vector<int> axes);

/// Last two axes exchanged. A view.
value transpose(const value& x);

/// `length` elements of one axis from `begin`. A view; whether the range lies inside is checked where lengths are known.
value slice(value x, int axis, dim begin, dim length);

/// Values one after another along an axis; the other extents must agree.
value concat(const std::vector<value>& parts, int axis);

/// Zeros before and after `x` along one axis.
value pad(value x, int axis, dim before, dim after);

struct matmul_options {
  bool trans_a = false, trans_b = false;
  /// Dtype of the product; the operands' own if unset. Accumulation is fp32 (fp64 for f64) either way.
  std::optional<dtype> out_type{};
  std::string label{};
};

/// op(a) op(b), leading axes of `a` and `b` merged into rows.
///
/// a        [.., M, K], or [K, M] with trans_a
/// b        [.., K, N], or [N, K] with trans_b
/// returns  [.., M, N]; [M, N] if trans_a
/// errors   E-SHAPE-INNER, E-DTYPE-OPERANDS
value matmul(value a, value b, matmul_options options = {});

/// x W^T: the dense layer with checkpoint weights.
///
/// x        [.., C];  w [C_out, C]
/// returns  [.., C_out]
value linear(value x, value w, std::string label = {});

/// Rows of `table` [V,H] by `ids` [..] (i32 or i64): [..,H]. An id outside 0..V-1 is an error at run time.
value embedding(value table, value ids, std::string label = {});

/// Sum over the axes on which `dims` is 1, or which it lacks on the left.
value sum_to(value x, shape dims);

/// Writes `x` into `state` when the graph runs; returns the state's new value.
value assign(value state, value x);

/// Writes `rows` into `state` along `axis` starting at `at` when the graph runs; returns the state's first at + n rows.
value append(value state, value rows, int axis, dim at);

/// Shape that operands broadcast to, aligned from the right; extents must be equal or 1.
shape broadcast(const char* call, const std::vector<value>& operands);

/// Adds the row kernel `fn` over `operands` (slot i reads operands[i]); one output per root.
///
/// domain  the shape the operands broadcast to
/// types   dtype of each output
std::vector<value> fuse(graph& g, program fn, const std::vector<value>& operands, shape domain, const std::vector<dtype>& types, std::string label = {});

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/tensor_ops_impl.hpp>
#endif
