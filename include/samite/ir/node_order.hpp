// samite/ir/node_order.hpp: an order of index and boolean nodes by what they compute, not by when they were made.
#pragma once
#include <algorithm>
#include <array>

#include <samite/ir/program.hpp>

namespace samite::detail {

class node_order {
 public:
  /// The program may grow afterwards.
  explicit node_order(const program& p) : program_(p) {}

  // Symbols in the order b, h, q, kv, then lighter before heavier; equal shapes keep the order in which they came.
  bool precedes(node_id a, node_id b) {
    const node &x = program_[a], &y = program_[b];
    if ((x.code == op::symbol) != (y.code == op::symbol)) return x.code == op::symbol;
    if (x.code == op::symbol) return x.imm < y.imm;
    const node_facts p = facts(a), q = facts(b);
    return p.weight != q.weight ? p.weight < q.weight : p.shape < q.shape;
  }

  /// Whether the node reads a symbol, a table or a tensor: the others are the same at every pair.
  bool varies(node_id id) { return facts(id).varies; }

  static bool commutes(op code) {
    return code == op::add || code == op::mul || code == op::equal || code == op::min || code == op::max;
  }

 private:
  struct node_facts {
    std::uint64_t shape = 0;  // hash of what the node computes, blind to which argument or table it reads
    std::uint32_t weight = 0;
    bool varies = false;
  };

  const node_facts& facts(node_id id) {
    while (facts_.size() <= std::size_t(id)) {
      const node& n = program_[node_id(facts_.size())];
      const bool blind = n.code == op::argument || n.code == op::gather;
      node_facts f;
      f.shape = combine_hash(std::uint64_t(n.code) | std::uint64_t(n.kind) << 8, blind ? 0 : std::uint64_t(n.imm));
      f.shape = combine_hash(f.shape, std::bit_cast<std::uint64_t>(n.real));
      f.weight = 1;
      f.varies = n.code == op::symbol || n.code == op::gather || n.code == op::operand;
      std::array<std::uint64_t, 3> shapes{};
      for (int i = 0; i < 3 && n.operands[i] != no_node; ++i) shapes[std::size_t(i)] = facts_[std::size_t(n.operands[i])].shape;
      if (commutes(n.code) && shapes[1] < shapes[0]) std::swap(shapes[0], shapes[1]);  // build() orders operands by id
      for (std::uint64_t inner : shapes) f.shape = combine_hash(f.shape, inner);
      for (node_id operand : n.operands) {
        if (operand == no_node) break;
        const node_facts& inner = facts_[std::size_t(operand)];
        f.weight = std::min<std::uint32_t>(f.weight + inner.weight, 1u << 30);
        f.varies |= inner.varies;
      }
      facts_.push_back(f);
    }
    return facts_[std::size_t(id)];
  }

  const program& program_;
  std::vector<node_facts> facts_;
};

}  // namespace samite::detail
