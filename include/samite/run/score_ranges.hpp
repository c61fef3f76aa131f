// samite/run/score_ranges.hpp: whether the indices of a score function stay inside its tensors and tables.
#pragma once
#include <algorithm>
#include <vector>

#include <samite/core/renamed_error.hpp>
#include <samite/ir/bounds.hpp>
#include <samite/ir/derivative.hpp>
#include <samite/ir/ops.hpp>
#include <samite/ir/overflow.hpp>
#include <samite/ir/table.hpp>
#include <samite/run/backend.hpp>

namespace samite::detail {

/// Refuses a score function some index of which can leave its tensor or table, or 64 bits, at these sizes.
///
/// errors  E-SCORE-RANGE, E-MASK-TABLE-RANGE, E-MASK-OVERFLOW
inline void check_score_ranges(const program& score, const std::vector<tensor_view>& tensors, const index_box& box) {
  const auto judge_of = [&](node_id id) {
    std::vector<index_t> slots;
    box_judge judge(prune(score, {id}, slots));
    with_name("mask", "score function", [&] { judge.check(box); });
    return judge;
  };
  std::vector<node> nodes = score.nodes();
  std::vector<std::shared_ptr<const table_contents>> tables;
  for (node& n : nodes)
    if (n.code == op::argument && n.kind == value_kind::index) n.code = op::constant, n.imm = score.arguments()[std::size_t(n.imm)]->index();
  for (const auto& table : score.tables()) tables.push_back(table->contents());
  for (std::size_t id = 0; id < score.size(); ++id) {
    const node& n = score.nodes()[id];
    if (n.code == op::gather) judge_of(node_id(id));
    if (n.code != op::lookup) continue;
    const extents& dims = tensors[std::size_t(n.imm)].dims;
    for (int i = 0; i < 3 && n.operands[i] != no_node; ++i) {
      const interval range = judge_of(n.operands[i]).range(box);
      const index_t length = dims[std::size_t(i)];
      if (range.low >= 0 && range.high < length) continue;
      if (length == 0) raise("E-SCORE-RANGE", "attention: a score function reads its tensor of dimensions ", dims, ", which is empty; give a tensor that covers the range");
      raise("E-SCORE-RANGE", "attention: index ", i, " of a lookup in a score function's tensor of dimensions ", dims, " can be from ", range.low, " to ", range.high,
            " over q 0..", box.q.high, ", kv 0..", box.kv.high, ", h 0..", box.h.high, ", but must be from 0 to ", length - 1,
            "; give a tensor that covers the range, or clamp the index");
    }
  }
  if (!stays_within_64_bits(nodes, tables, box)) with_name("mask", "score function", [&] { refuse_overflow(box); });
}

/// Whether every index of a score function stays below 2^23 at these sizes, so that 32 bits hold it, pairs a little past the end included, and
/// a float holds it exactly; and whether 32 bits hold the lengths and strides of what it reads.
inline bool is_narrow_score(const program& score, const std::vector<tensor_view>& tensors, const index_box& box) {
  constexpr index_t limit = index_t(1) << 23, longest = index_t(1) << 31;
  const auto narrow = [](const std::vector<index_t>& numbers) { return std::all_of(numbers.begin(), numbers.end(), [](index_t x) { return -longest < x && x < longest; }); };
  for (const tensor_view& v : tensors)
    if (!narrow({v.dims.begin(), v.dims.end()}) || !narrow({v.strides.begin(), v.strides.end()})) return false;
  std::vector<interval> ranges(score.size(), interval::everything());
  for (std::size_t id = 0; id < score.size(); ++id) {
    const node& n = score.nodes()[id];
    if (n.kind != value_kind::index) continue;
    interval& range = ranges[id];
    const auto x = [&](int k) { return ranges[std::size_t(n.operands[k])]; };
    switch (n.code) {
      case op::symbol: {
        const symbol_id symbol = symbol_id(n.imm);
        range = symbol == symbol_id::b ? box.b : symbol == symbol_id::h ? box.h : symbol == symbol_id::q ? box.q : symbol == symbol_id::kv ? box.kv : range;
        break;
      }
      case op::constant: range = interval::point(n.imm); break;
      case op::argument: range = interval::point(score.arguments()[std::size_t(n.imm)]->index()); break;
      case op::gather: range = score.tables()[std::size_t(n.imm)]->contents()->whole().values; break;
      case op::select: range = hull(x(1), x(2)); break;
      default:
        visit_op(n.code, [&](auto rule) {
          if constexpr (requires { rule.bounds(interval{}, interval{}); }) range = rule.bounds(x(0), x(1));
          else if constexpr (requires { rule.bounds(interval{}); }) range = rule.bounds(x(0));
        });
    }
    if (range.low <= -limit || range.high >= limit) return false;
  }
  return true;
}

}  // namespace samite::detail
