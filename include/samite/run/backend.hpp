// samite/run/backend.hpp: what an executor asks of a device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <samite/core/dim.hpp>
#include <samite/ir/graph.hpp>
#include <samite/runtime/tensor.hpp>

namespace samite {

class plan;

/// A tensor's elements where they lie: device memory, dtype, extents and strides in elements.
struct tensor_view {
  std::byte* data = nullptr;
  dtype type = dtype::f32;
  extents dims, strides;

  template <class T> T* as() const { return reinterpret_cast<T*>(data); }
  int rank() const { return int(dims.size()); }
  index_t size() const { return count(dims); }
};

/// What a backend keeps of one node of an executor from step to step, e.g. its kernels.
struct node_memory {
  virtual ~node_memory() = default;
};

/// One node with the views it reads and writes. Outputs of assign and append are views of the state.
struct launch {
  const graph& source;
  const graph_node& node;
  std::span<const tensor_view> inputs, outputs;
  const length_map& lengths;
  node_memory* memory = nullptr;  // of prepare(); null if that gave none
  std::uint64_t views = 0;        // while it is the same, so are the executor's views and lengths; never 0 for an executor
};

/// Runs nodes on one device, in the order of the calls.
///
/// threads  one at a time, like the executor that owns it
class backend {
 public:
  virtual ~backend() = default;
  /// A tensor on this device, contents zero.
  virtual tensor make_tensor(dtype type, extents dims) = 0;
  /// Called once by each executor, before its first step: what is kept of each node, by its number, or nothing at all.
  virtual std::vector<std::unique_ptr<node_memory>> prepare(const plan&) { return {}; }
  /// Runs one node; may return before it is done.
  virtual void run(const launch& l) = 0;
  /// Called before the first node of a step: captured numbers and tables are read now.
  virtual void begin_step() {}
  /// Copies a host tensor's bytes to memory of this device, before what is run next; the tensor may change once it returns.
  virtual void upload(const tensor& from, std::byte* to) = 0;
  /// Copy of a row-major view on the host; waits for it.
  virtual tensor to_host(const tensor_view& v) = 0;
  /// Waits until everything is done and raises the errors that kernels reported.
  virtual void synchronize() {}
};

/// Counters of what the CPU backend did, for tests and explain().
struct cpu_counters {
  index_t attention_tiles = 0;       // tiles of scores that were computed, forward and backward
  index_t attention_tiles_listed = 0;  // tiles that the maps listed for them
};

}  // namespace samite
