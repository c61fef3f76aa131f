// samite/mask/causal.hpp: causal masks in both frames and by position.
#pragma once
#include <samite/expr/table.hpp>

namespace samite {

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

/// The bottom-right frame for Q queries over K keys: the offset is K - Q.
inline auto causal_bottom_right(scalar Q, scalar K) {
  using namespace symbols;
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
