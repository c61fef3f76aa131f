// samite/ir/bounds_impl.hpp: judging boxes, and cutting those that stay undecided.
#pragma once
#include <algorithm>
#include <limits>

#include <samite/ir/bounds.hpp>
#include <samite/ir/ops.hpp>

namespace samite {

namespace detail {

inline index_t divided(index_t x, const box_steps::value_step& step) { return step.shift >= 0 ? x >> step.shift : floor_div(x, step.imm); }

inline bool cut_at(const index_box& box, int axis, index_t at, index_box& first, index_box& second) {
  first = second = box;
  (axis == 2 ? first.q : first.kv).high = at - 1;
  (axis == 2 ? second.q : second.kv).low = at;
  return true;
}

}  // namespace detail

SAMITE_IMPL box_judge::box_judge(const program& source, std::size_t root) : steps_(detail::steps_of(source, root)) {
  stamps_.assign(steps_.values.size(), 0);
  ranges_.resize(steps_.values.size());
  residues_.assign(steps_.values.size(), ~std::uint64_t(0));
}

SAMITE_IMPL verdict box_judge::judge(const index_box& box) {
  begin(box);
  return verdict_of(steps_.root_predicate);
}

SAMITE_IMPL interval box_judge::range(const index_box& box) {
  begin(box);
  return value(steps_.root_value);
}

SAMITE_IMPL void box_judge::begin(const index_box& box) {
  box_[0] = box.b, box_[1] = box.h, box_[2] = box.q, box_[3] = box.kv;
  if (++stamp_ == 0) {
    std::fill(stamps_.begin(), stamps_.end(), 0u);
    stamp_ = 1;
  }
}

// --- evaluation over the current box -----------------------------------------------------------------------------------

SAMITE_IMPL interval box_judge::value(int id) {
  const steps::value_step& step = steps_.values[std::size_t(id)];
  if (step.code == steps::value_code::symbol) return box_[std::size_t(step.imm)];
  if (step.code == steps::value_code::constant) return interval::point(step.imm);
  if (stamps_[std::size_t(id)] == stamp_) return ranges_[std::size_t(id)];
  const interval found = compute(id, step);
  stamps_[std::size_t(id)] = stamp_;
  return ranges_[std::size_t(id)] = found;
}

SAMITE_IMPL interval box_judge::compute(int id, const steps::value_step& step) {
  switch (step.code) {
    case steps::value_code::sum: {
      index_t low = step.imm, high = step.imm;
      for (int i = step.a; i < step.b; ++i) {
        const steps::term t = steps_.terms[std::size_t(i)];
        const interval x = value(t.atom);
        const interval scaled = t.factor == 1 ? x : t.factor == -1 ? interval{-x.high, -x.low} : rules::mul::bounds(x, interval::point(t.factor));
        // Both summands lie within the saturated range, a quarter of 64 bits: their sum does not wrap.
        low = std::clamp(low + scaled.low, interval::lowest, interval::highest);
        high = std::clamp(high + scaled.high, interval::lowest, interval::highest);
      }
      return {low, high};
    }
    case steps::value_code::quotient: {
      const interval x = value(step.a);
      return {detail::divided(x.low, step), detail::divided(x.high, step)};
    }
    case steps::value_code::remainder: {
      const interval x = value(step.a);
      const index_t whole = detail::divided(x.low, step);
      if (whole != detail::divided(x.high, step)) return {0, step.imm - 1};
      return {x.low - whole * step.imm, x.high - whole * step.imm};
    }
    case steps::value_code::gather: {
      const auto whole = interval::point(0);
      const interval x = value(step.a), y = step.b < 0 ? whole : value(step.b), z = step.c < 0 ? whole : value(step.c);
      const table_contents& table = *steps_.tables[std::size_t(step.imm)];
      const table_range found = step.b < 0 ? table.range(whole, whole, x) : step.c < 0 ? table.range(whole, x, y) : table.range(x, y, z);
      residues_[std::size_t(id)] = found.residues;
      return found.values;
    }
    case steps::value_code::select: return rules::select::bounds(verdict_of(step.a), value(step.b), value(step.c));
    case steps::value_code::binary: {
      const interval x = value(step.a), y = step.b < 0 ? x : value(step.b);
      switch (step.operation) {
        case op::mul: return rules::mul::bounds(x, y);
        case op::min: return rules::min::bounds(x, y);
        case op::max: return rules::max::bounds(x, y);
        case op::abs: return rules::abs::bounds(x);
        case op::add: return rules::add::bounds(x, y);
        case op::sub: return rules::sub::bounds(x, y);
        case op::neg: return rules::neg::bounds(x);
        case op::shift_left: return rules::shift_left::bounds(x, y);
        default: return interval::everything();
      }
    }
    default: return interval::everything();
  }
}

SAMITE_IMPL verdict box_judge::verdict_of(int id) {
  const steps::predicate_step& step = steps_.predicates[std::size_t(id)];
  switch (step.code) {
    case steps::predicate_code::constant: return step.constant ? verdict::full : verdict::empty;
    case steps::predicate_code::leaf: return verdict_of_leaf(step);
    case steps::predicate_code::all: {
      verdict found = verdict::full;
      for (int part : step.parts) {
        found = found & verdict_of(part);
        if (found == verdict::empty) break;
      }
      return found;
    }
    case steps::predicate_code::any: {
      verdict found = verdict::empty;
      for (int part : step.parts) {
        found = found | verdict_of(part);
        if (found == verdict::full) break;
      }
      return found;
    }
    case steps::predicate_code::select: {
      const verdict condition = verdict_of(step.parts[0]);
      if (condition == verdict::full) return verdict_of(step.parts[1]);
      const verdict otherwise = verdict_of(step.parts[2]);
      if (condition == verdict::empty) return otherwise;
      return otherwise == verdict_of(step.parts[1]) ? otherwise : verdict::undecided;
    }
    case steps::predicate_code::opaque: return verdict::undecided;
  }
  return verdict::undecided;
}

SAMITE_IMPL verdict box_judge::verdict_of_leaf(const steps::predicate_step& step) {
  const interval range = value(step.form);
  bool some = false;
  for (const interval& allowed : step.set) {
    const interval inside{std::max(range.low, allowed.low), std::min(range.high, allowed.high)};
    if (inside.low > inside.high) continue;
    if (step.residues.is_everything()) {
      if (inside == range) return verdict::full;
      some = true;
      continue;
    }
    const index_t offset = floor_mod(inside.low - step.residues.start, step.residues.modulus);
    const index_t extent = inside.high - inside.low;
    if (inside == range && offset + extent < step.residues.count) return verdict::full;
    some = some || offset < step.residues.count || offset + extent >= step.residues.modulus;
  }
  if (!some) return verdict::empty;
  if (step.first_gather >= 0) {
    const std::uint64_t shared = residues_[std::size_t(step.first_gather)] & residues_[std::size_t(step.second_gather)];
    if (shared == 0) {  // the two tables never hold the same value here: only the difference 0 is ruled out
      const bool only_zero = step.set.size() == 1 && step.set[0] == interval::point(0);
      if (only_zero) return verdict::empty;
      const bool all_but_zero = step.set.size() == 2 && step.set[0].high == -1 && step.set[1].low == 1 &&
                                step.set[0].low <= range.low && range.high <= step.set[1].high;
      if (all_but_zero && step.residues.is_everything()) return verdict::full;
    }
  }
  return verdict::undecided;
}

// --- cutting undecided boxes -------------------------------------------------------------------------------------------

// Cuts the box in two where a part of the predicate changes; false for a single pair.
SAMITE_IMPL bool box_judge::cut(const index_box& box, index_box& first, index_box& second) const {
  for (int axis : {2, 3}) {
    const interval range = axis == 2 ? box.q : box.kv;
    for (index_t at : steps_.thresholds[axis - 2])
      if (range.low < at && at <= range.high) return detail::cut_at(box, axis, at, first, second);
  }
  const index_t rows = box.q.high - box.q.low, columns = box.kv.high - box.kv.low;
  if (rows == 0 && columns == 0) return false;
  for (int axis : {2, 3}) {
    const interval range = axis == 2 ? box.q : box.kv;
    for (const steps::grain& g : steps_.grains[axis - 2]) {
      const index_t low = floor_div(range.low + g.offset, g.divisor), high = floor_div(range.high + g.offset, g.divisor);
      if (low != high) return detail::cut_at(box, axis, (low + (high - low + 1) / 2) * g.divisor - g.offset, first, second);
    }
  }
  const int axis = rows >= columns ? 2 : 3;
  const interval range = axis == 2 ? box.q : box.kv;
  return detail::cut_at(box, axis, range.low + (range.high - range.low + 1) / 2, first, second);
}

struct box_judge::search {
  int budget;
  bool kept = false, hidden = false;
  bool ended() const { return (kept && hidden) || budget <= 0; }
};

SAMITE_IMPL void box_judge::refine(const index_box& box, search& state) {
  const verdict found = judge(box);
  --state.budget;
  if (found == verdict::empty) state.hidden = true;
  if (found == verdict::full) state.kept = true;
  if (found != verdict::undecided || state.ended()) {
    unresolved_ = unresolved_ || found == verdict::undecided;
    return;
  }
  index_box first, second;
  if (!cut(box, first, second)) {
    unresolved_ = true;
    return;
  }
  refine(first, state);
  if (state.ended()) unresolved_ = true;
  else refine(second, state);
}

SAMITE_IMPL verdict box_judge::judge_finely(const index_box& box, int budget) {
  const verdict first = judge(box);
  if (first != verdict::undecided || steps_.is_exact) return first;
  // Two opposite corners that differ settle most partial boxes at once.
  search state{budget};
  const interval q[2] = {interval::point(box.q.low), interval::point(box.q.high)};
  const interval k[2] = {interval::point(box.kv.low), interval::point(box.kv.high)};
  for (int corner = 0; corner < 4 && !state.ended(); ++corner) {
    const verdict found = judge({box.b, box.h, q[corner & 1], k[(corner >> 1) ^ (corner & 1)]});
    --state.budget;
    state.kept = state.kept || found == verdict::full;
    state.hidden = state.hidden || found == verdict::empty;
  }
  if (state.ended()) return verdict::undecided;
  unresolved_ = false;
  index_box one, two;
  if (!cut(box, one, two)) return verdict::undecided;
  refine(one, state);
  if (!state.ended()) refine(two, state);
  else unresolved_ = true;
  if (unresolved_ || (state.kept && state.hidden)) return verdict::undecided;
  return state.kept ? verdict::full : verdict::empty;
}

SAMITE_IMPL void box_judge::check(const index_box& box) {
  begin(box);
  for (std::size_t id = 0; id < steps_.values.size(); ++id) {
    const steps::value_step& step = steps_.values[id];
    if (step.code == steps::value_code::gather) {
      const table_contents& table = *steps_.tables[std::size_t(step.imm)];
      const int operands[3] = {step.a, step.b, step.c};
      const int rank = step.b < 0 ? 1 : step.c < 0 ? 2 : 3;
      for (int i = 0; i < rank; ++i) {
        const interval index = value(operands[i]);
        const index_t length = table.dims()[std::size_t(3 - rank + i)];
        if (index.low >= 0 && index.high < length) continue;
        const std::vector<index_t> dims(table.dims().end() - rank, table.dims().end());
        if (length == 0)
          raise("E-MASK-TABLE-RANGE", "mask: a table of rank ", rank, " and dimensions ", dims, " is read but is empty; give it values, with update() or when it is made");
        raise("E-MASK-TABLE-RANGE", "mask: index ", i, " of a table of rank ", rank, " and dimensions ", dims, " can be from ", index.low,
              " to ", index.high, " over b ", box.b.low, "..", box.b.high, ", h ", box.h.low, "..", box.h.high, ", q ", box.q.low, "..",
              box.q.high, ", kv ", box.kv.low, "..", box.kv.high, ", but must be from 0 to ", length - 1,
              "; give a table that covers the range, or clamp the index, e.g. t[clamp(i, 0, ", length - 1, ")]");
      }
    } else if (step.code == steps::value_code::sum || step.code == steps::value_code::binary) {
      const interval range = value(int(id));
      if (range.low <= interval::lowest || range.high >= interval::highest)
        raise("E-MASK-OVERFLOW", "mask: an index expression can leave 62 bits over q ", box.q.low, "..", box.q.high, ", kv ", box.kv.low, "..",
              box.kv.high, "; use smaller factors or arguments (a width of 1 << 40 is as good as an infinite one)");
    }
  }
}

SAMITE_IMPL verdict judge(const program& p, const index_box& box) { return box_judge(p).judge(box); }

}  // namespace samite
