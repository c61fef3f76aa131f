// samite/mask/strided.hpp: periodic masks. They have no full tiles; permute tokens by residue where that matters.
#pragma once
#include <samite/expr/index.hpp>

namespace samite {

/// Keeps every `step`-th key of the last `width`: 0 <= q - kv < width and (q - kv) % step == 0.
///
/// width  tokens, a run-time argument;  step: baked
/// errors  E-MASK-STRIDE if width < 1 or step < 1
inline auto dilated(index_t width, index_t step) {
  using namespace symbols;
  if (width < 1 || step < 1) raise("E-MASK-STRIDE", "dilated(width=", width, ", step=", step, "): both are token counts and must be >= 1");
  return q - kv >= 0 && q - kv < width && (q - kv) % step == 0;
}

/// Keeps the last `step` keys and every `step`-th one before them, causally.
///
/// errors  E-MASK-STRIDE if step < 1
/// source  Child et al. 2019, arXiv:1904.10509, section 4.3
inline auto strided(index_t step) {
  using namespace symbols;
  if (step < 1) raise("E-MASK-STRIDE", "strided(step=", step, "): the step is a token count and must be >= 1");
  return kv <= q && (q - kv < step || (q - kv) % step == 0);
}

// Near misses: counts with fractions.
template <class T> requires detail::some_fraction<T> auto strided(T) { return detail::refuse_token_fraction<T>(); }
template <class A, class B> requires detail::some_fraction<A, B> auto dilated(A, B) { return detail::refuse_token_fraction<A, B>(); }

}  // namespace samite
