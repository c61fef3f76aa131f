struct mask_arguments {
  long long unused;
};

__device__ __forceinline__ bool keep(long long /*b*/, long long /*h*/, long long q, long long kv, const mask_arguments&) {
  const long long x3 = q - kv;
  const bool keep4 = 0 <= x3;
  return keep4;
}
