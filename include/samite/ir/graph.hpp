// samite/ir/graph.hpp: the graph of tensor values that layers build, gradients extend and plans run.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <samite/core/dim.hpp>
#include <samite/ir/program.hpp>

namespace samite {

class graph;

/// Dtype, shape and memory order of one value.
struct value_info {
  dtype type = dtype::f32;
  shape dims;
  /// Axes from slowest to fastest in memory. The identity means row-major.
  std::vector<int> order;
  /// False for slices: the strides come from a larger tensor.
  bool dense = true;

  bool is_row_major() const {
    for (std::size_t i = 0; i < order.size(); ++i)
      if (order[i] != int(i)) return false;
    return dense;
  }
};

inline value_info row_major(dtype type, shape dims) {
  value_info info{type, std::move(dims), {}, true};
  for (std::size_t i = 0; i < info.dims.size(); ++i) info.order.push_back(int(i));
  return info;
}

/// A tensor in a graph: a cheap handle that is copied freely. Using it twice means computing it once.
class value {
 public:
  value() = default;
  value(graph* g, int node, int output) : graph_(g), node_(node), output_(output) {}

  explicit operator bool() const { return graph_ != nullptr; }
  graph& owner() const { return checked(); }
  int node() const { return node_; }
  int output() const { return output_; }

  const value_info& info() const;
  dtype type() const { return info().type; }
  const shape& dims() const { return info().dims; }
  int rank() const { return int(dims().size()); }
  /// Extent of an axis; negative axes count from the last.
  const dim& extent(int axis) const { return dims()[std::size_t(axis < 0 ? axis + rank() : axis)]; }

  friend bool operator==(const value& a, const value& b) {
    return a.graph_ == b.graph_ && a.node_ == b.node_ && a.output_ == b.output_;
  }

 private:
  graph& checked() const {
    if (graph_ == nullptr) raise("E-GRAPH-OWNER", "a value that was never computed is used: it belongs to no graph; assign it the result of an operation first");
    return *graph_;
  }

  graph* graph_ = nullptr;
  int node_ = -1, output_ = 0;
};

// ---- node types -----------------------------------------------------------------------------------------------------

/// Bound from outside at each run.
struct input_node {
  std::string name;
};
/// Trained or frozen weights: bound once, read by every run.
struct parameter_node {
  std::string name;
};
/// A tensor that outlives a run and that assign and append write.
struct state_node {
  std::string name;
};
struct constant_node {
  std::vector<double> data;
};
/// A row kernel: `fn` is evaluated at every (row, column) of `domain`, whose last axis are the columns. Operands broadcast
/// to the domain from the right. A root that is the same at all columns gives an output with last extent 1.
struct fused_node {
  std::shared_ptr<const program> fn;
  shape domain;
};
/// out = op(a) op(b) with a and b seen as matrices (leading axes merged), accumulated in fp32 (fp64 for f64).
struct matmul_node {
  bool trans_a = false, trans_b = false;
};
/// out, lse = softmax(scale * Q K^T where mask) V; Q [B,H,Q,D], K [B,G,K,D], V [B,G,K,Dv], H a multiple of G.
struct attention_node {
  std::shared_ptr<const program> mask;  // null keeps every pair
  double scale = 1;
};
/// Inputs Q K V out lse d_out; outputs dQ dK dV.
struct attention_gradient_node {
  std::shared_ptr<const program> mask;
  double scale = 1;
};
/// Rows of a table [V,H] picked by ids [...]: out [...,H].
struct embedding_node {};
/// Inputs ids, d_out; output [V,H] with the rows of d_out added up by id, in a fixed order.
struct embedding_gradient_node {};
struct concat_node {
  int axis = 0;
};
/// Zeros around the input along one axis: the gradient of a slice.
struct pad_node {
  int axis = 0;
  dim before, after;
};
/// Sums over the axes on which the output's extent is 1 or that the output lacks on the left.
struct sum_to_node {};
/// A view: no data moves.
struct reshape_node {};
struct transpose_node {
  std::vector<int> axes;  // out axis i is input axis axes[i]
};
struct slice_node {
  int axis = 0;
  dim begin, length;
};
/// Row-major copy of a strided value.
struct copy_node {};
/// Writes the second input into the state that is the first; the output is the state's new value.
struct assign_node {};
/// Writes rows into a state along `axis`, starting at `at`; the output is the state's first at + n rows.
struct append_node {
  int axis = 0;
  dim at;
};

using node_data = std::variant<input_node, parameter_node, state_node, constant_node, fused_node, matmul_node, attention_node,
                               attention_gradient_node, embedding_node, embedding_gradient_node, concat_node, pad_node,
                               sum_to_node, reshape_node, transpose_node, slice_node, copy_node, assign_node, append_node>;

inline constexpr const char* node_names[] = {"input",    "parameter", "state",     "constant",           "fused",     "matmul",
                                             "attention", "attention_gradient", "embedding", "embedding_gradient", "concat", "pad",
                                             "sum_to",   "reshape",   "transpose", "slice",              "copy",      "assign", "append"};

struct value_ref {
  int node = -1, output = 0;
  friend bool operator==(const value_ref&, const value_ref&) = default;
  friend auto operator<=>(const value_ref&, const value_ref&) = default;
};

struct graph_node {
  node_data data;
  std::vector<value_ref> inputs;
  std::vector<value_info> outputs;
  std::string label;

  const char* type_name() const { return node_names[data.index()]; }
  template <class T> const T* as() const { return std::get_if<T>(&data); }
  bool is_view() const {
    return as<reshape_node>() || as<transpose_node>() || as<slice_node>() || as<assign_node>() || as<append_node>();
  }
};

/// Values and how they come from one another. Nodes stand in the order in which they were made, which is an order in
/// which they can run.
///
/// threads  built by one thread; not copied or moved, since values point to it
class graph {
 public:
  graph() = default;
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;

  /// A tensor bound at each run, e.g. g.input("x", bf16, {tokens(8192), 5120}).
  value input(std::string name, dtype type, shape dims) { return named(input_node{name}, name, type, std::move(dims)); }
  /// Weights. Trained ones are what `gradient` and optimizers are asked for.
  value parameter(std::string name, dtype type, shape dims) { return named(parameter_node{name}, name, type, std::move(dims)); }
  /// A tensor that keeps its contents between runs.
  value state(std::string name, dtype type, shape dims) { return named(state_node{name}, name, type, std::move(dims)); }
  /// Numbers known when the graph is built.
  value constant(std::vector<double> data, dtype type, shape dims) {
    index_t expected = 1;
    for (const dim& d : dims) {
      if (!d.is_constant()) raise("E-GRAPH-CONSTANT", "constant of shape ", to_text(dims), ": every extent must be a number");
      expected *= d.constant();
    }
    if (expected != index_t(data.size()))
      raise("E-GRAPH-CONSTANT", "constant of shape ", to_text(dims), ": the shape holds ", expected, " elements but ", data.size(), " were given");
    return add(constant_node{std::move(data)}, {}, {row_major(type, std::move(dims))}, "constant")[0];
  }

  /// Marks a value as a result that runs keep and `executor::output(name)` returns.
  void output(std::string name, value v) {
    if (&v.owner() != this) raise("E-GRAPH-OWNER", "output(\"", name, "\"): the value belongs to another graph; mark results on the graph that they were built in");
    for (const auto& [known, unused] : outputs_)
      if (known == name) raise("E-GRAPH-NAME", "output(\"", name, "\"): the graph has an output of that name already; names are unique");
    outputs_.emplace_back(std::move(name), value_ref{v.node(), v.output()});
  }
  const std::vector<std::pair<std::string, value_ref>>& outputs() const { return outputs_; }

  const std::vector<graph_node>& nodes() const { return nodes_; }
  const graph_node& node(int id) const { return nodes_[std::size_t(id)]; }
  const value_info& info(value_ref ref) const { return nodes_[std::size_t(ref.node)].outputs[std::size_t(ref.output)]; }
  value handle(value_ref ref) { return value(this, ref.node, ref.output); }

  /// All parameters in the order in which they were made.
  std::vector<value> parameters() {
    std::vector<value> found;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].as<parameter_node>()) found.emplace_back(this, int(i), 0);
    return found;
  }

  /// Adds a node; builders of layers use the functions of expr/ and ir/tensor_ops.hpp instead.
  std::vector<value> add(node_data data, const std::vector<value>& inputs, std::vector<value_info> outputs, std::string label = {}) {
    graph_node n{std::move(data), {}, std::move(outputs), std::move(label)};
    for (const value& v : inputs) {
      if (!v || &v.owner() != this)
        raise("E-GRAPH-OWNER", "a node \"", n.label, "\" (", n.type_name(), ") was given a value of ", v ? "another graph" : "no graph",
              "; build every value of an expression in one graph");
      n.inputs.push_back({v.node(), v.output()});
    }
    if (n.label.empty()) n.label = std::string(n.type_name()) + "_" + concat_text(nodes_.size());
    nodes_.push_back(std::move(n));
    std::vector<value> made;
    for (std::size_t i = 0; i < nodes_.back().outputs.size(); ++i) made.emplace_back(this, int(nodes_.size()) - 1, int(i));
    return made;
  }

  /// Gives a node the name that errors, explain() and kernels show.
  void label(const value& v, std::string text) { nodes_[std::size_t(v.node())].label = std::move(text); }

 private:
  value named(node_data data, const std::string& name, dtype type, shape dims) {
    for (const graph_node& n : nodes_)
      if (n.label == name && (n.as<input_node>() || n.as<parameter_node>() || n.as<state_node>()))
        raise("E-GRAPH-NAME", "\"", name, "\" names an input, parameter or state of this graph already; names are unique");
    return add(std::move(data), {}, {row_major(type, std::move(dims))}, name)[0];
  }

  std::vector<graph_node> nodes_;
  std::vector<std::pair<std::string, value_ref>> outputs_;
};

inline const value_info& value::info() const { return checked().info({node_, output_}); }

}  // namespace samite
