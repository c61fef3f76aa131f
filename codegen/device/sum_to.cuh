// sum_to.cuh: sums over axes of a row-major tensor, in an order that depends on the shape alone.
//
// An output element is the sum of `terms` inputs. They are cut into chunks of `chunk_terms`; sum_chunks writes one partial sum
// a (chunk, output), sum_partials adds the chunks in order. No atomics: results repeat bitwise.
//   sum_chunks    grid x: outputs (one a thread, or one a block where outputs are few), y: chunks in strides; 256 threads
//   sum_partials  one thread an output
// The text that includes this defines the types: element_type, sum_type, out_type.
#pragma once
#include "core.cuh"

namespace samite {

constexpr int sum_axes = 6, sum_threads = 256;

struct sum_parameters {
  const void* from;
  void* partials;  // [chunks][outputs] sum_type
  void* to;
  index outputs, terms, chunk_terms, chunks;
  i32 kept_axes, summed_axes;
  index kept_extents[sum_axes], kept_strides[sum_axes];  // of the input, slowest first
  index summed_extents[sum_axes], summed_strides[sum_axes];
};

__device__ inline index offset_in(index i, int axes, const index* extents, const index* strides) {
  index offset = 0;
  for (int a = axes - 1; a > 0; --a) {
    offset += i % extents[a] * strides[a];
    i /= extents[a];
  }
  return axes > 0 ? offset + i * strides[0] : offset;
}

template <class Element, class Sum> __device__ inline void sum_chunks_by_thread(const sum_parameters& p) {
  const Element* from = static_cast<const Element*>(p.from);
  const index output = index(blockIdx.x) * sum_threads + threadIdx.x;
  if (output >= p.outputs) return;
  const index base = offset_in(output, p.kept_axes, p.kept_extents, p.kept_strides);
  for (index chunk = blockIdx.y; chunk < p.chunks; chunk += gridDim.y) {
    const index end = index_min(p.terms, (chunk + 1) * p.chunk_terms);
    Sum total = 0;
    for (index t = chunk * p.chunk_terms; t < end; ++t)
      total += arithmetic<Sum>::load(from[base + offset_in(t, p.summed_axes, p.summed_extents, p.summed_strides)]);
    static_cast<Sum*>(p.partials)[chunk * p.outputs + output] = total;
  }
}

// One block an output: thread i sums terms i, i + 256, ..; then a tree over the threads.
template <class Element, class Sum> __device__ inline void sum_chunks_by_block(const sum_parameters& p) {
  __shared__ Sum totals[sum_threads];
  const Element* from = static_cast<const Element*>(p.from);
  const index output = blockIdx.x;
  const index base = offset_in(output, p.kept_axes, p.kept_extents, p.kept_strides);
  for (index chunk = blockIdx.y; chunk < p.chunks; chunk += gridDim.y) {
    const index end = index_min(p.terms, (chunk + 1) * p.chunk_terms);
    Sum total = 0;
    for (index t = chunk * p.chunk_terms + threadIdx.x; t < end; t += sum_threads)
      total += arithmetic<Sum>::load(from[base + offset_in(t, p.summed_axes, p.summed_extents, p.summed_strides)]);
    totals[threadIdx.x] = total;
    __syncthreads();
    for (int half = sum_threads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) totals[threadIdx.x] += totals[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) static_cast<Sum*>(p.partials)[chunk * p.outputs + output] = totals[0];
    __syncthreads();  // before the next chunk overwrites the totals
  }
}

template <class Sum, class Out> __device__ inline void sum_partials_in_order(const sum_parameters& p) {
  const index output = index(blockIdx.x) * sum_threads + threadIdx.x;
  if (output >= p.outputs) return;
  Sum total = 0;
  for (index chunk = 0; chunk < p.chunks; ++chunk) total += static_cast<const Sum*>(p.partials)[chunk * p.outputs + output];
  put(static_cast<Out*>(p.to)[output], total);
}

}  // namespace samite
