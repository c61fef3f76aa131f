// samite/ir/autodiff_impl.hpp: the rules of reverse mode, a node type at a time.
#pragma once
#include <map>
#include <utility>

#include <samite/ir/autodiff.hpp>
#include <samite/ir/build.hpp>
#include <samite/ir/derivative.hpp>
#include <samite/ir/tensor_ops.hpp>

namespace samite {

namespace detail {

/// Gradients of 16-bit values that many rows add up to are kept in fp32.
inline dtype sum_type(dtype type) { return type == dtype::bf16 || type == dtype::f16 ? dtype::f32 : type; }

inline value add_all(graph& g, const std::vector<value>& terms) {
  if (terms.size() == 1) return terms[0];
  program p;
  node_id total = build_operand(p, 0, value_kind::real);
  for (std::size_t i = 1; i < terms.size(); ++i) total = build(p, op::add, total, build_operand(p, index_t(i), value_kind::real));
  p.roots = {total};
  dtype type = terms[0].type();
  for (const value& v : terms)
    if (size_of(v.type()) > size_of(type)) type = v.type();
  return fuse(g, std::move(p), terms, terms[0].dims(), {type}, "grad_sum")[0];
}

inline value zeros_like(graph& g, const value_info& info) {
  program p;
  p.roots = {build_constant(p, 0.0)};
  // The operand-free program has no columns of its own; the domain gives the shape.
  const value_info out = row_major(info.type, info.dims);
  return g.add(fused_node{std::make_shared<const program>(std::move(p)), info.dims}, {}, {out}, "zeros")[0];
}

class reverse_mode {
 public:
  reverse_mode(graph& g, const std::vector<value>& wanted) : g_(g) {
    depends_.assign(g.nodes().size(), false);
    for (const value& v : wanted) depends_[std::size_t(v.node())] = true, wanted_.push_back({v.node(), v.output()});
    for (std::size_t i = 0; i < g.nodes().size(); ++i)
      for (const value_ref& in : g.nodes()[i].inputs)
        if (depends_[std::size_t(in.node)]) depends_[i] = true;
    for (std::size_t i = 0; i < g.nodes().size(); ++i)
      if (g.nodes()[i].as<assign_node>() || g.nodes()[i].as<append_node>()) written_[root(g.nodes()[i].inputs[0])] = int(i);
  }

  void seed(const value& v, const value& adjoint) { contributions_[{v.node(), v.output()}].push_back(adjoint); }

  std::vector<value> run() {
    for (std::size_t i = depends_.size(); i-- > 0;)
      if (depends_[i]) visit(int(i));
    std::vector<value> result;
    for (const value_ref& ref : wanted_) {
      value found = adjoint(ref);
      result.push_back(found ? found : zeros_like(g_, g_.info(ref)));
    }
    return result;
  }

 private:
  /// The sum of all contributions to a value's adjoint; no value if there are none.
  value adjoint(value_ref ref) {
    auto found = contributions_.find(ref);
    if (found == contributions_.end()) return {};
    if (found->second.size() > 1) found->second = {add_all(g_, found->second)};
    return found->second[0];
  }

  bool wants(const value_ref& in) const { return depends_[std::size_t(in.node)] && is_real(g_.info(in).type); }
  void give(const value_ref& in, const value& adjoint) {
    if (wants(in)) contributions_[in].push_back(adjoint);
  }

  int root(value_ref ref) const {
    while (g_.node(ref.node).is_view()) ref = g_.node(ref.node).inputs[0];
    return ref.node;
  }

  /// An input of the node at hand, which the gradient reads again: as it was, or not at all.
  value read(const graph_node& n, const value_ref& in) {
    const auto write = written_.find(root(in));
    if (write != written_.end() && write->second > at_)
      raise("E-GRAPH-GRADIENT", "gradient: \"", n.label, "\" (", n.type_name(), ") read \"", g_.node(write->first).label, "\", which \"", g_.node(write->second).label, "\" (",
            g_.node(write->second).type_name(), ") has written since; take the gradient before that write, or let the loss read contiguous(x) of it");
    return g_.handle(in);
  }

  void visit(int id) {
    at_ = id;
    std::vector<value> dy;
    bool any = false;
    for (std::size_t o = 0; o < g_.node(id).outputs.size(); ++o) {
      dy.push_back(adjoint({id, int(o)}));
      any = any || dy.back();
    }
    if (!any) return;
    const graph_node n = g_.node(id);  // a copy: rules add nodes
    if (const auto* a = n.as<fused_node>()) return fused(n, *a, dy);
    if (const auto* a = n.as<matmul_node>()) return product(n, *a, dy[0]);
    if (const auto* a = n.as<attention_node>()) return attention(id, n, *a, dy);
    if (n.as<embedding_node>()) {
      const value_info& table = g_.info(n.inputs[0]);
      return give(n.inputs[0], g_.add(embedding_gradient_node{}, {read(n, n.inputs[1]), contiguous(dy[0])},
                                      {row_major(sum_type(table.type), table.dims)}, n.label + ".grad")[0]);
    }
    if (const auto* a = n.as<concat_node>()) return concatenated(n, *a, dy[0]);
    if (const auto* a = n.as<pad_node>()) return give(n.inputs[0], slice(dy[0], a->axis, a->before, g_.info(n.inputs[0]).dims[std::size_t(a->axis)]));
    if (n.as<sum_to_node>()) return give(n.inputs[0], spread(dy[0], g_.info(n.inputs[0])));
    if (n.as<reshape_node>()) return give(n.inputs[0], reshape(dy[0], g_.info(n.inputs[0]).dims));
    if (const auto* a = n.as<transpose_node>()) {
      std::vector<int> inverse(a->axes.size());
      for (std::size_t i = 0; i < a->axes.size(); ++i) inverse[std::size_t(a->axes[i])] = int(i);
      return give(n.inputs[0], transpose(dy[0], inverse));
    }
    if (const auto* a = n.as<slice_node>()) {
      const dim whole = g_.info(n.inputs[0]).dims[std::size_t(a->axis)];
      return give(n.inputs[0], pad(dy[0], a->axis, a->begin, whole - a->begin - a->length));
    }
    if (n.as<copy_node>()) return give(n.inputs[0], dy[0]);
    if (n.inputs.empty()) return;
    raise("E-GRAPH-GRADIENT", "gradient: node \"", n.label, "\" (", n.type_name(), ") can't be differentiated; wrap its input in stop_gradient, or build the loss without it");
  }

  void fused(const graph_node& n, const fused_node& a, const std::vector<value>& dy) {
    program p = *a.fn;
    std::vector<value> operands;
    for (const value_ref& in : n.inputs) operands.push_back(g_.handle(in));
    std::vector<std::pair<node_id, node_id>> seeds;
    for (std::size_t o = 0; o < dy.size(); ++o) {
      if (!dy[o]) continue;
      seeds.emplace_back(a.fn->roots[o], build_operand(p, index_t(operands.size()), value_kind::real));
      operands.push_back(dy[o]);
    }
    std::vector<index_t> wanted;
    for (std::size_t i = 0; i < n.inputs.size(); ++i)
      if (wants(n.inputs[i])) wanted.push_back(index_t(i));
    std::vector<char> varies;
    for (const value& v : operands) varies.push_back(v.rank() > 0 && !(v.extent(-1) == dim(1)));
    const std::vector<node_id> found = differentiate(p, seeds, wanted, varies);

    std::vector<node_id> roots;
    std::vector<index_t> targets;
    std::vector<dtype> types;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (found[i] == no_node) continue;
      const value_info& info = g_.info(n.inputs[std::size_t(wanted[i])]);
      roots.push_back(found[i]), targets.push_back(wanted[i]);
      types.push_back(info.dims == a.domain ? info.type : sum_type(info.type));
    }
    if (roots.empty()) return;
    std::vector<index_t> slots;
    program gradient = prune(p, roots, slots);
    std::vector<value> used;
    for (index_t slot : slots) used.push_back(std::size_t(slot) < n.inputs.size() ? read(n, n.inputs[std::size_t(slot)]) : operands[std::size_t(slot)]);
    const std::vector<value> made = fuse(g_, std::move(gradient), used, a.domain, types, n.label + ".grad");
    for (std::size_t i = 0; i < made.size(); ++i) {
      const value_ref in = n.inputs[std::size_t(targets[i])];
      const shape& wanted_dims = g_.info(in).dims;
      value part = made[i];
      // An adjoint that happens to be the same at all columns still belongs to an operand that has them all.
      if (!wanted_dims.empty() && !(wanted_dims.back() == dim(1)) && part.extent(-1) == dim(1) && !(a.domain.back() == dim(1)))
        part = spread(part, row_major(part.type(), a.domain));
      give(in, sum_to(part, wanted_dims));
    }
  }

  void product(const graph_node& n, const matmul_node& a, const value& dy) {
    const value x = g_.handle(n.inputs[0]), w = g_.handle(n.inputs[1]);
    if (wants(n.inputs[0])) read(n, n.inputs[1]);
    if (wants(n.inputs[1])) read(n, n.inputs[0]);
    const value d = dy.type() == x.type() ? dy : converted(dy, x.type());
    if (wants(n.inputs[0])) {
      // y = x w: dx = dy w^T;  y = x^T w: dx = w dy^T
      value dx = a.trans_a ? matmul(w, d, {.trans_a = a.trans_b, .trans_b = true, .label = n.label + ".dx"})
                           : matmul(d, w, {.trans_b = !a.trans_b, .label = n.label + ".dx"});
      give(n.inputs[0], reshape(dx, x.dims()));
    }
    if (wants(n.inputs[1])) {
      // y = x w: dw = x^T dy;  y = x w^T: dw = dy^T x
      const dtype type = sum_type(w.type());
      value dw = a.trans_b ? matmul(d, x, {.trans_a = true, .trans_b = a.trans_a, .out_type = type, .label = n.label + ".dw"})
                           : matmul(x, d, {.trans_a = !a.trans_a, .out_type = type, .label = n.label + ".dw"});
      give(n.inputs[1], reshape(dw, w.dims()));
    }
  }

  void attention(int id, const graph_node& n, const attention_node& a, const std::vector<value>& dy) {
    std::vector<value> inputs = {read(n, n.inputs[0]), read(n, n.inputs[1]), read(n, n.inputs[2]), value(&g_, id, 0), value(&g_, id, 1)};
    inputs.push_back(dy[0] ? dy[0] : zeros_like(g_, n.outputs[0]));
    if (dy[1]) inputs.push_back(contiguous(dy[1]));
    for (std::size_t i = 3; i < n.inputs.size(); ++i) inputs.push_back(read(n, n.inputs[i]));
    std::vector<value_info> outputs;
    for (int i = 0; i < 3; ++i) {
      value_info info = g_.info(n.inputs[std::size_t(i)]);
      info.dense = true;
      outputs.push_back(std::move(info));
    }
    for (std::size_t i = 3; i < n.inputs.size(); ++i) {
      const value_info& info = g_.info(n.inputs[i]);
      outputs.push_back(row_major(sum_type(info.type), info.dims));
    }
    const std::vector<value_ref> wanted = n.inputs;
    const std::vector<value> made = g_.add(attention_gradient_node{a, bool(dy[1])}, inputs, std::move(outputs), n.label + ".grad");
    for (std::size_t i = 0; i < wanted.size(); ++i) give(wanted[i], made[i]);
  }

  void concatenated(const graph_node& n, const concat_node& a, const value& dy) {
    dim begin(0);
    for (const value_ref& in : n.inputs) {
      const dim length = g_.info(in).dims[std::size_t(a.axis)];
      if (wants(in)) give(in, slice(dy, a.axis, begin, length));
      begin = begin + length;
    }
  }

  /// `x` repeated along the axes that `like` has and it lacks.
  value spread(const value& x, const value_info& like) {
    program p;
    p.roots = {build_operand(p, 0, value_kind::real)};
    const bool columns_missing = x.extent(-1) == dim(1) && !(like.dims.back() == dim(1));
    if (!columns_missing) return fuse(g_, std::move(p), {x}, like.dims, {x.type()}, "spread")[0];
    return g_.add(fused_node{std::make_shared<const program>(std::move(p)), like.dims}, {x}, {row_major(x.type(), like.dims)}, "spread")[0];
  }

  value converted(const value& x, dtype type) {
    program p;
    p.roots = {build_operand(p, 0, value_kind::real)};
    return fuse(g_, std::move(p), {x}, x.dims(), {type}, "cast")[0];
  }

  graph& g_;
  std::vector<bool> depends_;
  std::vector<value_ref> wanted_;
  std::map<value_ref, std::vector<value>> contributions_;
  std::map<int, int> written_;  // states and parameters: the last node that writes them
  int at_ = 0;                  // the node at hand
};

}  // namespace detail

SAMITE_IMPL std::vector<value> gradient(const value& loss, const std::vector<value>& wanted) {
  dim elements(1);
  for (const dim& d : loss.dims()) elements = elements * (d.is_constant() ? d.constant() : index_t(2));
  if (!(elements == dim(1)) || !is_real(loss.type()))
    raise("E-GRAPH-LOSS", "gradient: the loss is ", name_of(loss.type()), " ", to_text(loss.dims()), "; expected one real number, e.g. mean(x) over all axes");
  graph& g = loss.owner();
  for (const value& v : wanted) {
    if (!is_real(v.type())) raise("E-GRAPH-LOSS", "gradient: a value whose gradient is wanted is ", name_of(v.type()), " ", to_text(v.dims()), "; whole numbers have no gradient, name real values");
    if (&v.owner() != &g) raise("E-GRAPH-OWNER", "gradient: a value whose gradient is wanted belongs to another graph than the loss; name parameters of the loss's own graph");
  }
  detail::reverse_mode reverse(g, wanted);
  program p;
  p.roots = {build_constant(p, 1.0)};
  reverse.seed(loss, g.add(fused_node{std::make_shared<const program>(std::move(p)), loss.dims()}, {}, {row_major(loss.type(), loss.dims())}, "one")[0]);
  return reverse.run();
}

}  // namespace samite
