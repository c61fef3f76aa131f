// tests/support/masks.cpp: a slow, obvious reading of index and boolean programs.
#include "masks.hpp"

namespace samite_tests {

index_t naive_value(const samite::program& p, samite::node_id id, const index_t (&at)[4]) {
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

}  // namespace samite_tests
