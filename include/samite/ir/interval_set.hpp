// samite/ir/interval_set.hpp: sets of integers as ascending intervals with gaps between them.
#pragma once
#include <algorithm>
#include <vector>

#include <samite/ir/folding.hpp>
#include <samite/ir/interval.hpp>

namespace samite::detail {


inline std::vector<interval> complement(const std::vector<interval>& set) {
  std::vector<interval> rest;
  index_t from = interval::lowest;
  for (const interval& part : set) {
    if (from < part.low) rest.push_back({from, part.low - 1});
    from = part.high + 1;
  }
  if (from <= interval::highest) rest.push_back({from, interval::highest});
  return rest;
}

inline std::vector<interval> intersection(const std::vector<interval>& a, const std::vector<interval>& b) {
  std::vector<interval> both;
  for (const interval& x : a)
    for (const interval& y : b)
      if (!disjoint(x, y)) both.push_back({std::max(x.low, y.low), std::min(x.high, y.high)});
  sort_few(both, [](const interval& x, const interval& y) { return x.low < y.low; });
  return both;
}

inline bool is_everything(const std::vector<interval>& set) { return set.size() == 1 && set[0] == interval::everything(); }

}  // namespace samite::detail
