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

/// Where `select` takes another branch, a node's adjoint is 0, but its derivative may be infinite or NaN there, and 0 times that is NaN. So the adjoint
/// of each node comes with its guard: a condition outside of which it is 0, or no_node where it may be anything everywhere.
class derivative_guards {
 public:
  explicit derivative_guards(program& p) : p_(p), guard_(p.size(), no_node), is_tame_(p.size(), 0) {
    for (std::size_t i = 0; i < p.size(); ++i) is_tame_[i] = find_tame(node_id(i));
  }

  node_id of(node_id id) const { return guard_[std::size_t(id)]; }

  /// What the node hands back to operand k: 0 outside the node's guard, if its derivative may be infinite there.
  node_id guarded(node_id id, node_id contribution) {
    const node_id guard = of(id);
    if (guard == no_node || contribution == no_node || is_tame_[std::size_t(id)] || !multiplies(p_[id].code)) return contribution;
    return build(p_, op::select, guard, contribution, build_constant(p_, 0.0));
  }

  /// The guard of what the node hands back to operand k: its own, and of a select's branch the branch's condition too. Leaves need none.
  node_id of_operand(node_id id, int k) {
    const node n = p_[id];
    const op operand = p_[n.operands[k]].code;
    if (operand == op::lookup || p_[n.operands[k]].operand_count() == 0) return no_node;
    if (n.code == op::roll) return no_node;  // the condition belongs to another column
    if (n.code != op::select || k == 0) return of(id);
    const node_id taken = k == 1 ? n.operands[0] : build(p_, op::logical_not, n.operands[0]);
    return of(id) == no_node ? taken : build(p_, op::logical_and, of(id), taken);
  }

  /// The operand got a contribution with this guard; `is_first` if it is its first.
  void add(node_id id, node_id guard, bool is_first) {
    node_id& known = guard_[std::size_t(id)];
    if (is_first || known == guard) known = guard;
    else known = known == no_node || guard == no_node || are_opposite(known, guard) ? no_node : build(p_, op::logical_or, known, guard);
  }

 private:
  static bool multiplies(op code) {
    switch (code) {
      case op::mul: case op::div: case op::exp: case op::log: case op::sqrt: case op::rsqrt: case op::tanh: case op::sin: case op::cos: return true;
      default: return false;
    }
  }

  bool is_number(node_id id) const { return p_[id].code == op::constant || p_[id].code == op::argument; }

  // Finite with a finite derivative, as far as what it is made of is finite and in the range of its type.
  bool find_tame(node_id id) const {
    const node& n = p_[id];
    if (n.code == op::exp || n.code == op::log || n.code == op::sqrt || n.code == op::rsqrt) return false;
    if (n.code == op::div && !is_number(n.operands[1])) return false;
    for (node_id operand : n.operands)
      if (operand != no_node && !is_tame_[std::size_t(operand)]) return false;
    return true;
  }

  bool are_opposite(node_id a, node_id b) const {
    return (p_[a].code == op::logical_not && p_[a].operands[0] == b) || (p_[b].code == op::logical_not && p_[b].operands[0] == a);
  }

  program& p_;
  std::vector<node_id> guard_;
  std::vector<char> is_tame_;
};

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
  derivative_guards guards(p);
  const auto accumulate = [&](node_id target, node_id contribution, node_id guard, bool at_each_column) {
    if (contribution == no_node || p[target].kind != value_kind::real) return;
    if (guard != no_node && operand_varies != nullptr && !varies_now(target) && varies_now(guard)) guard = no_node;  // other columns' conditions count too
    if (at_each_column && !varies_now(target))
      contribution = varies_now(contribution) ? build(p, op::row_sum, contribution) : build(p, op::mul, contribution, build(p, op::to_real, build_symbol(p, symbol_id::columns)));
    node_id& slot = adjoint[std::size_t(target)];
    guards.add(target, guard, slot == no_node);
    slot = slot == no_node ? contribution : build(p, op::add, slot, contribution);
  };
  for (const auto& [root, seed] : seeds) accumulate(root, seed, no_node, varies_now(seed));
  for (std::size_t i = originals; i-- > 0;) {
    if (adjoint[i] == no_node) continue;
    const node n = p.nodes()[i];  // a copy: the rules push nodes
    const bool at_each_column = varies_now(node_id(i)) || n.code == op::row_sum || n.code == op::row_max || n.code == op::row_min;
    visit_op(n.code, [&](auto rule) {
      if constexpr (requires { decltype(rule)::derivative; }) {
        const adjoints parts = decltype(rule)::derivative({p, n.operands, node_id(i), adjoint[i]});
        for (int k = 0; k < 3; ++k)
          if (n.operands[k] != no_node && parts[std::size_t(k)] != no_node)
            accumulate(n.operands[k], guards.guarded(node_id(i), parts[std::size_t(k)]), guards.of_operand(node_id(i), k), at_each_column);
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
