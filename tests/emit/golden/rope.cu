// rope: row kernel
//   %0 = operand 0: f32
//   %1 = operand 1: i64, one a row
//   %2 = column
//   %3 = argument 0
//   %4 = to_real(%2)
//   %5 = mul(%3, %4)
//   %6 = exp(%5)
//   %7 = to_real(%1)
//   %8 = mul(%6, %7)
//   %9 = cos(%8)
//   %10 = mul(%0, %9)
//   %11 = argument 1
//   %12 = less(%4, %11)
//   %13 = roll(%0, by 32)
//   %14 = neg(%13)
//   %15 = roll(%0, by -32)
//   %16 = select(%12, %14, %15)
//   %17 = sin(%8)
//   %18 = mul(%16, %17)
//   %19 = add(%10, %18)
//   output 0 = %19: f32
#include "row.cuh"

namespace samite {

using real = float;
constexpr int team = 32;  // threads a row

struct row_parameters {
  row_space space;
  row_tensor operands[2];
  row_tensor outputs[1];
  double reals[2];
  index indices[2];
};

template <class T>
__device__ inline real load(T x) {
  return arithmetic<real>::load(x);
}

extern "C" __global__ void __launch_bounds__(row_threads) row_rope(const __grid_constant__ row_parameters p) {
  const f32* const x0 = static_cast<const f32*>(p.operands[0].data);
  const i64* const x1 = static_cast<const i64*>(p.operands[1].data);
  f32* const y0 = static_cast<f32*>(p.outputs[0].data);
  const index columns = p.space.columns;
  const int lane = team_lane<team>();
  for (index row = first_row<team>(); row < p.space.rows; row += row_step<team>()) {
    const index x0_row = row_offset(p.space, p.operands[0], row);
    const index x1_row = row_offset(p.space, p.operands[1], row);
    const index y0_row = row_offset(p.space, p.outputs[0], row);
    const index v1 = index(x1[x1_row]);
    const real v3 = real(p.reals[0]);
    const real v7 = real(v1);
    const real v11 = real(p.reals[1]);
    for (index column = lane; column < columns; column += team) {
      const real v0 = load(x0[x0_row + column * p.operands[0].column_stride]);
      const real v4 = real(column);
      const real v5 = (v3 * v4);
      const real v6 = real_exp(v5);
      const real v8 = (v6 * v7);
      const real v9 = real_cos(v8);
      const real v10 = (v0 * v9);
      const bool v12 = (v4 < v11);
      const index column_1 = floor_mod(column + 32, columns);
      const real v0_at_column_1 = load(x0[x0_row + column_1 * p.operands[0].column_stride]);
      const real v14 = (-v0_at_column_1);
      const index column_2 = floor_mod(column + (-32), columns);
      const real v0_at_column_2 = load(x0[x0_row + column_2 * p.operands[0].column_stride]);
      const real v16 = (v12 ? v14 : v0_at_column_2);
      const real v17 = real_sin(v8);
      const real v18 = (v16 * v17);
      const real v19 = (v10 + v18);
      put(y0[y0_row + column * p.outputs[0].column_stride], v19);
    }
  }
}

}  // namespace samite
