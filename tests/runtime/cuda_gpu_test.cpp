// Device memory, streams, events and products on a GPU. Kernels and graphs are tested with the JIT in tests/jit.
#include <doctest/doctest.h>

#include <cstring>
#include <cmath>
#include <vector>

#include <samite/core/random.hpp>
#include <samite/runtime/cublaslt.hpp>
#include <samite/runtime/cuda_driver.hpp>
#include <samite/runtime/tensor.hpp>

#include "support/skip.hpp"

using namespace samite;

#define NEEDS_GPU SKIP_IF(!cuda_available(), cuda_missing_reason())

TEST_CASE("a device says its name, arch, multiprocessors and memory; a missing index is E-GPU-INDEX") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  MESSAGE(device.name() << ' ' << device.arch_name());
  CHECK(device.arch() >= 70);
  CHECK(device.sm_count() > 0);
  CHECK(device.free_bytes() <= device.memory_bytes());
  CHECK(cuda_device::open() == device);
  CHECK_THROWS_WITH_AS(cuda_device::open(cuda_device_count()), doctest::Contains("E-GPU-INDEX"), samite::error);
}

TEST_CASE("tensors travel to the device and back unchanged") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  tensor host(i32, {1000});
  for (index_t i = 0; i < 1000; ++i) host.data<std::int32_t>()[i] = std::int32_t(i * i);
  const tensor there = host.to(device), second = there.clone();
  CHECK(there.on_device());
  CHECK_THROWS_WITH_AS(there.data<std::int32_t>(), doctest::Contains("E-TENSOR-DEVICE"), samite::error);
  const tensor back = second.to_host();
  for (index_t i = 0; i < 1000; ++i) CHECK(back.data<std::int32_t>()[i] == i * i);
  const tensor zeros = tensor::on(device, f32, {65}).to_host();  // named: the loop reads its memory
  for (float value : zeros.values<float>()) CHECK(value == 0);
  CHECK(tensor::on(device, f32, {0}).to_host().elements() == 0);
}

TEST_CASE("more device memory than there is gives E-CUDA-MEMORY, and the device works on") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  CHECK_THROWS_WITH_AS(cuda_buffer(device, device.memory_bytes() * 2), doctest::Contains("E-CUDA-MEMORY"), samite::error);
  cuda_buffer works(device, 16);
  works.fill_zero();
}

TEST_CASE("streams copy in order and events measure") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  cuda_event start(device), end(device);
  pinned_buffer pinned(device, 1 << 20);
  std::memset(pinned.data(), 7, pinned.bytes());
  cuda_buffer buffer(device, pinned.bytes());
  start.record(stream);
  buffer.upload(stream, pinned.data(), pinned.bytes());
  std::vector<char> back(pinned.bytes());
  buffer.download(stream, back.data(), back.size());
  end.record(stream);
  end.synchronize();
  CHECK(end.is_done());
  CHECK(end.elapsed_ms(start) >= 0);
  CHECK(back == std::vector<char>(pinned.bytes(), 7));
}

TEST_CASE("a captured copy runs at launch and not before") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  cuda_buffer buffer(device, 4);
  const int ones = -1;
  buffer.upload(&ones, 4);
  const cuda_graph graph = cuda_graph::capture(stream, [&] {
    CHECK(stream.is_capturing());
    buffer.fill_zero(stream);
  });
  int value = 0;
  buffer.download(&value, 4);
  CHECK(value == -1);
  graph.launch(stream);
  stream.synchronize();
  buffer.download(&value, 4);
  CHECK(value == 0);
}

TEST_CASE("cuBLASLt's row-major product agrees with sums in double, for every dtype and transposition") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  cublas_lt blas(device);
  const index_t m = 24, n = 40, k = 64;
  counted_random random(20261130, 1);
  for (const dtype type : {bf16, f16, f32, f64})
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true})
        for (const double beta : {0., 1.}) {
          tensor a(f64, {m * k}), b(f64, {k * n}), c(f64, {m * n});
          for (tensor* t : {&a, &b, &c})
            for (double& value : t->values<double>()) value = random.uniform() * 2 - 1;
          a = a.to_dtype(type).to_dtype(f64), b = b.to_dtype(type).to_dtype(f64), c = c.to_dtype(type).to_dtype(f64);
          const tensor da = a.to_dtype(type).to(device), db = b.to_dtype(type).to(device), dc = c.to_dtype(type).to(device);
          blas.matmul(stream, {.type = type, .trans_a = trans_a, .trans_b = trans_b, .m = m, .n = n, .k = k, .alpha = 0.5, .a = da.address(),
                               .lda = trans_a ? m : k, .b = db.address(), .ldb = trans_b ? k : n, .beta = beta, .c = dc.address(), .ldc = n});
          stream.synchronize();
          const tensor result = dc.to_host().to_dtype(f64);
          const double tolerance = type == f64 ? 1e-13 : type == f32 ? 1e-5 : type == f16 ? 8e-3 : 6e-2;
          double worst = 0;
          for (index_t i = 0; i < m; ++i)
            for (index_t j = 0; j < n; ++j) {
              double sum = 0;
              for (index_t d = 0; d < k; ++d)
                sum += a.data<double>()[trans_a ? d * m + i : i * k + d] * b.data<double>()[trans_b ? j * k + d : d * n + j];
              const double off = std::abs(result.data<double>()[i * n + j] - (0.5 * sum + beta * c.data<double>()[i * n + j]));
              worst = off <= worst ? worst : off;
            }
          CAPTURE(trans_a);
          CAPTURE(trans_b);
          CHECK(worst < tolerance);
        }
}

TEST_CASE("a product of nothing (k = 0) is zero for beta 0") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  cublas_lt blas(device);
  const tensor c = tensor::from({2, 2}, std::vector<float>{1, 2, 3, 4}).to(device);
  blas.matmul(stream, {.type = f32, .m = 2, .n = 2, .k = 0, .lda = 1, .ldb = 2, .c = c.address(), .ldc = 2});
  stream.synchronize();
  const tensor read = c.to_host();
  for (float value : read.values<float>()) CHECK(value == 0);
}
