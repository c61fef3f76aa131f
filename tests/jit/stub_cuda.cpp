// A CUDA driver without a device behind it, for tests of what stands above the driver: two devices, 8.0 and 9.0, whose memory is the
// host's, and kernels that count their launches and take a microsecond a block. A cubin that begins with "bad" is refused, as the driver
// refuses a damaged one, one that begins with "lazy" when a kernel is looked up in it, as a lazily loading driver does, and one that
// begins with "large" has no registers left.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
int device_of_context = 0;
long long clock_us = 0;
struct stub_module {
  bool is_large, is_lazy;
};
struct stub_kernel {
  stub_module* module;
  stub_kernel* next;
  char name[112];
};
std::atomic<stub_kernel*> kernels;  // all of them, so that none is a leak
std::atomic<std::size_t> log_bytes;
}  // namespace

extern "C" {

char stub_log[1 << 16];  // "name blocks\n" of each launch, while there is room
int stub_launches = 0, stub_loads = 0, stub_modules = 0;
std::size_t stub_bytes = 0, stub_limit_bytes = std::size_t(1) << 30;

int cuDeviceGetCount(int* count) { return *count = 2, 0; }
int cuDeviceGet(int* id, int index) { return *id = index, 0; }
int cuDeviceGetName(char* name, int bytes, int id) { return std::strncpy(name, id == 0 ? "stub 8.0" : "stub 9.0", std::size_t(bytes)), 0; }
int cuDeviceGetAttribute(int* value, int which, int id) {
  *value = which == 75 ? 8 + id : which == 76 ? 0 : which == 16 ? 100 : 1 << 16;
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = std::size_t(1) << 30, 0; }
int cuDevicePrimaryCtxRetain(void** context, int id) { return *context = reinterpret_cast<void*>(std::size_t(id) + 1), 0; }
int cuCtxSetCurrent(void* context) { return device_of_context = int(reinterpret_cast<std::size_t>(context)) - 1, 0; }
int cuStreamCreate(void** stream, unsigned) { return *stream = reinterpret_cast<void*>(1), 0; }
int cuLibraryLoadData(void** library, const void* cubin, void*, void*, unsigned, void*, void*, unsigned) {
  ++stub_loads;
  if (std::memcmp(cubin, "bad", 3) == 0) return 200;
  return ++stub_modules, *library = new stub_module{std::memcmp(cubin, "large", 5) == 0, std::memcmp(cubin, "lazy", 4) == 0}, 0;
}
int cuLibraryUnload(void* library) { return --stub_modules, delete static_cast<stub_module*>(library), 0; }
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  if (static_cast<stub_module*>(library)->is_lazy) return 200;
  auto* const made = new stub_kernel{static_cast<stub_module*>(library), kernels, {}};
  std::strncpy(made->name, name, sizeof made->name - 1);
  while (!kernels.compare_exchange_weak(made->next, made)) {}
  return *kernel = made, 0;
}
int cuKernelGetFunction(void** function, void* kernel) { return *function = kernel, 0; }
int cuLaunchKernel(void* function, unsigned grid_x, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) {
  const stub_kernel& kernel = *static_cast<stub_kernel*>(function);
  if (kernel.module->is_large) return 701;
  char line[160];
  const std::size_t bytes = std::size_t(std::snprintf(line, sizeof line, "%s %u\n", kernel.name, grid_x)), at = log_bytes.fetch_add(bytes);
  if (at + bytes < sizeof stub_log) std::memcpy(stub_log + at, line, bytes);
  return ++stub_launches, clock_us += grid_x, 0;
}
int cuMemAlloc_v2(unsigned long long* address, std::size_t bytes) {
  if (stub_bytes + bytes > stub_limit_bytes) return 2;
  auto* const memory = static_cast<std::size_t*>(std::malloc(bytes + 256));
  *memory = bytes, stub_bytes += bytes;
  return *address = reinterpret_cast<unsigned long long>(memory) + 256, 0;
}
int cuMemFree_v2(unsigned long long address) {
  auto* const memory = reinterpret_cast<std::size_t*>(address - 256);
  return stub_bytes -= *memory, std::free(memory), 0;
}
int cuMemcpyHtoD_v2(unsigned long long to, const void* from, std::size_t bytes) { return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0; }
int cuMemcpyDtoH_v2(void* to, unsigned long long from, std::size_t bytes) { return std::memcpy(to, reinterpret_cast<void*>(from), bytes), 0; }
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, void*) { return cuMemcpyDtoH_v2(to, from, bytes); }
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes, void*) { return cuMemcpyHtoD_v2(to, from, bytes); }
int cuMemsetD8Async(unsigned long long to, unsigned char value, std::size_t bytes, void*) { return std::memset(reinterpret_cast<void*>(to), value, bytes), 0; }
int cuEventCreate(void** event, unsigned) { return *event = new long long(0), 0; }
int cuEventDestroy_v2(void* event) { return delete static_cast<long long*>(event), 0; }
int cuEventRecord(void* event, void*) { return *static_cast<long long*>(event) = clock_us, 0; }
int cuEventElapsedTime(float* ms, void* start, void* end) {
  return *ms = float(*static_cast<long long*>(end) - *static_cast<long long*>(start)) / 1000, 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, std::size_t) { return *blocks = 2048 / threads, 0; }
int cuGetErrorName(int, const char** text) { return *text = "STUB", 0; }
int cuGetErrorString(int, const char** text) { return *text = "the stub refuses", 0; }

int cuTensorMapEncodeTiled(void* map, int, unsigned, void* address, const unsigned long long*, const unsigned long long*, const unsigned*, const unsigned*, int, int, int, int) {
  std::memset(map, 0, 128);
  return std::memcpy(map, &address, sizeof address), 0;
}

#define NOTHING(name) \
  int name() { return 0; }
NOTHING(cuInit)
NOTHING(cuDriverGetVersion)
NOTHING(cuCtxSynchronize)
NOTHING(cuMemGetInfo_v2)
NOTHING(cuMemHostAlloc)
NOTHING(cuMemFreeHost)
NOTHING(cuMemcpyDtoD_v2)
NOTHING(cuMemcpyDtoDAsync_v2)
NOTHING(cuMemcpyPeerAsync)
NOTHING(cuMemsetD8_v2)
NOTHING(cuMemsetD32Async)
NOTHING(cuStreamDestroy_v2)
NOTHING(cuStreamSynchronize)
NOTHING(cuStreamWaitEvent)
NOTHING(cuStreamBeginCapture_v2)
NOTHING(cuStreamEndCapture)
NOTHING(cuStreamIsCapturing)
NOTHING(cuEventQuery)
NOTHING(cuEventSynchronize)
NOTHING(cuModuleLoadData)
NOTHING(cuModuleUnload)
NOTHING(cuModuleGetFunction)
NOTHING(cuFuncGetAttribute)
NOTHING(cuFuncSetAttribute)
NOTHING(cuGraphInstantiateWithFlags)
NOTHING(cuGraphLaunch)
NOTHING(cuGraphDestroy)
NOTHING(cuGraphExecDestroy)
NOTHING(cuFuncLoad)
NOTHING(cuThreadExchangeStreamCaptureMode)
}
