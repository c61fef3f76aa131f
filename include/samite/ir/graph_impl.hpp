// samite/ir/graph_impl.hpp: adding nodes to graphs.
#pragma once
#include <samite/ir/graph.hpp>

namespace samite {

SAMITE_IMPL bool value_info::is_row_major() const {
  for (std::size_t i = 0; i < order.size(); ++i)
    if (order[i] != int(i)) return false;
  return dense;
}

SAMITE_IMPL value_info row_major(dtype type, shape dims) {
  value_info info{type, std::move(dims), {}, true};
  for (std::size_t i = 0; i < info.dims.size(); ++i) info.order.push_back(int(i));
  return info;
}

SAMITE_IMPL graph& value::checked() const {
  if (graph_ == nullptr) raise("E-GRAPH-OWNER", "a value that was never computed is used: it belongs to no graph; assign it the result of an operation first");
  return *graph_;
}

SAMITE_IMPL bool graph_node::is_view() const {
  return as<reshape_node>() || as<transpose_node>() || as<slice_node>() || as<assign_node>() || as<append_node>();
}

SAMITE_IMPL graph::graph() = default;
SAMITE_IMPL graph::~graph() = default;
SAMITE_IMPL graph::graph(const graph&) = default;
SAMITE_IMPL std::shared_ptr<const graph> graph::snapshot() const { return std::shared_ptr<const graph>(new graph(*this)); }

SAMITE_IMPL value graph::input(std::string name, dtype type, shape dims) { return named(input_node{name}, name, type, std::move(dims)); }

SAMITE_IMPL value graph::parameter(std::string name, dtype type, shape dims) { return named(parameter_node{name}, name, type, std::move(dims)); }

SAMITE_IMPL value graph::state(std::string name, dtype type, shape dims) { return named(state_node{name}, name, type, std::move(dims)); }

SAMITE_IMPL value graph::constant(std::vector<double> data, dtype type, shape dims) {
  index_t expected = 1;
  for (const dim& d : dims) {
    if (!d.is_constant()) raise("E-GRAPH-CONSTANT", "constant of shape ", to_text(dims), ": every extent must be a number");
    expected *= d.constant();
  }
  if (expected != index_t(data.size()))
    raise("E-GRAPH-CONSTANT", "constant of shape ", to_text(dims), ": the shape holds ", expected, " elements but ", data.size(), " were given");
  return add(constant_node{std::move(data)}, {}, {row_major(type, std::move(dims))}, "constant")[0];
}

SAMITE_IMPL void graph::output(std::string name, value v) {
  if (&v.owner() != this) raise("E-GRAPH-OWNER", "output(\"", name, "\"): the value belongs to another graph; mark results on the graph that they were built in");
  for (const auto& [known, unused] : outputs_)
    if (known == name) raise("E-GRAPH-NAME", "output(\"", name, "\"): the graph has an output of that name already; names are unique");
  outputs_.emplace_back(std::move(name), value_ref{v.node(), v.output()});
}

SAMITE_IMPL std::vector<value> graph::parameters() {
  std::vector<value> found;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].as<parameter_node>()) found.emplace_back(this, int(i), 0);
  return found;
}

SAMITE_IMPL std::vector<value> graph::add(node_data data, const std::vector<value>& inputs, std::vector<value_info> outputs, std::string label) {
  graph_node n{std::move(data), {}, std::move(outputs), std::move(label)};
  for (const value& v : inputs) {
    if (!v || &v.owner() != this)
      raise("E-GRAPH-OWNER", n.label.empty() ? concat_text("an unnamed ", n.type_name(), " node") : concat_text("the ", n.type_name(), " node \"", n.label, "\""), " was given a value of ", v ? "another graph" : "no graph",
            "; build every value of an expression in one graph");
    n.inputs.push_back({v.node(), v.output()});
  }
  for (const value_info& v : n.outputs)
    for (const dim& extent : v.dims)
      if (extent.is_constant() && extent.constant() < 0) raise("E-SHAPE-CAPACITY", n.type_name(), " \"", n.label, "\": shape ", to_text(v.dims), "; an extent is at least 0");
  if (n.label.empty()) n.label = std::string(n.type_name()) + "_" + concat_text(nodes_.size());
  nodes_.push_back(std::move(n));
  std::vector<value> made;
  for (std::size_t i = 0; i < nodes_.back().outputs.size(); ++i) made.emplace_back(this, int(nodes_.size()) - 1, int(i));
  return made;
}

SAMITE_IMPL void graph::label(const value& v, std::string text) { nodes_[std::size_t(v.node())].label = std::move(text); }

SAMITE_IMPL value graph::named(node_data data, const std::string& name, dtype type, shape dims) {
  if (name.empty()) raise("E-GRAPH-NAME", "an input, parameter or state has an empty name; give one, since bind() finds it by that");
  for (const graph_node& n : nodes_)
    if (n.label == name && (n.as<input_node>() || n.as<parameter_node>() || n.as<state_node>()))
      raise("E-GRAPH-NAME", "\"", name, "\" names an input, parameter or state of this graph already; names are unique");
  return add(std::move(data), {}, {row_major(type, std::move(dims))}, name)[0];
}

SAMITE_IMPL const value_info& value::info() const { return checked().info({node_, output_}); }

}  // namespace samite
