// attention_sm90_tiles.cuh: sizes of the forward kernel for sm_90a, and what it shares with the gradient's: lists of tiles, rows of packed heads, bits of
// tiles, the softmax of a tile.
#pragma once
#include "attention.cuh"
#include "attention_bits.cuh"
#include "hopper.cuh"
#include "score_tile.cuh"

namespace samite {

constexpr int sm90_narrow = 32;  // columns of a narrow tile

// Head dims padded to multiples of 64. Some score functions leave too few registers for three warpgroups that compute.
template <int D, int Dv, bool Full = false> struct sm90_shape {
  static constexpr int widest = D > Dv ? D : Dv;
  static constexpr int groups = widest > 64 || Full ? 2 : 3;
  static constexpr int rows = 64 * groups, threads = 128 * (groups + 1);
  static constexpr int keys = widest > 128 ? 64 : 128;  // a tile
  static constexpr int buffers = widest > 128 ? 1 : 2;  // of Q
  static constexpr bool one_loop = widest > 128;        // for tiles that hide pairs and tiles that don't: faster there
  static constexpr int loader_registers = groups == 3 ? 32 : 40, registers = groups == 3 ? 160 : 232;
  static constexpr int query_bytes = rows * widest * 2, key_bytes = keys * D * 2, value_bytes = keys * Dv * 2;
};
constexpr int sm90_plan_runs = 16, sm90_plan_bytes = 32 + 16 * sm90_plan_runs;  // of an item that is to be loaded next
constexpr int sm90_plan_ahead = 3;  // tiles of the one before that are still to be loaded when it is fetched
template <int D, int Dv, bool Full = false> constexpr int sm90_shared_bytes =
    1024 + sm90_shape<D, Dv, Full>::buffers * sm90_shape<D, Dv, Full>::query_bytes + 2 * (sm90_shape<D, Dv, Full>::key_bytes + sm90_shape<D, Dv, Full>::value_bytes) + 256 + 2 * sm90_plan_bytes;

struct sm90_lists {
  const tile_run* runs;
  const i64* begin;               // [lists + 1]
  index batch_lists, head_lists;  // lists from one batch or head to the next; 0 where they share
  const uint2* bits;              // [bit tiles][2 * rows threads]: the thread's first and second row
  index section;                  // heads whose keys and values stay in the L2 together
  u32* counter;                   // [2]: items fetched, blocks at their end; both 0 between launches
  const i32* order;               // [lists]: the tiles of a head that lists are for, the longest list first; or null: the last first
  index pack;                     // query heads whose rows take turns in a tile; what is a "head" above is so many
  const u32* needs;               // [bit tiles]: what warpgroups need of them (attention_bits.cuh); or null: all
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
template <int N> __attribute__((always_inline)) __device__ inline void tile_softmax(float (&s)[N], float scale, float (&largest)[2], float (&total)[2], float (&rescale)[2], bool bounded = false) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float tops[4] = {largest[r], -infinity(), -infinity(), -infinity()};  // chains that don't wait for one another
#pragma unroll
    for (int i = 0; i < N; i += 4) tops[i / 4 % 4] = ::fmaxf(tops[i / 4 % 4], ::fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
    float top = ::fmaxf(::fmaxf(tops[0], tops[1]), ::fmaxf(tops[2], tops[3]));
    top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = ::fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    if (bounded) top = 0;
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

// 2^(x scale) on the units for products: for |x scale| < 126, relative error 8 10^-5. Of NaN it makes the largest number, which bf16 rounds to infinity.
__device__ inline float power_by_products(float x, float scale) {
  constexpr float magic = 12582912.0f;  // 1.5 * 2^23: a sum with it ends in the nearest whole number
  const float whole = __fmaf_rn(x, scale, magic), rest = __fmaf_rn(x, scale, -(whole - magic));
  const float power = __fmaf_rn(__fmaf_rn(__fmaf_rn(0.05517167f, rest, 0.24261112f), rest, 0.69326099f), rest, 0.99992807f);
  return __int_as_float(__float_as_int(power) + (__float_as_int(whole) << 23));
}

// The weights of scores that are known to lie within sm90_bound of 0, in powers of 2: no larger one changes what was summed before, and their
// sums have 2^50 to spare on either side. Half of the powers are taken from the exponential unit, which tanh keeps busy.
constexpr float sm90_bound = 73;
template <int N> __attribute__((always_inline)) __device__ inline void bounded_weights(float (&s)[N], float scale, float (&total)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < N; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[i + 2 * r + e];
        x = i / 4 % 2 == 0 ? power_by_products(x, scale) : power_of_2(x * scale);
      }
      sums[i / 4 % 4] += s[i + 2 * r] + s[i + 2 * r + 1];
    }
    total[r] += (sums[0] + sums[1]) + (sums[2] + sums[3]);
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

// From the products of a tile's columns to their weights.
template <class Score, int N>
__attribute__((always_inline)) __device__ inline void tile_weights(float (&s)[N], const Score& score, const scored_rows<Score>& rows, i32 first_column, bool hides, uint2 bits, float scale, float (&largest)[2], float (&total)[2], float (&rescale)[2], bool bounded) {
  if constexpr (!Score::identity && !Score::begins) score_values<false>(scored_tile<Score>(score, rows, first_column), s);
  if (hides) hide_pairs(s, bits);
  tile_softmax(s, scale, largest, total, rescale, bounded);
}

// The same of a tile that hides nothing, where bounded_weights serves.
template <class Score, int N> __attribute__((always_inline)) __device__ inline void bounded_tile_weights(float (&s)[N], const Score& score, const scored_rows<Score>& rows, i32 first_column, float scale, float (&total)[2]) {
  if constexpr (Score::bounded) {
    score_values<false>(scored_tile<Score>(score, rows, first_column), s);
    bounded_weights(s, scale, total);
  }
}

}  // namespace samite
