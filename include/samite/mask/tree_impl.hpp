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

SAMITE_IMPL void detail::check_tree(const scalar& prefix, const table_ref& ends) {
  if (prefix.value() < 0) raise("E-MASK-TREE", "tree: the prefix is ", prefix.value(), " tokens; it must be at least 0");
  if (ends.rank() != 1) raise("E-MASK-TREE", "tree: .ends has rank ", ends.rank(), " ", ends.dims(), "; expected one entry a node, from subtree_ends(parents)");
  const auto contents = ends.contents();
  index_t count = index_t(contents->values().size());
  while (count > 0 && contents->values()[std::size_t(count - 1)] == 0) --count;  // room for larger trees
  std::vector<index_t> open;  // ends of the subtrees that hold the node
  for (index_t node = 0; node < count; ++node) {
    const index_t end = contents->values()[std::size_t(node)];
    while (!open.empty() && open.back() <= node) open.pop_back();
    const index_t limit = open.empty() ? count : open.back();
    if (end <= node || end > limit)
      raise("E-MASK-TREE", "tree: the subtree of node ", node, " ends at ", end, ", but it holds the node itself and ends with the subtree around it, so from ", node + 1, " to ", limit,
            "; make .ends with subtree_ends(parents), and leave 0 behind the last node only");
    open.push_back(end);
  }
}

}  // namespace samite
