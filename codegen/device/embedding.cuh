// embedding.cuh: rows of a table by id, and the gradient of that.
//
// Ids are checked here, since the host must not read them: a bad id is reported and its row becomes zeros.
#pragma once
#include "core.cuh"

namespace samite {

constexpr int embedding_threads = 256;
constexpr i32 error_bad_index = 1;

struct embedding_parameters {
  const void* ids;
  const void* from;  // embedding: the table; gradient: d_out [T,H]
  void* to;          // embedding: out [T,H]; gradient: [V,H], zero before
  index tokens, rows, width;
  error_report* report;
  i32 source;
};

// One block a token in strides.
template <class Id, class Bits> __device__ inline void embedding_rows(const embedding_parameters& p) {
  for (index t = blockIdx.x; t < p.tokens; t += gridDim.x) {
    const index id = static_cast<const Id*>(p.ids)[t];
    const bool good = id >= 0 && id < p.rows;
    if (!good && threadIdx.x == 0) report_error(p.report, error_bad_index, p.source, id, t, p.rows);
    const Bits* from = static_cast<const Bits*>(p.from) + (good ? id * p.width : 0);
    Bits* to = static_cast<Bits*>(p.to) + t * p.width;
    for (index c = threadIdx.x; c < p.width; c += embedding_threads) to[c] = good ? from[c] : Bits(0);
  }
}

// The block of the first token with an id adds up the rows of all tokens with it, in the order of the tokens. Every block
// reads the ids before its token, and the first ones those after it: O(T^2 / 256) comparisons a block, but no atomics, no
// sorting and no scratch memory.
template <class Id, class Element, class Sum> __device__ inline void embedding_gradient_rows(const embedding_parameters& p) {
  __shared__ u32 hits[embedding_threads / 32];
  const Id* ids = static_cast<const Id*>(p.ids);
  for (index t = blockIdx.x; t < p.tokens; t += gridDim.x) {
    const index id = ids[t];
    if (id < 0 || id >= p.rows) {
      if (threadIdx.x == 0) report_error(p.report, error_bad_index, p.source, id, t, p.rows);
      continue;
    }
    bool seen = false;
    for (index base = 0; base < t && !seen; base += embedding_threads) {
      const index other = base + threadIdx.x;
      seen = __syncthreads_or(other < t && ids[other] == id);
    }
    if (seen) continue;
    Sum* to = static_cast<Sum*>(p.to) + id * p.width;
    for (index base = t; base < p.tokens; base += embedding_threads) {
      const index other = base + threadIdx.x;
      const u32 hit = __ballot_sync(0xffffffffu, other < p.tokens && ids[other] == id);
      __syncthreads();  // the hits of the chunk before have been used
      if (threadIdx.x % 32 == 0) hits[threadIdx.x / 32] = hit;
      __syncthreads();
      for (int word = 0; word < embedding_threads / 32; ++word)
        for (u32 rest = hits[word]; rest != 0; rest &= rest - 1) {
          const index token = base + word * 32 + (__ffs(int(rest)) - 1);
          const Element* from = static_cast<const Element*>(p.from) + token * p.width;
          for (index c = threadIdx.x; c < p.width; c += embedding_threads) to[c] += arithmetic<Sum>::load(from[c]);
        }
    }
  }
}

}  // namespace samite
