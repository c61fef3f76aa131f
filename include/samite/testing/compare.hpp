// samite/testing/compare.hpp: whether two sets of numbers agree, with tolerances from dtype and reduction length.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include <samite/core/dtype.hpp>
#include <samite/core/error.hpp>

namespace samite::testing {

/// Half the distance from 1 to the next number: the largest relative error of one rounding to nearest.
constexpr double unit_roundoff(dtype type) {
  switch (type) {
    case dtype::f64: return 0x1p-53;
    case dtype::f32: return 0x1p-24;
    case dtype::f16: return 0x1p-11;
    case dtype::bf16: return 0x1p-8;
    default: return 0;
  }
}

/// Numbers agree if |actual - expected| <= absolute + relative * |expected|.
struct tolerance {
  double relative = 0, absolute = 0;
};

/// Tolerance of a result in `type` that sums `reduction` terms of about `magnitude`, the terms themselves rounded to `type`
/// and accumulated in fp32 (fp64 for f64) in any order. The errors of rounding are independent, so they grow with the square
/// root of their count; 4 standard deviations and 4 roundings of the result are allowed.
inline tolerance tolerance_of(dtype type, index_t reduction = 1, double magnitude = 1) {
  const double rounding = unit_roundoff(type), accumulation = unit_roundoff(type == dtype::f64 ? dtype::f64 : dtype::f32);
  const double terms = double(reduction < 1 ? 1 : reduction);
  return {4 * rounding, magnitude * (4 * rounding * std::sqrt(terms) + 2 * accumulation * terms)};
}

/// The first pair that disagrees, as text; empty if all agree. Infinities must be equal; a NaN agrees with nothing.
template <class Actual, class Expected>
std::string difference(const std::vector<Actual>& actual, const std::vector<Expected>& expected, tolerance allowed) {
  if (actual.size() != expected.size()) return concat_text(actual.size(), " values where ", expected.size(), " are expected");
  std::size_t wrong = 0, first = 0;
  double worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = double(actual[i]), e = double(expected[i]);
    const double error = std::fabs(a - e);
    if (a == e || (std::isfinite(e) && error <= allowed.absolute + allowed.relative * std::fabs(e))) continue;
    if (wrong++ == 0) first = i;
    worst = std::isnan(error) || std::isnan(worst) ? NAN : std::fmax(worst, error);
  }
  if (wrong == 0) return {};
  return concat_text(wrong, " of ", actual.size(), " values differ; the first at ", first, ": ", double(actual[first]), " where ", double(expected[first]),
                     " is expected; allowed ", allowed.absolute, " + ", allowed.relative, " * |expected|, worst error ", worst);
}

}  // namespace samite::testing
