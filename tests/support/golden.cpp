// tests/support/golden.cpp: how results are compared with golden files.
#include "golden.hpp"

namespace samite_tests {

std::string golden_difference(const tensor& actual, const tensor& expected, golden_tolerance allowed) {
  if (actual.elements() != expected.elements()) return concat_text(actual.dims(), " where ", expected.dims(), " is expected");
  const tensor a = actual.to_dtype(f64), e = expected.to_dtype(f64);
  double worst = 0, largest = 0, error2 = 0, norm2 = 0;
  for (index_t i = 0; i < a.elements(); ++i) {
    const double x = a.data<double>()[i], y = e.data<double>()[i], d = std::fabs(x - y);
    if (std::isnan(d)) return concat_text("NaN at ", i);
    worst = std::fmax(worst, d), largest = std::fmax(largest, std::fabs(y)), error2 += d * d, norm2 += y * y;
  }
  const double relative = norm2 > 0 ? std::sqrt(error2 / norm2) : std::sqrt(error2);
  if (worst <= allowed.largest * largest + 1e-6 && relative <= allowed.relative) return {};
  return concat_text("largest error ", worst, " of values up to ", largest, ", relative L2 ", relative, "; allowed ", allowed.largest, " and ", allowed.relative);
}

weight_map golden_drafter_weights(const std::string& folder, const drafter_config& c) {
  graph shapes;
  declare_drafter(shapes, c, f32, f32);
  return load_weights(golden_path(folder), parameter_shapes(shapes), f32);
}

weight_map golden_forward_weights(const drafter_config& c) {
  weight_map weights = golden_drafter_weights("dflash_forward/drafter", c);
  const golden_file io("dflash_forward/target_io.safetensors");
  weights["target.embedding"] = io["embed_tokens.weight"], weights["target.head"] = io["lm_head.weight"];
  return weights;
}

}  // namespace samite_tests
