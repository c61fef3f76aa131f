// samite/jit/compiler.hpp: each kernel is compiled once: remembered in the process, then on disk, then by NVRTC.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <samite/jit/cache.hpp>
#include <samite/jit/nvrtc.hpp>
#include <samite/runtime/cuda_driver.hpp>

namespace samite {

namespace detail {
class kernel_slot;
class kernel_table;
}

/// Where a kernel came from.
enum class kernel_origin { compiled, disk };

/// One kernel that a process got, by compiling it or from disk.
struct kernel_record {
  std::string label, arch, hash;  // hash: 32 hex digits, the entry's name in the cache
  kernel_origin origin = kernel_origin::compiled;
  double ms = 0;          // in all
  double compile_ms = 0;  // in the compiler; 0 from disk
  double wait_ms = 0;     // for another process that compiled it
  std::size_t cubin_bytes = 0;
  std::string source_path = {};  // if the sources are kept
};

/// What the assembler says of one kernel.
struct kernel_resources {
  std::string name;
  int registers = 0, shared_bytes = 0, stack_bytes = 0, spill_store_bytes = 0, spill_load_bytes = 0;
};

/// The kernels that a log speaks of, in its order.
std::vector<kernel_resources> resources_of(const std::string& log);

/// A kernel known to a kernel_cache, found without hashing its source again. Valid as long as the cache; copies are cheap.
class kernel_handle {
 public:
  /// The kernel if this process has it, else null. One load: no lock, no wait, and any thread.
  const compiled_kernel* if_ready() const noexcept;
  /// 32 hex digits, the entry's name in the cache.
  const std::string& hash() const;

 private:
  friend class kernel_cache;
  explicit kernel_handle(detail::kernel_slot& slot) : slot_(&slot) {}
  detail::kernel_slot* slot_;
};

/// Compiled kernels by their source.
///
/// Threads that ask for the same kernel at once share one compile; a hit never waits for another kernel's compile. Processes that share
/// a disk cache wait for each other's compile of the same kernel, for a limited time. The key is all of the input: text, headers,
/// options, arch with suffix, NVRTC's build, samite's version, and the environment that NVRTC reads; it is compared whole. Without an
/// NVRTC the build is the one that most of the disk cache's entries were made with, so that a cache that was shipped needs no compiler.
/// errors   those of compile_kernel, given to every thread that waited and not remembered: the next call tries again. E-JIT-OPTION for
///          options that would make the result depend on more than the key. E-JIT-FORK in a child forked during the kernel's compile
/// threads  safe
class kernel_cache {
 public:
  using compile_function = std::function<compiled_kernel(const kernel_source&)>;

  /// Over a disk cache, which must live as long; tests give a compiler of their own and the build that it claims.
  explicit kernel_cache(disk_cache& disk);
  kernel_cache(disk_cache& disk, compile_function compile, std::function<std::string()> build, std::string library_version = SAMITE_VERSION);
  kernel_cache(const kernel_cache&) = delete;
  kernel_cache& operator=(const kernel_cache&) = delete;
  ~kernel_cache();

  /// The process's cache.
  static kernel_cache& instance();

  /// The cubin. Hashes the source, so keep the result (or `function`'s) and do not ask in every step.
  std::shared_ptr<const compiled_kernel> get(const kernel_source& source);

  /// Hashes the source and compiles nothing.
  kernel_handle prepare(const kernel_source& source);
  /// As above for a handle that prepare() gave for this source.
  std::shared_ptr<const compiled_kernel> get(kernel_handle handle, const kernel_source& source);

  /// The kernel `name` of the cubin, loaded on the device; stays loaded until the process ends. Best called before a capture, which
  /// would wait for the compile; it stays valid.
  ///
  /// errors  those of get() and of cuda_module; E-JIT-FORK in a child of a process that has loaded kernels
  cuda_function function(const cuda_device& device, const kernel_source& source, const std::string& name);

  /// Everything that decides about the result, as one text in which no two inputs look the same.
  std::string key_of(const kernel_source& source) const;

  /// compiles and disk_hits: kernels that this process got that way. hits: calls that found the kernel in the process.
  struct counts {
    int compiles = 0, hits = 0, disk_hits = 0, failures = 0;
  };
  counts counters() const { return {compiles_, hits_, disk_hits_, failures_}; }

  /// Every kernel that this process compiled or found on disk, in that order.
  std::vector<kernel_record> history() const;
  /// The sum of all compile_ms.
  double compile_ms() const;

  /// What is known about a kernel, for reading: key, origin, times, and each kernel's registers, shared memory and spills. Compiles nothing.
  std::string explain(const kernel_source& source) const;
  /// Also how many blocks of this shape fit on a multiprocessor of the device. Compiles and loads.
  ///
  /// errors  those of function()
  std::string explain(const cuda_device& device, const kernel_source& source, const std::string& name, const launch_shape& shape);

  disk_cache& disk() const { return disk_; }

 private:
  struct made {
    std::shared_ptr<const compiled_kernel> kernel;
    disk_cache::compile_right right;
    kernel_record record;
  };
  std::string build() const;
  std::string unchecked_key_of(const kernel_source& source) const;
  made make(const kernel_source& source, const std::string& key, const std::string& hash);
  std::shared_ptr<const compiled_kernel> get(detail::kernel_slot& slot, const kernel_source& source);

  disk_cache& disk_;
  compile_function compile_;
  std::function<std::string()> build_;
  std::string library_version_;
  bool logs_;  // SAMITE_JIT_LOG
  mutable std::once_flag looked_for_build_;
  mutable std::string build_on_disk_;  // without NVRTC
  std::unique_ptr<detail::kernel_table> table_;
  std::vector<kernel_record> history_;  // guarded by detail::jit_mutex()
  std::atomic<int> compiles_{0}, hits_{0}, disk_hits_{0}, failures_{0};
};

/// Every file below `folder` as a header in memory, named by its path from there. Then kernels include it by that name, an edit is
/// another key, and the place of the folder is not part of it.
///
/// errors  E-FILE-OPEN, E-FILE-READ
std::vector<kernel_header> read_kernel_headers(const std::string& folder);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/jit/compiler_impl.hpp>
#endif
