// samite/run/cuda_kernels.hpp: kernels of one device by their text, compiled ahead or at first use.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <samite/jit/compiler.hpp>
#include <samite/jit/precompile.hpp>
#include <samite/run/plan_kernels.hpp>

namespace samite::detail {

/// The kernels that one backend uses. The process's kernel_cache behind it compiles each text once for all backends.
class cuda_kernels {
 public:
  explicit cuda_kernels(const cuda_device& device) : device_(device) {}

  /// The kernel, loaded and allowed its shared memory. Compares texts: for what is kept, not for every launch.
  ///
  /// errors  E-JIT-*, E-CUDA-*
  const cuda_function& get(const kernel_use& use) {
    auto& kernels = units_[use.unit->text];
    auto found = kernels.find(use.name);
    if (found == kernels.end()) {
      found = kernels.emplace(use.name, kernel_cache::instance().function(device_, *use.unit, use.name)).first;
      if (use.shared_bytes > 48 * 1024) found->second.allow_shared_bytes(use.shared_bytes);
    }
    return found->second;
  }

  /// Compiles in the background what this process does not have. Who asks for one of them meanwhile shares its compile and its error.
  void compile_ahead(std::vector<kernel_source> sources) {
    std::erase_if(ahead_, [](const auto& each) { return each->done() == each->count(); });
    std::erase_if(sources, [&](const kernel_source& source) { return units_.contains(source.text) || kernel_cache::instance().prepare(source).if_ready() != nullptr; });
    if (!sources.empty()) ahead_.push_back(std::make_unique<precompilation>(kernel_cache::instance(), std::move(sources)));
  }

 private:
  cuda_device device_;
  std::unordered_map<std::string, std::unordered_map<std::string, cuda_function>> units_;  // by text, then by name
  std::vector<std::unique_ptr<precompilation>> ahead_;
};

}  // namespace samite::detail
