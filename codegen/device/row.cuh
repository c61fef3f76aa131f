// row.cuh: what generated row kernels share: where rows lie, who works on a row, reductions over a row.
//
// A kernel runs over `rows` rows of `columns` columns. The axes before the last are merged where all tensors allow it; up to
// five remain. A team of 1, 32 (a warp) or 256 (a block) threads works on a row, all in blocks of 256. Grid: any size.
#pragma once
#include "core.cuh"

namespace samite {

constexpr int row_threads = 256, row_axes = 5;

struct row_space {
  index rows, columns;
  i32 axes;                 // of extents and row strides that are in use
  index extents[row_axes];  // from the slowest to the fastest
};

struct row_tensor {
  void* data;
  index row_strides[row_axes];
  index column_stride;
};

// Element offset of a row.
__device__ inline index row_offset(const row_space& space, const row_tensor& tensor, index row) {
  if (space.axes == 1) return row * tensor.row_strides[0];
  index offset = 0;
  for (int i = row_axes - 1; i > 0; --i) {
    if (i >= space.axes) continue;
    offset += row % space.extents[i] * tensor.row_strides[i];
    row /= space.extents[i];
  }
  return offset + row * tensor.row_strides[0];
}

template <int Team> __device__ inline index first_row() {
  return index(blockIdx.x) * (row_threads / Team) + threadIdx.x / Team;
}
template <int Team> __device__ inline index row_step() { return index(gridDim.x) * (row_threads / Team); }
template <int Team> __device__ inline int team_lane() { return int(threadIdx.x % Team); }

struct sum_of {
  template <class T> static __device__ inline T combine(T a, T b) { return a + b; }
};
struct max_of {
  template <class T> static __device__ inline T combine(T a, T b) { return fmax(a, b); }
};
struct min_of {
  template <class T> static __device__ inline T combine(T a, T b) { return fmin(a, b); }
};

// Combines one value of each thread of the team; all of them get the result. The order is fixed, so results repeat bitwise.
template <class Op, int Team, class T> __device__ inline T team_reduce(T x) {
  if constexpr (Team >= 32)
    for (int distance = 16; distance > 0; distance /= 2) x = Op::combine(x, __shfl_xor_sync(0xffffffffu, x, distance));
  if constexpr (Team == row_threads) {
    __shared__ T warps[row_threads / 32];
    __syncthreads();  // the values of an earlier reduction have been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = warps[0];
    for (int i = 1; i < row_threads / 32; ++i) x = Op::combine(x, warps[i]);
  }
  return x;
}

}  // namespace samite
