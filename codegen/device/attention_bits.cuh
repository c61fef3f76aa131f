// attention_bits.cuh: bit tiles: which pairs of a mask's undecided tiles are kept, one bit each, in the order of the accumulators of
// attention_sm90.cuh. Filled once for a mask; heads, layers and steps share them.
#pragma once
#include "core.cuh"

namespace samite {

struct undecided_tile {
  i32 b, h, query_tile, key_tile;
};

// The bits of one undecided tile by a block of 2 * Rows threads, at least Columns; a thread's are those of its accumulators in
// attention_sm90.cuh, whose rows are queries, or ByKeys in the dK, dV kernel of attention_sm90_gradient.cuh, whose rows are keys. What the
// mask makes of a column alone is computed once for the tile. Where rows are queries, each stands there for `pack` query heads; a tile has as many as
// fit whole. All threads of the block.
template <int Rows, int Columns, bool ByKeys, class Mask> __device__ inline uint2 bits_of_tile(const undecided_tile& t, index queries, index keys, const Mask& mask, int pack = 1) {
  static_assert(2 * Rows >= Columns, "a thread a column");
  const auto head = mask.head(t.b, t.h);
  // The mask's parts for a row and a column of the accumulators.
  const auto row_part = [&](index i) {
    if constexpr (ByKeys) return mask.column(t.b, t.h, i, head);
    else return mask.row(t.b, t.h, i, head);
  };
  const auto column_part = [&](index i) {
    if constexpr (ByKeys) return mask.row(t.b, t.h, i, head);
    else return mask.column(t.b, t.h, i, head);
  };
  __shared__ decltype(column_part(0)) columns[Columns];
  const int lane = threadIdx.x % 32;
  const int local = threadIdx.x / 32 * 16 + lane / 4, tokens = Rows / pack;
  const index start = index(ByKeys ? t.key_tile : t.query_tile) * tokens, row = start + local / pack, row_below = start + (local + 8) / pack, first = index(ByKeys ? t.query_tile : t.key_tile) * Columns;
  const index row_end = ByKeys ? keys : queries, column_end = ByKeys ? queries : keys;
  __syncthreads();  // the tile before has been read
  if (threadIdx.x < Columns) columns[threadIdx.x] = column_part(first + threadIdx.x);
  const auto upper = row_part(row), lower = row_part(row_below);
  const auto keeps = [&](index r, index c, const decltype(row_part(0))& of_row, const decltype(column_part(0))& of_column) {
    if constexpr (ByKeys) return mask.keep(t.b, t.h, c, r, head, of_column, of_row);
    else return mask.keep(t.b, t.h, r, c, head, of_row, of_column);
  };
  __syncthreads();
  uint2 found = {0, 0};
#pragma unroll 1
  for (int i = 0; i < Columns / 4; ++i) {
    const int column = i / 2 * 8 + i % 2 + lane % 4 * 2;
    const index c = first + column;
    if (c >= column_end) break;
    if (row < row_end && keeps(row, c, upper, columns[column])) found.x |= 1u << i;
    if (row_below < row_end && keeps(row_below, c, lower, columns[column])) found.y |= 1u << i;
  }
  return found;
}

// What a warpgroup needs of a tile whose rows 64 g to 64 g + 63 are its own: byte g says whether there are kept pairs in these, and hidden ones.
constexpr u32 needs_pairs = 1, needs_bits = 2;

// Into *needs, from a thread's bits of the tile. All threads of the block.
template <int Columns> __device__ inline void fill_needs(u32* needs, uint2 bits) {
  constexpr u32 all = Columns == 128 ? ~0u : (1u << Columns / 4) - 1;
  __shared__ u32 found;
  if (threadIdx.x == 0) found = 0;
  const u32 of_warp = __reduce_or_sync(~0u, ((bits.x | bits.y) != 0 ? needs_pairs : 0) | ((bits.x & bits.y) != all ? needs_bits : 0));
  __syncthreads();
  if (threadIdx.x % 32 == 0) atomicOr(&found, of_warp << threadIdx.x / 128 * 8);
  __syncthreads();
  if (threadIdx.x == 0) *needs = found;
}

// needs: of each tile, or null.
template <int Rows, int Columns, bool ByKeys, class Mask> __device__ inline void fill_bits(const undecided_tile* tiles, uint2* bits, u32* needs, index queries, index keys, int pack, const Mask& mask) {
  const uint2 found = bits_of_tile<Rows, Columns, ByKeys>(tiles[blockIdx.x], queries, keys, mask, pack);
  bits[index(blockIdx.x) * (2 * Rows) + threadIdx.x] = found;
  if (needs != nullptr) fill_needs<Columns>(needs + blockIdx.x, found);
}

}  // namespace samite
