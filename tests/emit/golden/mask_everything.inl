struct mask_arguments {
  long long scalars[3];
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
  long long x8;
  long long x12;
  long long x20;
  template <class F> __device__ __forceinline__ keep_row each(F f) const { return {f(x8), f(x12), f(x20)}; }
};
__device__ __forceinline__ keep_row keep_of_row(long long /*b*/, long long /*h*/, long long q, const keep_head& /*head*/, const mask_arguments& m) {
  const long long x6 = q + m.scalars[0];
  const long long x8 = floor_mod(x6, 5);
  const long long x12 = floor_div(q, 3);
  const long long x20 = floor_mod(q, 2);
  return {x8, x12, x20};
}

struct keep_column {
  long long x17;
  long long x21;
  template <class F> __device__ __forceinline__ keep_column each(F f) const { return {f(x17), f(x21)}; }
};
__device__ __forceinline__ keep_column keep_of_column(long long /*b*/, long long h, long long kv, const keep_head& /*head*/, const mask_arguments& /*m*/) {
  const long long x16 = floor_div(kv, 2);
  const long long x17 = index_max(h, x16);
  const long long x21 = floor_mod(kv, 2);
  return {x17, x21};
}

__device__ __forceinline__ bool keep(long long b, long long /*h*/, long long q, long long kv, const keep_head& /*head*/, const keep_row& row, const keep_column& column, const mask_arguments& m) {
  const long long x3 = q - kv;
  const long long x4 = index_abs(x3);
  const long long x9 = x4 - row.x8;
  const bool keep10 = 1 <= x9;
  const long long x13 = index_min(kv, row.x12);
  const long long x18 = x13 - column.x17;
  const long long x22 = table_at(m.tables[0], m.dims[0], b, row.x20, column.x21);
  const long long x23 = x18 - x22;
  const bool keep25 = x23 <= (-1);
  const long long x26 = q + kv;
  const bool keep28 = x26 < m.scalars[1];
  const long long x30 = kv * 2;
  const long long x31 = b + x30;
  const long long x33 = q * m.scalars[2];
  const long long x34 = x31 - x33;
  const bool keep35 = 0 == x34;
  const bool keep36 = !keep35;
  const bool keep37 = keep28 | keep36;
  const bool keep38 = keep10 ? keep25 : keep37;
  return keep38;
}

__device__ __forceinline__ bool keep(long long b, long long h, long long q, long long kv, const mask_arguments& m) {
  const keep_head head = keep_of_head(b, h, m);
  return keep(b, h, q, kv, head, keep_of_row(b, h, q, head, m), keep_of_column(b, h, kv, head, m), m);
}
