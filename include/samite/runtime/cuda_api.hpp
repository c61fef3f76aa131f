// samite/runtime/cuda_api.hpp: the CUDA driver's functions, opened when first needed. No CUDA header is needed to build.
#pragma once
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include <samite/core/error.hpp>

namespace samite {

/// An address in device memory; 0 is none.
using device_address = std::uint64_t;

/// A TMA descriptor, filled by `cuda_api::encode_tensor_map`; passed to kernels by value as __grid_constant__.
struct alignas(64) tensor_map {
  std::uint64_t words[16];
};

namespace detail {

// Handles are opaque; the driver's own struct types are only pointed to.
using cuda_handle = void*;

struct alignas(8) launch_attribute {
  std::uint32_t id;
  std::uint32_t padding = 0;
  std::uint32_t value[16] = {};
};
struct launch_config {
  unsigned grid[3], block[3], shared_bytes;
  cuda_handle stream;
  launch_attribute* attributes;
  unsigned attribute_count;
};
inline constexpr std::uint32_t launch_attribute_cluster = 4, launch_attribute_programmatic = 6;

/// The driver's entry points. Member names are the driver's without "cu"; symbols are the _v2 ones where there are any.
struct cuda_api {
  int (*init)(unsigned);
  int (*driver_version)(int*);
  int (*device_count)(int*);
  int (*device_get)(int*, int);
  int (*device_name)(char*, int, int);
  int (*device_attribute)(int*, int, int);
  int (*device_memory)(std::size_t*, int);
  int (*context_retain)(cuda_handle*, int);
  int (*context_set)(cuda_handle);
  int (*context_synchronize)();
  int (*memory_info)(std::size_t*, std::size_t*);
  int (*memory_alloc)(device_address*, std::size_t);
  int (*memory_free)(device_address);
  int (*host_alloc)(void**, std::size_t, unsigned);
  int (*host_free)(void*);
  int (*copy_to_device)(device_address, const void*, std::size_t);
  int (*copy_to_host)(void*, device_address, std::size_t);
  int (*copy_device)(device_address, device_address, std::size_t);
  int (*copy_to_device_async)(device_address, const void*, std::size_t, cuda_handle);
  int (*copy_to_host_async)(void*, device_address, std::size_t, cuda_handle);
  int (*copy_device_async)(device_address, device_address, std::size_t, cuda_handle);
  int (*copy_peer_async)(device_address, cuda_handle, device_address, cuda_handle, std::size_t, cuda_handle);
  int (*fill_bytes)(device_address, unsigned char, std::size_t);
  int (*fill_bytes_async)(device_address, unsigned char, std::size_t, cuda_handle);
  int (*fill_words_async)(device_address, unsigned, std::size_t, cuda_handle);
  int (*stream_create)(cuda_handle*, unsigned);
  int (*stream_destroy)(cuda_handle);
  int (*stream_synchronize)(cuda_handle);
  int (*stream_wait_event)(cuda_handle, cuda_handle, unsigned);
  int (*stream_begin_capture)(cuda_handle, int);
  int (*stream_end_capture)(cuda_handle, cuda_handle*);
  int (*stream_is_capturing)(cuda_handle, int*);
  int (*event_create)(cuda_handle*, unsigned);
  int (*event_destroy)(cuda_handle);
  int (*event_record)(cuda_handle, cuda_handle);
  int (*event_query)(cuda_handle);
  int (*event_synchronize)(cuda_handle);
  int (*event_elapsed)(float*, cuda_handle, cuda_handle);
  int (*module_load)(cuda_handle*, const void*);
  int (*module_unload)(cuda_handle);
  int (*module_function)(cuda_handle*, cuda_handle, const char*);
  int (*function_attribute)(int*, int, cuda_handle);
  int (*function_set_attribute)(cuda_handle, int, int);
  int (*occupancy)(int*, cuda_handle, int, std::size_t);
  int (*launch)(cuda_handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cuda_handle, void**, void**);
  int (*graph_instantiate)(cuda_handle*, cuda_handle, unsigned long long);
  int (*graph_launch)(cuda_handle, cuda_handle);
  int (*graph_destroy)(cuda_handle);
  int (*graph_exec_destroy)(cuda_handle);
  int (*error_name)(int, const char**);
  int (*error_text)(int, const char**);
  // Newer than the oldest driver that is served; null there.
  int (*library_load)(cuda_handle*, const void*, void*, void*, unsigned, void*, void*, unsigned);
  int (*library_unload)(cuda_handle);
  int (*library_kernel)(cuda_handle*, cuda_handle, const char*);
  int (*kernel_function)(cuda_handle*, cuda_handle);
  int (*function_load)(cuda_handle);
  int (*capture_mode)(int*);  // exchanges what this thread may do while one of its streams is captured
  int (*launch_extended)(const launch_config*, cuda_handle, void**, void**);
  int (*encode_tensor_map)(tensor_map*, int, std::uint32_t, void*, const std::uint64_t*, const std::uint64_t*, const std::uint32_t*,
                           const std::uint32_t*, int, int, int, int);
};

/// The driver opened in this process: `api` is null and `reason` says why if there is none, or no device.
struct cuda_driver_state {
  const cuda_api* api = nullptr;
  int device_count = 0;
  std::string reason;
};

inline const char* load_cuda_symbols(void* library, cuda_api& api) {
  struct symbol {
    void* slot;
    const char* name;
    bool required = true;
  };
  const symbol symbols[] = {
      {&api.init, "cuInit"},
      {&api.driver_version, "cuDriverGetVersion"},
      {&api.device_count, "cuDeviceGetCount"},
      {&api.device_get, "cuDeviceGet"},
      {&api.device_name, "cuDeviceGetName"},
      {&api.device_attribute, "cuDeviceGetAttribute"},
      {&api.device_memory, "cuDeviceTotalMem_v2"},
      {&api.context_retain, "cuDevicePrimaryCtxRetain"},
      {&api.context_set, "cuCtxSetCurrent"},
      {&api.context_synchronize, "cuCtxSynchronize"},
      {&api.memory_info, "cuMemGetInfo_v2"},
      {&api.memory_alloc, "cuMemAlloc_v2"},
      {&api.memory_free, "cuMemFree_v2"},
      {&api.host_alloc, "cuMemHostAlloc"},
      {&api.host_free, "cuMemFreeHost"},
      {&api.copy_to_device, "cuMemcpyHtoD_v2"},
      {&api.copy_to_host, "cuMemcpyDtoH_v2"},
      {&api.copy_device, "cuMemcpyDtoD_v2"},
      {&api.copy_to_device_async, "cuMemcpyHtoDAsync_v2"},
      {&api.copy_to_host_async, "cuMemcpyDtoHAsync_v2"},
      {&api.copy_device_async, "cuMemcpyDtoDAsync_v2"},
      {&api.copy_peer_async, "cuMemcpyPeerAsync"},
      {&api.fill_bytes, "cuMemsetD8_v2"},
      {&api.fill_bytes_async, "cuMemsetD8Async"},
      {&api.fill_words_async, "cuMemsetD32Async"},
      {&api.stream_create, "cuStreamCreate"},
      {&api.stream_destroy, "cuStreamDestroy_v2"},
      {&api.stream_synchronize, "cuStreamSynchronize"},
      {&api.stream_wait_event, "cuStreamWaitEvent"},
      {&api.stream_begin_capture, "cuStreamBeginCapture_v2"},
      {&api.stream_end_capture, "cuStreamEndCapture"},
      {&api.stream_is_capturing, "cuStreamIsCapturing"},
      {&api.event_create, "cuEventCreate"},
      {&api.event_destroy, "cuEventDestroy_v2"},
      {&api.event_record, "cuEventRecord"},
      {&api.event_query, "cuEventQuery"},
      {&api.event_synchronize, "cuEventSynchronize"},
      {&api.event_elapsed, "cuEventElapsedTime"},
      {&api.module_load, "cuModuleLoadData"},
      {&api.module_unload, "cuModuleUnload"},
      {&api.module_function, "cuModuleGetFunction"},
      {&api.function_attribute, "cuFuncGetAttribute"},
      {&api.function_set_attribute, "cuFuncSetAttribute"},
      {&api.occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor"},
      {&api.launch, "cuLaunchKernel"},
      {&api.graph_instantiate, "cuGraphInstantiateWithFlags"},
      {&api.graph_launch, "cuGraphLaunch"},
      {&api.graph_destroy, "cuGraphDestroy"},
      {&api.graph_exec_destroy, "cuGraphExecDestroy"},
      {&api.error_name, "cuGetErrorName"},
      {&api.error_text, "cuGetErrorString"},
      {&api.library_load, "cuLibraryLoadData", false},
      {&api.library_unload, "cuLibraryUnload", false},
      {&api.library_kernel, "cuLibraryGetKernel", false},
      {&api.kernel_function, "cuKernelGetFunction", false},
      {&api.function_load, "cuFuncLoad", false},
      {&api.capture_mode, "cuThreadExchangeStreamCaptureMode", false},
      {&api.launch_extended, "cuLaunchKernelEx", false},
      {&api.encode_tensor_map, "cuTensorMapEncodeTiled", false},
  };
  for (const symbol& s : symbols) {
    void* const found = dlsym(library, s.name);
    if (found == nullptr && s.required) return s.name;
    *static_cast<void**>(s.slot) = found;
  }
  return nullptr;
}

inline cuda_driver_state open_cuda_driver(const char* path) {
  cuda_driver_state state;
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    state.reason = concat_text(path, " can't be opened: no NVIDIA driver on this machine");
    return state;
  }
  static cuda_api api{};
  if (const char* missing = load_cuda_symbols(library, api)) {
    state.reason = concat_text(path, " has no ", missing, ": the driver is too old; CUDA 11.4 (R470) or newer is needed");
    return state;
  }
  const char* text = "unknown";
  if (const int result = api.init(0); result != 0) {
    api.error_text(result, &text);
    state.reason = concat_text("cuInit failed: ", text, " (", result, ")");
  } else if (const int counted = api.device_count(&state.device_count); counted != 0 || state.device_count == 0) {
    state.reason = "the driver shows no device; see nvidia-smi and CUDA_VISIBLE_DEVICES";
  } else {
    state.api = &api;
  }
  return state;
}

inline const cuda_driver_state& cuda_driver() {
  static const cuda_driver_state state = open_cuda_driver("libcuda.so.1");
  return state;
}

/// The entry points; raises E-GPU-NONE if there is no usable driver and device.
inline const cuda_api& cuda() {
  const cuda_driver_state& state = cuda_driver();
  if (state.api == nullptr)
    raise("E-GPU-NONE", "no CUDA device: ", state.reason, ". Everything also runs on device::cpu(); for a GPU install NVIDIA's driver");
  return *state.api;
}

/// Codes after which the context answers nothing but errors: the process must end.
inline bool is_fatal_cuda_result(int result) {
  return result == 700 || result == 702 || result == 710 || (result >= 714 && result <= 719);
}

[[noreturn]] inline void raise_cuda(int result, const std::string& purpose) {
  const char *name = "CUDA error", *text = "no description without a driver";
  if (const cuda_api* api = cuda_driver().api) {
    api->error_name(result, &name);
    api->error_text(result, &text);
  }
  const std::string found = concat_text(purpose, " failed: ", name, " (", result, "): ", text);
  if (result == 2) raise("E-CUDA-MEMORY", found, "; device memory is full: lower a capacity, or free what else uses the device");
  if (result == 100 || result == 101) raise("E-GPU-NONE", found, "; see nvidia-smi and CUDA_VISIBLE_DEVICES, or use device::cpu()");
  if (result == 200 || result == 209 || result == 218 || result == 222)
    raise("E-CUDA-IMAGE", found, "; the code was not made for this device or driver: compile it for the device's own arch");
  if (is_fatal_cuda_result(result))
    raise("E-CUDA-FAULT", found, "; the fault happened in this or an earlier kernel and this process can't use the device any more: "
          "start again under `compute-sanitizer` to find the access");
  raise("E-CUDA-CALL", found);
}

/// Checks a driver result at the call; `purpose` says in words what was attempted.
inline void check_cuda(int result, const char* purpose) {
  if (result != 0) [[unlikely]]
    raise_cuda(result, purpose);
}

}  // namespace detail
}  // namespace samite
