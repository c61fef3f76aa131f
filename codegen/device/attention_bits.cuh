// attention_bits.cuh: bit tiles: which pairs of a mask's undecided tiles are kept, one bit each, in the order of the accumulators of
// attention_sm90.cuh. Filled once for a mask; heads, layers and steps share them.
#pragma once
#include "core.cuh"

namespace samite {

struct undecided_tile {
  i32 b, h, query_tile, key_tile;
};

// The bits of one undecided tile a block of 2 * Rows threads; a thread's are those of its accumulators in attention_forward_sm90.
template <int Rows, int Keys, class Mask> __device__ inline void fill_bits(const undecided_tile* tiles, uint2* bits, index queries, index keys, const Mask& mask) {
  const undecided_tile t = tiles[blockIdx.x];
  const int lane = threadIdx.x % 32;
  const index q = index(t.query_tile) * Rows + threadIdx.x / 32 * 16 + lane / 4, kv = index(t.key_tile) * Keys + lane % 4 * 2;
  uint2 found = {0, 0};
#pragma unroll 1
  for (int i = 0; i < Keys / 4; ++i) {
    const index column = kv + i / 2 * 8 + i % 2;
    if (column >= keys) break;
    if (q < queries && mask.keep(t.b, t.h, q, column)) found.x |= 1u << i;
    if (q + 8 < queries && mask.keep(t.b, t.h, q + 8, column)) found.y |= 1u << i;
  }
  bits[index(blockIdx.x) * (2 * Rows) + threadIdx.x] = found;
}

}  // namespace samite
