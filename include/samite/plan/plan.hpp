// samite/plan/plan.hpp: fixes which nodes run, in which order, and where every intermediate lies, before the first launch.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <samite/ir/graph.hpp>

namespace samite {

/// Where a plan runs.
struct device {
  enum class kind { cpu, cuda } type = kind::cpu;
  int index = 0;

  static device cpu() { return {}; }
  static device cuda(int index = 0) { return {kind::cuda, index}; }
  std::string name() const;
  friend bool operator==(const device&, const device&) = default;
};

/// Where a value's elements are.
struct storage {
  enum class place { arena, external, constant } where = place::arena;
  std::size_t offset = 0;  // arena: bytes from its start
  int node = -1;           // external and constant: the node that owns the memory
};

/// A graph made ready to run on one device. Immutable, with a copy of the graph as it was: what is added to that later, or its end,
/// does not touch the plan. Executors share it.
class plan {
 public:
  /// errors  E-RUN-PLAN for a plan that was not made by make_plan, or was moved from
  const graph& source() const {
    if (!graph_) [[unlikely]] refuse_empty();
    return *graph_;
  }
  const device& target() const { return device_; }
  /// Nodes in the order in which they run; views and sources are not among them, writes to state are.
  const std::vector<int>& steps() const { return steps_; }
  /// Storage of the tensor that a value is or is a view of.
  const storage& storage_of(value_ref ref) const;
  /// The value that owns the memory which `ref` looks at.
  value_ref root(value_ref ref) const;
  /// True if some step or output needs the node.
  bool uses(int node) const { return live_[std::size_t(node)]; }

  /// Bytes of the one block that holds every intermediate, at capacity.
  std::size_t arena_bytes() const { return arena_bytes_; }
  /// The most bytes that are alive at once: a lower bound for any placement.
  std::size_t live_bytes() const { return live_bytes_; }

  /// The plan as text: a line a step with kernel, shape, bytes and label, then the memory.
  std::string explain() const;

  friend plan make_plan(const graph& g, device target);

 private:
  [[noreturn]] static void refuse_empty();

  struct lifetime {
    value_ref ref;
    std::size_t bytes = 0, first = 0, last = 0, offset = 0;
  };

  void find_live_nodes();
  void place_intermediates();
  static std::size_t pack(std::vector<lifetime>& items);

  std::shared_ptr<const graph> graph_;
  device device_;
  std::vector<int> steps_;
  std::vector<bool> live_;
  std::map<value_ref, storage> storage_;
  std::size_t arena_bytes_ = 0, live_bytes_ = 0;
};

namespace detail {
bool is_source(const graph_node& n);
bool writes_state(const graph_node& n);
}  // namespace detail

/// Makes a graph ready to run on `target`.
///
/// g       is copied; outputs and writes to state say what is needed, everything else is left out
/// errors  E-GRAPH-VERIFY, E-SHAPE-OVERFLOW
/// cost    O(nodes^2) at worst, host only
plan make_plan(const graph& g, device target = device::cpu());

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/plan/plan_impl.hpp>
#endif
