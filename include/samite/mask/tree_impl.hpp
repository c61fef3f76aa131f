// samite/mask/tree_impl.hpp: ends of subtrees.
#pragma once
#include <samite/mask/tree.hpp>

namespace samite {

SAMITE_IMPL std::vector<index_t> subtree_ends(const std::vector<index_t>& parents) {
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

}  // namespace samite
