// samite/ir/overflow.hpp: whether index arithmetic in 64 bits is exact over a box.
#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include <samite/core/error.hpp>
#include <samite/ir/index_box.hpp>  // not bounds.hpp, whose bodies need this header
#include <samite/ir/ops.hpp>
#include <samite/ir/table.hpp>

namespace samite::detail {

/// Whether no node leaves 64 bits anywhere in the box. Node by node, as kernels and evaluators compute: the sums of a box_judge lack what
/// cancels out, and comparisons there have numbers beyond its bounds.
inline bool stays_within_64_bits(const std::vector<node>& nodes, std::span<const std::shared_ptr<const table_contents>> tables, const index_box& box) {
  struct wide {
    __int128 low, high;
  };
  const interval symbols[] = {box.b, box.h, box.q, box.kv};
  std::vector<wide> ranges;
  for (const node& n : nodes) {
    const auto x = [&](int i) { return ranges[std::size_t(n.operands[i])]; };
    const auto clamped = [&](int i) { return interval{index_t(x(i).low), index_t(x(i).high)}; };
    const auto product = [&](const wide& y) {
      const __int128 p[4] = {x(0).low * y.low, x(0).low * y.high, x(0).high * y.low, x(0).high * y.high};
      return wide{std::min(std::min(p[0], p[1]), std::min(p[2], p[3])), std::max(std::max(p[0], p[1]), std::max(p[2], p[3]))};
    };
    wide range{0, 1};  // of a condition
    if (n.kind == value_kind::index) range = {interval::lowest, interval::highest};
    switch (n.kind == value_kind::real ? op::lookup : n.code) {  // reals don't wrap
      case op::constant: range = {n.imm, n.imm}; break;
      case op::symbol: range = {symbols[n.imm].low, symbols[n.imm].high}; break;
      case op::gather: {
        const auto whole = interval::point(0);
        const int rank = n.operand_count();
        const table_contents& table = *tables[std::size_t(n.imm)];
        const interval values = (rank == 1 ? table.range(whole, whole, clamped(0)) : rank == 2 ? table.range(whole, clamped(0), clamped(1)) : table.range(clamped(0), clamped(1), clamped(2))).values;
        range = {values.low, values.high};
        break;
      }
      case op::add: range = {x(0).low + x(1).low, x(0).high + x(1).high}; break;
      case op::sub: range = {x(0).low - x(1).high, x(0).high - x(1).low}; break;
      case op::mul: range = product(x(1)); break;
      case op::shift_left: {
        const __int128 factor = index_t(1) << x(1).low;
        range = product({factor, factor});
        break;
      }
      case op::neg: range = {-x(0).high, -x(0).low}; break;
      case op::abs: range = {std::max<__int128>(0, std::max(x(0).low, -x(0).high)), std::max(-x(0).low, x(0).high)}; break;
      case op::min: range = {std::min(x(0).low, x(1).low), std::min(x(0).high, x(1).high)}; break;
      case op::max: range = {std::max(x(0).low, x(1).low), std::max(x(0).high, x(1).high)}; break;
      case op::select:
        if (n.kind == value_kind::index) range = {std::min(x(1).low, x(2).low), std::max(x(1).high, x(2).high)};
        break;
      case op::div: case op::mod: case op::shift_right: {
        const interval y = clamped(0), by = clamped(1);
        const interval found = n.code == op::div ? rules::div::bounds(y, by) : n.code == op::mod ? rules::mod::bounds(y, by) : rules::shift_right::bounds(y, by);
        range = {found.low, found.high};
        break;
      }
      default: break;
    }
    if (range.low != index_t(range.low) || range.high != index_t(range.high)) return false;
    ranges.push_back(range);
  }
  return true;
}

[[noreturn]] inline void refuse_overflow(const index_box& box) {
  raise("E-MASK-OVERFLOW", "mask: an index expression can leave 62 bits over q ", box.q.low, "..", box.q.high, ", kv ", box.kv.low, "..", box.kv.high,
        "; use smaller factors or arguments (a width of 1 << 40 is as good as an infinite one)");
}

}  // namespace samite::detail
