// tests/support/golden.hpp: golden files, and whether results agree with them.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <samite/io/safetensors.hpp>
#include <samite/model/checkpoint.hpp>
#include <samite/model/drafter.hpp>

namespace samite_tests {

using namespace samite;

inline std::string golden_path(const std::string& name) { return "tests/golden/" + name; }

/// A file under tests/golden. Tests run from the repository's root.
class golden_file {
 public:
  explicit golden_file(const std::string& name) : file_(safetensors_file::open(golden_path(name))) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  tensor operator[](const std::string& name) const { return file_.load(name); }
  double number(const std::string& name) const { return numbers(name).at(0); }
  std::vector<double> numbers(const std::string& name) const {
    const tensor t = file_.load(name).to_dtype(f64);
    return {t.values<double>().begin(), t.values<double>().end()};
  }
  template <class Integer = index_t>
  std::vector<Integer> integers(const std::string& name) const {
    const tensor t = file_.load(name).to_dtype(i64);
    std::vector<Integer> out;
    for (const std::int64_t x : t.values<std::int64_t>()) out.push_back(Integer(x));
    return out;
  }

 private:
  safetensors_file file_;
};

/// How far fp32 results may be from fp32 references: tests/golden/README.md.
struct golden_tolerance {
  double largest = 1e-5;   // absolute error, relative to the largest reference; 1e-6 is added
  double relative = 5e-6;  // L2
};

/// What is wrong with `actual`, as text; empty if it agrees. Shapes may differ in axes of one element.
std::string golden_difference(const tensor& actual, const tensor& expected, golden_tolerance allowed = {});

/// Relative L2 alone: gradients.
inline std::string golden_gradient_difference(const tensor& actual, const tensor& expected, double relative = 1e-4) { return golden_difference(actual, expected, {INFINITY, relative}); }

inline drafter_config golden_drafter_config(const std::string& path) { return read_drafter_config(read_json(golden_path(path)), path); }

/// The drafter's tensors of a folder as fp32.
weight_map golden_drafter_weights(const std::string& folder, const drafter_config& c);

/// Drafter, embedding and head of dflash_forward.
weight_map golden_forward_weights(const drafter_config& c);

}  // namespace samite_tests
