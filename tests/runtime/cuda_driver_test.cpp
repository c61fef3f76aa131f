#include <doctest/doctest.h>

#include <samite/runtime/cuda_driver.hpp>

#include "support/skip.hpp"

#if __has_include(<cuda.h>)
#include <cuda.h>
static_assert(sizeof(samite::detail::launch_config) == sizeof(CUlaunchConfig));
static_assert(offsetof(samite::detail::launch_config, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(sizeof(samite::detail::launch_attribute) == sizeof(CUlaunchAttribute) &&
              alignof(samite::detail::launch_attribute) == alignof(CUlaunchAttribute));
static_assert(offsetof(samite::detail::launch_attribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(samite::detail::launch_attribute_cluster == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
              samite::detail::launch_attribute_programmatic == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(sizeof(samite::tensor_map) == sizeof(CUtensorMap));
static_assert(CU_STREAM_NON_BLOCKING == 1 && CU_EVENT_DISABLE_TIMING == 2 && CU_STREAM_CAPTURE_MODE_THREAD_LOCAL == 1 &&
              CU_MEMHOSTALLOC_PORTABLE == 1 && CUDA_ERROR_NOT_READY == 600);
static_assert(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8 && CU_FUNC_ATTRIBUTE_NUM_REGS == 4 &&
              CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES == 3 && CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES == 1);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == 75 && CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == 76 &&
              CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == 16 && CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN == 97);
#endif

using namespace samite;

namespace {
std::string code_of(int result) {
  try {
    detail::raise_cuda(result, "copying to the device");
  } catch (const samite::error& e) {
    CHECK(std::string(e.what()).find("copying to the device failed") != std::string::npos);
    return e.code();
  }
}
}  // namespace

TEST_CASE("driver results become errors by what the caller can do about them") {
  CHECK(code_of(2) == "E-CUDA-MEMORY");
  CHECK(code_of(100) == "E-GPU-NONE");
  CHECK(code_of(209) == "E-CUDA-IMAGE");
  CHECK(code_of(700) == "E-CUDA-FAULT");
  CHECK(code_of(719) == "E-CUDA-FAULT");
  CHECK(code_of(1) == "E-CUDA-CALL");
  detail::check_cuda(0, "nothing");
}

TEST_CASE("a driver library that is missing or is none gives a reason and no device") {
  CHECK(detail::open_cuda_driver("libnosuchdriver.so.1").reason.find("no NVIDIA driver") != std::string::npos);
  const auto wrong = detail::open_cuda_driver("libm.so.6");
  CHECK(wrong.api == nullptr);
  CHECK(wrong.reason.find("has no cuInit") != std::string::npos);
}

TEST_CASE("without a device cuda_available() is false and opening one is E-GPU-NONE with exit status 4") {
  SKIP_IF(cuda_available(), "this machine has a GPU");
  CHECK(cuda_device_count() == 0);
  CHECK_FALSE(cuda_missing_reason().empty());
  try {
    cuda_device::open(0);
    FAIL("a device was opened");
  } catch (const samite::error& e) {
    CHECK(e.code() == "E-GPU-NONE");
    CHECK(e.exit_status() == 4);
    CHECK(std::string(e.what()).find("device::cpu()") != std::string::npos);
  }
}
