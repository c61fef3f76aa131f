// samite/jit/precompile.hpp: compiles a known set of kernels in the background, before they are needed.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <samite/jit/compiler.hpp>

namespace samite {

struct precompile_options {
  /// 0: a quarter of the cores, from 2 to 4. NVRTC's front end lets one at a time through; others use the time of its other phases. 300 MB each.
  int threads = 0;
  int first_line_ms = 1000, next_line_ms = 5000;           // when it says how far it is
  std::function<void(const std::string&)> say = {};        // takes the lines; default: standard error
};

/// Compiles kernels while the caller does something else. Who asks the kernel_cache for one of them meanwhile shares its compile.
///
/// The destructor waits for the compiles under way and leaves the others; nothing is lost, since a kernel that is needed is compiled then.
/// threads  made and used by one thread
class precompilation {
 public:
  precompilation(kernel_cache& cache, std::vector<kernel_source> sources, precompile_options options = {});
  precompilation(const precompilation&) = delete;
  precompilation& operator=(const precompilation&) = delete;
  ~precompilation();

  int count() const;
  /// Kernels that are compiled or have failed.
  int done() const;
  /// Blocks until all are done.
  ///
  /// errors  that of the first source, in their order, that does not compile; the others are compiled nevertheless
  void wait();

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/jit/precompile_impl.hpp>
#endif
