// samite/mask/transform_impl.hpp: the bodies behind mask/transform.hpp.
#pragma once
#include <samite/ir/build.hpp>
#include <samite/mask/transform.hpp>

namespace samite {

SAMITE_IMPL node_id detail::lower_with_indices(const program& mask, program& p, node_id q, node_id kv) {
  std::vector<node_id> image;
  for (const node& n : mask.nodes()) {
    node_id x[3] = {no_node, no_node, no_node};
    for (int i = 0; i < 3; ++i)
      if (n.operands[i] != no_node) x[i] = image[std::size_t(n.operands[i])];
    if (n.code == op::symbol && n.imm == index_t(symbol_id::q)) image.push_back(q);
    else if (n.code == op::symbol && n.imm == index_t(symbol_id::kv)) image.push_back(kv);
    else if (n.code == op::argument) image.push_back(build_argument(p, mask.arguments()[std::size_t(n.imm)]));
    else if (n.code == op::gather) image.push_back(build_gather(p, mask.tables()[std::size_t(n.imm)], x[0], x[1], x[2]));
    else if (x[0] == no_node) image.push_back(p.push(n));
    else image.push_back(build(p, n.code, x[0], x[1], x[2], n.imm));
  }
  return image[std::size_t(mask.roots[0])];
}

}  // namespace samite
