// samite/ir/graph.hpp: the graph of tensor values that layers build, gradients extend and plans run.
#pragma once
#include <memory>
#include <string>
#include <utility>
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

  bool is_row_major() const;
};

value_info row_major(dtype type, shape dims);

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
  graph& checked() const;

  graph* graph_ = nullptr;
  int node_ = -1, output_ = 0;
};

// ---- node types: `type` names one and, by its address, tells it from the others ---------------------------------------

/// Bound from outside at each run.
struct input_node {
  static constexpr char type[] = "input";
  std::string name;
};
/// Trained or frozen weights: bound once, read by every run.
struct parameter_node {
  static constexpr char type[] = "parameter";
  std::string name;
};
/// A tensor that outlives a run and that assign and append write.
struct state_node {
  static constexpr char type[] = "state";
  std::string name;
};
struct constant_node {
  static constexpr char type[] = "constant";
  std::vector<double> data;
};
/// A row kernel: `fn` is evaluated at every (row, column) of `domain`, whose last axis are the columns. Operands broadcast
/// to the domain from the right. A root that is the same at all columns gives an output with last extent 1.
struct fused_node {
  static constexpr char type[] = "fused";
  std::shared_ptr<const program> fn;
  shape domain;
};
/// out = op(a) op(b) with a and b seen as matrices (leading axes merged), accumulated in fp32 (fp64 for f64).
struct matmul_node {
  static constexpr char type[] = "matmul";
  bool trans_a = false, trans_b = false;
};
/// What attention computes, forward and backward: softmax(score(scale * Q K^T) where mask) V.
struct attention_terms {
  std::shared_ptr<const program> mask;  // null keeps every pair
  double scale = 1;
  std::shared_ptr<const program> score;  // null is the identity
  int tensors = 0;                       // that the score function reads
  bool has_sink = false;
  std::string mask_label = "mask";  // for messages
};
/// Inputs Q [B,H,Q,D], K [B,G,K,D], V [B,G,K,Dv], the score's tensors, the sink [H]; outputs out, lse. H is a multiple of G.
struct attention_node : attention_terms {
  static constexpr char type[] = "attention";
};
/// Inputs Q K V out lse d_out, d_lse if `has_lse_gradient`, the score's tensors, the sink; outputs dQ dK dV and, in fp32 or
/// wider, the gradients of the score's tensors and of the sink.
struct attention_gradient_node : attention_terms {
  static constexpr char type[] = "attention_gradient";
  bool has_lse_gradient = false;
};
/// Rows of a table [V,H] picked by ids [...]: out [...,H].
struct embedding_node {
  static constexpr char type[] = "embedding";
};
/// Inputs ids, d_out; output [V,H] with the rows of d_out added up by id, in a fixed order.
struct embedding_gradient_node {
  static constexpr char type[] = "embedding_gradient";
};
struct concat_node {
  static constexpr char type[] = "concat";
  int axis = 0;
};
/// Zeros around the input along one axis: the gradient of a slice.
struct pad_node {
  static constexpr char type[] = "pad";
  int axis = 0;
  dim before, after;
};
/// Sums over the axes on which the output's extent is 1 or that the output lacks on the left.
struct sum_to_node {
  static constexpr char type[] = "sum_to";
};
/// A view: no data moves.
struct reshape_node {
  static constexpr char type[] = "reshape";
};
struct transpose_node {
  static constexpr char type[] = "transpose";
  std::vector<int> axes;  // out axis i is input axis axes[i]
};
struct slice_node {
  static constexpr char type[] = "slice";
  int axis = 0;
  dim begin, length;
};
/// Row-major copy of a strided value.
struct copy_node {
  static constexpr char type[] = "copy";
};
/// Writes the second input into the state that is the first; the output is the state's new value.
struct assign_node {
  static constexpr char type[] = "assign";
};
/// Writes rows into a state along `axis`, starting at `at`; the output is the state's first at + n rows.
struct append_node {
  static constexpr char type[] = "append";
  int axis = 0;
  dim at;
};

struct value_ref {
  int node = -1, output = 0;
  friend bool operator==(const value_ref&, const value_ref&) = default;
  friend auto operator<=>(const value_ref&, const value_ref&) = default;
};

/// What a node computes: one of the structs above, shared by copies of the node.
class node_data {
 public:
  template <class T>
    requires requires { T::type; }
  node_data(T data) : held_(std::make_shared<const T>(std::move(data))), type_(T::type) {}

  const char* type_name() const { return type_; }
  /// The data if it is a T, else null.
  template <class T> const T* as() const { return type_ == T::type ? static_cast<const T*>(held_.get()) : nullptr; }

 private:
  std::shared_ptr<const void> held_;
  const char* type_;
};

struct graph_node {
  node_data data;
  std::vector<value_ref> inputs;
  std::vector<value_info> outputs;
  std::string label;

  const char* type_name() const { return data.type_name(); }
  template <class T> const T* as() const { return data.as<T>(); }
  bool is_view() const;
};

/// Values and how they come from one another. Nodes stand in the order in which they were made, which is an order in
/// which they can run.
///
/// threads  built by one thread; not moved, and copied as a snapshot only, since values point to it
class graph {
 public:
  graph();
  ~graph();
  graph& operator=(const graph&) = delete;

  /// A copy of what stands in the graph now. Data of nodes is shared, values of this graph don't belong to it.
  std::shared_ptr<const graph> snapshot() const;

  /// A tensor bound at each run, e.g. g.input("x", bf16, {tokens(8192), 5120}).
  value input(std::string name, dtype type, shape dims);
  /// Weights. Trained ones are what `gradient` and optimizers are asked for.
  value parameter(std::string name, dtype type, shape dims);
  /// A tensor that keeps its contents between runs.
  value state(std::string name, dtype type, shape dims);
  /// Numbers known when the graph is built.
  value constant(std::vector<double> data, dtype type, shape dims);

  /// Marks a value as a result that runs keep and `executor::output(name)` returns.
  void output(std::string name, value v);
  const std::vector<std::pair<std::string, value_ref>>& outputs() const { return outputs_; }

  const std::vector<graph_node>& nodes() const { return nodes_; }
  const graph_node& node(int id) const { return nodes_[std::size_t(id)]; }
  const value_info& info(value_ref ref) const { return nodes_[std::size_t(ref.node)].outputs[std::size_t(ref.output)]; }
  value handle(value_ref ref) { return value(this, ref.node, ref.output); }

  /// All parameters in the order in which they were made.
  std::vector<value> parameters();

  /// Adds a node; builders of layers use the functions of expr/ and ir/tensor_ops.hpp instead.
  std::vector<value> add(node_data data, const std::vector<value>& inputs, std::vector<value_info> outputs, std::string label = {});

  /// Gives a node the name that errors, explain() and kernels show.
  void label(const value& v, std::string text);

 private:
  graph(const graph&);
  value named(node_data data, const std::string& name, dtype type, shape dims);

  std::vector<graph_node> nodes_;
  std::vector<std::pair<std::string, value_ref>> outputs_;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/graph_impl.hpp>
#endif
