// attention_copies.cuh: tiles into shared memory while the block computes, by cp.async (sm_80 and newer).
#pragma once
#include "attention.cuh"
#include "mma.cuh"

namespace samite {

// 16 bytes from global to shared memory; zeros where nothing exists.
__device__ inline void copy_async(void* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
// 4 bytes.
__device__ inline void copy_async_4(void* to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the thread's last N groups of copies are done.
template <int N> __device__ inline void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// `Rows` rows from `first` on, by `Threads` threads of which this is `thread`.
template <int Rows, int Columns, int Threads, class T>
__device__ inline void copy_rows(T* to, const attention_tensor& t, const T* head, index first, index length, int columns, int thread) {
  constexpr int units = Columns / 8, copies = (Rows * units + Threads - 1) / Threads;
  if (t.vectors) {
    const i32 left = length - first < Rows ? i32(length - first) : Rows;  // rows that exist, if positive
    if constexpr (Threads % units == 0) {  // each thread stays in its column, so that its addresses are sums
      constexpr int row_step = Threads / units;
      const int row = thread / units, column = thread % units * 8;
      const index step = row_step * t.row_stride;
      const T* from = head + (first + row) * t.row_stride + column;
      T* const mine = to + row * padded<Columns> + column;
      const i32 end = column < columns ? left - row : 0;  // of rows from this thread's first on
#pragma unroll
      for (int i = 0; i < copies; ++i, from += step)
        if (Rows % row_step == 0 || row + i * row_step < Rows) copy_async(mine + i * row_step * padded<Columns>, i * row_step < end ? from : head, i * row_step < end);
    } else {
#pragma unroll
      for (int i = 0; i < copies; ++i) {
        const int row = (i * Threads + thread) / units, column = (i * Threads + thread) % units * 8;
        const bool exists = row < left && column < columns;
        if (Rows * units % Threads == 0 || row < Rows) copy_async(to + row * padded<Columns> + column, exists ? head + (first + row) * t.row_stride + column : head, exists);
      }
    }
    return;
  }
#pragma unroll 1
  for (int i = thread; i < Rows * Columns; i += Threads) {
    const int row = i / Columns, column = i % Columns;
    T x{};
    if (first + row < length && column < columns) x = head[(first + row) * t.row_stride + column * t.column_stride];
    to[row * padded<Columns> + column] = x;
  }
}

// threadIdx.x, read anew: what is made of it isn't kept in registers over a loop.
__device__ inline int thread_anew() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// The tiles of one list in ascending order, one ahead of their use.
struct tile_walk {
  const tile_run* next;
  i32 left = 0, tile = 0, last = 0;  // runs behind this one; the tile, and the end of its run
  bool full = true;
  __device__ tile_walk(const tile_lists& lists, index b, index h, index list, index tiles) : next(lists.runs) {
    if (next == nullptr) {
      last = i32(tiles);
      return;
    }
    const i64* begin = lists.begin + b * lists.batch_lists + h * lists.head_lists + list;
    next += begin[0], left = i32(begin[1] - begin[0]);
    enter();
  }
  __device__ void enter() {
    if (left == 0) return;
    const tile_run run = *next++;
    tile = run.first, last = run.last, full = run.full != 0, --left;
  }
  __device__ bool is_done() const { return tile >= last; }
  __device__ void advance() {
    if (++tile >= last) enter();
  }
};

}  // namespace samite
