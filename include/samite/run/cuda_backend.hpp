// samite/run/cuda_backend.hpp: runs plans on a GPU.
#pragma once
#include <memory>

#include <samite/run/backend.hpp>

namespace samite {

/// A backend that runs each node on one GPU, everything on one stream: row kernels and attention from generated text that
/// NVRTC compiles once, products through cuBLASLt. Results repeat bitwise: no kernel adds with atomics.
///
/// index    the device's number in this process
/// returns  a backend whose run() does not wait and never reads device memory on the host; errors that kernels find in their
///          data (E-RUN-INDEX) are raised by synchronize() and to_host()
/// errors   E-GPU-NONE without a driver or device, E-GPU-INDEX; later E-ATTN-HEAD-DIM, E-JIT-*, E-CUBLAS-*, E-CUDA-*
std::unique_ptr<backend> make_cuda_backend(int index = 0);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/run/cuda_backend_impl.hpp>
#endif
