// samite/ir/build_impl.hpp: folding and simplifying while nodes are built.
#pragma once
#include <utility>

#include <samite/ir/build.hpp>
#include <samite/ir/ops.hpp>
#include <samite/ir/table.hpp>

namespace samite {

SAMITE_IMPL node_id build_constant(program& p, double value) {
  node n;
  n.kind = value_kind::real;
  n.real = value;
  return p.push(n);
}

SAMITE_IMPL node_id build_constant(program& p, index_t value) {
  node n;
  n.imm = value;
  return p.push(n);
}

SAMITE_IMPL node_id build_constant(program& p, bool value) {
  node n;
  n.kind = value_kind::boolean;
  n.imm = value;
  return p.push(n);
}

SAMITE_IMPL node_id build_symbol(program& p, symbol_id id) {
  node n;
  n.code = op::symbol;
  n.kind = id == symbol_id::score ? value_kind::real : value_kind::index;
  n.imm = index_t(id);
  return p.push(n);
}

SAMITE_IMPL node_id build_argument(program& p, const std::shared_ptr<scalar_cell>& cell) {
  node n;
  n.code = op::argument;
  n.kind = cell->kind();
  n.imm = p.slot_of(cell);
  return p.push(n);
}

SAMITE_IMPL node_id build_operand(program& p, index_t slot, value_kind kind) {
  node n;
  n.code = op::operand;
  n.kind = kind;
  n.imm = slot;
  return p.push(n);
}

namespace detail {

SAMITE_IMPL value_kind kind_of_result(const program& p, op code, node_id a, node_id b) {
  switch (code) {
    case op::less: case op::less_equal: case op::equal: case op::logical_and: case op::logical_or: case op::logical_not:
      return value_kind::boolean;
    case op::to_index: return value_kind::index;
    case op::select: return p[b].kind;
    case op::add: case op::sub: case op::mul: case op::div: case op::mod: case op::neg: case op::abs: case op::min: case op::max:
    case op::shift_left: case op::shift_right: case op::stop: case op::roll:
      return p[a].kind;
    default: return value_kind::real;
  }
}

SAMITE_IMPL void check_divisor(const program& p, op code, node_id divisor) {
  const bool is_shift = code == op::shift_left || code == op::shift_right;
  const char* written = code == op::shift_left ? "x << " : code == op::shift_right ? "x >> " : code == op::mod ? "x % " : "x / ";
  if (!is_constant(p, divisor))
    raise("E-EXPR-DIVISOR", written, "n: the ", is_shift ? "shift" : code == op::mod ? "modulus" : "divisor",
          " of an index must be a number known when the kernel is made, not a symbol, table or argument; write a plain number, e.g. ",
          is_shift ? "q << 4" : code == op::mod ? "q % 16" : "q / 16", ", and make another mask for another one");
  const index_t value = p[divisor].imm;
  if (is_shift ? (value < 0 || value > 62) : value <= 0)
    raise("E-EXPR-DIVISOR", written, value, ": ", is_shift ? "a shift is from 0 to 62; shift the other way for a negative one" : "a divisor or modulus of an index must be positive; take it positive and negate the result, or leave out a division by 0");
}

/// Whether the op on these indices gives what 64 bits don't hold; such an op stays unfolded, and is refused where a mask is bound (E-MASK-OVERFLOW).
template <class Rule>
bool leaves_64_bits(index_t a, index_t b) {
  __int128 exact = a;
  if constexpr (std::is_same_v<Rule, rules::add>) exact += b;
  if constexpr (std::is_same_v<Rule, rules::sub>) exact -= b;
  if constexpr (std::is_same_v<Rule, rules::mul>) exact *= b;
  if constexpr (std::is_same_v<Rule, rules::shift_left>) exact *= index_t(1) << b;
  if constexpr (std::is_same_v<Rule, rules::neg> || std::is_same_v<Rule, rules::abs>) exact = a < 0 ? -exact : exact;
  return exact != index_t(exact);
}

/// Folds an op whose operands are all constants; returns no_node if it can't be folded here.
SAMITE_IMPL node_id fold_constants(program& p, op code, const node_id* x, int arity) {
  for (int i = 0; i < arity; ++i)
    if (!is_constant(p, x[i])) return no_node;
  const node a = p[x[0]], b = p[x[arity - 1]];
  if (a.kind == value_kind::boolean) {
    if (code == op::logical_and) return build_constant(p, a.imm != 0 && b.imm != 0);
    if (code == op::logical_or) return build_constant(p, a.imm != 0 || b.imm != 0);
    return code == op::logical_not ? build_constant(p, a.imm == 0) : no_node;
  }
  return visit_op(code, [&](auto rule) -> node_id {
    using rule_type = decltype(rule);
    if constexpr (requires { rule_type::is_logic; }) {
      return no_node;
    } else if constexpr (requires { rule_type::value(index_t(1), index_t(1)); }) {
      if (a.kind == value_kind::index) return leaves_64_bits<rule_type>(a.imm, b.imm) ? no_node : build_constant(p, rule_type::value(a.imm, b.imm));
      if constexpr (!std::is_same_v<rule_type, rules::mod> && !std::is_same_v<rule_type, rules::shift_left> &&
                    !std::is_same_v<rule_type, rules::shift_right>)
        return build_constant(p, rule_type::value(a.real, b.real));
      return no_node;
    } else if constexpr (requires { rule_type::value(1.0); }) {
      if (a.kind == value_kind::real) return build_constant(p, rule_type::value(a.real));
      if constexpr (std::is_same_v<rule_type, rules::neg> || std::is_same_v<rule_type, rules::abs> || std::is_same_v<rule_type, rules::stop>)
        return leaves_64_bits<rule_type>(a.imm, 0) ? no_node : build_constant(p, rule_type::value(a.imm));
      return no_node;
    } else {
      return no_node;
    }
  });
}

SAMITE_IMPL node_id simplify_logic(program& p, op code, node_id a, node_id b) {
  if (code == op::logical_not) {
    if (p[a].code == op::logical_not) return p[a].operands[0];
    return no_node;
  }
  const bool absorbing = code == op::logical_or;
  for (auto [x, y] : {std::pair{a, b}, std::pair{b, a}}) {
    if (is_boolean(p, x, absorbing)) return x;
    if (is_boolean(p, x, !absorbing)) return y;
  }
  return a == b ? a : no_node;
}

SAMITE_IMPL node_id simplify_arithmetic(program& p, op code, node_id a, node_id b) {
  const bool reals = p[a].kind == value_kind::real;
  const auto is = [&](node_id id, int value) { return id != no_node && (reals ? is_real(p, id, value) : is_index(p, id, value)); };
  switch (code) {
    case op::add:
      if (is(a, 0)) return b;
      if (is(b, 0)) return a;
      return no_node;
    case op::sub:
      if (is(b, 0)) return a;
      if (!reals && a == b) return build_constant(p, index_t(0));
      return no_node;
    case op::mul:  // 0 * x stays for reals: x may be NaN or infinite
      if (is(a, 1)) return b;
      if (is(b, 1)) return a;
      if (!reals && (is(a, 0) || is(b, 0))) return build_constant(p, index_t(0));
      return no_node;
    case op::div: return is(b, 1) ? a : no_node;
    case op::neg: return p[a].code == op::neg ? p[a].operands[0] : no_node;
    default: return no_node;
  }
}

}  // namespace detail

SAMITE_IMPL node_id build(program& p, op code, node_id a, node_id b, node_id c, index_t imm) {
  const bool index_operand = p[a].kind != value_kind::real;
  if (index_operand && (code == op::div || code == op::mod)) detail::check_divisor(p, code, b);
  if (code == op::shift_left || code == op::shift_right) detail::check_divisor(p, code, b);
  if (code == op::roll && imm == 0) return a;
  if (code == op::to_real && detail::is_constant(p, a)) return build_constant(p, double(p[a].imm));
  if (code == op::select) {
    if (detail::is_boolean(p, a, true) || b == c) return b;
    if (detail::is_boolean(p, a, false)) return c;
  } else {
    const node_id x[2] = {a, b};
    const node_id folded = detail::fold_constants(p, code, x, b == no_node ? 1 : 2);
    if (folded != no_node) return folded;
  }
  const bool is_logic = code == op::logical_and || code == op::logical_or || code == op::logical_not;
  const node_id simple = is_logic ? detail::simplify_logic(p, code, a, b) : detail::simplify_arithmetic(p, code, a, b);
  if (simple != no_node) return simple;
  // Commuting operands in id order makes a+b and b+a one node. It is exact for reals too.
  const bool commutes = code == op::add || code == op::mul || code == op::equal || code == op::logical_and || code == op::logical_or;
  if (commutes && b < a) std::swap(a, b);
  node n;
  n.code = code;
  n.kind = detail::kind_of_result(p, code, a, b);
  n.operands[0] = a, n.operands[1] = b, n.operands[2] = c;
  n.imm = imm;
  return p.push(n);
}

SAMITE_IMPL node_id build_lookup(program& p, index_t slot, node_id a, node_id b, node_id c) {
  node n;
  n.code = op::lookup;
  n.kind = value_kind::real;
  n.imm = slot;
  n.operands[0] = a, n.operands[1] = b, n.operands[2] = c;
  return p.push(n);
}

SAMITE_IMPL node_id build_gather(program& p, const std::shared_ptr<const index_table>& table, node_id a, node_id b, node_id c) {
  const int indices = b == no_node ? 1 : c == no_node ? 2 : 3;
  if (indices != table->rank())
    raise("E-MASK-TABLE-RANK", "table lookup: the table has rank ", table->rank(), " but ", indices, " index(es) were given; write ",
          table->rank() == 1 ? "t[q]" : table->rank() == 2 ? "t(b, q)" : "t(b, h, q)", " for a table of this rank");
  node n;
  n.code = op::gather;
  n.imm = p.slot_of(table);
  n.operands[0] = a, n.operands[1] = b, n.operands[2] = c;
  return p.push(n);
}

}  // namespace samite
