// samite/jit/compiler.hpp: each kernel is compiled once: remembered in the process, then on disk, then by NVRTC.
#pragma once
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <samite/core/env.hpp>
#include <samite/jit/cache.hpp>
#include <samite/jit/nvrtc.hpp>
#include <samite/runtime/cuda_driver.hpp>

namespace samite {

/// Compiled kernels by their source.
///
/// Threads that ask for the same kernel at once share one compile; a hit never waits for another kernel's compile. The key is all of
/// the input: text, headers, options, arch with suffix, NVRTC's build, samite's version, and the environment that NVRTC reads.
/// errors   those of compile_kernel, given to every thread that waited. A source that does not compile is remembered as such; after
///          any other failure the next call tries again
/// threads  safe
class kernel_cache {
 public:
  using compile_function = std::function<compiled_kernel(const kernel_source&)>;

  /// Over a disk cache, which must live as long; tests give a compiler of their own and the build that it claims.
  explicit kernel_cache(disk_cache& disk) : kernel_cache(disk, compile_kernel, nvrtc_build) {}
  kernel_cache(disk_cache& disk, compile_function compile, std::function<std::string()> build)
      : disk_(disk), compile_(std::move(compile)), build_(std::move(build)) {}

  /// The process's cache.
  static kernel_cache& instance() {
    static kernel_cache& cache = *new kernel_cache(disk_cache::instance());
    return cache;
  }

  /// The cubin. Hashes the source, so keep the result (or `function`'s) and do not ask in every step.
  std::shared_ptr<const compiled_kernel> get(const kernel_source& source);

  /// The kernel `name` of the cubin, loaded on the device; stays loaded until the process ends. Call it before a capture.
  ///
  /// errors  those of get() and of cuda_module
  cuda_function function(const cuda_device& device, const kernel_source& source, const std::string& name);

  /// Everything that decides about the result, as one text in which no two inputs look the same.
  std::string key_of(const kernel_source& source) const;

  struct counts {
    int compiles = 0, hits = 0, disk_hits = 0, failures = 0;
  };
  counts counters() const { return {compiles_, hits_, disk_hits_, failures_}; }

 private:
  using slot = std::shared_future<std::shared_ptr<const compiled_kernel>>;
  std::shared_ptr<const compiled_kernel> make(const kernel_source& source, const std::string& key);
  void forget(const std::string& hash, const std::string& key);

  disk_cache& disk_;
  compile_function compile_;
  std::function<std::string()> build_;
  std::mutex mutex_;  // guards the maps, never held during a compile or a load
  std::map<std::string, slot> slots_;
  std::map<std::pair<std::string, int>, std::shared_future<std::shared_ptr<cuda_module>>> modules_;
  std::atomic<int> compiles_{0}, hits_{0}, disk_hits_{0}, failures_{0};
};

inline std::string kernel_cache::key_of(const kernel_source& source) const {
  std::string key;
  const auto add = [&](std::string_view part) { key += concat_text(part.size(), ":", part, "\n"); };  // "ab","c" differs from "a","bc"
  add("samite kernel 1");
  add(SAMITE_VERSION);
  add(build_());
  add(source.arch);
  key += concat_text(source.options.size(), " options\n");
  for (const std::string& option : source.options) add(option);
  for (const char* variable : {"NVRTC_APPEND_FLAGS", "NVRTC_PREPEND_FLAGS", "NV_NVVM_VERSION"}) add(env_text(variable).value_or(""));
  key += concat_text(source.headers.size(), " headers\n");
  for (const kernel_header& header : source.headers) add(header.name), add(header.text);
  add(source.text);
  return key;
}

inline std::shared_ptr<const compiled_kernel> kernel_cache::make(const kernel_source& source, const std::string& key) {
  if (auto found = disk_.find(key)) {
    ++disk_hits_;
    return std::make_shared<const compiled_kernel>(std::move(*found));
  }
  ++compiles_;
  auto kernel = std::make_shared<const compiled_kernel>(compile_(source));
  disk_.store(key, *kernel);
  return kernel;
}

inline std::shared_ptr<const compiled_kernel> kernel_cache::get(const kernel_source& source) {
  const std::string key = key_of(source), hash = detail::hash_key(key);
  std::promise<std::shared_ptr<const compiled_kernel>> promise;
  slot found;
  {
    const std::lock_guard lock(mutex_);
    const auto [place, is_new] = slots_.try_emplace(hash);
    if (is_new)
      place->second = promise.get_future().share();
    else
      found = place->second;
  }
  if (found.valid()) {
    auto kernel = found.get();  // waits for a compile under way; throws its failure
    ++hits_;
    return kernel;
  }
  try {
    auto kernel = make(source, key);
    promise.set_value(kernel);
    return kernel;
  } catch (const error& e) {
    ++failures_;
    if (e.code() != "E-JIT-COMPILE") {
      const std::lock_guard lock(mutex_);
      slots_.erase(hash);
    }
    promise.set_exception(std::current_exception());
    throw;
  } catch (...) {
    ++failures_;
    {
      const std::lock_guard lock(mutex_);
      slots_.erase(hash);
    }
    promise.set_exception(std::current_exception());
    throw;
  }
}

inline void kernel_cache::forget(const std::string& hash, const std::string& key) {
  disk_.remove(key);
  const std::lock_guard lock(mutex_);
  slots_.erase(hash);
}

inline cuda_function kernel_cache::function(const cuda_device& device, const kernel_source& source, const std::string& name) {
  const std::string key = key_of(source), hash = detail::hash_key(key);
  const std::pair place(hash, device.index());
  std::promise<std::shared_ptr<cuda_module>> promise;
  std::shared_future<std::shared_ptr<cuda_module>> found;
  {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = modules_.try_emplace(place);
    if (is_new)
      entry->second = promise.get_future().share();
    else
      found = entry->second;
  }
  if (found.valid()) return found.get()->function(name);
  try {
    std::shared_ptr<cuda_module> module;
    const int from_disk = disk_hits_;
    auto kernel = get(source);
    try {
      module = std::make_shared<cuda_module>(device, kernel->cubin.data());
    } catch (const error& e) {
      // What the driver refuses may have come damaged from the disk in spite of its checksum: compile it once and try again.
      if (disk_hits_ == from_disk || e.code() == "E-CUDA-MEMORY" || e.code() == "E-CUDA-FAULT") throw;
      forget(hash, key);
      kernel = get(source);
      module = std::make_shared<cuda_module>(device, kernel->cubin.data());
    }
    promise.set_value(module);
    return module->function(name);
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      modules_.erase(place);
    }
    try {
      promise.set_exception(std::current_exception());
    } catch (const std::future_error&) {
      // The module is loaded and shared already; only the name was wrong.
    }
    throw;
  }
}

}  // namespace samite
