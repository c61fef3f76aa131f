// samite/nn/layers.hpp: norms, rotary embedding, gates and losses, written in the language.
#pragma once
#include <cmath>
#include <utility>
#include <vector>

#include <samite/expr/tensor.hpp>

namespace samite {

/// w * x / sqrt(mean(x^2) + eps) over the last axis; statistics in fp32, rounded to x's dtype before the weight.
///
/// x [.., C], w [C]; returns [.., C] of x's dtype
/// source  Zhang and Sennrich 2019, arXiv:1910.07467, equation 4; the place of the rounding is that of Qwen3 and Llama
inline value rms_norm(const value& x, const value& w, double eps, std::string label = {}) {
  return let(round_to(x * rsqrt(mean(x * x) + eps), x.type()) * w, {.type = x.type(), .label = std::move(label)});
}

/// silu(gate) * up.  source  Shazeer 2020, arXiv:2002.05202
inline value swiglu(const value& gate, const value& up, std::string label = {}) {
  return let(silu(gate) * up, {.label = std::move(label)});
}

/// Inverse frequencies of rotary position embedding, in pairs (i, i + D/2): theta^(-2i/D).
///
/// errors  E-NN-ROPE unless D is even and theta positive
/// source  Su et al. 2021, arXiv:2104.09864, section 3.2.2; half-split pairing of the checkpoints in use
inline std::vector<double> rope_frequencies(index_t D, double theta) {
  if (D < 2 || D % 2 != 0 || !(theta > 0))
    raise("E-NN-ROPE", "rope over ", D, " dimensions with theta ", theta, ": the rotated width must be even and theta positive");
  std::vector<double> frequencies;
  for (index_t i = 0; i < D; ++i) frequencies.push_back(std::pow(theta, -2.0 * double(i % (D / 2)) / double(D)));
  return frequencies;
}

/// Cosines and sines of position * frequency, shared by all layers. Angles are fp32 whatever the model's dtype.
struct rope_angles {
  value cos, sin;  // [.., 1, D]: a row a token, broadcast over its heads
};

/// positions [..] i32 or i64
inline rope_angles make_rope(const value& positions, index_t D, double theta, dtype type) {
  graph& g = positions.owner();
  const dtype exact = type == dtype::f64 ? dtype::f64 : dtype::f32;
  const value frequencies = g.constant(rope_frequencies(D, theta), exact, {D});
  shape dims = positions.dims();
  dims.push_back(1), dims.push_back(1);
  const value at = reshape(positions, std::move(dims));
  return {let(cos(at * frequencies), {.type = type, .label = "rope.cos"}), let(sin(at * frequencies), {.type = type, .label = "rope.sin"})};
}

/// Rotates each pair (i, i + D/2) of the last axis by its angle.  x [.., H, D]
inline value rope(const value& x, const rope_angles& angles, std::string label = {}) {
  const double half = double(x.extent(-1).constant()) / 2;
  return let(x * angles.cos + select(column() < half, -1.0, 1.0) * roll(x, x.extent(-1).constant() / 2) * angles.sin, {.type = x.type(), .label = std::move(label)});
}

/// Natural log of the sum of exponentials of each row, safe for large scores.
template <tensor_operand E>
auto log_sum_exp(const E& x) {
  const auto top = stop_gradient(largest(x));
  return top + log(sum(exp(x - top)));
}

/// -log softmax(logits)[label] of each row. A negative label, such as -100, marks a row to ignore: loss and gradient are 0.
///
/// logits [.., V] real, labels [.., 1] i32 or i64; returns [.., 1] fp32 (fp64 for f64 logits)
/// A label of V or more is a mistake that a kernel can't raise: it gives NaN, so that it shows in the loss
inline value cross_entropy(const value& logits, const value& labels, std::string label = {}) {
  const dtype type = logits.type() == dtype::f64 ? dtype::f64 : dtype::f32;
  const auto loss = log_sum_exp(logits) - sum(select(equal(column(), labels), logits, 0.0));
  return let(select(labels < 0.0, 0.0, select(labels < columns(), loss, std::nan(""))), {.type = type, .label = std::move(label)});
}

/// Cross-entropy of softmax(logits) against the distribution softmax(teacher), which is constant.
///
/// source  Hinton et al. 2015, arXiv:1503.02531, at temperature 1
inline value soft_cross_entropy(const value& logits, const value& teacher, std::string label = {}) {
  const dtype type = logits.type() == dtype::f64 ? dtype::f64 : dtype::f32;
  const auto weight = exp(stop_gradient(teacher) - log_sum_exp(stop_gradient(teacher)));
  return let(log_sum_exp(logits) - sum(weight * logits), {.type = type, .label = std::move(label)});
}

/// Column of the largest element of each row, the first of equals: [.., 1], as a real number; the count of columns for a row with NaN, infinity for none.
inline value argmax(const value& x, std::string label = {}) {
  return let(smallest(select(equal(x, largest(x)), 1.0 * column(), 1.0 * columns())), {.type = dtype::f32, .label = std::move(label)});
}

}  // namespace samite
