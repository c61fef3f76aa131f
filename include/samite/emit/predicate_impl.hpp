// samite/emit/predicate_impl.hpp: the text of masks.
#pragma once
#include <algorithm>
#include <bit>
#include <cstring>

#include <samite/emit/predicate.hpp>
#include <samite/ir/canonical.hpp>

namespace samite {

namespace detail {

// Tiles at the edge ask for rows and columns that don't exist: a lookup clamps its indices, and an empty table reads as 0.
inline constexpr const char* table_at_text = R"(__device__ __forceinline__ long long table_at(const int* values, const long long* dims, long long i, long long j, long long k) {
  if (dims[0] * dims[1] * dims[2] == 0) return 0;
  i = i < 0 ? 0 : i < dims[0] ? i : dims[0] - 1;
  j = j < 0 ? 0 : j < dims[1] ? j : dims[1] - 1;
  k = k < 0 ? 0 : k < dims[2] ? k : dims[2] - 1;
  return values[(i * dims[1] + j) * dims[2] + k];
}

)";

}  // namespace detail

SAMITE_IMPL std::string predicate_text(const program& p, const std::string& name) {
  const std::vector<char> used = detail::used_nodes(p, p.roots);
  const std::size_t scalars = p.arguments().size(), tables = p.tables().size();
  std::string out = "struct mask_arguments {\n";
  if (scalars > 0) out += concat_text("  long long scalars[", scalars, "];\n");
  if (tables > 0) out += concat_text("  long long dims[", tables, "][3];\n  const int* tables[", tables, "];\n");
  if (scalars + tables == 0) out += "  long long unused;\n";
  out += "};\n\n";
  if (tables > 0) out += detail::table_at_text;

  const auto text_of = [&](node_id id) -> std::string {
    const node& n = p[id];
    if (n.code == op::constant) return detail::literal(n);
    if (n.code == op::symbol) return symbol_names[n.imm];
    if (n.code == op::argument) return concat_text("m.scalars[", n.imm, "]");
    return concat_text(n.kind == value_kind::boolean ? "keep" : "x", id);
  };
  std::string body;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const node& n = p.nodes()[i];
    if (!used[i]) continue;
    if (n.kind == value_kind::real || n.code == op::operand || (n.code == op::symbol && n.imm > index_t(symbol_id::kv)))
      raise("E-EMIT-OP", "predicate_text(\"", name, "\"): the program reads ",
            n.code == op::symbol ? symbol_names[n.imm] : n.code == op::operand ? "a tensor" : "real numbers",
            ", but a mask is made of b, h, q, kv, tables and whole numbers");
    if (n.code == op::constant || n.code == op::symbol || n.code == op::argument) continue;
    std::string value;
    if (n.code == op::gather) {
      const int rank = n.operand_count();
      value = concat_text("table_at(m.tables[", n.imm, "], m.dims[", n.imm, "]");
      for (int k = 0; k < 3; ++k) value += ", " + (k < 3 - rank ? std::string("0") : text_of(n.operands[k - (3 - rank)]));
      value += ")";
    } else {
      std::string x[3];
      for (int k = 0; k < 3 && n.operands[k] != no_node; ++k) x[k] = text_of(n.operands[k]);
      value = detail::op_text(n.code, p[n.operands[0]].kind != value_kind::real, x);
      if (value.front() == '(' && value.back() == ')') value = value.substr(1, value.size() - 2);  // one operator, one pair
    }
    body += concat_text("  const ", n.kind == value_kind::boolean ? "bool " : "long long ", text_of(node_id(i)), " = ", value, ";\n");
  }
  const auto touches = [&](symbol_id id) {
    for (std::size_t i = 0; i < p.size(); ++i)
      if (used[i] && p.nodes()[i].code == op::symbol && p.nodes()[i].imm == index_t(id)) return true;
    return false;
  };
  out += concat_text("__device__ __forceinline__ bool ", name, "(");
  for (symbol_id id : {symbol_id::b, symbol_id::h, symbol_id::q, symbol_id::kv})
    out += concat_text("long long", touches(id) ? " " : " /*", symbol_names[int(id)], touches(id) ? ", " : "*/, ");
  out += concat_text("const mask_arguments&", scalars + tables > 0 ? " m" : "", ") {\n");
  return out + body + "  return " + text_of(p.roots.at(0)) + ";\n}\n";
}

SAMITE_IMPL std::size_t mask_arguments_bytes(const program& p) {
  return std::max<std::size_t>(8, 8 * p.arguments().size() + 32 * p.tables().size());
}

SAMITE_IMPL std::vector<std::byte> pack_mask_arguments(const program& p, std::span<const std::shared_ptr<const table_contents>> contents,
                                                  std::span<const std::uint64_t> pointers) {
  ensure(contents.size() == p.tables().size() && pointers.size() == p.tables().size(), "every table of a mask has contents and an address");
  std::vector<std::int64_t> words;
  for (const auto& cell : p.arguments()) words.push_back(argument_value(*cell));
  for (const auto& table : contents) words.insert(words.end(), table->dims().begin(), table->dims().end());
  for (std::uint64_t pointer : pointers) words.push_back(std::bit_cast<std::int64_t>(pointer));
  std::vector<std::byte> bytes(mask_arguments_bytes(p));
  if (!words.empty()) std::memcpy(bytes.data(), words.data(), words.size() * 8);
  return bytes;
}

}  // namespace samite
