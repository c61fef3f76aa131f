// layer 0.norm: row kernel
//   %0 = operand 0: bf16
//   %1 = mul(%0, %0)
//   %2 = row_sum(%1)
//   %3 = columns
//   %4 = to_real(%3)
//   %5 = div(%2, %4)
//   %6 = argument 0
//   %7 = add(%5, %6)
//   %8 = rsqrt(%7)
//   %9 = mul(%0, %8)
//   %10 = operand 1: bf16
//   %11 = mul(%9, %10)
//   output 0 = %11: bf16
#include "row.cuh"

namespace samite {

using real = float;
constexpr int team = 256;  // threads a row

struct row_parameters {
  row_space space;
  row_tensor operands[2];
  row_tensor outputs[1];
  double reals[1];
  index indices[1];
};

template <class T>
__device__ inline real load(T x) {
  return arithmetic<real>::load(x);
}

extern "C" __global__ void __launch_bounds__(row_threads) row_layer_0_norm(const __grid_constant__ row_parameters p) {
  const bf16* const x0 = static_cast<const bf16*>(p.operands[0].data);
  const bf16* const x1 = static_cast<const bf16*>(p.operands[1].data);
  bf16* const y0 = static_cast<bf16*>(p.outputs[0].data);
  const index columns = p.space.columns;
  const int lane = team_lane<team>();
  for (index row = first_row<team>(); row < p.space.rows; row += row_step<team>()) {
    const index x0_row = row_offset(p.space, p.operands[0], row);
    const index x1_row = row_offset(p.space, p.operands[1], row);
    const index y0_row = row_offset(p.space, p.outputs[0], row);
    const index v3 = columns;
    const real v4 = real(v3);
    const real v6 = real(p.reals[0]);
    real partial2 = 0;  // row_sum of %1
    for (index column = lane; column < columns; column += team) {
      const real v0 = load(x0[x0_row + column * p.operands[0].column_stride]);
      const real v1 = (v0 * v0);
      partial2 += v1;
    }
    const real v2 = team_reduce<sum_of, team>(partial2);
    const real v5 = (v2 / v4);
    const real v7 = (v5 + v6);
    const real v8 = real_rsqrt(v7);
    for (index column = lane; column < columns; column += team) {
      const real v0 = load(x0[x0_row + column * p.operands[0].column_stride]);
      const real v9 = (v0 * v8);
      const real v10 = load(x1[x1_row + column * p.operands[1].column_stride]);
      const real v11 = (v9 * v10);
      put(y0[y0_row + column * p.outputs[0].column_stride], v11);
    }
  }
}

}  // namespace samite
