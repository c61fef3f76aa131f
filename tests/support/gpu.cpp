// tests/support/gpu.cpp: runs one graph on several devices.
#include <algorithm>
#include <cmath>

#include "gpu.hpp"

#include <samite/runtime/cuda_driver.hpp>

namespace samite_tests {

samite::tensor random_tensor(samite::dtype type, samite::extents dims, std::uint32_t purpose, double low, double high) {
  samite::tensor wide(samite::f64, std::move(dims));
  samite::counted_random random(20261130, purpose);
  for (double& x : wide.values<double>()) x = low + (high - low) * random.uniform();
  return wide.to_dtype(type);
}

std::vector<double> numbers(const samite::tensor& t) {
  const samite::tensor wide = t.to_dtype(samite::f64);
  const auto values = wide.values<double>();
  return {values.begin(), values.end()};
}

named_numbers run_on(const samite::graph& g, samite::device where, const named_tensors& inputs, int steps) {
  using namespace samite;
  executor run(make_plan(g, where));
  named_tensors held;
  for (const auto& [name, t] : inputs) {
    bool is_input = false;
    for (const graph_node& n : g.nodes()) is_input = is_input || (n.label == name && n.as<input_node>() != nullptr);
    held[name] = t.clone();
    if (where.type == device::kind::cuda && !is_input) held[name] = t.to(cuda_device::open(where.index));
    run.bind(name, held[name]);
  }
  for (int i = 0; i < steps; ++i) run.step();
  named_numbers out;
  for (const auto& [name, ref] : g.outputs()) out[name] = numbers(run.output(name));
  return out;
}

double magnitude_of(const std::vector<double>& values) {
  double largest = 1;
  for (double x : values)
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  return largest;
}

}  // namespace samite_tests
