// samite/run/executor.hpp: runs a plan on bound tensors.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <samite/plan/plan.hpp>
#include <samite/run/backend.hpp>

namespace samite {

/// The backend of a device. CPU always exists; CUDA needs a driver and a GPU (E-GPU-NONE).
std::shared_ptr<backend> make_backend(const device& target);

/// Runs one plan on one device.
///
/// threads  one thread at a time; several executors may share a plan and a backend may be shared by the executors of one thread
class executor {
 public:
  /// Reserves the plan's arena. Executors on one device may share a backend, and then its kernels. On a GPU the plan's kernels are
  /// compiled in the background from now on, with a line on standard error if that takes over a second.
  explicit executor(plan p, std::shared_ptr<backend> on = nullptr);

  /// Binds a tensor to an input, parameter or state by name; it is shared, not copied. Its extents give the run-time
  /// lengths. A host tensor bound to an input of a CUDA plan is copied to the device at each step.
  ///
  /// errors  E-RUN-NAME, E-RUN-UNBOUND, E-RUN-DTYPE, E-RUN-SHAPE, E-RUN-CAPACITY, E-RUN-DEVICE
  void bind(const std::string& name, tensor t);

  /// Sets a run-time length that no bound shape holds, e.g. how many rows of a cache are in use.
  void set_length(const dim& length, index_t value);

  /// Runs every step. Inputs, captured numbers and tables are read now.
  ///
  /// errors  E-RUN-UNBOUND, E-RUN-PLAN, E-SHAPE-LENGTH, E-SHAPE-SLICE; kernels' errors are raised here (CPU) or at the next read or synchronize (CUDA)
  void step();

  /// Waits for the device and raises what kernels reported.
  void synchronize() { device_backend().synchronize(); }

  /// The result as a host tensor; waits for the device.
  tensor output(const std::string& name);
  /// The result where it lies; valid until the next step.
  tensor_view output_view(const std::string& name);

  /// Where the time of all steps so far went, longest first: a line a kind of node with its share. Only kept if
  /// SAMITE_PROFILE=1 was set when the executor was made, since it waits for the device after every node.
  std::string profile() const;

  const plan& source() const { return plan_; }
  backend& device_backend() {
    (void)plan_.source();  // refuses an executor that was moved from
    return *backend_;
  }
  /// Bytes reserved for intermediates: the plan's arena.
  std::size_t arena_bytes() const { return arena_.bytes(); }

 private:
  int find_source(const std::string& name) const;
  void resolve_lengths();
  const tensor_view& view_of(value_ref ref);
  tensor_view compute_view(value_ref ref);
  void invalidate() { views_ready_ = false; }

  plan plan_;
  std::shared_ptr<backend> backend_;
  tensor arena_;
  std::map<int, tensor> bound_;      // by node: inputs, parameters, states, constants
  std::map<int, tensor> staged_;     // device copies of host inputs
  std::map<const length_symbol*, index_t> fixed_lengths_;
  length_map lengths_;
  std::vector<std::unique_ptr<node_memory>> memories_;  // by node; empty if the backend keeps nothing
  std::vector<std::vector<std::optional<tensor_view>>> views_;
  struct prepared {
    int node;
    std::vector<tensor_view> inputs, outputs;
  };
  std::vector<prepared> steps_;
  std::uint64_t views_made_ = 0;  // how often
  bool views_ready_ = false, profiling_ = false, is_dry_ = false;  // dry: see compile_plans_for()
  std::map<std::string, double> seconds_;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/run/executor_impl.hpp>
#endif
