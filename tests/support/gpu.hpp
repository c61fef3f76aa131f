// tests/support/gpu.hpp: runs one graph on several devices and gives its outputs as numbers.
#pragma once
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <samite/core/random.hpp>
#include <samite/plan/plan.hpp>
#include <samite/run/executor.hpp>

namespace samite_tests {

/// An environment variable while it lives, for backends that are made meanwhile.
struct set_variable {
  set_variable(const char* name, const char* text) : name(name) { ::setenv(name, text, 1); }
  ~set_variable() { ::unsetenv(name); }
  set_variable(const set_variable&) = delete;
  set_variable& operator=(const set_variable&) = delete;
  const char* name;
};

using named_tensors = std::map<std::string, samite::tensor>;
using named_numbers = std::map<std::string, std::vector<double>>;

/// Uniform numbers in [low, high), rounded to `type`.
samite::tensor random_tensor(samite::dtype type, samite::extents dims, std::uint32_t purpose, double low = -1, double high = 1);

std::vector<double> numbers(const samite::tensor& t);

/// The largest finite magnitude, at least 1: what tolerances of sums scale with.
double magnitude_of(const std::vector<double>& values);

/// All outputs of a graph after `steps` steps. Tensors named by parameters and states are copied to the device first.
named_numbers run_on(const samite::graph& g, samite::device where, const named_tensors& inputs, int steps = 1);

}  // namespace samite_tests
