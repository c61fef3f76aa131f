// samite/mask/transform.hpp: masks made from masks: other indices, shifts, transposes, ranges, repetition in every document.
#pragma once
#include <samite/mask/any_mask.hpp>

namespace samite {

namespace detail {

template <index_expr Q, index_expr K>
struct moved_mask : predicate_tag {
  any_mask mask;
  Q q;
  K kv;
  moved_mask(any_mask m, Q a, K b) : mask(std::move(m)), q(std::move(a)), kv(std::move(b)) {}
  node_id lower(program& p) const {
    const node_id a = q.lower(p), b = kv.lower(p);
    return mask.lower_with(p, a, b);
  }
};

}  // namespace detail

/// Keeps (q, kv) where `mask` keeps (query, key): the mask, looked up at other indices.
///
/// query, key  index expressions over b, h, q and kv
template <index_operand Q, index_operand K>
auto with_indices(any_mask mask, Q query, K key) {
  auto a = detail::as_index(std::move(query));
  auto b = detail::as_index(std::move(key));
  return detail::moved_mask<decltype(a), decltype(b)>(std::move(mask), std::move(a), std::move(b));
}

/// The mask moved down by `rows` and right by `columns`: what it kept at (0, 0) it keeps at (rows, columns).
inline auto shifted(any_mask mask, scalar rows, scalar columns) {
  using namespace symbols;
  return with_indices(std::move(mask), q - std::move(rows), kv - std::move(columns));
}

/// Rows and columns exchanged.
inline auto transposed(any_mask mask) {
  using namespace symbols;
  return with_indices(std::move(mask), kv, q);
}

/// Pairs that `mask` keeps and `hidden` does not.
template <predicate_expr L, predicate_expr R>
auto minus(L mask, R hidden) {
  return std::move(mask) && !std::move(hidden);
}

// Near misses: indices that are reals or nothing of the kind, and operands that are no masks.
template <class Q, class K>
  requires(detail::stray_index<Q> || detail::stray_index<K>)
any_mask with_indices(any_mask mask, const Q&, const K&) {
  static_assert(detail::never<Q, K>,
                "with_indices(mask, query, key): query and key are index expressions over b, h, q and kv, e.g. `with_indices(mask, q / 2, kv)`, and no reals, tables or masks. [E-MASK-OPERAND]");
  return mask;
}
template <class L, class R>
  requires(!predicate_expr<L> || !predicate_expr<R>)
any_mask minus(const L& mask, const R& hidden) {
  if constexpr (predicate_expr<L>) return any_mask(hidden);
  else return any_mask(mask);
}

/// A range of indices, `end` excluded; empty if both are the same.
struct index_range {
  scalar begin = 0;
  scalar end = 0;
};

namespace detail {
inline void check_range(const char* axis, const index_range& range) {
  if (range.end.value() < range.begin.value())
    raise("E-MASK-RANGE", "restricted: the range of ", axis, " is {", range.begin.value(), ", ", range.end.value(), "} and ends before it begins; give {first, one past the last}, or the same number twice for an empty range");
}
}  // namespace detail

/// The mask inside a range of queries and a range of keys; nothing is kept outside. The ends are run-time arguments: a range that later ends
/// before it begins is empty.
///
/// errors  E-MASK-RANGE if a range ends before it begins
template <class E>
  requires(!predicate_expr<E>)
any_mask restricted(const E& mask, index_range, index_range) {
  return any_mask(mask);  // for its sentence
}
template <class E, class... T>
  requires(sizeof...(T) < 2 && (std::same_as<T, index_range> && ...)) || (sizeof...(T) == 2 && (std::is_arithmetic_v<T> && ...))
any_mask restricted(const E& mask, const T&...) {
  static_assert(detail::never<E>, "restricted(mask, {4, 12}): two ranges were expected, of queries and of keys, e.g. `restricted(mask, {4, 12}, {0, 16})`. For one axis write `mask && kv >= 4 && kv < 12`. "
                                  "[E-MASK-OPERAND]");
  return any_mask(mask);
}
template <class E>
any_mask restricted(const E& mask, index_range) { return restricted(mask); }
template <predicate_expr E>
auto restricted(E mask, index_range queries, index_range keys) {
  using namespace symbols;
  detail::check_range("queries", queries), detail::check_range("keys", keys);
  return std::move(mask) && q >= queries.begin && q < queries.end && kv >= keys.begin && kv < keys.end;
}

/// The mask repeated in every document, over positions inside the document. What lies in different documents is hidden.
///
/// ids     [S] or [B,S]: the document of each token
/// starts  of the same shape: the index at which the token's document begins, from `document_starts`
inline auto per_document(any_mask mask, table_ref ids, table_ref starts) {
  using namespace symbols;
  return samite::per_batch(ids, q) == samite::per_batch(ids, kv) &&
         with_indices(std::move(mask), q - samite::per_batch(starts, q), kv - samite::per_batch(starts, kv));
}

}  // namespace samite
