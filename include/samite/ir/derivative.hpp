// samite/ir/derivative.hpp: reverse mode on scalar programs, row reductions included.
#pragma once
#include <vector>

#include <samite/ir/build.hpp>

namespace samite {

/// For each node: does its value differ between the columns of a row? `operand_varies[slot]` says it of the tensors.
/// In score functions the columns are the keys.
std::vector<char> column_dependence(const program& p, const std::vector<char>& operand_varies);

/// Extends `p` by the adjoints of its tensor operands.
///
/// seeds    pairs (root, node that holds the root's adjoint); a root may appear once
/// wanted   slots of the operands whose adjoints are asked for
/// returns  one node per wanted slot: the adjoint at this row and column; no_node if the roots don't depend on it.
///          For an operand that is the same at all columns the adjoint is already summed over the row
/// source   Griewank and Walther 2008, "Evaluating derivatives", section 3.2
std::vector<node_id> differentiate(program& p, const std::vector<std::pair<node_id, node_id>>& seeds, const std::vector<index_t>& wanted,
                                   const std::vector<char>& operand_varies);

/// What the backward pass of attention evaluates at each pair for a score function y = f(score, ...).
struct score_derivative {
  /// Over the symbols of the score function and operand 0, which is the adjoint of y. Roots: the adjoint of the score, then
  /// for each lookup the adjoint of the element that it reads and its indices, one to three.
  program p;
  struct element {
    index_t slot;         // the tensor
    std::size_t adjoint;  // a root
    std::size_t indices;  // the first index root
    int rank;
  };
  std::vector<element> elements;
};

/// The derivative of a score function, for the score and every element of a tensor that it reads.
score_derivative differentiate_score(const program& score);

/// Copies the nodes that `roots` reach into a fresh program with operand slots renumbered in order of use.
///
/// slots  receives the old slot of each new one
program prune(const program& p, const std::vector<node_id>& roots, std::vector<index_t>& slots);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/derivative_impl.hpp>
#endif
