struct mask_arguments {
  long long scalars[2];
  long long dims[3][3];
  const int* tables[3];
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
  long long x11;
  long long x22;
  long long x37;
  bool keep39;
  template <class F> __device__ __forceinline__ keep_row each(F f) const { return {f(x5), f(x11), f(x22), f(x37), f(keep39)}; }
};
__device__ __forceinline__ keep_row keep_of_row(long long b, long long /*h*/, long long q, const keep_head& /*head*/, const mask_arguments& m) {
  const long long x5 = floor_div(q, 4);
  const long long x11 = floor_mod(q, 4);
  const long long x18 = table_at(m.tables[0], m.dims[0], 0, b, x5);
  const bool keep19 = 0 == x18;
  const bool keep20 = !keep19;
  const long long x21 = table_at(m.tables[1], m.dims[1], 0, b, x5);
  const long long x22 = keep20 ? x21 : 0;
  const long long x34 = m.scalars[0] - 1;
  const long long x35 = index_max(0, x22);
  const long long x36 = index_min(x34, x35);
  const long long x37 = table_at(m.tables[2], m.dims[2], 0, b, x36);
  const bool keep38 = (-1) == x37;
  const bool keep39 = !keep38;
  return {x5, x11, x22, x37, keep39};
}

struct keep_column {
  long long x7;
  long long x12;
  long long x43;
  template <class F> __device__ __forceinline__ keep_column each(F f) const { return {f(x7), f(x12), f(x43)}; }
};
__device__ __forceinline__ keep_column keep_of_column(long long b, long long /*h*/, long long kv, const keep_head& /*head*/, const mask_arguments& m) {
  const long long x6 = kv - m.scalars[0];
  const long long x7 = floor_div(x6, 4);
  const long long x12 = floor_mod(x6, 4);
  const long long x34 = m.scalars[0] - 1;
  const long long x41 = index_max(kv, 0);
  const long long x42 = index_min(x34, x41);
  const long long x43 = table_at(m.tables[2], m.dims[2], 0, b, x42);
  return {x7, x12, x43};
}

__device__ __forceinline__ bool keep(long long /*b*/, long long /*h*/, long long /*q*/, long long kv, const keep_head& /*head*/, const keep_row& row, const keep_column& column, const mask_arguments& m) {
  const bool keep2 = m.scalars[0] <= kv;
  const bool keep8 = row.x5 == column.x7;
  const bool keep9 = keep2 & keep8;
  const long long x13 = row.x11 - column.x12;
  const bool keep14 = 0 <= x13;
  const bool keep15 = keep9 & keep14;
  const bool keep16 = kv < m.scalars[0];
  const long long x23 = kv - row.x22;
  const bool keep25 = x23 <= (-1);
  const bool keep26 = keep16 & keep25;
  const long long x28 = -m.scalars[1];
  const long long x29 = kv - row.x11;
  const long long x30 = x29 - row.x22;
  const bool keep31 = x28 < x30;
  const bool keep32 = keep26 & keep31;
  const bool keep40 = keep32 & row.keep39;
  const bool keep44 = column.x43 == row.x37;
  const bool keep45 = keep40 & keep44;
  const bool keep46 = keep15 | keep45;
  return keep46;
}

__device__ __forceinline__ bool keep(long long b, long long h, long long q, long long kv, const mask_arguments& m) {
  const keep_head head = keep_of_head(b, h, m);
  return keep(b, h, q, kv, head, keep_of_row(b, h, q, head, m), keep_of_column(b, h, kv, head, m), m);
}
