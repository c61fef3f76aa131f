// samite/ir/verify.hpp: checks a graph's promises and prints it.
#pragma once
#include <string>

#include <samite/ir/graph.hpp>

namespace samite {

/// Checks what every reader of a graph relies on: inputs come before their users, dtypes and ranks fit, shapes are not
/// negative. Costs one pass; plans do it first.
///
/// errors  E-GRAPH-VERIFY naming the node
void verify(const graph& g);

namespace detail {
void append_node_text(std::string& out, const graph& g, std::size_t i);
}  // namespace detail

/// The graph as text, one node a line: %3 f32[tokens,64] = matmul(%1, %2)  "up".
std::string print(const graph& g);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/verify_impl.hpp>
#endif
