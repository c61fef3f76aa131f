// samite/run/score_ranges.hpp: whether the indices of a score function stay inside its tensors and tables.
#pragma once
#include <vector>

#include <samite/ir/bounds.hpp>
#include <samite/ir/derivative.hpp>
#include <samite/run/backend.hpp>

namespace samite::detail {

/// Refuses a score function some index of which can leave its tensor or table at these sizes.
///
/// errors  E-SCORE-RANGE, E-MASK-TABLE-RANGE, E-MASK-OVERFLOW
inline void check_score_ranges(const program& score, const std::vector<tensor_view>& tensors, const index_box& box) {
  const auto judge_of = [&](node_id id) {
    std::vector<index_t> slots;
    box_judge judge(prune(score, {id}, slots));
    judge.check(box);
    return judge;
  };
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
}

}  // namespace samite::detail
