// samite/run/cuda_kernels.hpp: kernels of one device by their text, compiled at first use.
#pragma once
#include <string>
#include <unordered_map>

#include <samite/emit/device_headers.hpp>
#include <samite/jit/compiler.hpp>

namespace samite::detail {

/// The kernels that one backend uses. The process's kernel_cache behind it compiles each text once for all backends.
class cuda_kernels {
 public:
  explicit cuda_kernels(const cuda_device& device) : device_(device) {}

  /// The kernel `name` of a unit, allowed so many bytes of dynamic shared memory.
  ///
  /// errors  E-JIT-*, E-CUDA-*
  const cuda_function& get(const std::string& name, const std::string& text, unsigned shared_bytes = 0) {
    auto& kernels = units_[text];
    auto found = kernels.find(name);
    if (found == kernels.end()) {
      const kernel_source source{name, text, device_.arch_name(), {}, headers_of(text)};
      found = kernels.emplace(name, kernel_cache::instance().function(device_, source, name)).first;
      if (shared_bytes > 48 * 1024) found->second.allow_shared_bytes(shared_bytes);
    }
    return found->second;
  }

 private:
  cuda_device device_;
  std::unordered_map<std::string, std::unordered_map<std::string, cuda_function>> units_;  // by text, then by name
};

}  // namespace samite::detail
