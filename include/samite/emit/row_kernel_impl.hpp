// samite/emit/row_kernel_impl.hpp: row kernels as text.
#pragma once
#include <algorithm>
#include <map>
#include <utility>

#include <samite/emit/row_kernel.hpp>
#include <samite/ir/derivative.hpp>

namespace samite {

namespace detail {

class row_emitter {
 public:
  row_emitter(const program& p, const row_kernel_options& options) : p_(p), options_(options) {
    std::vector<char> varies;
    for (const row_tensor_type& t : options.operands) varies.push_back(t.varies);
    varies_ = column_dependence(p, varies);
    find_used();
    find_levels();
  }

  kernel_text emit() {
    const std::string name = kernel_name("row_", options_.label);
    bool in_double = false;
    for (const row_tensor_type& t : options_.operands) in_double = in_double || t.type == dtype::f64;
    for (const row_tensor_type& t : options_.outputs) in_double = in_double || t.type == dtype::f64;
    text_ = "// " + one_line(options_.label) + ": row kernel\n" + program_comment(p_, used_, [&](const node& n) {
      const row_tensor_type& t = options_.operands[std::size_t(n.imm)];
      return concat_text("operand ", n.imm, ": ", name_of(t.type), t.varies ? "" : ", one a row");
    });
    for (std::size_t o = 0; o < options_.outputs.size(); ++o)
      text_ += concat_text("//   output ", o, " = %", p_.roots[o], ": ", name_of(options_.outputs[o].type), options_.outputs[o].varies ? "" : ", one a row", "\n");
    text_ += "#include \"row.cuh\"\n\nnamespace samite {\n\n";
    text_ += concat_text("using real = ", in_double ? "double" : "float", ";\nconstexpr int team = ", options_.team, ";  // threads a row\n\n");
    text_ += "struct row_parameters {\n  row_space space;\n";
    if (!options_.operands.empty()) text_ += concat_text("  row_tensor operands[", options_.operands.size(), "];\n");
    text_ += concat_text("  row_tensor outputs[", options_.outputs.size(), "];\n");
    if (!p_.arguments().empty()) text_ += concat_text("  double reals[", p_.arguments().size(), "];\n  index indices[", p_.arguments().size(), "];\n");
    text_ += "};\n\n";
    text_ += "template <class T>\n__device__ inline real load(T x) {\n  return arithmetic<real>::load(x);\n}\n\n";
    text_ += "extern \"C\" __global__ void __launch_bounds__(row_threads) " + name + "(const __grid_constant__ row_parameters p) {\n";
    emit_pointers();
    text_ += "  const index columns = p.space.columns;\n  const int lane = team_lane<team>();\n";
    text_ += "  for (index row = first_row<team>(); row < p.space.rows; row += row_step<team>()) {\n";
    emit_offsets();
    for (int level = 0; level <= levels_; ++level) {
      emit_row_values(level);
      if (level < levels_) emit_reductions(level);
    }
    emit_stores();
    text_ += "  }\n}\n\n}  // namespace samite\n";
    return {name, std::move(text_)};
  }

 private:
  static std::string one_line(std::string label) {
    std::replace_if(label.begin(), label.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\\'; }, ' ');
    return label;
  }
  static bool is_reduction(op code) { return code == op::row_sum || code == op::row_max || code == op::row_min; }
  bool varies(node_id id) const { return varies_[std::size_t(id)] != 0; }

  void find_used() {
    used_ = used_nodes(p_, p_.roots);
    for (std::size_t i = 0; i < p_.size(); ++i) {
      const node& n = p_.nodes()[i];
      const bool attention_symbol = n.code == op::symbol && n.imm < index_t(symbol_id::row);
      if (used_[i] && (n.code == op::gather || attention_symbol))
        raise("E-EMIT-OP", "row kernel \"", options_.label, "\": ", attention_symbol ? concat_text("the symbol ", symbol_names[n.imm]) : std::string("a table gather"),
              " has no meaning in a row kernel; use it in a mask or score function, and embedding(table, ids) to pick rows of a tensor");
    }
  }

  // The number of reductions that must be complete before a node can be computed.
  void find_levels() {
    level_.assign(p_.size(), 0);
    for (std::size_t i = 0; i < p_.size(); ++i) {
      if (!used_[i]) continue;
      const node& n = p_.nodes()[i];
      for (node_id operand : n.operands)
        if (operand != no_node) level_[i] = std::max(level_[i], level_[std::size_t(operand)]);
      if (is_reduction(n.code) && varies(n.operands[0])) levels_ = std::max(levels_, ++level_[i]);
    }
  }

  void emit_pointers() {
    for (std::size_t i = 0; i < options_.operands.size(); ++i)
      if (reads(index_t(i))) {
        const char* type = name_of(options_.operands[i].type);
        text_ += concat_text("  const ", type, "* const x", i, " = static_cast<const ", type, "*>(p.operands[", i, "].data);\n");
      }
    for (std::size_t o = 0; o < options_.outputs.size(); ++o) {
      const char* type = name_of(options_.outputs[o].type);
      text_ += concat_text("  ", type, "* const y", o, " = static_cast<", type, "*>(p.outputs[", o, "].data);\n");
    }
  }

  bool reads(index_t slot) const {
    for (std::size_t i = 0; i < p_.size(); ++i)
      if (used_[i] && p_.nodes()[i].code == op::operand && p_.nodes()[i].imm == slot) return true;
    return false;
  }

  void emit_offsets() {
    for (std::size_t i = 0; i < options_.operands.size(); ++i)
      if (reads(index_t(i))) text_ += concat_text("    const index x", i, "_row = row_offset(p.space, p.operands[", i, "], row);\n");
    for (std::size_t o = 0; o < options_.outputs.size(); ++o)
      text_ += concat_text("    const index y", o, "_row = row_offset(p.space, p.outputs[", o, "], row);\n");
  }

  std::string loaded(index_t slot, value_kind kind, const std::string& at) const {
    const std::string element = concat_text("x", slot, "[", at, "]");
    return kind == value_kind::real ? "load(" + element + ")" : concat_text(kind_text(kind), "(", element, ")");
  }

  /// The right-hand side of a node that is neither a constant nor a reduction; `name` gives an operand's text.
  template <class Name>
  std::string expression(const node& n, Name&& name) const {
    std::string x[3];
    for (int k = 0; k < 3; ++k)
      if (n.operands[k] != no_node) x[k] = name(n.operands[k]);
    return node_text(p_, n, x);
  }

  // Values that are the same at all columns.
  std::string row_name(node_id id) const { return p_[id].code == op::constant ? literal(p_[id]) : concat_text("v", id); }

  void emit_row_values(int level) {
    for (std::size_t i = 0; i < p_.size(); ++i) {
      const node& n = p_.nodes()[i];
      if (!used_[i] || varies_[i] || level_[i] != level || n.code == op::constant) continue;
      if (is_reduction(n.code) && varies(n.operands[0])) continue;
      std::string value;
      if (n.code == op::symbol) value = n.imm == index_t(symbol_id::row) ? "row" : "columns";
      else if (n.code == op::argument) value = n.kind == value_kind::real ? concat_text("real(p.reals[", n.imm, "])") : concat_text("p.indices[", n.imm, "]");
      else if (n.code == op::operand) value = loaded(n.imm, n.kind, concat_text("x", n.imm, "_row"));
      else if (n.code == op::row_sum) value = row_name(n.operands[0]) + " * real(columns)";
      else if (is_reduction(n.code) || n.code == op::roll) value = row_name(n.operands[0]);
      else value = expression(n, [&](node_id id) { return row_name(id); });
      text_ += concat_text("    const ", kind_text(n.kind), " v", i, " = ", value, ";\n");
    }
  }

  // ---- inside a loop over the columns: names are known per (node, shift) and forgotten at its end ----

  void begin_columns() {
    named_.clear(), columns_.clear();
    columns_[0] = "column";
    text_ += "    for (index column = lane; column < columns; column += team) {\n";
  }

  const std::string& column_name(index_t shift) {
    auto [found, fresh] = columns_.emplace(shift, "");
    if (fresh) {
      found->second = concat_text("column_", columns_.size() - 1);
      text_ += concat_text("      const index ", found->second, " = floor_mod(column + ", index_literal(shift), ", columns);\n");
    }
    return found->second;
  }

  std::string column_value(node_id id, index_t shift) {
    if (!varies(id)) return row_name(id);
    const node& n = p_[id];
    if (n.code == op::roll) return column_value(n.operands[0], shift + n.imm);
    if (const auto found = named_.find({id, shift}); found != named_.end()) return found->second;
    if (n.code == op::symbol) return column_name(shift);
    std::string value;
    if (n.code == op::operand) value = loaded(n.imm, n.kind, concat_text("x", n.imm, "_row + ", column_name(shift), " * p.operands[", n.imm, "].column_stride"));
    else value = expression(n, [&](node_id operand) { return column_value(operand, shift); });
    const std::string name = shift == 0 ? concat_text("v", id) : concat_text("v", id, "_at_", column_name(shift));
    text_ += concat_text("      const ", kind_text(n.kind), " ", name, " = ", value, ";\n");
    return named_[{id, shift}] = name;
  }

  void emit_reductions(int level) {
    std::vector<node_id> targets;
    for (std::size_t i = 0; i < p_.size(); ++i)
      if (used_[i] && is_reduction(p_.nodes()[i].code) && varies(p_.nodes()[i].operands[0]) && level_[i] == level + 1) targets.push_back(node_id(i));
    for (node_id id : targets) {
      const char* start = p_[id].code == op::row_sum ? "0" : p_[id].code == op::row_max ? "-infinity()" : "infinity()";
      text_ += concat_text("    real partial", id, " = ", start, ";  // ", op_name(p_[id].code), " of %", p_[id].operands[0], "\n");
    }
    begin_columns();
    for (node_id id : targets) {
      const std::string x = column_value(p_[id].operands[0], 0);
      const char* function = p_[id].code == op::row_max ? "fmax" : "fmin";
      if (p_[id].code == op::row_sum) text_ += concat_text("      partial", id, " += ", x, ";\n");
      else text_ += concat_text("      partial", id, " = ", function, "(partial", id, ", ", x, ");\n");
    }
    text_ += "    }\n";
    for (node_id id : targets) {
      const char* combine = p_[id].code == op::row_sum ? "sum_of" : p_[id].code == op::row_max ? "max_of" : "min_of";
      text_ += concat_text("    const real v", id, " = team_reduce<", combine, ", team>(partial", id, ");\n");
    }
  }

  std::string stored(std::size_t output, const std::string& at, const std::string& value) const {
    const node& root = p_[p_.roots[output]];
    const dtype type = options_.outputs[output].type;
    if (root.kind == value_kind::real || is_real(type)) return concat_text("put(y", output, "[", at, "], ", root.kind == value_kind::real ? value : "real(" + value + ")", ");\n");
    return concat_text("y", output, "[", at, "] = ", name_of(type), "(", value, ");\n");
  }

  void emit_stores() {
    bool any = false;
    for (std::size_t o = 0; o < options_.outputs.size(); ++o) {
      if (options_.outputs[o].varies) any = true;
      else text_ += "    if (lane == 0) " + stored(o, concat_text("y", o, "_row"), row_name(p_.roots[o]));
    }
    if (!any) return;
    begin_columns();
    for (std::size_t o = 0; o < options_.outputs.size(); ++o) {
      if (!options_.outputs[o].varies) continue;
      const std::string value = column_value(p_.roots[o], 0);
      text_ += "      " + stored(o, concat_text("y", o, "_row + column * p.outputs[", o, "].column_stride"), value);
    }
    text_ += "    }\n";
  }

  const program& p_;
  const row_kernel_options& options_;
  std::vector<char> varies_, used_;
  std::vector<int> level_;
  int levels_ = 0;
  std::string text_;
  std::map<std::pair<node_id, index_t>, std::string> named_;
  std::map<index_t, std::string> columns_;
};

}  // namespace detail

SAMITE_IMPL kernel_text emit_row_kernel(const program& p, const row_kernel_options& options) {
  const std::size_t bytes = row_parameter_bytes(options.operands.size(), options.outputs.size(), p.arguments().size());
  if (bytes > kernel_parameter_limit)
    raise("E-EMIT-PARAMETERS", "row kernel \"", options.label, "\": ", options.operands.size(), " operands, ", options.outputs.size(), " outputs and ",
          p.arguments().size(), " numbers need ", bytes, " bytes of parameters and a launch takes ", kernel_parameter_limit, "; end the expression with let() in more places");
  ensure(options.outputs.size() == p.roots.size(), "a row kernel has one output a root");
  ensure(options.team == 1 || options.team == 32 || options.team == 256, "a row kernel's team is 1, 32 or 256 threads");
  return detail::row_emitter(p, options).emit();
}

}  // namespace samite
