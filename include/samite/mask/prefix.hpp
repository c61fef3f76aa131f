// samite/mask/prefix.hpp: prefix-LM masks: a prefix that everyone sees, causal after it.
#pragma once
#include <samite/mask/causal.hpp>

namespace samite {

/// Keeps the first `tokens` keys for every query, and what lies behind causally: kv < tokens or kv <= q.
///
/// tokens  a number, a `scalar`, or per batch `lengths[b]`. A run-time argument
/// errors  E-MASK-LENGTHS if a number or scalar is negative
/// source  Raffel et al. 2020, arXiv:1910.10683, section 3.2.1
template <index_operand E>
auto prefix(E tokens) {
  using namespace symbols;
  detail::check_tokens_of("prefix", tokens);
  return kv < std::move(tokens) || kv <= q;
}

/// Keeps a band of `reach` keys on both sides; the first `tokens` tokens see and are seen by all.
///
/// errors  E-MASK-WINDOW if reach < 0 or tokens < 0
/// source  Beltagy et al. 2020, arXiv:2004.05150, section 3.1
inline auto global_window(index_t tokens, index_t reach) {
  using namespace symbols;
  if (tokens < 0 || reach < 0)
    raise("E-MASK-WINDOW", "global_window(tokens=", tokens, ", reach=", reach, "): both are token counts and must be >= 0");
  const scalar globals(tokens);
  return kv < globals || q < globals || abs(q - kv) <= reach;
}

// Near misses: counts with fractions.
template <class T> requires detail::some_fraction<T> auto prefix(T) { return detail::refuse_token_fraction<T>(); }
template <class A, class B> requires detail::some_fraction<A, B> auto global_window(A, B) { return detail::refuse_token_fraction<A, B>(); }

}  // namespace samite
