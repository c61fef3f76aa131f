// samite/emit/kernel_text.hpp: what all emitted kernels share: names, numbers and operators as CUDA text.
#pragma once
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include <samite/ir/ops.hpp>

namespace samite {

/// The text of a translation unit and the extern "C" kernels in it.
struct kernel_text {
  std::string name;  // of its first kernel
  std::string text;
};

/// Bytes that CUDA lets a kernel's parameters take on every device.
inline constexpr std::size_t kernel_parameter_limit = 4096;

/// A kernel name from any label: letters, digits and underscores.
inline std::string kernel_name(std::string_view prefix, std::string_view label) {
  std::string name(prefix);
  for (char c : label) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (plain || (!name.empty() && name.back() != '_')) name += plain ? c : '_';
  }
  return name;
}

namespace detail {

/// A real number as C++ text that reads back exactly, whatever the locale.
inline std::string real_literal(double value) {
  if (!std::isfinite(value)) return concat_text("real(real_bits(", std::bit_cast<std::uint64_t>(value), "ull))");
  std::string digits = concat_text(value);
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return "real(" + digits + ")";
}

inline std::string index_literal(index_t value) {
  if (value == std::numeric_limits<index_t>::min()) return "(-9223372036854775807 - 1)";
  return value < 0 ? concat_text("(", value, ")") : concat_text(value);
}

inline std::string literal(const node& n) {
  if (n.kind == value_kind::real) return real_literal(n.real);
  if (n.kind == value_kind::boolean) return n.imm != 0 ? "true" : "false";
  return index_literal(n.imm);
}

inline const char* kind_text(value_kind kind) { return kind == value_kind::real ? "real" : kind == value_kind::index ? "index" : "bool"; }

/// The operator's text with its operands filled in; `indices` picks the reading for indices.
inline std::string op_text(op code, bool indices, const std::string* operands) {
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

inline const char* op_name(op code) {
  return visit_op(code, [](auto rule) -> const char* { return decltype(rule)::name; });
}

/// Nodes that some root needs.
inline std::vector<char> used_nodes(const program& p) {
  std::vector<char> used(p.size(), 0);
  for (node_id root : p.roots) used[std::size_t(root)] = 1;
  for (std::size_t i = p.size(); i-- > 0;)
    if (used[i])
      for (node_id operand : p.nodes()[i].operands)
        if (operand != no_node) used[std::size_t(operand)] = 1;
  return used;
}

/// The used nodes as comments, one a line: //   %3 = mul(%1, %2). `leaf` gives the text of operands.
template <class Leaf>
std::string program_comment(const program& p, const std::vector<char>& used, Leaf&& leaf) {
  std::string out;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (!used[i]) continue;
    const node& n = p.nodes()[i];
    out += concat_text("//   %", i, " = ");
    switch (n.code) {
      case op::symbol: out += symbol_names[n.imm]; break;
      case op::constant: out += n.kind == value_kind::real ? concat_text(n.real) : n.kind == value_kind::index ? concat_text(n.imm) : literal(n); break;
      case op::argument: out += concat_text("argument ", n.imm); break;
      case op::operand: out += leaf(n); break;
      default: {
        out += n.code == op::gather ? concat_text("table ", n.imm, "[") : concat_text(op_name(n.code), "(");
        for (int k = 0; k < 3 && n.operands[k] != no_node; ++k) out += concat_text(k == 0 ? "%" : ", %", n.operands[k]);
        if (n.code == op::roll) out += concat_text(", by ", n.imm);
        if (n.code == op::round_to) out += concat_text(", ", name_of(dtype(n.imm)));
        out += n.code == op::gather ? "]" : ")";
      }
    }
    out += "\n";
  }
  return out;
}

}  // namespace detail
}  // namespace samite
