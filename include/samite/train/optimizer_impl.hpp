// samite/train/optimizer_impl.hpp: AdamW as a graph.
#pragma once
#include <samite/train/optimizer.hpp>

namespace samite {

SAMITE_IMPL void add_accumulation(graph& g, const std::vector<value>& parameters, const std::vector<value>& gradients) {
  const value keep = g.input("accumulate", f32, {1});
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string name = g.node(parameters[i].node()).label;
    const value sum = g.state("grad." + name, f32, parameters[i].dims());
    // select and not a product: what stood there before the first batch may be NaN
    assign(sum, let(gradients[i] + select(keep > 0.5, sum, 0.0), {.type = f32, .label = "accumulate." + name}));
  }
}

SAMITE_IMPL void add_adamw(graph& g, const std::vector<std::pair<std::string, extents>>& parameters, const adamw_options& o) {
  const value scale = g.input("scale", f32, {1}), rate = g.input("rate", f32, {1});
  const value bias1 = g.input("bias1", f32, {1}), bias2 = g.input("bias2", f32, {1});
  std::vector<value> gradients, squares;
  for (const auto& [name, dims] : parameters) {
    gradients.push_back(g.state("grad." + name, f32, shape(dims.begin(), dims.end())));
    squares.push_back(total(square(gradients.back()), {.label = "square." + name}));
  }
  const value norm = let(scale * sqrt(sum_to(concat(squares, 0), {1})), {.label = "grad_norm"});
  g.output("grad_norm", norm);
  value factor = scale;
  if (o.max_norm > 0) factor = let(scale * min(1.0, o.max_norm / (norm + 1e-6)), {.label = "clip"});
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].first;
    const value& gradient = gradients[i];
    const value p = g.parameter(name, f32, gradient.dims());
    const value m = g.state("adam_m." + name, f32, gradient.dims()), v = g.state("adam_v." + name, f32, gradient.dims());
    const value m_next = assign(m, let(o.beta1 * m + (1 - o.beta1) * (gradient * factor), {.label = "adam_m." + name + ".next"}));
    const value v_next = assign(v, let(o.beta2 * v + (1 - o.beta2) * square(gradient * factor), {.label = "adam_v." + name + ".next"}));
    // Decay applies to matrices; norms and biases keep their scale.
    const double decay = gradient.rank() > 1 ? o.weight_decay : 0.0;
    assign(p, let(p - rate * ((m_next / bias1) / (sqrt(v_next / bias2) + o.eps) + decay * p), {.label = name + ".next"}));
  }
}

}  // namespace samite
