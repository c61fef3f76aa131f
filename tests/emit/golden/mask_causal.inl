struct mask_arguments {
  long long unused;
};

struct keep_head {
};
__device__ __forceinline__ keep_head keep_of_head(long long /*b*/, long long /*h*/, const mask_arguments& /*m*/) {
  return {};
}

struct keep_row {
  template <class F> __device__ __forceinline__ keep_row each(F ) const { return {}; }
};
__device__ __forceinline__ keep_row keep_of_row(long long /*b*/, long long /*h*/, long long /*q*/, const keep_head& /*head*/, const mask_arguments& /*m*/) {
  return {};
}

struct keep_column {
  template <class F> __device__ __forceinline__ keep_column each(F ) const { return {}; }
};
__device__ __forceinline__ keep_column keep_of_column(long long /*b*/, long long /*h*/, long long /*kv*/, const keep_head& /*head*/, const mask_arguments& /*m*/) {
  return {};
}

__device__ __forceinline__ bool keep(long long /*b*/, long long /*h*/, long long q, long long kv, const keep_head& /*head*/, const keep_row& /*row*/, const keep_column& /*column*/, const mask_arguments& /*m*/) {
  const long long x3 = q - kv;
  const bool keep4 = 0 <= x3;
  return keep4;
}

__device__ __forceinline__ bool keep(long long b, long long h, long long q, long long kv, const mask_arguments& m) {
  const keep_head head = keep_of_head(b, h, m);
  return keep(b, h, q, kv, head, keep_of_row(b, h, q, head, m), keep_of_column(b, h, kv, head, m), m);
}
