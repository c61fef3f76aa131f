// samite/mask/tree.hpp: trees of drafted tokens behind a shared prefix.
#pragma once
#include <vector>

#include <samite/expr/table.hpp>

namespace samite {

/// One past the last descendant of every node, for nodes in depth-first order.
///
/// parents  parents[0] = -1; every other parent comes before its child, and a node's descendants follow it without a gap
/// errors   E-MASK-TREE if the nodes are not in depth-first order
std::vector<index_t> subtree_ends(const std::vector<index_t>& parents);

namespace detail {
void check_tree(const scalar& prefix, const table_ref& ends);
}

/// Tree verification: a drafted token sees the prefix, its ancestors and itself.
///
/// Rows are the nodes; keys are `prefix` tokens and then the nodes, in depth-first order.
/// prefix  tokens, a run-time argument;  ends [nodes] from `subtree_ends`; zeros may follow, as room for larger trees. Both are checked
///         here and not by `ends.update` or `prefix.set`: update with `subtree_ends(parents)` too. Other numbers give the rows that the
///         formula says, in which a node may not see itself
/// errors  E-MASK-TREE if the prefix is negative, or `ends` are not the ends of subtrees (parents, for one, are not)
inline auto tree(scalar prefix, table_ref ends) {
  using namespace symbols;
  detail::check_tree(prefix, ends);
  const auto node = max(kv - prefix, 0);
  return kv < prefix || (node <= q && q < ends[node]);
}

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/mask/tree_impl.hpp>
#endif
