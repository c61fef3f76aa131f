// attention_mma_gradient.cuh: the gradients of attention of bf16 and f16 tensors on mma.sync m16n8k16, for sm_80 and newer. Blocks have 128 threads.
//
//   dK, dV   a block for 64 keys (128 for heads of at most 64 channels, 32 past 128) walks the query heads of the group, 64 or 32 queries a step, copied while
//            others are used. A warp owns 16 or 32 keys and computes S^T and dP^T, so that P^T and dS^T are operands as they are. No atomics.
//   fused    a block also multiplies dS by K and adds it to an fp32 dQ, in whatever order blocks get there; a pass over dQ ends it. Head dims to 128, no score
//            function. To 64 channels it is the kernel above, with dS in shared memory too. Beyond, a warp computes S and dP of 32 queries and 32 keys, and what it
//            multiplies then are halves of P and dS of all warps: fewer reads of shared memory, which limits the other form there.
//   dQ       a block for 64 queries, a warp for 16; 64 keys a step (32 where a head dim passes 96, 16 past 192); S and dP computed anew
// Dynamic shared memory: see *_shared_bytes; at most 101376 bytes, which every served device has.
// source  Dao 2023, arXiv:2307.08691, algorithm 2; the dK/dV and dQ split into two kernels is for determinism
#pragma once
#include "attention_mma.cuh"

namespace samite {

// The dK, dV kernel. Steps shrink as the accumulators grow, or registers spill.
template <int D, int Dv, bool Scored, bool Fused> struct key_gradient_shape {
  static constexpr int largest = D > Dv ? D : Dv;
  static constexpr bool narrow = largest <= 64, wide = largest > 128, shares = Fused && !narrow;  // shares: P and dS through shared memory
  static constexpr int parts = narrow && !Scored ? 2 : 1;  // of 16 keys, a warp
  static constexpr int column_parts = wide ? 2 : 1;        // pairs of warps share 16 keys and keep half of the columns each
  static constexpr int keys = 64 * parts / column_parts;
  static constexpr int queries = narrow || shares ? 64 : 32;                                      // in shared memory
  static constexpr int query_part = wide || (Scored && largest > 96) ? 16 : shares ? queries : 32;  // of them in registers at once
  static constexpr int stages = largest > 192 || shares ? 1 : 2;
  static constexpr int row_bytes = stages * 2 * queries * 4;  // row_lse and row_delta
  static constexpr int pair_bytes = shares ? 2 * queries * padded<keys> * 2 : Fused ? keys * padded<queries> * 2 : 0;
  static constexpr int shared_bytes = row_bytes + (keys + stages * queries) * (padded<D> + padded<Dv>) * 2 + pair_bytes;
};

// What a block of keys works on. It stands in shared memory: registers are scarcer.
struct key_block {
  i32 b, key_head, first_head, end_head, list, first_key;
  // All threads of the block.
  template <int Keys> __device__ void enter(const attention_parameters& p) {
    constexpr int list_keys = Keys < attention_tile ? attention_tile : Keys, blocks = list_keys / Keys;
    const block_place at((p.keys + list_keys - 1) / list_keys * blocks, p.key_heads, false);
    const i32 group = i32(p.heads / p.key_heads);
    if (threadIdx.x == 0) b = i32(at.b), key_head = i32(at.h), first_head = key_head * group, end_head = first_head + group, list = i32(at.tile) / blocks, first_key = i32(at.tile) * Keys;
    __syncthreads();
  }
};

// The steps of a block of keys, over the heads of its group and the tiles of their lists.
template <int Step> struct step_walk {
  const attention_parameters& p;
  const key_block& block;
  i32 h, first = 0;
  tile_walk tiles;
  __device__ step_walk(const attention_parameters& parameters, const key_block& of)
      : p(parameters), block(of), h(of.first_head), tiles(parameters.lists, of.b, of.first_head, of.list, tiles_of(parameters.queries)) {
    settle();
  }
  __device__ bool is_done() const { return h >= block.end_head; }
  __device__ i32 first_query() const { return Step < attention_tile ? tiles.tile * attention_tile + first : tiles.tile * attention_tile; }
  __device__ void settle() {
    while (tiles.is_done() && ++h < block.end_head) tiles = tile_walk(p.lists, block.b, h, block.list, tiles_of(p.queries));
  }
  __device__ void advance() {
    if constexpr (Step < attention_tile) {
      first += Step;
      if (first < attention_tile && first_query() < p.queries) return;
      first = 0;
    }
    tiles.advance();
    settle();
  }
};

// A 16x8 tile of dQ's sums: the numbers of a thread's accumulators side by side where they are added at once, else those of a warp.
constexpr bool adds_vectors = __CUDA_ARCH__ >= 900;
__device__ inline void add_to_sums(float* tile, const float (&x)[4]) {
  const int lane = threadIdx.x % 32;
  if constexpr (adds_vectors) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(tile + lane * 4), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) atomicAdd(tile + e * 32 + lane, x[e]);
  }
}
// A head's sums from a query on: tiles of 64 queries.
template <int D> __device__ inline float* sums_from(float* sums, const attention_parameters& p, index b, index h, index first_query) {
  return sums + ((b * p.heads + h) * tiles_of(p.queries) * attention_tile + first_query) * D;
}

// What a warp has of 16-column units of a product whose rows are cut into pieces of 32.
template <int Columns, int Rows> struct warp_share {
  static constexpr int row_warps = Rows / 32, column_warps = 4 / row_warps, units = Columns / 16, most = (units + column_warps - 1) / column_warps;
  int row, first_unit;
  __device__ explicit warp_share(int warp) : row(warp % row_warps * 32), first_unit(warp / row_warps * most) {}
  __device__ bool has(int i) const { return most * column_warps == units || first_unit + i < units; }
};

// out += a times the warp's columns of b: a [32 rows from the share's][K], or stored transposed, [K][rows], in a tile of AColumns columns; b [K][Columns].
template <int Columns, int K, int AColumns, bool Transposed, class Share, int M, class T>
__device__ inline void multiply_share(float (&out)[2][M][4], const Share& share, const T* a_tile, const T* b_tile) {
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    u32 a[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (Transposed) load_a_transposed<AColumns>(a[r], a_tile, k, share.row + 16 * r);
      else load_a<AColumns>(a[r], a_tile, share.row + 16 * r, k);
    }
#pragma unroll
    for (int i = 0; i < M / 2; ++i) {
      if (!share.has(i)) continue;
      u32 b[4];
      load_b_transposed<Columns>(b, b_tile, k, (share.first_unit + i) * 16);
#pragma unroll
      for (int r = 0; r < 2; ++r) multiply_add<T>(out[r][2 * i], a[r], b[0], b[1]), multiply_add<T>(out[r][2 * i + 1], a[r], b[2], b[3]);
    }
  }
}

// dS times K of a step, added to its sums. All threads of the block.
template <int D, int Keys, int Queries, bool Transposed, class T> __device__ inline void add_query_gradient(float* sums, const T* dSs, const T* Ks, int warp) {
  using share_of_dQ = warp_share<D, Queries>;
  const share_of_dQ share(warp);
  float dQ[2][2 * share_of_dQ::most][4] = {};
  multiply_share<D, Keys, Transposed ? Queries : Keys, Transposed>(dQ, share, dSs, Ks);
  float* const tiles = sums + (share.row / 16 * (D / 8) + share.first_unit * 2) * 128;
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int i = 0; i < 2 * share_of_dQ::most; ++i)
      if (share.has(i / 2)) add_to_sums(tiles + (r * (D / 8) + i) * 128, dQ[r][i]);
}

// Q, dO, row_lse and row_delta of a step. All threads of the block.
template <int Step, int D, int Dv, class T> __device__ inline void copy_queries(T* Qs, T* dOs, float* rows, const attention_parameters& p, i32 b, i32 h, i32 first) {
  const i32 thread = thread_anew();
  copy_rows<Step, D, mma_threads>(Qs, p.Q, head_data<const T>(p.Q, b, h), first, p.queries, p.head_dim, thread);
  copy_rows<Step, Dv, mma_threads>(dOs, p.d_out, head_data<const T>(p.d_out, b, h), first, p.queries, p.value_dim, thread);
  if (thread >= 2 * Step) return;
  const i32 q = first + thread % Step;
  const float* from = static_cast<const float*>(thread < Step ? p.row_lse : p.row_delta);
  copy_async_4(rows + thread, from + (q < p.queries ? (b * p.heads + h) * p.queries + q : 0), q < p.queries);
}

// sums  fp32, fused only: [batch, heads, query tiles, 4, D / 8] tiles of 16x8
template <class T, int D, int Dv, bool Fused, class Mask, class Score>
__device__ inline void key_gradient_by_keys(const attention_parameters& p, const Mask& mask, const Score& score, float* sums) {
  using shape = key_gradient_shape<D, Dv, !Score::identity, Fused>;
  constexpr int step = shape::queries, query_tiles = shape::query_part / 8, parts = shape::parts, stages = shape::stages, d_score_stride = padded<step>;
  constexpr int head_tiles = D / 8 / shape::column_parts, value_tiles = Dv / 8 / shape::column_parts, key_warps = shape::keys / (16 * parts);
  extern __shared__ uint4 shared[];
  float* const rows = reinterpret_cast<float*>(shared);  // of each stage row_lse, then row_delta
  T* Ks = reinterpret_cast<T*>(rows + stages * 2 * step);
  T* Vs = Ks + shape::keys * padded<D>;
  T* const Qs = Vs + shape::keys * padded<Dv>;
  T* const dOs = Qs + stages * step * padded<D>;
  T* const dSs = dOs + stages * step * padded<Dv>;
  __shared__ key_block block;
  block.enter<shape::keys>(p);
  const float scale = Score::identity ? float(p.scale) * log2_e : float(p.scale);
  step_walk<step> walk(p, block);

  const auto copy_step = [&](int stage) {
    if (!walk.is_done()) copy_queries<step, D, Dv>(Qs + stage * step * padded<D>, dOs + stage * step * padded<Dv>, rows + stage * 2 * step, p, block.b, walk.h, walk.first_query());
    end_copies();
  };
  copy_rows<shape::keys, D, mma_threads>(Ks, p.K, head_data<const T>(p.K, block.b, block.key_head), block.first_key, p.keys, p.head_dim, threadIdx.x);
  copy_rows<shape::keys, Dv, mma_threads>(Vs, p.V, head_data<const T>(p.V, block.b, block.key_head), block.first_key, p.keys, p.value_dim, threadIdx.x);
  if constexpr (stages == 2) copy_step(0);
  float dK[parts][head_tiles][4] = {}, dV[parts][value_tiles][4] = {};

  int stage = 0;
#pragma unroll 1
  while (!walk.is_done()) {
    const i32 h = walk.h, first_query = walk.first_query();
    const bool full = walk.tiles.full;
    if constexpr (stages == 2) {
      wait_copies<0>();
      __syncthreads();  // the queries are there, and those before have been used
      walk.advance();
      copy_step(stage ^ 1);
    } else {
      __syncthreads();  // the queries before have been used
      copy_step(0);
      walk.advance();
      wait_copies<0>();
      __syncthreads();
    }
    const float *const lse = rows + stage * 2 * step, *const delta = lse + step;
#pragma unroll 1
    for (int first = 0; first < step; first += shape::query_part) {
      const int thread = thread_anew(), lane = thread % 32, warp = thread / 32, warp_row = warp % key_warps * 16 * parts, part = warp / key_warps;
      const T *const Q_part = Qs + (stage * step + first) * padded<D>, *const dO_part = dOs + (stage * step + first) * padded<Dv>;
      u32 visible[parts], any = 0;  // before there are scores, which take the registers
#pragma unroll
      for (int r = 0; r < parts; ++r) any |= visible[r] = visible_pairs<query_tiles, true>(p, mask, block.b, h, block.first_key + warp_row + 16 * r, first_query + first, full);
      u32* const dS_row = reinterpret_cast<u32*>(dSs + (warp_row + lane / 4) * d_score_stride + first + lane % 4 * 2);
      if (!__any_sync(0xffffffffu, any != 0)) {
        if constexpr (Fused) {
#pragma unroll
          for (int i = 0; i < 2 * parts * query_tiles; ++i) dS_row[(i / query_tiles * 8 * d_score_stride + i % query_tiles * 8) / 2] = 0;
        }
        continue;
      }
      float P[parts][query_tiles][4] = {}, dS[parts][query_tiles][4] = {};  // transposed: rows are keys
      u32 weights[parts][query_tiles][2];
      multiply_rows<D>(P, Ks, warp_row, Q_part);
      multiply_rows<Dv>(dS, Vs, warp_row, dO_part);
#pragma unroll
      for (int r = 0; r < parts; ++r)
#pragma unroll
        for (int n = 0; n < query_tiles; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int q = first + n * 8 + lane % 4 * 2 + e % 2;
            const bool kept = (visible[r] >> (4 * n + e) & 1u) != 0;
            const float x = P[r][n][e] * scale;
            if constexpr (Score::identity) {
              P[r][n][e] = kept ? power_of_2(x - lse[q]) : 0.0f;
              dS[r][n][e] = kept ? P[r][n][e] * (dS[r][n][e] - delta[q]) : 0.0f;
            } else {
              const pair_place at_pair(block.first_key + warp_row + 16 * r, first_query + first, n, e);
              P[r][n][e] = kept ? power_of_2(score.value(block.b, h, at_pair.column, at_pair.row, x) * log2_e - lse[q]) : 0.0f;
              dS[r][n][e] = kept ? score.adjoint(block.b, h, at_pair.column, at_pair.row, x, P[r][n][e] * (dS[r][n][e] - delta[q])) : 0.0f;
            }
          }
          weights[r][n][0] = storage<T>::pair(P[r][n][0], P[r][n][1]), weights[r][n][1] = storage<T>::pair(P[r][n][2], P[r][n][3]);
        }
      multiply_columns<Dv>(dV, weights, dO_part + part * value_tiles * 8);
#pragma unroll
      for (int r = 0; r < parts; ++r)
#pragma unroll
        for (int n = 0; n < query_tiles; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            weights[r][n][half] = storage<T>::pair(dS[r][n][2 * half], dS[r][n][2 * half + 1]);
            if constexpr (Fused) dS_row[((16 * r + 8 * half) * d_score_stride + n * 8) / 2] = weights[r][n][half];
          }
      multiply_columns<D>(dK, weights, Q_part + part * head_tiles * 8);
    }
    if constexpr (Fused) {
      __syncthreads();  // all of dS is there
      add_query_gradient<D, shape::keys, step, true>(sums_from<D>(sums, p, block.b, h, first_query), dSs, Ks, thread_anew() / 32);
    }
    if constexpr (stages == 2) stage ^= 1;
  }
  wait_copies<0>();
  const int warp = threadIdx.x / 32, warp_row = warp % key_warps * 16 * parts, part = warp / key_warps;
#pragma unroll
  for (int r = 0; r < parts; ++r) {
    const index row = block.first_key + warp_row + 16 * r;
    store_rows(dK[r], p.dK, head_data<T>(p.dK, block.b, block.key_head), row, p.keys, part * head_tiles * 8, p.head_dim, float(p.scale), float(p.scale));
    store_rows(dV[r], p.dV, head_data<T>(p.dV, block.b, block.key_head), row, p.keys, part * value_tiles * 8, p.value_dim, 1.0f, 1.0f);
  }
}

// The same where P and dS go through shared memory. Two lines are for some archs only: there ptxas 13.0 spills fewer registers, or none.
template <class T, int D, int Dv, class Mask>
__device__ inline void key_gradient_by_shares(const attention_parameters& p, const Mask& mask, float* sums) {
  using shape = key_gradient_shape<D, Dv, false, true>;
  constexpr int step = shape::queries, keys = shape::keys, key_tiles = 4;
  using share_of_dK = warp_share<D, keys>;
  using share_of_dV = warp_share<Dv, keys>;
  extern __shared__ uint4 shared[];
  float* const rows = reinterpret_cast<float*>(shared);
  T* const Ks = reinterpret_cast<T*>(rows + 2 * step);
  T* const Vs = Ks + keys * padded<D>;
  T* const Qs = Vs + keys * padded<Dv>;
  T* const dOs = Qs + step * padded<D>;
  T* const Ps = dOs + step * padded<Dv>;
  T* const dSs = Ps + step * padded<keys>;
  __shared__ key_block block;
  block.enter<keys>(p);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_row = warp % 2 * 32, warp_key = warp / 2 * 32;
  const float scale = float(p.scale) * log2_e;
  step_walk<step> walk(p, block);
  copy_rows<keys, D, mma_threads>(Ks, p.K, head_data<const T>(p.K, block.b, block.key_head), block.first_key, p.keys, p.head_dim, threadIdx.x);
  copy_rows<keys, Dv, mma_threads>(Vs, p.V, head_data<const T>(p.V, block.b, block.key_head), block.first_key, p.keys, p.value_dim, threadIdx.x);
  float dK[2][2 * share_of_dK::most][4] = {}, dV[2][2 * share_of_dV::most][4] = {};

#pragma unroll 1
  while (!walk.is_done()) {
    if constexpr (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ / 100 == 10) lane = thread_anew() % 32, warp = thread_anew() / 32, warp_row = warp % 2 * 32, warp_key = warp / 2 * 32;
    __syncthreads();  // the queries before have been used
    copy_queries<step, D, Dv>(Qs, dOs, rows, p, block.b, walk.h, walk.first_query());
    end_copies();
    wait_copies<0>();
    __syncthreads();  // the queries are there
    u32 visible = 0;  // 16 bits of each part of 16 rows
#pragma unroll
    for (int r = 0; r < 2; ++r) visible |= (visible_pairs<key_tiles, false>(p, mask, block.b, walk.h, walk.first_query() + warp_row + 16 * r, block.first_key + warp_key, walk.tiles.full) & 0xffffu) << 16 * r;
    float P[2][key_tiles][4] = {}, dS[2][key_tiles][4] = {};
    multiply_rows<D>(P, Qs, warp_row, Ks + warp_key * padded<D>);
    multiply_rows<Dv>(dS, dOs, warp_row, Vs + warp_key * padded<Dv>);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + 16 * r + lane / 4 + 8 * half;
        const float row_lse = rows[row], row_delta = rows[step + row];
#pragma unroll
        for (int n = 0; n < key_tiles; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const bool kept = (visible >> (16 * r + 4 * n + e) & 1u) != 0;
            P[r][n][e] = kept ? power_of_2(P[r][n][e] * scale - row_lse) : 0.0f;
            dS[r][n][e] = kept ? P[r][n][e] * (dS[r][n][e] - row_delta) : 0.0f;
          }
          const int to = row * padded<keys> + warp_key + n * 8 + lane % 4 * 2;
          *reinterpret_cast<u32*>(Ps + to) = storage<T>::pair(P[r][n][2 * half], P[r][n][2 * half + 1]);
          *reinterpret_cast<u32*>(dSs + to) = storage<T>::pair(dS[r][n][2 * half], dS[r][n][2 * half + 1]);
        }
      }
    __syncthreads();  // all of P and dS is there
    multiply_share<Dv, step, keys, true>(dV, share_of_dV(warp), Ps, dOs);
    add_query_gradient<D, keys, step, false>(sums_from<D>(sums, p, block.b, walk.h, walk.first_query()), dSs, Ks, warp);  // dK follows while sums are added
    if constexpr (__CUDA_ARCH__ < 1200) __syncwarp();
    multiply_share<D, step, keys, true>(dK, share_of_dK(warp), dSs, Qs);
    walk.advance();
  }
  wait_copies<0>();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const index row = block.first_key + share_of_dK(warp).row + 16 * r;
    store_rows(dK[r], p.dK, head_data<T>(p.dK, block.b, block.key_head), row, p.keys, share_of_dK(warp).first_unit * 16, p.head_dim, float(p.scale), float(p.scale));
    store_rows(dV[r], p.dV, head_data<T>(p.dV, block.b, block.key_head), row, p.keys, share_of_dV(warp).first_unit * 16, p.value_dim, 1.0f, 1.0f);
  }
}

template <class T, int D, int Dv, class Mask, class Score> __device__ inline void attention_key_gradient(const attention_parameters& p, const Mask& mask, const Score& score) {
  key_gradient_by_keys<T, D, Dv, false>(p, mask, score, nullptr);
}
template <class T, int D, int Dv, class Mask, class Score> __device__ inline void attention_fused_gradient(const attention_parameters& p, const Mask& mask, const Score& score, float* sums) {
  if constexpr (key_gradient_shape<D, Dv, false, true>::shares) key_gradient_by_shares<T, D, Dv>(p, mask, sums);
  else key_gradient_by_keys<T, D, Dv, true>(p, mask, score, sums);
}

// dQ = scale * the sums, in the tensor's type. Grid: any number of blocks of 256 threads, which take 64 rows of a head at a time, a warp for 16 rows and half of the columns.
template <class T, int D> __device__ inline void finish_query_gradient(const attention_parameters& p, const float* sums) {
  constexpr int units = D / 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 4, first_unit = warp / 4 * units;
  const index tiles = tiles_of(p.queries);
  for (index i = blockIdx.x; i < p.batch * p.heads * tiles; i += gridDim.x) {
    const index head = i / tiles, first = i % tiles * attention_tile + row * 16;
    if (first >= p.queries) continue;
    const float* const from = sums + ((i * 4 + row) * (D / 8) + first_unit) * 128;
    float dQ[units][4];
#pragma unroll
    for (int n = 0; n < units; ++n) {
      if constexpr (adds_vectors) {
        const float4 x = reinterpret_cast<const float4*>(from)[n * 32 + lane];
        dQ[n][0] = x.x, dQ[n][1] = x.y, dQ[n][2] = x.z, dQ[n][3] = x.w;
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) dQ[n][e] = from[n * 128 + e * 32 + lane];
      }
    }
    store_rows(dQ, p.dQ, head_data<T>(p.dQ, head / p.heads, head % p.heads), first, p.queries, first_unit * 8, p.head_dim, float(p.scale), float(p.scale));
  }
}

template <int D, int Dv> constexpr int query_gradient_keys = D > 192 || Dv > 192 ? 16 : D > 96 || Dv > 96 ? 32 : 64;
template <int D, int Dv> constexpr int query_gradient_shared_bytes = (attention_tile + query_gradient_keys<D, Dv>) * (padded<D> + padded<Dv>) * 2;

template <class T, int D, int Dv, class Mask, class Score>
__device__ inline void attention_query_gradient(const attention_parameters& p, const Mask& mask, const Score& score) {
  constexpr int step = query_gradient_keys<D, Dv>, key_tiles = step / 8, head_tiles = D / 8;
  extern __shared__ uint4 shared[];
  T* Qs = reinterpret_cast<T*>(shared);
  T* dOs = Qs + attention_tile * padded<D>;
  T* Ks = dOs + attention_tile * padded<Dv>;
  T* Vs = Ks + step * padded<D>;
  const block_place at(tiles_of(p.queries), p.heads);
  const index b = at.b, h = at.h, g = h / (p.heads / p.key_heads), first_query = at.tile * attention_tile;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * mma_rows;
  const T *K = head_data<const T>(p.K, b, g), *V = head_data<const T>(p.V, b, g);
  const float scale = Score::identity ? float(p.scale) * log2_e : float(p.scale);

  load_rows<attention_tile, D, padded<D>, mma_threads>(Qs, p.Q, head_data<const T>(p.Q, b, h), first_query, p.queries, p.head_dim);
  load_rows<attention_tile, Dv, padded<Dv>, mma_threads>(dOs, p.d_out, head_data<const T>(p.d_out, b, h), first_query, p.queries, p.value_dim);
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const index q = first_query + warp_row + lane / 4 + half * 8, row = (b * p.heads + h) * p.queries + q;
    lse[half] = q < p.queries ? static_cast<const float*>(p.row_lse)[row] : infinity();
    delta[half] = q < p.queries ? static_cast<const float*>(p.row_delta)[row] : 0.0f;
  }
  float dQ[head_tiles][4] = {};
  float held[Score::held + 1] = {};  // of elements that all pairs of a head share

  walk_tiles(p.lists, b, h, at.tile, tiles_of(p.keys), [&](index tile, bool full) {
#pragma unroll 1
    for (index first_key = tile * attention_tile; first_key < (tile + 1) * attention_tile && first_key < p.keys; first_key += step) {
      __syncthreads();  // the keys before have been used
      load_rows<step, D, padded<D>, mma_threads>(Ks, p.K, K, first_key, p.keys, p.head_dim);
      load_rows<step, Dv, padded<Dv>, mma_threads>(Vs, p.V, V, first_key, p.keys, p.value_dim);
      __syncthreads();
      float s[key_tiles][4] = {}, dP[key_tiles][4] = {};
      multiply_rows<D>(s, Qs, warp_row, Ks, 0);
      multiply_rows<Dv>(dP, dOs, warp_row, Vs, 0);
      const u32 visible = visible_pairs<key_tiles, false>(p, mask, b, h, first_query + warp_row, first_key, full);
#pragma unroll
      for (int n = 0; n < key_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const bool kept = (visible >> (4 * n + e) & 1u) != 0;
          const float x = s[n][e] * scale;
          if constexpr (Score::identity) {
            s[n][e] = kept ? exp2f(x - lse[e / 2]) * (dP[n][e] - delta[e / 2]) : 0.0f;
          } else {
            const pair_place at_pair(first_query + warp_row, first_key, n, e);
            const float dy = exp2f(score.value(b, h, at_pair.row, at_pair.column, x) * log2_e - lse[e / 2]) * (dP[n][e] - delta[e / 2]);
            s[n][e] = kept ? score.adjoint(b, h, at_pair.row, at_pair.column, x, dy) : 0.0f;
            if (kept) score.gradient(b, h, at_pair.row, at_pair.column, x, dy, held);
          }
        }
      multiply_columns<D>(dQ, s, Ks, 0, 0);
    }
  });
  if constexpr (Score::held > 0)
#pragma unroll
    for (int i = 0; i < Score::held; ++i) {
      const float sum = block_sum<mma_threads>(held[i]);
      if (threadIdx.x == 0) score.add_held(i, b, h, sum);
    }
  store_rows(dQ, p.dQ, head_data<T>(p.dQ, b, h), first_query + warp_row, p.queries, 0, p.head_dim, float(p.scale), float(p.scale));
}

}  // namespace samite
