// tests/support/large_programs.hpp: random predicates over numbers near 2^53 to 2^63, and their exact values.
#pragma once
#include <limits>
#include <optional>
#include <stdexcept>

#include <samite/core/random.hpp>
#include <samite/ir/build.hpp>
#include <samite/ir/table.hpp>

namespace samite_tests {

using samite::index_t;
using samite::node_id;
using samite::op;

/// The same predicate twice: as the language builds it, and node by node, which nothing folds or simplifies.
struct large_program {
  samite::program built, plain;
};

class large_programs {
 public:
  large_programs(std::uint64_t seed, std::uint32_t sample) : random_(seed, 78, 0, sample) {}

  large_program predicate(int depth) {
    out_ = {};
    const both root = boolean(depth);
    out_.built.roots.push_back(root.built), out_.plain.roots.push_back(root.plain);
    return std::move(out_);
  }
  index_t below(index_t bound) { return index_t(random_.below(std::uint32_t(bound))); }

 private:
  struct both {
    node_id built, plain;
  };

  node_id push(op code, node_id a = samite::no_node, node_id b = samite::no_node, node_id c = samite::no_node, index_t imm = 0) {
    const bool is_boolean = (code >= op::less && code <= op::logical_not) || (code == op::select && out_.plain[b].kind == samite::value_kind::boolean);
    samite::node n;
    n.code = code, n.kind = is_boolean ? samite::value_kind::boolean : samite::value_kind::index, n.imm = imm;
    n.operands[0] = a, n.operands[1] = b, n.operands[2] = c;
    return out_.plain.push(n);
  }
  both join(op code, both a, both b) { return {samite::build(out_.built, code, a.built, b.built), push(code, a.plain, b.plain)}; }
  both choose(both c, both a, both b) { return {samite::build(out_.built, op::select, c.built, a.built, b.built), push(op::select, c.plain, a.plain, b.plain)}; }
  both single(op code, both a) { return {samite::build(out_.built, code, a.built), push(code, a.plain)}; }
  both constant(index_t value) { return {samite::build_constant(out_.built, value), push(op::constant, samite::no_node, samite::no_node, samite::no_node, value)}; }
  both argument(index_t value) {
    const auto cell = std::make_shared<samite::scalar_cell>(value);
    return {samite::build_argument(out_.built, cell), push(op::argument, samite::no_node, samite::no_node, samite::no_node, out_.plain.slot_of(cell))};
  }
  both symbol() {
    const samite::symbol_id id = below(2) ? samite::symbol_id::q : samite::symbol_id::kv;
    return {samite::build_symbol(out_.built, id), push(op::symbol, samite::no_node, samite::no_node, samite::no_node, index_t(id))};
  }
  both lookup(both at) {
    const index_t values[] = {below(2) ? -2147483647 - 1 : below(9), 2147483647 - below(3), below(9) - 4};
    const auto table = std::make_shared<const samite::index_table>(std::span<const index_t>(values), std::vector<index_t>{3});
    at = join(op::mod, at, constant(3));
    return {samite::build_gather(out_.built, table, at.built), push(op::gather, at.plain, samite::no_node, samite::no_node, out_.plain.slot_of(table))};
  }

  // Near a power of two from 2^53 to 2^63, or anything that large; one in three is small.
  index_t number() {
    if (below(3) == 0) return below(13) - 6;
    const int bits = below(4) == 0 ? 20 + int(below(40)) : 53 + int(below(11));
    const std::uint64_t wide = std::uint64_t(below(1 << 30)) << 33 ^ std::uint64_t(below(1 << 30)) << 5 ^ std::uint64_t(below(32));
    const index_t most = index_t((bits >= 63 ? ~std::uint64_t(0) >> 1 : (std::uint64_t(1) << bits)));
    const index_t x = below(2) ? most - (bits >= 63 ? below(4) : below(8) - 4) : index_t(wide % std::uint64_t(most));
    return below(2) ? x : -x - (below(8) == 0 && bits >= 63 ? 1 : 0);
  }
  index_t divisor() {
    const index_t x = number();
    return x > 0 ? x : x == 0 || x == std::numeric_limits<index_t>::min() ? 7 : -x;
  }
  both leaf() {
    switch (below(5)) {
      case 0: case 1: return symbol();
      case 2: return constant(number());
      default: return argument(number());
    }
  }

  both index(int depth) {
    if (depth <= 0) return leaf();
    const both a = index(depth - 1 - int(below(2)));
    switch (below(17)) {
      case 0: case 1: case 2: return join(op::add, a, index(depth - 1));
      case 3: case 4: case 5: return join(op::sub, a, index(depth - 1));
      case 6: return join(op::mul, a, below(2) ? leaf() : index(depth - 1));
      case 7: return join(op::div, a, constant(below(2) ? divisor() : 1 + below(17)));
      case 8: case 9: case 10: return join(op::mod, a, constant(below(3) == 0 ? divisor() : 1 + below(17)));
      case 11: return join(op::min, a, index(depth - 1));
      case 12: return join(op::max, a, index(depth - 1));
      case 13: return single(below(2) ? op::abs : op::neg, a);
      case 14: return join(below(2) ? op::shift_left : op::shift_right, a, constant(below(63)));
      case 15: return choose(boolean(depth - 2), a, index(depth - 1));
      default: return lookup(a);
    }
  }

  both boolean(int depth) {
    if (depth <= 1 || below(3) == 0) {
      const op codes[] = {op::less, op::less_equal, op::equal};
      const both a = index(depth), b = below(3) == 0 ? leaf() : index(depth - 1);
      return join(codes[below(3)], a, b);
    }
    const both a = boolean(depth - 1);
    switch (below(5)) {
      case 0: return join(op::logical_and, a, boolean(depth - 1));
      case 1: return join(op::logical_or, a, boolean(depth - 1));
      case 2: return single(op::logical_not, a);
      case 3: return join(op::equal, a, boolean(depth - 1));
      default: return choose(boolean(depth - 1), a, boolean(depth - 2));
    }
  }

  samite::counted_random random_;
  large_program out_;
};

/// Value of the first root in 128 bits; nothing if even those don't hold a number on the way.
inline std::optional<__int128> exact_value(const samite::program& p, const index_t (&at)[4]) {
  std::vector<__int128> values;
  for (const samite::node& n : p.nodes()) {
    const auto x = [&](int i) { return values[std::size_t(n.operands[i])]; };
    const auto quotient = [&] { return x(0) / x(1) - (x(0) % x(1) < 0 ? 1 : 0); };
    __int128 v = 0;
    bool is_lost = false;
    switch (n.code) {
      case op::constant: v = n.imm; break;
      case op::symbol: v = at[n.imm]; break;
      case op::argument: v = p.arguments()[std::size_t(n.imm)]->index(); break;
      case op::gather: v = p.tables()[std::size_t(n.imm)]->contents()->clamped(0, 0, index_t(x(0))); break;
      case op::add: is_lost = __builtin_add_overflow(x(0), x(1), &v); break;
      case op::sub: is_lost = __builtin_sub_overflow(x(0), x(1), &v); break;
      case op::mul: is_lost = __builtin_mul_overflow(x(0), x(1), &v); break;
      case op::div: v = quotient(); break;
      case op::mod: v = x(0) - quotient() * x(1); break;
      case op::neg: v = -x(0); break;
      case op::abs: v = x(0) < 0 ? -x(0) : x(0); break;
      case op::min: v = x(0) < x(1) ? x(0) : x(1); break;
      case op::max: v = x(0) > x(1) ? x(0) : x(1); break;
      case op::shift_left: is_lost = __builtin_mul_overflow(x(0), __int128(1) << int(x(1)), &v); break;
      case op::shift_right: v = x(0) >> int(x(1)); break;
      case op::less: v = x(0) < x(1); break;
      case op::less_equal: v = x(0) <= x(1); break;
      case op::equal: v = x(0) == x(1); break;
      case op::logical_and: v = x(0) != 0 && x(1) != 0; break;
      case op::logical_or: v = x(0) != 0 || x(1) != 0; break;
      case op::logical_not: v = x(0) == 0; break;
      case op::select: v = x(0) != 0 ? x(1) : x(2); break;
      default: throw std::logic_error("exact_value: not an index or boolean op");
    }
    if (is_lost) return std::nullopt;
    values.push_back(v);
  }
  return values[std::size_t(p.roots[0])];
}

}  // namespace samite_tests
