// samite/expr/number.hpp: real numbers in expressions over tensors and scores.
#pragma once
#include <memory>

#include <samite/ir/build.hpp>

namespace samite::detail {

/// 0 and 1 are structure; any other number is an argument, so that another one is the same kernel. The cell is made once, so
/// that copies of one expression share one argument.
struct captured_real {
  double number;
  std::shared_ptr<scalar_cell> cell;
  explicit captured_real(double n) : number(n) {
    if (n != 0 && n != 1) cell = make_cell(n);
  }
  node_id lower(program& p) const { return cell ? build_argument(p, cell) : build_constant(p, number); }
};

}  // namespace samite::detail
