// samite/run/plan_kernels.hpp: the kernels that a plan launches on GPUs of one arch, known without a GPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <samite/jit/compiler.hpp>
#include <samite/plan/plan.hpp>

namespace samite {

/// Every kernel that the plan may launch on GPUs of `arch`, those of rare cases included, each text once. Needs no GPU and compiles nothing.
///
/// arch    with its suffix: "sm_90a"
/// errors  E-ENV-VALUE for SAMITE_ATTENTION. A node that has no kernel is left out; its launch says why
std::vector<kernel_source> kernels_of(const plan& p, const std::string& arch);

/// From now on whoever makes an executor on the CPU also compiles, for GPUs of `arch`, the kernels of its plan, and waits for them: so a
/// machine without a GPU fills a cache for one that has it. An empty arch ends it. Until the first call SAMITE_COMPILE_FOR says it.
///
/// dry     these executors compute nothing, and all their results are zeros: a whole job then takes as long as its compiles
/// errors  E-ARG if the kernels serve no such arch (sm_80 and newer)
void compile_plans_for(std::string arch, kernel_cache& cache = kernel_cache::instance(), bool dry = false);

namespace detail {

/// What a kernel does for its node.
enum class kernel_role : std::uint8_t {
  rows,
  copy_1, copy_2, copy_4, copy_8, copy_16,  // elements of so many bytes
  sum_by_thread, sum_by_block, sum_partials,
  embedding,
  convert, convert_lse, convert_sink,  // to the dtype that the node's other kernels read
  attention, attention_sm90, attention_bits,
  attention_decode, attention_decode_merge, attention_decode_few, attention_decode_few_merge,  // blocks of 64 packed rows, and of 16
  attention_decode_sm90, attention_decode_sm90_merge,
  sm90_prepare, sm90_keys, sm90_values, sm90_queries, sm90_finish, sm90_sink_gradient, sm90_sums, sm90_key_bits,
  attention_prepare, attention_key_gradient, attention_query_gradient, attention_finish, attention_sums, attention_sink_gradient,
};
inline constexpr std::size_t kernel_role_count = std::size_t(kernel_role::attention_sink_gradient) + 1;

/// One kernel of one node, and the numbers of its launch that its text fixes.
struct kernel_use {
  kernel_role role = kernel_role::rows;
  std::string name;
  std::shared_ptr<const kernel_source> unit;
  unsigned threads = 256, shared_bytes = 0;
  index_t block_rows = 0, block_keys = 0;  // rows that a block takes; keys of its tiles
  bool is_rare = false;  // not worth a compile before it is asked for
};

/// Which kernels SAMITE_ATTENTION wants: the fastest; those alone for sm_80 and newer that serve any sizes; or, for passes of few queries,
/// the decode kernels however few the keys.
enum class attention_kernels : std::uint8_t { automatic, portable, decode };

/// errors  E-ENV-VALUE unless SAMITE_ATTENTION is auto, portable or decode
attention_kernels attention_setting();
inline bool attention_is_portable() { return attention_setting() == attention_kernels::portable; }

/// Keys from which few queries take the decode kernels; below, the others are as fast.
inline constexpr index_t decode_least_keys = 256;

/// Whether SAMITE_DETERMINISTIC says that every bit of a result repeats from run to run.
///
/// errors  E-ENV-VALUE unless it is 0 or 1
bool attention_is_deterministic();

/// The kernels of a plan's nodes. Equal programs of a plan are one kernel, which has the label of the first of them: what a plan compiles
/// depends on nothing but the plan, the arch, and what was tuned for the device class, if one is given.
class plan_kernels {
 public:
  plan_kernels(const plan& p, std::string arch, std::string device_class = "");
  /// Those of a node. Raises what kept a node's kernels from being made.
  const std::vector<kernel_use>& of(int node) const;
  /// Each text once, those that take longest to compile first, so that the last to be compiled is a short one.
  std::vector<kernel_source> sources(bool with_rare) const;

 private:
  struct maker;
  std::map<int, std::vector<kernel_use>> uses_;
  std::map<int, std::exception_ptr> failures_;
};

/// Does what compile_plans_for() or SAMITE_COMPILE_FOR asks for. Gives whether the plan is not to be run.
bool compile_beside(const plan& p);

}  // namespace detail
}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/run/plan_kernels_impl.hpp>
#endif
