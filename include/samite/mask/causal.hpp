// samite/mask/causal.hpp: causal masks in both frames and by position.
#pragma once
#include <samite/expr/table.hpp>

namespace samite {

namespace detail {
inline void check_tokens(const char* call, index_t tokens) {
  if (tokens < 0) raise("E-MASK-LENGTHS", call, ": ", tokens, " tokens; a count of tokens is 0 or more");
}
template <class E>
void check_tokens_of(const char* call, const E& tokens) {
  if constexpr (std::integral<E>) check_tokens(call, checked_number(tokens));
  else if constexpr (std::same_as<E, scalar>) check_tokens(call, tokens.value());
}
}  // namespace detail

/// Keeps the keys up to the query's own index: kv <= q (top-left frame).
inline auto causal() {
  using namespace symbols;
  return kv <= q;
}

/// Keeps kv <= q + offset; with offset = K - Q the last query sees the last key (bottom-right frame).
///
/// offset  tokens, any sign: a number, a `scalar` or an index expression such as `lengths[b] - fixed(1)`. A run-time argument
/// returns  with a negative offset the first -offset rows are empty
template <index_operand E>
auto causal_bottom_right(E offset) {
  using namespace symbols;
  return kv <= q + std::move(offset);
}

template <class T> requires detail::some_fraction<T> auto causal_bottom_right(T) { return detail::refuse_token_fraction<T>(); }

/// The bottom-right frame for Q queries over K keys: the offset is K - Q.
///
/// errors  E-MASK-LENGTHS if a count is negative
inline auto causal_bottom_right(scalar Q, scalar K) {
  using namespace symbols;
  detail::check_tokens("causal_bottom_right, queries", Q.value()), detail::check_tokens("causal_bottom_right, keys", K.value());
  return kv <= q + (std::move(K) - std::move(Q));
}

/// Keeps keys whose position is not later than the query's: positions_kv[kv] <= positions_q[q].
///
/// positions_q [Q] or [B,Q], positions_kv [K] or [B,K]: absolute positions, e.g. of a cache or of a context-parallel rank
inline auto causal_by_position(table_ref positions_q, table_ref positions_kv) {
  using namespace symbols;
  return per_batch(std::move(positions_kv), kv) <= per_batch(std::move(positions_q), q);
}

}  // namespace samite
