// mma.cuh: 16-bit matrix products of one warp on tensor cores (sm_80 and newer) and their operand loads.
//
// Fragments of m16n8k16, with g = lane / 4 and t = lane % 4: A holds rows g, g + 8 and columns 2t, 2t + 1 (+8); B rows (of k)
// 2t, 2t + 1 (+8) and column g; C rows g (c0, c1) and g + 8 (c2, c3), columns 2t, 2t + 1. Two neighbouring C tiles are one A
// operand after packing.  source  PTX ISA, "Matrix Fragments for mma.m16n8k16"
#pragma once
#include "core.cuh"

namespace samite {

// c += a b, all threads of the warp.
template <class T> __device__ inline void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <> __device__ inline void multiply_add<bf16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ inline void multiply_add<f16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

// Four 8x8 matrices; lanes 8i to 8i + 7 name the rows of matrix i, 16 bytes each.
__device__ inline void load_matrices(u32 (&x)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
}
__device__ inline void load_matrices_transposed(u32 (&x)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
}

// 2^x, with 2^-inf = 0; relative error 2^-22.
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Tiles in shared memory are row-major with 8 elements (16 bytes) of padding: rows of any multiple of 32 bytes then start in
// different banks, and the eight rows of a matrix are read without a conflict.
template <int Columns> constexpr int padded = Columns + 8;

// A operand: rows first_row to +15, columns first_column to +15 of a tile.
template <int Columns, class T> __device__ inline void load_a(u32 (&a)[4], const T* tile, int first_row, int first_column) {
  const int lane = threadIdx.x % 32, matrix = lane / 8;
  load_matrices(a, shared_address(tile + (first_row + matrix % 2 * 8 + lane % 8) * padded<Columns> + first_column + matrix / 2 * 8));
}
// B operands of two n8 tiles where n are the tile's rows and k its columns: b[0], b[1] for rows 0 to 7; b[2], b[3] for 8 to 15.
template <int Columns, class T> __device__ inline void load_b(u32 (&b)[4], const T* tile, int first_row, int first_column) {
  const int lane = threadIdx.x % 32, matrix = lane / 8;
  load_matrices(b, shared_address(tile + (first_row + matrix / 2 * 8 + lane % 8) * padded<Columns> + first_column + matrix % 2 * 8));
}
// The same where k are the tile's rows and n its columns.
template <int Columns, class T> __device__ inline void load_b_transposed(u32 (&b)[4], const T* tile, int first_row, int first_column) {
  const int lane = threadIdx.x % 32, matrix = lane / 8;
  load_matrices_transposed(b, shared_address(tile + (first_row + matrix % 2 * 8 + lane % 8) * padded<Columns> + first_column + matrix / 2 * 8));
}
// A operand of a tile stored transposed: its rows are k (first_k to +15), its columns the operand's rows.
template <int Columns, class T> __device__ inline void load_a_transposed(u32 (&a)[4], const T* tile, int first_k, int first_row) {
  const int lane = threadIdx.x % 32, matrix = lane / 8;
  load_matrices_transposed(a, shared_address(tile + (first_k + matrix / 2 * 8 + lane % 8) * padded<Columns> + first_row + matrix % 2 * 8));
}

// s[16 rows][8 * N] += a_tile[first_row..][Columns] * b_tile[first_b..][Columns]^T.
template <int Columns, int N, class T>
__device__ inline void multiply_rows(float (&s)[N][4], const T* a_tile, int first_row, const T* b_tile, int first_b) {
#pragma unroll
  for (int k = 0; k < Columns; k += 16) {
    u32 a[4];
    load_a<Columns>(a, a_tile, first_row, k);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      u32 b[4];
      load_b<Columns>(b, b_tile, first_b + n * 8, k);
      multiply_add<T>(s[n], a, b[0], b[1]);
      multiply_add<T>(s[n + 1], a, b[2], b[3]);
    }
  }
}

// out[16 rows][8 * M] += p[16 rows][8 * N] (rounded to T) * tile[8 * N rows from first_row][columns from first_column].
template <int Columns, int N, int M, class T>
__device__ inline void multiply_columns(float (&out)[M][4], const float (&p)[N][4], const T* tile, int first_row, int first_column) {
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    const u32 a[4] = {storage<T>::pair(p[n][0], p[n][1]), storage<T>::pair(p[n][2], p[n][3]),
                      storage<T>::pair(p[n + 1][0], p[n + 1][1]), storage<T>::pair(p[n + 1][2], p[n + 1][3])};
#pragma unroll
    for (int m = 0; m < M; m += 2) {
      u32 b[4];
      load_b_transposed<Columns>(b, tile, first_row + n * 8, first_column + m * 8);
      multiply_add<T>(out[m], a, b[0], b[1]);
      multiply_add<T>(out[m + 1], a, b[2], b[3]);
    }
  }
}

// The same for `Parts` times 16 rows from first_row on, which share what is read of b_tile.
template <int Columns, int N, int Parts, class T>
__device__ inline void multiply_rows(float (&s)[Parts][N][4], const T* a_tile, int first_row, const T* b_tile) {
#pragma unroll
  for (int k = 0; k < Columns; k += 16) {
    u32 a[Parts][4];
#pragma unroll
    for (int r = 0; r < Parts; ++r) load_a<Columns>(a[r], a_tile, first_row + 16 * r, k);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      u32 b[4];
      load_b<Columns>(b, b_tile, n * 8, k);
#pragma unroll
      for (int r = 0; r < Parts; ++r) multiply_add<T>(s[r][n], a[r], b[0], b[1]), multiply_add<T>(s[r][n + 1], a[r], b[2], b[3]);
    }
  }
}

// out[16 rows of each part][8 * M] += p[..][8 * N], packed in pairs of T, * tile[8 * N rows][8 * M columns].
template <int Columns, int N, int M, int Parts, class T>
__device__ inline void multiply_columns(float (&out)[Parts][M][4], const u32 (&p)[Parts][N][2], const T* tile) {
#pragma unroll
  for (int n = 0; n < N; n += 2)
#pragma unroll
    for (int m = 0; m < M; m += 2) {
      u32 b[4];
      load_b_transposed<Columns>(b, tile, n * 8, m * 8);
#pragma unroll
      for (int r = 0; r < Parts; ++r) {
        const u32 a[4] = {p[r][n][0], p[r][n][1], p[r][n + 1][0], p[r][n + 1][1]};
        multiply_add<T>(out[r][m], a, b[0], b[1]), multiply_add<T>(out[r][m + 1], a, b[2], b[3]);
      }
    }
}

}  // namespace samite
