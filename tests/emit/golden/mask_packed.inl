struct mask_arguments {
  long long scalars[2];
  long long dims[1][3];
  const int* tables[1];
};

__device__ __forceinline__ long long table_at(const int* values, const long long* dims, long long i, long long j, long long k) {
  if (dims[0] * dims[1] * dims[2] == 0) return 0;
  i = i < 0 ? 0 : i < dims[0] ? i : dims[0] - 1;
  j = j < 0 ? 0 : j < dims[1] ? j : dims[1] - 1;
  k = k < 0 ? 0 : k < dims[2] ? k : dims[2] - 1;
  return values[(i * dims[1] + j) * dims[2] + k];
}

struct keep_head {
};
__device__ __forceinline__ keep_head keep_of_head(long long /*b*/, long long /*h*/, const mask_arguments& /*m*/) {
  return {};
}

struct keep_row {
  long long x5;
  bool keep14;
  template <class F> __device__ __forceinline__ keep_row each(F f) const { return {f(x5), f(keep14)}; }
};
__device__ __forceinline__ keep_row keep_of_row(long long /*b*/, long long /*h*/, long long q, const keep_head& /*head*/, const mask_arguments& m) {
  const long long x5 = table_at(m.tables[0], m.dims[0], 0, 0, q);
  const bool keep13 = m.scalars[1] == x5;
  const bool keep14 = !keep13;
  return {x5, keep14};
}

struct keep_column {
  long long x6;
  template <class F> __device__ __forceinline__ keep_column each(F f) const { return {f(x6)}; }
};
__device__ __forceinline__ keep_column keep_of_column(long long /*b*/, long long /*h*/, long long kv, const keep_head& /*head*/, const mask_arguments& m) {
  const long long x6 = table_at(m.tables[0], m.dims[0], 0, 0, kv);
  return {x6};
}

__device__ __forceinline__ bool keep(long long /*b*/, long long /*h*/, long long q, long long kv, const keep_head& /*head*/, const keep_row& row, const keep_column& column, const mask_arguments& m) {
  const long long x3 = q - kv;
  const bool keep4 = 0 <= x3;
  const bool keep7 = row.x5 == column.x6;
  const bool keep8 = keep4 & keep7;
  const bool keep10 = x3 < m.scalars[0];
  const bool keep11 = keep8 & keep10;
  const bool keep15 = keep11 & row.keep14;
  return keep15;
}

__device__ __forceinline__ bool keep(long long b, long long h, long long q, long long kv, const mask_arguments& m) {
  const keep_head head = keep_of_head(b, h, m);
  return keep(b, h, q, kv, head, keep_of_row(b, h, q, head, m), keep_of_column(b, h, kv, head, m), m);
}
