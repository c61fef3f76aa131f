// samite/mask/tree.hpp: trees of drafted tokens behind a shared prefix.
#pragma once
#include <samite/mask/any_mask.hpp>

namespace samite {

/// One past the last descendant of every node, for nodes in depth-first order.
///
/// parents  parents[0] = -1; every other parent comes before its child, and a node's descendants follow it without a gap
/// errors   E-MASK-TREE if the nodes are not in depth-first order
inline std::vector<index_t> subtree_ends(const std::vector<index_t>& parents) {
  const index_t count = index_t(parents.size());
  std::vector<index_t> ends(parents.size());
  std::vector<index_t> open;  // the path from a root to the node before
  for (index_t node = 0; node < count; ++node) {
    const index_t parent = parents[std::size_t(node)];
    if (parent < -1 || parent >= node)
      raise("E-MASK-TREE", "subtree_ends: node ", node, " has parent ", parent, "; a parent comes before its children, a root has -1");
    while (!open.empty() && open.back() != parent) ends[std::size_t(open.back())] = node, open.pop_back();
    if (parent >= 0 && open.empty())
      raise("E-MASK-TREE", "subtree_ends: node ", node, " comes after the subtree of its parent ", parent,
            " has ended; number the nodes depth-first, so that descendants follow their node without a gap");
    open.push_back(node);
  }
  for (index_t node : open) ends[std::size_t(node)] = count;
  return ends;
}

/// Tree verification: a drafted token sees the prefix, its ancestors and itself.
///
/// Rows are the nodes; keys are `prefix` tokens and then the nodes, in depth-first order.
/// prefix  tokens, a run-time argument;  ends [nodes] from `subtree_ends`
inline auto tree(scalar prefix, table_ref ends) {
  using namespace symbols;
  const auto node = max(kv - prefix, 0);
  return kv < prefix || (node <= q && q < ends[node]);
}

}  // namespace samite
