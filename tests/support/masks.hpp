// tests/support/masks.hpp: a slow, obvious reading of index and boolean programs, and masks as lists of keys.
#pragma once
#include <samite/mask/any_mask.hpp>

namespace samite_tests {

using samite::index_t;

/// Value of a node of the program as it stands, without folding, canonical form or bounds. Indices are clamped into tables.
index_t naive_value(const samite::program& p, samite::node_id id, const index_t (&at)[4]);

template <samite::predicate_expr E>
samite::program lowered(const E& mask) {
  samite::program p;
  p.roots.push_back(mask.lower(p));
  return p;
}

/// Keys 0 .. K-1 that query q sees.
template <samite::predicate_expr E>
std::vector<index_t> visible_keys(const E& mask, index_t q, index_t K, index_t b = 0, index_t h = 0) {
  const samite::program p = lowered(mask);
  std::vector<index_t> keys;
  for (index_t kv = 0; kv < K; ++kv)
    if (naive_value(p, p.roots[0], {b, h, q, kv})) keys.push_back(kv);
  return keys;
}

/// Mean key of every row; -1 for a row that sees nothing.
template <samite::predicate_expr E>
std::vector<double> means(const E& mask, index_t Q, index_t K, index_t b = 0, index_t h = 0) {
  std::vector<double> out;
  for (index_t q = 0; q < Q; ++q) {
    double sum = 0, count = 0;
    for (index_t kv : visible_keys(mask, q, K, b, h)) sum += double(kv), ++count;
    out.push_back(count > 0 ? sum / count : -1);
  }
  return out;
}

}  // namespace samite_tests
