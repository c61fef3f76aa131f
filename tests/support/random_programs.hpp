// tests/support/random_programs.hpp: random index and boolean programs.
#pragma once
#include <samite/core/random.hpp>
#include <samite/ir/build.hpp>

namespace samite_tests {

using samite::index_t;
using samite::node_id;
using samite::op;

/// Programs over small sizes: every index stays far from 64 bits, every table index is clamped into its table.
class random_programs {
 public:
  random_programs(std::uint64_t seed, std::uint32_t sample) : random_(seed, 77, 0, sample) {}

  samite::program predicate(int depth) {
    p_ = {};
    p_.roots.push_back(boolean(depth));
    return std::move(p_);
  }
  samite::program index(int depth) {
    p_ = {};
    p_.roots.push_back(number(depth));
    return std::move(p_);
  }
  index_t below(index_t bound) { return index_t(random_.below(std::uint32_t(bound))); }

 private:
  node_id constant(index_t value) { return samite::build_constant(p_, value); }
  node_id argument(index_t value) { return samite::build_argument(p_, std::make_shared<samite::scalar_cell>(value)); }
  node_id symbol() {
    const index_t pick = below(10);
    return samite::build_symbol(p_, pick < 4 ? samite::symbol_id::q : pick < 8 ? samite::symbol_id::kv : pick < 9 ? samite::symbol_id::b : samite::symbol_id::h);
  }
  node_id clamped(node_id x, index_t count) {
    return samite::build(p_, op::min, samite::build(p_, op::max, x, constant(0)), constant(count - 1));
  }

  node_id lookup(int depth) {
    const index_t rank = 1 + below(3), length = 1 + below(40), rows = rank > 1 ? 1 + below(4) : 1, planes = rank > 2 ? 1 + below(3) : 1;
    std::vector<index_t> values(std::size_t(length * rows * planes));
    const index_t way = below(3);
    index_t running = below(5) - 2;
    for (index_t& v : values) v = way == 0 ? below(9) - 3 : (running += below(4) == 0 ? way == 1 ? 1 : 3 : 0);
    std::vector<index_t> dims = rank == 1 ? std::vector<index_t>{length} : rank == 2 ? std::vector<index_t>{rows, length} : std::vector<index_t>{planes, rows, length};
    const auto table = std::make_shared<const samite::index_table>(std::span<const index_t>(values), dims);
    if (rank == 1) return samite::build_gather(p_, table, clamped(number(depth - 1), length));
    const node_id j = clamped(number(depth - 2), rows), k = clamped(number(depth - 1), length);
    return rank == 2 ? samite::build_gather(p_, table, j, k) : samite::build_gather(p_, table, clamped(symbol(), planes), j, k);
  }

  node_id number(int depth) {
    if (depth <= 0) {
      const index_t pick = below(8);
      return pick < 5 ? symbol() : pick < 7 ? argument(below(60) - 20) : constant(below(30) - 10);
    }
    const node_id a = number(depth - 1 - int(below(2)));
    switch (below(15)) {
      case 0: case 1: return samite::build(p_, op::add, a, number(depth - 1));
      case 2: case 3: case 4: return samite::build(p_, op::sub, a, number(depth - 1));
      case 5: return samite::build(p_, op::mul, a, below(2) ? constant(below(9) - 4) : argument(below(5) - 2));
      case 6: return samite::build(p_, op::div, a, constant(1 + below(17)));
      case 7: return samite::build(p_, op::mod, a, constant(1 + below(17)));
      case 8: return samite::build(p_, op::min, a, number(depth - 1));
      case 9: return samite::build(p_, op::max, a, number(depth - 1));
      case 10: return samite::build(p_, op::abs, a);
      case 11: return below(2) ? samite::build(p_, op::neg, a) : samite::build(p_, op::shift_right, a, constant(below(4)));
      case 12: {  // a block and the place inside it, put together again
        const node_id c = constant(1 + below(9));
        return samite::build(p_, op::add, samite::build(p_, op::mod, a, c), samite::build(p_, op::mul, c, samite::build(p_, op::div, a, c)));
      }
      case 13: return samite::build(p_, op::select, boolean(depth - 2), a, number(depth - 1));
      default: return lookup(depth);
    }
  }

  node_id boolean(int depth) {
    if (depth <= 1 || below(3) == 0) {
      const op codes[] = {op::less, op::less_equal, op::equal};
      if (below(6) == 0) {  // two tables, each by an index of its own, as documents are compared
        const node_id a = lookup(1), b = lookup(1), same = samite::build(p_, op::equal, a, b);
        return below(2) ? same : samite::build(p_, op::logical_not, same);
      }
      const node_id a = number(depth - 1), b = number(depth - 2);
      return samite::build(p_, codes[below(3)], a, b);
    }
    const node_id a = boolean(depth - 1);
    switch (below(7)) {
      case 0: case 1: return samite::build(p_, op::logical_and, a, boolean(depth - 1));
      case 2: case 3: return samite::build(p_, op::logical_or, a, boolean(depth - 1));
      case 4: return samite::build(p_, op::logical_not, a);
      case 5: return samite::build(p_, op::equal, a, boolean(depth - 1));
      default: return samite::build(p_, op::select, boolean(depth - 1), a, boolean(depth - 2));
    }
  }

  samite::counted_random random_;
  samite::program p_;
};

}  // namespace samite_tests
