// attention_real.cuh: attention of f32 and f64 tensors with ordinary multiply-adds, forward and backward. Slow and exact: no
// TF32, no approximations of exp.
//
// A block of 256 threads owns 8 * Rows rows (queries; keys for dK and dV), Rows a warp; it steps over the other side 32 at a
// time. A lane holds one score a row, and one column of 32 a row of the results. One shared buffer holds in turn the tensors
// that a step needs. Dynamic shared memory: real_shared_bytes, at most 98560 bytes.
#pragma once
#include "attention.cuh"

namespace samite {

constexpr int real_threads = 256, real_warps = real_threads / 32, real_step = 32;
template <class Real> constexpr int real_rows = sizeof(Real) == 4 ? 4 : 1;  // a warp
template <int D, int Dv> constexpr int real_stride = (D > Dv ? D : Dv) + 1;  // odd: lanes read different banks
template <class Real, int D, int Dv> constexpr int real_shared_bytes =
    (real_warps * real_rows<Real> * (D + Dv) + real_step * real_stride<D, Dv>) * int(sizeof(Real));

template <class Real> __device__ inline Real warp_max(Real x) {
  for (int distance = 16; distance > 0; distance /= 2) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}
template <class Real> __device__ inline Real warp_sum(Real x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// s[r] = the warp's row r of `mine` times row `lane` of the buffer.
template <int Columns, int Stride, int Rows, class Real>
__device__ inline void score_rows(Real (&s)[Rows], const Real* mine, const Real* buffer) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * Rows;
#pragma unroll
  for (int r = 0; r < Rows; ++r) s[r] = 0;
#pragma unroll 4
  for (int d = 0; d < Columns; ++d) {
    const Real x = buffer[lane * Stride + d];
#pragma unroll
    for (int r = 0; r < Rows; ++r) s[r] += mine[(first + r) * Columns + d] * x;
  }
}

// out[r][c] += sum over lanes j of p[r] (lane j) times buffer[j][lane + 32 c].
template <int Stride, int Rows, int Parts, class Real>
__device__ inline void add_weighted(Real (&out)[Rows][Parts], const Real (&p)[Rows], const Real* buffer) {
  const int lane = threadIdx.x % 32;
#pragma unroll 2
  for (int j = 0; j < real_step; ++j) {
    Real weight[Rows];
#pragma unroll
    for (int r = 0; r < Rows; ++r) weight[r] = __shfl_sync(0xffffffffu, p[r], j);
#pragma unroll
    for (int c = 0; c < Parts; ++c) {
      const Real x = buffer[j * Stride + c * 32 + lane];
#pragma unroll
      for (int r = 0; r < Rows; ++r) out[r][c] += weight[r] * x;
    }
  }
}

template <int Rows, int Parts, class Real>
__device__ inline void store_real_rows(const Real (&x)[Rows][Parts], const attention_tensor& t, Real* head, index first_row, index length, int columns,
                                       const Real (&factor)[Rows]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < Rows; ++r)
#pragma unroll
    for (int c = 0; c < Parts; ++c)
      if (first_row + r < length && c * 32 + lane < columns)
        head[(first_row + r) * t.row_stride + (c * 32 + lane) * t.column_stride] = x[r][c] * factor[r];
}

// What the score function makes of the score of a pair; itself if there is none.
template <class Real, class Score> __device__ inline Real score_of(const Score& score, index b, index h, index q, index kv, Real x) {
  if constexpr (Score::identity) return x;
  else return score.value(b, h, q, kv, x);
}
template <class Real, class Score> __device__ inline Real score_adjoint(const Score& score, index b, index h, index q, index kv, Real x, Real dy) {
  if constexpr (Score::identity) return dy;
  else return score.adjoint(b, h, q, kv, x, dy);
}

// What the mask makes of the warp's rows alone, once for a whole head; `column_parts` where they are keys.
template <class Mask, int Rows> struct row_parts {
  decltype(Mask().head(0, 0)) head;
  decltype(Mask().row(0, 0, 0, head)) rows[Rows];
  __device__ row_parts(const Mask& mask, index b, index h, index first) : head(mask.head(b, h)) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) rows[r] = mask.row(b, h, first + r, head);
  }
};
template <class Mask, int Rows> struct column_parts {
  decltype(Mask().head(0, 0)) head;
  decltype(Mask().column(0, 0, 0, head)) columns[Rows];
  __device__ column_parts(const Mask& mask, index b, index h, index first) : head(mask.head(b, h)) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) columns[r] = mask.column(b, h, first + r, head);
  }
};

// ---- forward ------------------------------------------------------------------------------------------------------------

// D and Dv: head dims padded to multiples of 32.
template <class Real, int D, int Dv, class Mask, class Score>
__device__ inline void attention_forward_real(const attention_parameters& p, const Mask& mask, const Score& score) {
  constexpr int rows = real_rows<Real>, block_rows = real_warps * rows, stride = real_stride<D, Dv>, per_tile = attention_tile / block_rows;
  extern __shared__ uint4 shared[];
  Real* Qs = reinterpret_cast<Real*>(shared);
  Real* buffer = Qs + block_rows * D;
  const block_place at(tiles_of(p.queries) * per_tile, p.heads);
  const index b = at.b, h = at.h, g = h / (p.heads / p.key_heads), first_query = at.tile * block_rows;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * rows;
  const Real hidden = Real(-infinity()), scale = Real(p.scale);
  load_rows<block_rows, D, D, real_threads>(Qs, p.Q, head_data<const Real>(p.Q, b, h), first_query, p.queries, p.head_dim);
  Real O[rows][Dv / 32] = {}, largest[rows], total[rows];
  for (int r = 0; r < rows; ++r) largest[r] = hidden, total[r] = 0;
  const row_parts<Mask, rows> lines(mask, b, h, first_query + warp_row);

  walk_tiles(p.lists, b, h, at.tile / per_tile, tiles_of(p.keys), [&](index tile, bool full) {
#pragma unroll 1
    for (index first_key = tile * attention_tile; first_key < (tile + 1) * attention_tile && first_key < p.keys; first_key += real_step) {
      Real s[rows];
      __syncthreads();  // the values before have been used
      load_rows<real_step, D, stride, real_threads>(buffer, p.K, head_data<const Real>(p.K, b, g), first_key, p.keys, p.head_dim);
      __syncthreads();
      score_rows<D, stride>(s, Qs, buffer);
      __syncthreads();  // the keys have been used
      load_rows<real_step, Dv, stride, real_threads>(buffer, p.V, head_data<const Real>(p.V, b, g), first_key, p.keys, p.value_dim);
      __syncthreads();
      const index kv = first_key + lane;
      const auto column = mask.column(b, h, kv, lines.head);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const index q = first_query + warp_row + r;
        const bool kept = kv < p.keys && q < p.queries && (full || mask.keep(b, h, q, kv, lines.head, lines.rows[r], column));
        s[r] = kept ? score_of(score, b, h, q, kv, s[r] * scale) : hidden;
        const Real row_largest = fmax(largest[r], warp_max(s[r]));
        const Real base = row_largest == hidden ? Real(0) : row_largest;  // keeps exp(-inf - -inf) from being NaN
        const Real rescale = real_exp(largest[r] - base);
        largest[r] = row_largest;
        s[r] = real_exp(s[r] - base);
        total[r] = total[r] * rescale + s[r];
#pragma unroll
        for (int c = 0; c < Dv / 32; ++c) O[r][c] *= rescale;
      }
      add_weighted<stride>(O, s, buffer);
    }
  });
  Real factor[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const Real sum = warp_sum(total[r]);
    const row_result<Real> row(p, h, sum, sum == 0 ? hidden : largest[r] + real_log(sum));
    factor[r] = row.factor;
    const index q = first_query + warp_row + r;
    if (q < p.queries && lane == 0) static_cast<Real*>(p.lse)[(b * p.heads + h) * p.queries + q] = row.lse;
  }
  store_real_rows(O, p.out, head_data<Real>(p.out, b, h), first_query + warp_row, p.queries, p.value_dim, factor);
}

// ---- backward -------------------------------------------------------------------------------------------------------------

template <class Real, int D, int Dv, class Mask, class Score>
__device__ inline void attention_query_gradient_real(const attention_parameters& p, const Mask& mask, const Score& score) {
  constexpr int rows = real_rows<Real>, block_rows = real_warps * rows, stride = real_stride<D, Dv>, per_tile = attention_tile / block_rows;
  extern __shared__ uint4 shared[];
  Real* Qs = reinterpret_cast<Real*>(shared);
  Real* dOs = Qs + block_rows * D;
  Real* buffer = dOs + block_rows * Dv;
  const block_place at(tiles_of(p.queries) * per_tile, p.heads);
  const index b = at.b, h = at.h, g = h / (p.heads / p.key_heads), first_query = at.tile * block_rows;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * rows;
  const Real scale = Real(p.scale);
  load_rows<block_rows, D, D, real_threads>(Qs, p.Q, head_data<const Real>(p.Q, b, h), first_query, p.queries, p.head_dim);
  load_rows<block_rows, Dv, Dv, real_threads>(dOs, p.d_out, head_data<const Real>(p.d_out, b, h), first_query, p.queries, p.value_dim);
  Real dQ[rows][D / 32] = {}, lse[rows], delta[rows], factor[rows];
  Real held[Score::held + 1] = {};  // of elements that all pairs of a head share
  for (int r = 0; r < rows; ++r) {
    const index q = first_query + warp_row + r, row = (b * p.heads + h) * p.queries + q;
    lse[r] = q < p.queries ? static_cast<const Real*>(p.row_lse)[row] : Real(infinity());
    delta[r] = q < p.queries ? static_cast<const Real*>(p.row_delta)[row] : Real(0);
    factor[r] = scale;
  }
  const row_parts<Mask, rows> lines(mask, b, h, first_query + warp_row);

  walk_tiles(p.lists, b, h, at.tile / per_tile, tiles_of(p.keys), [&](index tile, bool full) {
#pragma unroll 1
    for (index first_key = tile * attention_tile; first_key < (tile + 1) * attention_tile && first_key < p.keys; first_key += real_step) {
      const Real* K = head_data<const Real>(p.K, b, g);
      Real s[rows], dP[rows];
      __syncthreads();  // the keys of the step before have been used
      load_rows<real_step, Dv, stride, real_threads>(buffer, p.V, head_data<const Real>(p.V, b, g), first_key, p.keys, p.value_dim);
      __syncthreads();
      score_rows<Dv, stride>(dP, dOs, buffer);
      __syncthreads();
      load_rows<real_step, D, stride, real_threads>(buffer, p.K, K, first_key, p.keys, p.head_dim);
      __syncthreads();
      score_rows<D, stride>(s, Qs, buffer);
      const index kv = first_key + lane;
      const auto column = mask.column(b, h, kv, lines.head);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const index q = first_query + warp_row + r;
        const bool kept = kv < p.keys && q < p.queries && (full || mask.keep(b, h, q, kv, lines.head, lines.rows[r], column));
        const Real x = s[r] * scale, dy = real_exp(score_of(score, b, h, q, kv, x) - lse[r]) * (dP[r] - delta[r]);
        s[r] = kept ? score_adjoint(score, b, h, q, kv, x, dy) : Real(0);
        if constexpr (!Score::identity)
          if (kept) score.gradient(b, h, q, kv, x, dy, held);
      }
      add_weighted<stride>(dQ, s, buffer);
    }
  });
  if constexpr (Score::held > 0)
#pragma unroll
    for (int i = 0; i < Score::held; ++i) {
      const Real sum = block_sum<real_threads>(held[i]);
      if (threadIdx.x == 0) score.add_held(i, b, h, sum);
    }
  store_real_rows(dQ, p.dQ, head_data<Real>(p.dQ, b, h), first_query + warp_row, p.queries, p.head_dim, factor);
}

template <class Real, int D, int Dv, class Mask, class Score>
__device__ inline void attention_key_gradient_real(const attention_parameters& p, const Mask& mask, const Score& score) {
  constexpr int rows = real_rows<Real>, block_rows = real_warps * rows, stride = real_stride<D, Dv>, per_tile = attention_tile / block_rows;
  extern __shared__ uint4 shared[];
  Real* Ks = reinterpret_cast<Real*>(shared);
  Real* Vs = Ks + block_rows * D;
  Real* buffer = Vs + block_rows * Dv;
  const block_place at(tiles_of(p.keys) * per_tile, p.key_heads);
  const index b = at.b, g = at.h, group = p.heads / p.key_heads, first_key = at.tile * block_rows;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * rows;
  const Real scale = Real(p.scale);
  load_rows<block_rows, D, D, real_threads>(Ks, p.K, head_data<const Real>(p.K, b, g), first_key, p.keys, p.head_dim);
  load_rows<block_rows, Dv, Dv, real_threads>(Vs, p.V, head_data<const Real>(p.V, b, g), first_key, p.keys, p.value_dim);
  Real dK[rows][D / 32] = {}, dV[rows][Dv / 32] = {}, scales[rows], ones[rows];
  for (int r = 0; r < rows; ++r) scales[r] = scale, ones[r] = 1;

#pragma unroll 1
  for (index h = g * group; h < (g + 1) * group; ++h) {
    const Real *Q = head_data<const Real>(p.Q, b, h), *dO = head_data<const Real>(p.d_out, b, h);
    const column_parts<Mask, rows> lines(mask, b, h, first_key + warp_row);
    walk_tiles(p.lists, b, h, at.tile / per_tile, tiles_of(p.queries), [&](index tile, bool full) {
#pragma unroll 1
      for (index first_query = tile * attention_tile; first_query < (tile + 1) * attention_tile && first_query < p.queries; first_query += real_step) {
        const index q = first_query + lane, row = (b * p.heads + h) * p.queries + q;
        const Real lse = q < p.queries ? static_cast<const Real*>(p.row_lse)[row] : Real(infinity());
        const Real delta = q < p.queries ? static_cast<const Real*>(p.row_delta)[row] : Real(0);
        Real s[rows], dP[rows];
        __syncthreads();  // the queries of the step before have been used
        load_rows<real_step, D, stride, real_threads>(buffer, p.Q, Q, first_query, p.queries, p.head_dim);
        __syncthreads();
        score_rows<D, stride>(s, Ks, buffer);
        __syncthreads();
        load_rows<real_step, Dv, stride, real_threads>(buffer, p.d_out, dO, first_query, p.queries, p.value_dim);
        __syncthreads();
        score_rows<Dv, stride>(dP, Vs, buffer);
        const auto row_part = mask.row(b, h, q, lines.head);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const index kv = first_key + warp_row + r;
          const bool kept = kv < p.keys && q < p.queries && (full || mask.keep(b, h, q, kv, lines.head, row_part, lines.columns[r]));
          const Real x = s[r] * scale;
          s[r] = kept ? real_exp(score_of(score, b, h, q, kv, x) - lse) : Real(0);
          dP[r] = kept ? score_adjoint(score, b, h, q, kv, x, s[r] * (dP[r] - delta)) : Real(0);
        }
        add_weighted<stride>(dV, s, buffer);
        __syncthreads();
        load_rows<real_step, D, stride, real_threads>(buffer, p.Q, Q, first_query, p.queries, p.head_dim);
        __syncthreads();
        add_weighted<stride>(dK, dP, buffer);
      }
    });
  }
  store_real_rows(dK, p.dK, head_data<Real>(p.dK, b, g), first_key + warp_row, p.keys, p.head_dim, scales);
  store_real_rows(dV, p.dV, head_data<Real>(p.dV, b, g), first_key + warp_row, p.keys, p.value_dim, ones);
}

}  // namespace samite
