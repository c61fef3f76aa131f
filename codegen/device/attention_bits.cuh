// attention_bits.cuh: bit tiles: which pairs of a mask's undecided tiles are kept, one bit each, in the order of the accumulators of
// attention_sm90.cuh. Filled once for a mask; heads, layers and steps share them.
#pragma once
#include "core.cuh"

namespace samite {

struct undecided_tile {
  i32 b, h, query_tile, key_tile;
};

// The bits of one undecided tile by a block of 2 * Rows threads, at least Keys; a thread's are those of its accumulators in
// attention_sm90.cuh, whose rows are queries. What the mask makes of a column alone is computed once for the tile. All threads of the block.
template <int Rows, int Keys, class Mask> __device__ inline uint2 bits_of_tile(const undecided_tile& t, index queries, index keys, const Mask& mask) {
  static_assert(2 * Rows >= Keys, "a thread a column");
  const auto head = mask.head(t.b, t.h);
  using column_part = decltype(mask.column(0, 0, 0, head));
  __shared__ column_part columns[Keys];
  const int lane = threadIdx.x % 32;
  const index q = index(t.query_tile) * Rows + threadIdx.x / 32 * 16 + lane / 4, first_key = index(t.key_tile) * Keys;
  __syncthreads();  // the tile before has been read
  if (threadIdx.x < Keys) columns[threadIdx.x] = mask.column(t.b, t.h, first_key + threadIdx.x, head);
  const auto upper = mask.row(t.b, t.h, q, head), lower = mask.row(t.b, t.h, q + 8, head);
  __syncthreads();
  uint2 found = {0, 0};
#pragma unroll 1
  for (int i = 0; i < Keys / 4; ++i) {
    const int column = i / 2 * 8 + i % 2 + lane % 4 * 2;
    const index kv = first_key + column;
    if (kv >= keys) break;
    if (q < queries && mask.keep(t.b, t.h, q, kv, head, upper, columns[column])) found.x |= 1u << i;
    if (q + 8 < queries && mask.keep(t.b, t.h, q + 8, kv, head, lower, columns[column])) found.y |= 1u << i;
  }
  return found;
}

// The same of the dK, dV kernel in attention_sm90_gradient.cuh, whose rows are keys: a block of 2 * Keys threads, at least Queries.
template <int Keys, int Queries, class Mask> __device__ inline uint2 bits_of_key_tile(const undecided_tile& t, index queries, index keys, const Mask& mask) {
  static_assert(2 * Keys >= Queries, "a thread a query");
  const auto head = mask.head(t.b, t.h);
  using row_part = decltype(mask.row(0, 0, 0, head));
  __shared__ row_part rows[Queries];
  const int lane = threadIdx.x % 32;
  const index kv = index(t.key_tile) * Keys + threadIdx.x / 32 * 16 + lane / 4, first_query = index(t.query_tile) * Queries;
  __syncthreads();  // the tile before has been read
  if (threadIdx.x < Queries) rows[threadIdx.x] = mask.row(t.b, t.h, first_query + threadIdx.x, head);
  const auto upper = mask.column(t.b, t.h, kv, head), lower = mask.column(t.b, t.h, kv + 8, head);
  __syncthreads();
  uint2 found = {0, 0};
#pragma unroll 1
  for (int i = 0; i < Queries / 4; ++i) {
    const int row = i / 2 * 8 + i % 2 + lane % 4 * 2;
    const index q = first_query + row;
    if (q >= queries) break;
    if (kv < keys && mask.keep(t.b, t.h, q, kv, head, rows[row], upper)) found.x |= 1u << i;
    if (kv + 8 < keys && mask.keep(t.b, t.h, q, kv + 8, head, rows[row], lower)) found.y |= 1u << i;
  }
  return found;
}

template <int Keys, int Queries, class Mask> __device__ inline void fill_key_bits(const undecided_tile* tiles, uint2* bits, index queries, index keys, const Mask& mask) {
  bits[index(blockIdx.x) * (2 * Keys) + threadIdx.x] = bits_of_key_tile<Keys, Queries>(tiles[blockIdx.x], queries, keys, mask);
}

template <int Rows, int Keys, class Mask> __device__ inline void fill_bits(const undecided_tile* tiles, uint2* bits, index queries, index keys, const Mask& mask) {
  bits[index(blockIdx.x) * (2 * Rows) + threadIdx.x] = bits_of_tile<Rows, Keys>(tiles[blockIdx.x], queries, keys, mask);
}

}  // namespace samite
