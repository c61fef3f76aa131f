// samite/expr/tensor_impl.hpp: ending tensor expressions.
#pragma once
#include <samite/expr/tensor.hpp>
#include <samite/ir/derivative.hpp>

namespace samite {

SAMITE_IMPL row_builder::row_builder() = default;
SAMITE_IMPL row_builder::~row_builder() = default;

SAMITE_IMPL node_id row_builder::load(const value& v) {
  std::size_t slot = 0;
  while (slot < operands.size() && !(operands[slot] == v)) ++slot;
  if (slot == operands.size()) operands.push_back(v);
  return build_operand(p, index_t(slot), is_real(v.type()) ? value_kind::real : value_kind::index);
}

SAMITE_IMPL node_id row_builder::real(node_id id) { return p[id].kind == value_kind::index ? build(p, op::to_real, id) : id; }

SAMITE_IMPL node_id row_builder::reduced(op code, node_id x) {
  std::vector<char> operand_varies;
  for (const value& v : operands) operand_varies.push_back(v.rank() > 0 && !(v.extent(-1) == dim(1)));
  return column_dependence(p, operand_varies)[std::size_t(x)] ? build(p, code, x) : x;
}

namespace detail {

SAMITE_IMPL void check_condition(const row_builder& b, node_id condition) {
  if (b.p[condition].kind != value_kind::boolean)
    raise("E-EXPR-SELECT", "select(condition, a, b): the condition is a number; compare it with something, e.g. select(x > 0, a, b)");
}

SAMITE_IMPL value end_row(row_builder& b, node_id root, const let_options& options) {
  root = b.real(root);
  if (b.operands.empty()) raise("E-EXPR-EMPTY", "let: the expression holds no tensor, so it has no shape");
  b.p.roots = {root};
  dtype type = dtype::f32;
  bool seen = false;
  for (const value& v : b.operands) {
    if (!is_real(v.type())) continue;
    if (!seen || size_of(v.type()) > size_of(type)) type = v.type();
    seen = true;
  }
  graph& g = b.operands[0].owner();
  shape domain = broadcast("let", b.operands);
  return fuse(g, std::move(b.p), b.operands, std::move(domain), {options.type.value_or(type)}, options.label)[0];
}

}  // namespace detail

SAMITE_IMPL value cast(const value& x, dtype type) { return let(x, {.type = type}); }

}  // namespace samite
