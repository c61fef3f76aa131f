// samite/mask/padding.hpp: masks by length, for batches of rows of different lengths.
#pragma once
#include <samite/mask/causal.hpp>

namespace samite {

/// Keeps the first `tokens` keys: kv < tokens.
///
/// tokens  a number, a `scalar`, or an index expression such as `lengths[b]`. A run-time argument
/// errors  E-MASK-LENGTHS for a number below 0
template <index_operand E>
auto length(E tokens) {
  using namespace symbols;
  detail::check_tokens_of("length", tokens);
  return kv < std::move(tokens);
}
/// Keeps the first lengths[b] keys of batch b. lengths [B]
inline auto length(table_ref lengths) {
  using namespace symbols;
  return kv < lengths[b];
}

/// Hides the first starts[b] keys of batch b (padding on the left). starts [B]
inline auto left_padding(table_ref starts) {
  using namespace symbols;
  return kv >= starts[b];
}

// Near misses: counts with fractions.
template <class T> requires detail::some_fraction<T> auto length(T) { return detail::refuse_token_fraction<T>(); }

}  // namespace samite
