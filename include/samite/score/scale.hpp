// samite/score/scale.hpp: scores scaled and bounded: soft caps and temperatures by position.
#pragma once
#include <samite/score/any_score.hpp>

namespace samite {

namespace detail {
constexpr bool is_finite(double x) { return x - x == 0; }
}  // namespace detail

/// cap * tanh(score / cap). The mask is applied after it, so that a hidden key's weight is exactly 0.
///
/// errors  E-SCORE-CAP unless cap > 0 and finite
/// source  Gemma Team 2024, arXiv:2408.00118, section 2; Bello et al. 2016, arXiv:1611.09940, section 4
inline auto softcap(double cap) {
  if (!(cap > 0) || !detail::is_finite(cap)) raise("E-SCORE-CAP", "softcap(", cap, "): the cap must be a number above 0 and finite, e.g. softcap(50.0)");
  const detail::score_number limit(cap);  // one argument, used twice
  return limit * tanh(symbols::score / limit);
}

/// score * (1 + strength * log(1 + (q + offset + 1) / period)) with a whole quotient: sharper attention at late positions.
///
/// offset  position of query 0
/// errors  E-SCORE-CAP unless strength is finite; E-EXPR-DIVISOR unless period > 0
/// source  the attention temperature tuning of Llama 4, after Nakanishi 2025, arXiv:2501.19399
inline auto temperature(double strength, index_t period, scalar offset = 0) {
  using namespace symbols;
  if (!detail::is_finite(strength)) raise("E-SCORE-CAP", "temperature(", strength, ", ", period, "): the strength must be a finite number, e.g. temperature(0.1, 8192)");
  return score * (log(real((q + offset + 1) / period + 1)) * strength + 1);
}
template <std::floating_point T>
auto temperature(double, T, const scalar& = 0) { return detail::refuse_score_count<T>(); }

}  // namespace samite
