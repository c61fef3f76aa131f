// samite/runtime/nvtx.hpp: named ranges for NVIDIA's profilers. No header of theirs is needed to build, and no library unless asked for.
#pragma once
#include <dlfcn.h>


#include <samite/core/env.hpp>
#include <samite/core/say.hpp>

namespace samite {
namespace detail {

struct nvtx_api {
  int (*push)(const char*) = nullptr;
  int (*pop)() = nullptr;
};

/// What SAMITE_NVTX=1 asks for; null otherwise. Without a library, one line says so and the ranges are left out.
inline const nvtx_api* open_nvtx() {
  if (env_number("SAMITE_NVTX", 0, 1).value_or(0) == 0) return nullptr;
  static nvtx_api api;
  for (const char* name : {"libnvToolsExt.so.1", "libnvtx3interop.so.1", "libnvtx3interop.so", "/usr/local/cuda/lib64/libnvToolsExt.so.1", "/usr/local/cuda/lib64/libnvtx3interop.so.1"}) {
    void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    *reinterpret_cast<void**>(&api.push) = dlsym(library, "nvtxRangePushA");
    *reinterpret_cast<void**>(&api.pop) = dlsym(library, "nvtxRangePop");
    if (api.push != nullptr && api.pop != nullptr) return &api;
  }
  say("SAMITE_NVTX=1, but neither libnvToolsExt.so.1 (CUDA 12, wheel nvidia-nvtx-cu12) nor libnvtx3interop.so.1 (CUDA 13) is in the library path; there are no ranges");
  return nullptr;
}

inline const nvtx_api* nvtx() {
  static const nvtx_api* const api = open_nvtx();
  return api;
}

}  // namespace detail

/// A range of this thread from here to the end of the scope, shown by Nsight Systems; nested ranges are shown inside. Nothing happens
/// unless SAMITE_NVTX=1.
///
/// cost  a nanosecond without SAMITE_NVTX
class nvtx_range {
 public:
  explicit nvtx_range(const char* name) {
    if (const detail::nvtx_api* api = detail::nvtx()) [[unlikely]]
      api->push(name), is_open_ = true;
  }
  nvtx_range(const nvtx_range&) = delete;
  nvtx_range& operator=(const nvtx_range&) = delete;
  ~nvtx_range() {
    if (is_open_) [[unlikely]]
      detail::nvtx()->pop();
  }

 private:
  bool is_open_ = false;
};

}  // namespace samite
