// attention_sm90_tiles.cuh: what the attention kernels for sm_90a share: lists of tiles, rows of packed heads, bits of tiles, the softmax of a tile.
#pragma once
#include "attention.cuh"
#include "hopper.cuh"

namespace samite {

constexpr int sm90_narrow = 32;  // columns of a narrow tile

struct sm90_lists {
  const tile_run* runs;
  const i64* begin;               // [lists + 1]
  index batch_lists, head_lists;  // lists from one batch or head to the next; 0 where they share
  const uint2* bits;              // [bit tiles][2 * rows threads]: the thread's first and second row
  index section;                  // heads whose keys and values stay in the L2 together
  u32* counter;                   // [2]: items fetched, blocks at their end; both 0 between launches
  const i32* order;               // [lists]: the tiles of a head that lists are for, the longest list first; or null: the last first
  index pack;                     // query heads whose rows take turns in a tile; what is a "head" above is so many
};

// Which token of a tile a row is, and which of the heads packed in it.
struct row_packing {
  i32 pack, inverse;
  __device__ explicit row_packing(const sm90_lists& lists) : pack(i32(lists.pack)), inverse((65535 + pack) / pack) {}
  __device__ i32 token(int row) const { return row * inverse >> 16; }  // row / pack, for fewer than 256 rows
  __device__ i32 head(int row) const { return row - token(row) * pack; }
};

// Bits of the columns before `limit` among a thread's in a row of a tile.
__device__ inline u32 columns_below(i32 limit) {
  const i32 c = limit - i32(threadIdx.x % 4 * 2), count = c <= 0 ? 0 : c / 8 * 2 + (c % 8 < 2 ? c % 8 : 2);
  return count >= 32 ? ~0u : (1u << count) - 1;
}

// From a tile's bits to those of a narrow one; part: its number among narrow ones of all keys.
__device__ inline void narrow_bits(uint2& bits, i32 part, i32 keys, int tile_keys) {
  const u32 inside = columns_below(keys - part * sm90_narrow);
  const int before = part % (tile_keys / sm90_narrow) * (sm90_narrow / 4);  // bits of the columns before these
  bits.x = bits.x >> before & inside, bits.y = bits.y >> before & inside;
}

// Whether the pair of accumulator i has its bit.
__device__ inline bool is_kept(uint2 bits, int i) { return ((i % 4 / 2 == 0 ? bits.x : bits.y) >> (i / 4 * 2 + i % 2) & 1u) != 0; }

// Turns a tile's scores into weights relative to the new maximum of each of the thread's two rows; `rescale` takes what was summed before to it.
template <int N> __attribute__((always_inline)) __device__ inline void tile_softmax(float (&s)[N], float scale, float (&largest)[2], float (&total)[2], float (&rescale)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float tops[4] = {largest[r], -infinity(), -infinity(), -infinity()};  // chains that don't wait for one another
#pragma unroll
    for (int i = 0; i < N; i += 4) tops[i / 4 % 4] = ::fmaxf(tops[i / 4 % 4], ::fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
    float top = ::fmaxf(::fmaxf(tops[0], tops[1]), ::fmaxf(tops[2], tops[3]));
    top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float shift = top == -infinity() ? 0.0f : top * scale;  // no key seen yet: keeps -inf - -inf from being NaN
    rescale[r] = power_of_2(largest[r] * scale - shift);
    largest[r] = top;
    float sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      s[i + 2 * r] = power_of_2(s[i + 2 * r] * scale - shift);
      s[i + 2 * r + 1] = power_of_2(s[i + 2 * r + 1] * scale - shift);
      sums[i / 4 % 4] += s[i + 2 * r] + s[i + 2 * r + 1];
    }
    total[r] = total[r] * rescale[r] + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
}

// Puts -infinity where a pair's bit is 0: x of the thread's first row, y of its second.
template <int N> __device__ inline void hide_pairs(float (&scores)[N], uint2 bits) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      float& x = scores[i / 2 * 4 + 2 * r + i % 2];
      x = ((r == 0 ? bits.x : bits.y) >> i & 1u) != 0 ? x : -infinity();
    }
}

}  // namespace samite
