// copy.cuh: strided copies, the moving part of copy, concat, pad, assign and append.
//
// One thread an element; consecutive threads take consecutive elements of the last axis. Extents and strides are in elements.
// Grid: any number of blocks of 256 threads.
#pragma once
#include "core.cuh"

namespace samite {

constexpr int copy_axes = 6;

struct copy_parameters {
  void* to;
  const void* from;
  index size;  // elements
  i32 axes;
  index extents[copy_axes], to_strides[copy_axes], from_strides[copy_axes];
};

template <class T> __device__ inline void copy_strided(const copy_parameters& p) {
  const index step = index(gridDim.x) * blockDim.x;
  for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < p.size; i += step) {
    index rest = i, to = 0, from = 0;
    for (int a = p.axes - 1; a > 0; --a) {
      const index at = rest % p.extents[a];
      rest /= p.extents[a];
      to += at * p.to_strides[a], from += at * p.from_strides[a];
    }
    to += rest * p.to_strides[0], from += rest * p.from_strides[0];
    static_cast<T*>(p.to)[to] = static_cast<const T*>(p.from)[from];
  }
}

extern "C" __global__ void copy_1(const __grid_constant__ copy_parameters p) { copy_strided<u8>(p); }
extern "C" __global__ void copy_2(const __grid_constant__ copy_parameters p) { copy_strided<u16>(p); }
extern "C" __global__ void copy_4(const __grid_constant__ copy_parameters p) { copy_strided<u32>(p); }
extern "C" __global__ void copy_8(const __grid_constant__ copy_parameters p) { copy_strided<u64>(p); }
extern "C" __global__ void copy_16(const __grid_constant__ copy_parameters p) { copy_strided<uint4>(p); }

}  // namespace samite
