// samite/emit/kernel_text.hpp: what all emitted kernels share: names, numbers and operators as CUDA text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <samite/ir/program.hpp>

namespace samite {

/// The text of a translation unit and the extern "C" kernels in it.
struct kernel_text {
  std::string name;  // of its first kernel
  std::string text;
};

/// Bytes that CUDA lets a kernel's parameters take on every device.
inline constexpr std::size_t kernel_parameter_limit = 4096;

/// A kernel name from any label: letters, digits and underscores.
std::string kernel_name(std::string_view prefix, std::string_view label);

namespace detail {

/// A real number as C++ text that reads back exactly, whatever the locale.
std::string real_literal(double value);

std::string index_literal(index_t value);

std::string literal(const node& n);

const char* kind_text(value_kind kind);

/// The operator's text with its operands filled in; `indices` picks the reading for indices.
std::string op_text(op code, bool indices, const std::string* operands);
/// The same for a node of numbers, round_to included.
std::string node_text(const program& p, const node& n, const std::string* operands);

const char* op_name(op code);

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
        const bool element = n.code == op::gather || n.code == op::lookup;
        out += element ? concat_text(n.code == op::gather ? "table " : "tensor ", n.imm, "[") : concat_text(op_name(n.code), "(");
        for (int k = 0; k < 3 && n.operands[k] != no_node; ++k) out += concat_text(k == 0 ? "%" : ", %", n.operands[k]);
        if (n.code == op::roll) out += concat_text(", by ", n.imm);
        if (n.code == op::round_to) out += concat_text(", ", name_of(dtype(n.imm)));
        out += element ? "]" : ")";
      }
    }
    out += "\n";
  }
  return out;
}

}  // namespace detail
}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/emit/kernel_text_impl.hpp>
#endif
