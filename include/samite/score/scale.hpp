// samite/score/scale.hpp: scores scaled and bounded: soft caps and temperatures by position.
#pragma once
#include <samite/score/any_score.hpp>

namespace samite {

/// cap * tanh(score / cap). The mask is applied after it, so that a hidden key's weight is exactly 0.
///
/// errors  E-SCORE-CAP unless cap > 0
/// source  Gemma Team 2024, arXiv:2408.00118, section 2; Bello et al. 2016, arXiv:1611.09940, section 4
inline auto softcap(double cap) {
  if (!(cap > 0)) raise("E-SCORE-CAP", "softcap(", cap, "): the cap must be a number above 0, e.g. softcap(50.0)");
  const detail::score_number limit(cap);  // one argument, used twice
  return limit * tanh(symbols::score / limit);
}

/// score * (1 + strength * log(1 + (q + offset + 1) / period)) with a whole quotient: sharper attention at late positions.
///
/// offset  position of query 0
/// errors  E-EXPR-DIVISOR unless period > 0
/// source  the attention temperature tuning of Llama 4, after Nakanishi 2025, arXiv:2501.19399
inline auto temperature(double strength, index_t period, scalar offset = 0) {
  using namespace symbols;
  return score * (log(real((q + offset + 1) / period + 1)) * strength + 1);
}

}  // namespace samite
