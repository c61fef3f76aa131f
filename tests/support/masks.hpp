// tests/support/masks.hpp: a slow, obvious reading of index and boolean programs, and masks as lists of keys.
#pragma once
#include <samite/mask/any_mask.hpp>

namespace samite_tests {

using samite::index_t;

/// Value of a node of the program as it stands, without folding, canonical form or bounds. Indices are clamped into tables.
inline index_t naive_value(const samite::program& p, samite::node_id id, const index_t (&at)[4]) {
  using samite::op;
  const samite::node& n = p[id];
  const auto x = [&](int i) { return naive_value(p, n.operands[i], at); };
  switch (n.code) {
    case op::constant: return n.imm;
    case op::symbol: return at[n.imm];
    case op::argument: return p.arguments()[std::size_t(n.imm)]->index();
    case op::gather: {
      const auto table = p.tables()[std::size_t(n.imm)]->contents();
      if (n.operands[1] < 0) return table->clamped(0, 0, x(0));
      return n.operands[2] < 0 ? table->clamped(0, x(0), x(1)) : table->clamped(x(0), x(1), x(2));
    }
    case op::add: return x(0) + x(1);
    case op::sub: return x(0) - x(1);
    case op::mul: return x(0) * x(1);
    case op::div: {
      index_t quotient = x(0) / x(1);
      while (quotient * x(1) > x(0)) --quotient;
      return quotient;
    }
    case op::mod: {
      index_t rest = x(0) % x(1);
      return rest < 0 ? rest + x(1) : rest;
    }
    case op::neg: return -x(0);
    case op::abs: return x(0) < 0 ? -x(0) : x(0);
    case op::min: return x(0) < x(1) ? x(0) : x(1);
    case op::max: return x(0) > x(1) ? x(0) : x(1);
    case op::shift_left: return x(0) * (index_t(1) << x(1));
    case op::shift_right: return x(0) >> x(1);
    case op::less: return x(0) < x(1);
    case op::less_equal: return x(0) <= x(1);
    case op::equal: return x(0) == x(1);
    case op::logical_and: return x(0) != 0 && x(1) != 0;
    case op::logical_or: return x(0) != 0 || x(1) != 0;
    case op::logical_not: return x(0) == 0;
    case op::select: return x(0) != 0 ? x(1) : x(2);
    default: throw std::logic_error("naive_value: not an index or boolean op");
  }
}

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
