// integers.cuh: integer types and arithmetic on indices. Compiles for the host too, with __device__ defined away.
#pragma once

namespace samite {

using index = long long;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using u8 = unsigned char;
using i32 = int;
using i64 = long long;

// Quotients round towards minus infinity, divisors are positive.
__device__ inline index floor_div(index a, index b) {
  const index quotient = a / b;
  return quotient - (a % b < 0 ? 1 : 0);
}
__device__ inline index floor_mod(index a, index b) {
  const index remainder = a % b;
  return remainder < 0 ? remainder + b : remainder;
}
__device__ inline index index_abs(index a) { return a < 0 ? -a : a; }
__device__ inline index index_min(index a, index b) { return b < a ? b : a; }
__device__ inline index index_max(index a, index b) { return a < b ? b : a; }
__device__ inline index clamp(index x, index low, index high) { return x < low ? low : (x > high ? high : x); }

}  // namespace samite
