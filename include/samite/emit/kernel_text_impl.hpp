// samite/emit/kernel_text_impl.hpp: names, numbers and operators as CUDA text.
#pragma once
#include <bit>
#include <cmath>
#include <limits>

#include <samite/emit/kernel_text.hpp>
#include <samite/ir/ops.hpp>

namespace samite {

SAMITE_IMPL std::string kernel_name(std::string_view prefix, std::string_view label) {
  std::string name(prefix);
  for (char c : label) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (plain || (!name.empty() && name.back() != '_')) name += plain ? c : '_';
  }
  return name;
}

namespace detail {

SAMITE_IMPL std::string real_literal(double value) {
  if (!std::isfinite(value)) return concat_text("real(real_bits(", std::bit_cast<std::uint64_t>(value), "ull))");
  std::string digits = concat_text(value);
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return "real(" + digits + ")";
}

SAMITE_IMPL std::string index_literal(index_t value) {
  if (value == std::numeric_limits<index_t>::min()) return "(-9223372036854775807 - 1)";
  return value < 0 ? concat_text("(", value, ")") : concat_text(value);
}

SAMITE_IMPL std::string literal(const node& n) {
  if (n.kind == value_kind::real) return real_literal(n.real);
  if (n.kind == value_kind::boolean) return n.imm != 0 ? "true" : "false";
  return index_literal(n.imm);
}

SAMITE_IMPL const char* kind_text(value_kind kind) { return kind == value_kind::real ? "real" : kind == value_kind::index ? "index" : "bool"; }

SAMITE_IMPL std::string op_text(op code, bool indices, const std::string* operands) {
  const char* form = visit_op(code, [&](auto rule) -> const char* {
    using rule_type = decltype(rule);
    if constexpr (requires { rule_type::index_text; })
      if (indices) return rule_type::index_text;
    if constexpr (requires { rule_type::text; }) return rule_type::text;
    return "";
  });
  std::string out;
  for (; *form != '\0'; ++form) {
    if (*form == '$') out += operands[*++form - '0'];
    else out += *form;
  }
  return out;
}

SAMITE_IMPL const char* op_name(op code) {
  return visit_op(code, [](auto rule) -> const char* { return decltype(rule)::name; });
}

SAMITE_IMPL std::string node_text(const program& p, const node& n, const std::string* operands) {
  if (n.code == op::round_to) return concat_text("rounded_to<", name_of(dtype(n.imm)), ">(", operands[0], ")");
  return op_text(n.code, n.operands[0] != no_node && p[n.operands[0]].kind == value_kind::index, operands);
}

}  // namespace detail

}  // namespace samite
