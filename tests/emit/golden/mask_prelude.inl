// Quotients round towards minus infinity; divisors are positive.
__device__ __forceinline__ long long floor_div(long long a, long long b) {
  const long long quotient = a / b;
  return quotient - (a % b < 0 ? 1 : 0);
}
__device__ __forceinline__ long long floor_mod(long long a, long long b) {
  const long long rest = a % b;
  return rest < 0 ? rest + b : rest;
}
__device__ __forceinline__ long long index_abs(long long a) { return a < 0 ? -a : a; }
__device__ __forceinline__ long long index_min(long long a, long long b) { return b < a ? b : a; }
__device__ __forceinline__ long long index_max(long long a, long long b) { return a < b ? b : a; }
