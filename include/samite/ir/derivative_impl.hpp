// samite/ir/derivative_impl.hpp: reverse mode on scalar programs.
#pragma once
#include <samite/ir/ops.hpp>
#include <samite/ir/derivative.hpp>

namespace samite {

SAMITE_IMPL std::vector<char> column_dependence(const program& p, const std::vector<char>& operand_varies) {
  std::vector<char> varies(p.size(), 0);
  for (std::size_t i = 0; i < p.size(); ++i) {
    const node& n = p.nodes()[i];
    if (n.code == op::operand) varies[i] = operand_varies[std::size_t(n.imm)];
    if (n.code == op::symbol) varies[i] = n.imm == index_t(symbol_id::column) || n.imm == index_t(symbol_id::kv) || n.imm == index_t(symbol_id::score);
    if (n.code == op::row_sum || n.code == op::row_max || n.code == op::row_min) continue;
    for (node_id operand : n.operands)
      if (operand != no_node && varies[std::size_t(operand)]) varies[i] = 1;
  }
  return varies;
}

namespace detail {

// Adjoints of all nodes that `p` holds now, as nodes that are added to it; no_node where the roots don't depend on a node.
// A node that is the same at all columns of a row gathers its adjoint from all of them where it is read at each column: by a node that
// varies, even if what it hands back does not, and by a reduction. Unless `operand_varies` is null: in score functions every pair stands for itself.
inline std::vector<node_id> adjoints_of(program& p, const std::vector<std::pair<node_id, node_id>>& seeds, const std::vector<char>* operand_varies) {
  const std::size_t originals = p.size();
  std::vector<node_id> adjoint(originals, no_node);
  // The dependence of nodes that this function adds is derived from their operands as they appear.
  std::vector<char> varies;
  const auto varies_now = [&](node_id id) {
    if (operand_varies == nullptr) return true;
    if (std::size_t(id) >= varies.size()) varies = column_dependence(p, *operand_varies);
    return varies[std::size_t(id)] != 0;
  };
  const auto accumulate = [&](node_id target, node_id contribution, bool at_each_column) {
    if (contribution == no_node || p[target].kind != value_kind::real) return;
    if (at_each_column && !varies_now(target))
      contribution = varies_now(contribution) ? build(p, op::row_sum, contribution) : build(p, op::mul, contribution, build(p, op::to_real, build_symbol(p, symbol_id::columns)));
    node_id& slot = adjoint[std::size_t(target)];
    slot = slot == no_node ? contribution : build(p, op::add, slot, contribution);
  };
  for (const auto& [root, seed] : seeds) accumulate(root, seed, varies_now(seed));
  for (std::size_t i = originals; i-- > 0;) {
    if (adjoint[i] == no_node) continue;
    const node n = p.nodes()[i];  // a copy: the rules push nodes
    const bool at_each_column = varies_now(node_id(i)) || n.code == op::row_sum || n.code == op::row_max || n.code == op::row_min;
    visit_op(n.code, [&](auto rule) {
      if constexpr (requires { decltype(rule)::derivative; }) {
        const adjoints parts = decltype(rule)::derivative({p, n.operands, node_id(i), adjoint[i]});
        for (int k = 0; k < 3; ++k)
          if (n.operands[k] != no_node) accumulate(n.operands[k], parts[std::size_t(k)], at_each_column);
      }
    });
  }
  return adjoint;
}

}  // namespace detail

SAMITE_IMPL std::vector<node_id> differentiate(program& p, const std::vector<std::pair<node_id, node_id>>& seeds, const std::vector<index_t>& wanted,
                                               const std::vector<char>& operand_varies) {
  const std::vector<node_id> adjoint = detail::adjoints_of(p, seeds, &operand_varies);
  std::vector<node_id> result;
  for (index_t slot : wanted) {
    node_id found = no_node;
    for (std::size_t i = 0; i < adjoint.size(); ++i)
      if (p.nodes()[i].code == op::operand && p.nodes()[i].imm == slot) found = adjoint[i];
    result.push_back(found);
  }
  return result;
}

SAMITE_IMPL score_derivative differentiate_score(const program& score) {
  score_derivative d{score, {}};
  const node_id dy = build_operand(d.p, 0, value_kind::real);
  const std::vector<node_id> adjoint = detail::adjoints_of(d.p, {{score.roots[0], dy}}, nullptr);
  node_id to_score = no_node;
  std::vector<node_id> lookups;
  for (std::size_t i = 0; i < score.size(); ++i) {
    const node& n = d.p.nodes()[i];
    if (n.code == op::symbol && n.imm == index_t(symbol_id::score)) to_score = adjoint[i];
    if (n.code == op::lookup && adjoint[i] != no_node) lookups.push_back(node_id(i));
  }
  d.p.roots = {to_score == no_node ? build_constant(d.p, 0.0) : to_score};
  for (node_id id : lookups) {
    const node n = d.p[id];
    score_derivative::element e{n.imm, d.p.roots.size(), d.p.roots.size() + 1, 0};
    d.p.roots.push_back(adjoint[std::size_t(id)]);
    for (node_id operand : n.operands)
      if (operand != no_node) d.p.roots.push_back(operand), ++e.rank;
    d.elements.push_back(e);
  }
  return d;
}

SAMITE_IMPL program prune(const program& p, const std::vector<node_id>& roots, std::vector<index_t>& slots) {
  const std::vector<char> used = detail::used_nodes(p, roots);
  program out;
  std::vector<node_id> moved(p.size(), no_node);
  slots.clear();
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (!used[i]) continue;
    node n = p.nodes()[i];
    for (node_id& operand : n.operands)
      if (operand != no_node) operand = moved[std::size_t(operand)];
    if (n.code == op::operand) {
      index_t fresh = 0;
      while (fresh < index_t(slots.size()) && slots[std::size_t(fresh)] != n.imm) ++fresh;
      if (fresh == index_t(slots.size())) slots.push_back(n.imm);
      n.imm = fresh;
    }
    if (n.code == op::argument) n.imm = out.slot_of(p.arguments()[std::size_t(n.imm)]);
    if (n.code == op::gather) n.imm = out.slot_of(p.tables()[std::size_t(n.imm)]);
    moved[i] = out.push(n);
  }
  for (node_id root : roots) out.roots.push_back(moved[std::size_t(root)]);
  return out;
}

}  // namespace samite
