// samite/mask/document.hpp: masks of packed rows, where several documents share one row of tokens.
#pragma once
#include <samite/mask/causal.hpp>

namespace samite {

/// Keeps pairs of the same document: ids[q] == ids[kv].
///
/// ids    [S] or [B,S] integers; ids that never fall along a row give exact tile lists
/// cost   a new batch of documents costs a new tile map, never a new kernel
/// see    document(ids, padding) hides padding; without it all padding tokens form a document of their own
inline auto document(table_ref ids) {
  using namespace symbols;
  return per_batch(ids, q) == per_batch(ids, kv);
}

/// As document(ids), and tokens with the id `padding` (-1 by custom) neither see nor are seen.
inline auto document(table_ref ids, index_t padding) {
  using namespace symbols;
  return per_batch(ids, q) == per_batch(ids, kv) && per_batch(ids, q) != padding;
}

/// Cross attention by document: ids_q[q] == ids_kv[kv].
inline auto document(table_ref ids_q, table_ref ids_kv) {
  using namespace symbols;
  return per_batch(std::move(ids_q), q) == per_batch(std::move(ids_kv), kv);
}

/// Causal inside each document.
inline auto document_causal(table_ref ids) { return causal() && document(std::move(ids)); }
inline auto document_causal(table_ref ids, index_t padding) { return causal() && document(std::move(ids), padding); }

// Near misses: ids with fractions.
template <class T> requires detail::some_fraction<T> auto document(const table_ref&, T) { return detail::refuse_token_fraction<T>(); }
template <class T> requires detail::some_fraction<T> auto document_causal(const table_ref&, T) { return detail::refuse_token_fraction<T>(); }

}  // namespace samite
