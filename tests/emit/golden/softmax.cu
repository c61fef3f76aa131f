// softmax: row kernel
//   %0 = operand 0: f64
//   %1 = row_max(%0)
//   %2 = sub(%0, %1)
//   %3 = exp(%2)
//   %4 = row_sum(%3)
//   %5 = div(%3, %4)
//   %6 = row_min(%5)
//   output 0 = %5: f64
//   output 1 = %6: f64, one a row
#include "row.cuh"

namespace samite {

using real = double;
constexpr int team = 1;  // threads a row

struct row_parameters {
  row_space space;
  row_tensor operands[1];
  row_tensor outputs[2];
};

template <class T>
__device__ inline real load(T x) {
  return arithmetic<real>::load(x);
}

extern "C" __global__ void __launch_bounds__(row_threads) row_softmax(const __grid_constant__ row_parameters p) {
  const f64* const x0 = static_cast<const f64*>(p.operands[0].data);
  f64* const y0 = static_cast<f64*>(p.outputs[0].data);
  f64* const y1 = static_cast<f64*>(p.outputs[1].data);
  const index columns = p.space.columns;
  const int lane = team_lane<team>();
  for (index row = first_row<team>(); row < p.space.rows; row += row_step<team>()) {
    const index x0_row = row_offset(p.space, p.operands[0], row);
    const index y0_row = row_offset(p.space, p.outputs[0], row);
    const index y1_row = row_offset(p.space, p.outputs[1], row);
    real partial1 = -infinity();  // row_max of %0
    for (index column = lane; column < columns; column += team) {
      const real v0 = load(x0[x0_row + column * p.operands[0].column_stride]);
      partial1 = fmax(partial1, v0);
    }
    const real v1 = team_reduce<max_of, team>(partial1);
    real partial4 = 0;  // row_sum of %3
    for (index column = lane; column < columns; column += team) {
      const real v0 = load(x0[x0_row + column * p.operands[0].column_stride]);
      const real v2 = (v0 - v1);
      const real v3 = real_exp(v2);
      partial4 += v3;
    }
    const real v4 = team_reduce<sum_of, team>(partial4);
    real partial6 = infinity();  // row_min of %5
    for (index column = lane; column < columns; column += team) {
      const real v0 = load(x0[x0_row + column * p.operands[0].column_stride]);
      const real v2 = (v0 - v1);
      const real v3 = real_exp(v2);
      const real v5 = (v3 / v4);
      partial6 = fmin(partial6, v5);
    }
    const real v6 = team_reduce<min_of, team>(partial6);
    if (lane == 0) put(y1[y1_row], v6);
    for (index column = lane; column < columns; column += team) {
      const real v0 = load(x0[x0_row + column * p.operands[0].column_stride]);
      const real v2 = (v0 - v1);
      const real v3 = real_exp(v2);
      const real v5 = (v3 / v4);
      put(y0[y0_row + column * p.outputs[0].column_stride], v5);
    }
  }
}

}  // namespace samite
