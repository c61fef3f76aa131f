// samite/ir/verify_impl.hpp: checking and printing graphs.
#pragma once
#include <samite/ir/verify.hpp>

namespace samite {

SAMITE_IMPL void verify(const graph& g) {
  for (std::size_t i = 0; i < g.nodes().size(); ++i) {
    const graph_node& n = g.nodes()[i];
    const auto fail = [&](const std::string& what) {
      raise("E-GRAPH-VERIFY", "graph node ", i, " \"", n.label, "\" (", n.type_name(), "): ", what, "; build nodes through the functions of samite, not by hand");
    };
    for (const value_ref& in : n.inputs) {
      if (in.node < 0 || in.node >= int(i)) fail("an input does not come before it");
      if (in.output < 0 || in.output >= int(g.node(in.node).outputs.size())) fail("an input names an output that does not exist");
    }
    for (const value_info& info : n.outputs) {
      if (info.order.size() != info.dims.size()) fail("its memory order does not name every axis");
      for (const dim& d : info.dims)
        if (d.capacity() < 0) fail("an extent of shape " + to_text(info.dims) + " is negative");
    }
    if (const auto* a = n.as<fused_node>()) {
      if (a->fn->roots.size() != n.outputs.size()) fail("it has " + concat_text(n.outputs.size()) + " outputs but " + concat_text(a->fn->roots.size()) + " roots");
      for (const node& s : a->fn->nodes())
        if (s.code == op::operand && (s.imm < 0 || s.imm >= index_t(n.inputs.size()))) fail("its program reads an operand that is not there");
    }
  }
}

namespace detail {

SAMITE_IMPL void append_node_text(std::string& out, const graph& g, std::size_t i) {
  const graph_node& n = g.nodes()[i];
  for (std::size_t o = 0; o < n.outputs.size(); ++o) {
    if (o != 0) out += ", ";
    out += concat_text("%", i);
    if (n.outputs.size() > 1) out += concat_text(".", o);
    out += concat_text(" ", name_of(n.outputs[o].type), to_text(n.outputs[o].dims));
  }
  out += concat_text(" = ", n.type_name(), "(");
  for (std::size_t k = 0; k < n.inputs.size(); ++k) {
    if (k != 0) out += ", ";
    out += concat_text("%", n.inputs[k].node);
    if (g.node(n.inputs[k].node).outputs.size() > 1) out += concat_text(".", n.inputs[k].output);
  }
  out += concat_text(")  \"", n.label, "\"\n");
}

}  // namespace detail

SAMITE_IMPL std::string print(const graph& g) {
  std::string out;
  for (std::size_t i = 0; i < g.nodes().size(); ++i) detail::append_node_text(out, g, i);
  for (const auto& [name, ref] : g.outputs())
    out += concat_text("output \"", name, "\" = %", ref.node, g.node(ref.node).outputs.size() > 1 ? concat_text(".", ref.output) : std::string(), "\n");
  return out;
}

}  // namespace samite
