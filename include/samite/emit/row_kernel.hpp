// samite/emit/row_kernel.hpp: the CUDA text of a fused row program.
//
// A value that is the same at all columns is computed once a row. A row reduction needs all columns of its operand first, so
// the columns are passed over once for each depth of nested reductions, and once more to store; what varies by column is
// computed anew in each pass. A rolled value is its expression at the shifted column.
#pragma once
#include <string>
#include <vector>

#include <samite/emit/kernel_text.hpp>

namespace samite {

/// An operand or output of a row kernel: its dtype, and whether it has more than one column.
struct row_tensor_type {
  dtype type = dtype::f32;
  bool varies = true;
  friend bool operator==(const row_tensor_type&, const row_tensor_type&) = default;
};

struct row_kernel_options {
  /// Names the kernel and heads its text.
  std::string label = "row";
  std::vector<row_tensor_type> operands{}, outputs{};
  /// Threads that share a row: 1, 32 or 256.
  int team = 32;
};

/// Threads that share a row of so many columns.
inline int row_team(index_t columns) { return columns <= 4 ? 1 : columns <= 1024 ? 32 : 256; }

/// Bytes of the kernel's parameters: row_space, one row_tensor an operand and output, then reals and indices of the arguments.
inline std::size_t row_parameter_bytes(std::size_t operands, std::size_t outputs, std::size_t arguments) {
  return 64 + 56 * (operands + outputs) + 16 * arguments;
}

/// The text of a kernel that computes the program's roots at every row and column.
///
/// p        options.operands describe its operand slots, options.outputs its roots; argument slots are read from two arrays
/// returns  one extern "C" kernel for blocks of 256 threads and any grid; it includes "row.cuh"
/// errors   E-EMIT-OP for gathers and the symbols of attention, E-EMIT-PARAMETERS if the tensors don't fit a launch
kernel_text emit_row_kernel(const program& p, const row_kernel_options& options);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/emit/row_kernel_impl.hpp>
#endif
