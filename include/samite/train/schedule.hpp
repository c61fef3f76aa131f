// samite/train/schedule.hpp: learning rate over a run.
#pragma once
#include <algorithm>
#include <cmath>
#include <numbers>

#include <samite/core/dtype.hpp>

namespace samite {

/// Linear warm-up to `peak`, then a half cosine to peak * final_fraction at the last step.
///
/// source  Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5, without restarts
struct cosine_schedule {
  double peak = 6e-4;
  index_t steps = 1000, warmup_steps = 40;
  double final_fraction = 0;

  /// Rate of step 0 .. steps - 1; the first step is not at zero, so that it does something.
  double at(index_t step) const {
    if (step < warmup_steps) return peak * double(step + 1) / double(warmup_steps);
    if (steps <= warmup_steps + 1) return peak;
    const double t = std::min(1.0, double(step - warmup_steps) / double(steps - warmup_steps - 1));
    return peak * (final_fraction + (1 - final_fraction) * 0.5 * (1 + std::cos(std::numbers::pi * t)));
  }
};

}  // namespace samite
