// samite/ir/bounds_impl.hpp: judging boxes, and cutting those that stay undecided.
#pragma once
#include <algorithm>
#include <limits>

#include <samite/ir/bounds.hpp>
#include <samite/ir/ops.hpp>
#include <samite/ir/overflow.hpp>

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

SAMITE_IMPL box_judge::box_judge(const program& source, std::size_t root) : bound_(detail::steps_of(source, root)), steps_(bound_.steps.get()) {
  remember(0, 0);
  cells_[steps::pairs].resize(std::size_t(steps_->steps_on[steps::pairs]));
  known_.assign(steps_->predicates.size(), finding::undecided);
  frames_.reserve(64);
  frames_.push_back({0, 0, finding::full});
  open_.push_back(steps_->root_predicate);
}

SAMITE_IMPL void box_judge::remember(index_t q_cells, index_t kv_cells) {
  cells_[steps::rows].assign(std::size_t((q_cells + 1) * steps_->steps_on[steps::rows]), {});
  cells_[steps::columns].assign(std::size_t((kv_cells + 1) * steps_->steps_on[steps::columns]), {});
  unnumbered_[0] = unnumbered_[1] = {1, 0};
}

namespace detail {
// What a finding says to one who can't use that the box is kept in part.
template <class Finding>
verdict verdict_of(Finding f) {
  return f == Finding::empty ? verdict::empty : f == Finding::full ? verdict::full : verdict::undecided;
}
}  // namespace detail

SAMITE_IMPL verdict box_judge::judge(const index_box& box) {
  return detail::verdict_of(find(box));
}

SAMITE_IMPL verdict box_judge::enter(const index_box& box, box_cells cells) { return detail::verdict_of(find_inside(box, cells)); }

SAMITE_IMPL box_judge::finding box_judge::find(const index_box& box, box_cells cells) {
  begin(box, cells);
  return finding_of_parts(open_.data() + frames_.back().first_open, open_.data() + open_.size(), frames_.back().neutral);
}

SAMITE_IMPL box_judge::finding box_judge::find_inside(const index_box& box, box_cells cells) {
  const std::size_t decided = decided_.size();
  is_entering_ = true;
  const finding found = find(box, cells);
  is_entering_ = false;
  const frame around = frames_.back();
  const std::size_t first = around.first_open, last = open_.size();
  frames_.push_back({decided, last, around.neutral});
  const bool is_open = found == finding::undecided || found == finding::partial;
  for (std::size_t i = first; i < last; ++i)
    if (!is_open || known_[std::size_t(open_[i])] == finding::undecided) open_.push_back(open_[i]);
  // One part left: what it consists of is asked directly.
  while (is_open && open_.size() == last + 1) {
    const steps::predicate_step& only = steps_->predicates[std::size_t(open_.back())];
    if (only.code != steps::predicate_code::all && only.code != steps::predicate_code::any) break;
    frames_.back().neutral = only.code == steps::predicate_code::all ? finding::full : finding::empty;
    open_.pop_back();
    for (int part : only.parts)
      if (known_[std::size_t(part)] == finding::undecided) open_.push_back(part);
  }
  return found;
}

SAMITE_IMPL void box_judge::leave() {
  for (; decided_.size() > frames_.back().decided; decided_.pop_back()) known_[std::size_t(decided_.back())] = finding::undecided;
  open_.resize(frames_.back().first_open);
  frames_.pop_back();
}

SAMITE_IMPL interval box_judge::range(const index_box& box) {
  begin(box);
  return value(steps_->root_value);
}

SAMITE_IMPL void box_judge::begin(const index_box& box, box_cells cells) {
  if (box.b != b_ || box.h != h_) {
    b_ = box.b, h_ = box.h;
    for (std::vector<known_range>& axis : cells_) std::fill(axis.begin(), axis.end(), known_range{});
    unnumbered_[0] = unnumbered_[1] = {1, 0};
  }
  box_[0] = &box.b, box_[1] = &box.h, box_[2] = &box.q, box_[3] = &box.kv;
  const index_t numbers[2] = {cells.q, cells.kv};
  for (int axis : {steps::rows, steps::columns}) {
    const std::ptrdiff_t count = steps_->steps_on[axis];
    known_ranges_[axis] = cells_[axis].data() + numbers[axis] * count;
    if (numbers[axis] != 0 || unnumbered_[axis] == *box_[2 + axis]) continue;
    unnumbered_[axis] = *box_[2 + axis];
    std::fill_n(known_ranges_[axis], count, known_range{});
  }
  known_ranges_[steps::pairs] = cells_[steps::pairs].data();
  for (known_range& known : cells_[steps::pairs]) known.values = {1, 0};
}

// --- evaluation over the current box -----------------------------------------------------------------------------------

SAMITE_IMPL interval box_judge::value(int id) {
  const steps::value_step& step = steps_->values[std::size_t(id)];
  if (step.code == steps::value_code::symbol) return *box_[std::size_t(step.imm)];
  if (step.code == steps::value_code::constant) return interval::point(step.imm);
  const steps::axis axis = steps::axis_of(step);
  // A sum over pairs is of this box alone: keeping it would cost more than it saves.
  if (axis == steps::pairs && step.code == steps::value_code::sum) return sum(step);
  known_range& known = known_ranges_[axis][step.place];
  if (known.values.low > known.values.high) known.values = compute(step, known.residues);
  return known.values;
}

// without: the step of a term that is left out
SAMITE_IMPL interval box_judge::sum(const steps::value_step& step, int without) {
  index_t low = step.imm, high = step.imm;
  for (const steps::term *t = steps_->terms.data() + step.a, *end = steps_->terms.data() + step.b; t != end; ++t) {
    if (t->atom == without) continue;
    const interval x = value(t->atom);
    const interval scaled = t->factor == 1 ? x : t->factor == -1 ? interval{-x.high, -x.low} : rules::mul::bounds(x, interval::point(t->factor));
    // Both summands lie within the saturated range, a quarter of 64 bits: their sum does not wrap.
    low = std::clamp(low + scaled.low, interval::lowest, interval::highest);
    high = std::clamp(high + scaled.high, interval::lowest, interval::highest);
  }
  return {low, high};
}

SAMITE_IMPL interval box_judge::compute(const steps::value_step& step, std::uint64_t& residues) {
  switch (step.code) {
    case steps::value_code::sum: return sum(step);
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
      const table_contents& table = *bound_.tables[std::size_t(step.imm)];
      const table_range found = step.b < 0 ? table.range(whole, whole, x) : step.c < 0 ? table.range(whole, x, y) : table.range(x, y, z);
      residues = found.residues;
      return found.values;
    }
    case steps::value_code::select: return rules::select::bounds(detail::verdict_of(finding_of(step.a)), value(step.b), value(step.c));
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

SAMITE_IMPL box_judge::finding box_judge::finding_of(int id) {
  const finding known = known_[std::size_t(id)];
  if (known != finding::undecided) return known;
  const steps::predicate_step& step = steps_->predicates[std::size_t(id)];
  finding found = finding::undecided;
  switch (step.code) {
    case steps::predicate_code::constant: return step.constant ? finding::full : finding::empty;
    case steps::predicate_code::leaf: found = finding_of_leaf(step); break;
    case steps::predicate_code::all: found = finding_of_parts(step.parts.data(), step.parts.data() + step.parts.size(), finding::full); break;
    case steps::predicate_code::any: found = finding_of_parts(step.parts.data(), step.parts.data() + step.parts.size(), finding::empty); break;
    case steps::predicate_code::select: found = finding_of_select(step); break;
    case steps::predicate_code::opaque: break;
  }
  if (is_entering_ && (found == finding::empty || found == finding::full)) {
    known_[std::size_t(id)] = found;
    decided_.push_back(id);
  }
  return found;
}

// All parts (neutral: full) or any of them (neutral: empty). One part that is kept in part beside neutral ones says that the
// whole is; two may hide each other.
SAMITE_IMPL box_judge::finding box_judge::finding_of_parts(const int* first, const int* last, finding neutral) {
  finding found = neutral;
  for (; first != last; ++first) {
    const finding next = finding_of(*first);
    if (next == neutral) continue;
    if (next == finding::empty || next == finding::full) return next;
    found = found == neutral ? next : finding::undecided;
  }
  return found;
}

SAMITE_IMPL box_judge::finding box_judge::finding_of_select(const steps::predicate_step& step) {
  const finding condition = finding_of(step.parts[0]);
  if (condition == finding::full) return finding_of(step.parts[1]);
  const finding otherwise = finding_of(step.parts[2]);
  if (condition == finding::empty) return otherwise;
  const bool decided = otherwise == finding::empty || otherwise == finding::full;
  return decided && otherwise == finding_of(step.parts[1]) ? otherwise : finding::undecided;
}

namespace detail {
/// Whether all, none or some of a stretch of integers are in a leaf's set and residue class.
inline verdict verdict_of_stretch(const box_steps::predicate_step& leaf, interval range) {
  bool some = false;
  for (const interval& allowed : leaf.set) {
    const interval inside{std::max(range.low, allowed.low), std::min(range.high, allowed.high)};
    if (inside.low > inside.high) continue;
    if (leaf.residues.is_everything()) {
      if (inside == range) return verdict::full;
      some = true;
      continue;
    }
    const index_t offset = floor_mod(inside.low - leaf.residues.start, leaf.residues.modulus);
    const index_t extent = inside.high - inside.low;
    if (inside == range && offset + extent < leaf.residues.count) return verdict::full;
    some = some || offset < leaf.residues.count || offset + extent >= leaf.residues.modulus;
  }
  return some ? verdict::undecided : verdict::empty;
}
}  // namespace detail

SAMITE_IMPL box_judge::finding box_judge::finding_of_leaf(const steps::predicate_step& step) {
  const interval range = value(step.form);
  const verdict found = detail::verdict_of_stretch(step, range);
  if (found == verdict::empty) return finding::empty;
  if (found == verdict::full) return finding::full;
  if (step.first_gather >= 0 && never_equal(step)) {  // only the difference 0 is ruled out
    if (step.set.size() == 1 && step.set[0] == interval::point(0)) return finding::empty;
    const bool all_but_zero = step.set.size() == 2 && step.set[0].high == -1 && step.set[1].low == 1 && step.set[0].low <= range.low && range.high <= step.set[1].high;
    if (all_but_zero && step.residues.is_everything()) return finding::full;
  }
  return wants_partial_ && step.is_tight && is_partial(step, range, reach_of(step, -1)) ? finding::partial : finding::undecided;
}

// Whether the two tables of the leaf hold no common value here.
SAMITE_IMPL bool box_judge::never_equal(const steps::predicate_step& step) {
  const auto residues = [&](int id) {
    value(id);  // the form may be known from another box whose rows differ, and the gather not yet in these
    const steps::value_step& gather = steps_->values[std::size_t(id)];
    return known_ranges_[steps::axis_of(gather)][gather.place].residues;
  };
  return (residues(step.first_gather) & residues(step.second_gather)) == 0;
}

// How far inwards from its bounds the form takes every value: what its gapless terms span, but for one of them.
SAMITE_IMPL index_t box_judge::reach_of(const steps::predicate_step& step, int without) {
  index_t reach = 0;
  for (int term : step.gapless_terms) {
    if (term == without) continue;
    const interval x = value(term);
    reach = std::min(reach + (x.high - x.low), interval::highest);
  }
  return reach;
}

// A kept and a hidden value among those that the form is known to take say that the box is kept in part.
SAMITE_IMPL bool box_judge::is_partial(const steps::predicate_step& step, interval range, index_t reach) const {
  const steps::value_step& form = steps_->values[std::size_t(step.form)];
  if (form.one_row && !(b_.is_point() && h_.is_point())) return false;
  if (form.period != 1 && (floor_mod(box_[2]->low, form.period) != 0 || floor_mod(box_[2]->high + 1, form.period) != 0)) return false;
  reach = std::min(reach, range.high - range.low);
  const verdict below = detail::verdict_of_stretch(step, {range.low, range.low + reach});
  if (below == verdict::undecided) return true;
  const verdict above = detail::verdict_of_stretch(step, {range.high - reach, range.high});
  return above == verdict::undecided || above != below;
}

// --- cutting undecided boxes -------------------------------------------------------------------------------------------

// Cuts the box in two where a part of the predicate changes; false for a single pair.
SAMITE_IMPL bool box_judge::cut(const index_box& box, index_box& first, index_box& second) const {
  for (int axis : {2, 3}) {
    const interval range = axis == 2 ? box.q : box.kv;
    for (index_t at : steps_->thresholds[axis - 2])
      if (range.low < at && at <= range.high) return detail::cut_at(box, axis, at, first, second);
  }
  const index_t rows = box.q.high - box.q.low, columns = box.kv.high - box.kv.low;
  if (rows == 0 && columns == 0) return false;
  for (int axis : {2, 3}) {
    const interval range = axis == 2 ? box.q : box.kv;
    for (const steps::grain& g : steps_->grains[axis - 2]) {
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
  const finding found = find_inside(box);
  --state.budget;
  if (found == finding::empty || found == finding::partial) state.hidden = true;
  if (found == finding::full || found == finding::partial) state.kept = true;
  index_box first, second;
  if (found != finding::undecided) {
  } else if (state.ended() || !cut(box, first, second)) {
    unresolved_ = true;
  } else {
    refine(first, state);
    if (state.ended()) unresolved_ = true;
    else refine(second, state);
  }
  leave();
}

SAMITE_IMPL verdict box_judge::judge_finely(const index_box& box, int budget, box_cells cells) {
  wants_partial_ = true;
  const finding first = find(box, cells);
  verdict found = detail::verdict_of(first);
  if (first == finding::undecided) {
    find_inside(box, cells);
    found = search_inside(box, budget);
    leave();
  }
  wants_partial_ = false;
  return found;
}

SAMITE_IMPL verdict box_judge::search_inside(const index_box& box, int budget) {
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
  const auto largest = [](interval x) { return std::max(x.high, -x.low); };
  begin(box);
  for (std::size_t id = 0; id < steps_->values.size(); ++id) {
    const steps::value_step& step = steps_->values[id];
    if (step.code == steps::value_code::gather) {
      const table_contents& table = *bound_.tables[std::size_t(step.imm)];
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
              "; give a table that covers the range, or clamp the index, e.g. t[clamp(i, 0, ", length - 1, ")]", rank == 3 ? " (a dense_mask has all queries and keys of the run)" : "");
      }
    } else if (step.code == steps::value_code::sum) {
      // All terms at their largest: then no part of the sum saturates, in whatever order it is added up.
      __int128 most = largest(interval::point(step.imm));
      for (int t = step.a; t < step.b; ++t) most += __int128(largest(interval::point(steps_->terms[std::size_t(t)].factor))) * largest(value(steps_->terms[std::size_t(t)].atom));
      if (most >= interval::highest) detail::refuse_overflow(box);
    } else if (step.code != steps::value_code::constant && step.code != steps::value_code::symbol) {
      const interval range = value(int(id));
      if (range.low <= interval::lowest || range.high >= interval::highest) detail::refuse_overflow(box);
    }
  }
  for (const std::vector<node>& nodes : steps_->computed)
    if (!detail::stays_within_64_bits(nodes, bound_.tables, box)) detail::refuse_overflow(box);
}

SAMITE_IMPL verdict judge(const program& p, const index_box& box) { return box_judge(p).judge(box); }

}  // namespace samite
