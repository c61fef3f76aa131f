// Kernels from text, launched: arguments, shared memory, clusters, graphs, and what the driver refuses.
#include <doctest/doctest.h>

#include <vector>

#include <samite/jit/compiler.hpp>
#include <samite/runtime/tensor.hpp>

#include "support/skip.hpp"
#include "support/temporary_folder.hpp"

using namespace samite;

#define NEEDS_GPU                                       \
  SKIP_IF(!cuda_available(), cuda_missing_reason());    \
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason())

namespace {
kernel_source scale_source(const cuda_device& device) {
  return {.label = "scale", .text = R"(
extern "C" __global__ void scale(float* x, float factor, int count) {
  extern __shared__ float staged[];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) staged[threadIdx.x] = x[i];
  __syncthreads();
  if (i < count) x[i] = staged[threadIdx.x] * factor;
})", .arch = device.arch_name()};
}
}  // namespace

TEST_CASE("a kernel from text runs with its arguments, with more than 48 KiB of shared memory, and in a cluster") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  disk_cache disk("", disk_cache::mode::off);
  kernel_cache cache(disk);
  const cuda_function scale = cache.function(device, scale_source(device), "scale");
  CHECK(scale.register_count() > 0);
  scale.allow_shared_bytes(64 * 1024);
  const tensor x = tensor::from({4}, std::vector<float>{1, 2, 3, 4}).to(device);
  device_address address = x.address();
  float factor = 3;
  int count = 4;
  void* arguments[] = {&address, &factor, &count};
  scale.launch(stream, {.grid_x = 2, .block_x = 32, .shared_bytes = 64 * 1024}, arguments);
  if (device.arch() >= 90) {
    scale.launch(stream, {.grid_x = 2, .block_x = 32, .shared_bytes = 1024, .cluster_x = 2}, arguments);
  } else {
    scale.launch(stream, {.grid_x = 2, .block_x = 32, .shared_bytes = 1024}, arguments);
  }
  stream.synchronize();
  CHECK(x.to_host().data<float>()[3] == 36);
}

TEST_CASE("launches replay as a graph") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  const cuda_function scale = kernel_cache::instance().function(device, scale_source(device), "scale");
  const tensor x = tensor::from({1}, std::vector<float>{1}).to(device);
  device_address address = x.address();
  float factor = 2;
  int count = 1;
  void* arguments[] = {&address, &factor, &count};
  const cuda_graph graph = cuda_graph::capture(stream, [&] { scale.launch(stream, {.block_x = 32, .shared_bytes = 128}, arguments); });
  for (int i = 0; i < 3; ++i) graph.launch(stream);
  stream.synchronize();
  CHECK(x.to_host().data<float>()[0] == 8);
}

TEST_CASE("a wrong kernel name, a cubin of another arch and an impossible launch are errors that leave the device usable") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  disk_cache disk("", disk_cache::mode::off);
  kernel_cache cache(disk);
  CHECK_THROWS_WITH_AS(cache.function(device, scale_source(device), "skale"), doctest::Contains("looking up kernel \"skale\""), samite::error);
  kernel_source other = scale_source(device);
  other.arch = device.arch() >= 100 ? "sm_90a" : "sm_120";
  CHECK_THROWS_WITH_AS(cache.function(device, other, "scale"), doctest::Contains("E-CUDA-"), samite::error);
  const cuda_function scale = cache.function(device, scale_source(device), "scale");
  device_address address = 0;
  float factor = 1;
  int count = 0;
  void* arguments[] = {&address, &factor, &count};
  CHECK_THROWS_WITH_AS(scale.launch(stream, {.block_x = 4096}, arguments), doctest::Contains("launching kernel \"scale\""), samite::error);
  scale.launch(stream, {.block_x = 32, .shared_bytes = 128}, arguments);
  stream.synchronize();
}
