// samite/ir/bounds.hpp: what a predicate or index is over a whole box of (b, h, q, kv), without looking at its pairs.
//
// Always sound: `empty` and `full` are never wrong. Constraints on one linear form (q - kv, q/16 - kv/16, ...) are merged
// into one set of intervals, with at most one residue class, before they are judged; that makes the verdict exact where
// separate verdicts would stay undecided (a window written as two comparisons, for one).
#pragma once
#include <bit>
#include <optional>

#include <samite/ir/canonical.hpp>

namespace samite {

/// A box of indices; every end is included.
struct index_box {
  interval b, h, q, kv;

  /// All rows and columns of a score matrix with these sizes, each at least 1.
  static index_box whole(index_t B, index_t H, index_t Q, index_t K) { return {{0, B - 1}, {0, H - 1}, {0, Q - 1}, {0, K - 1}}; }
};

/// Judges one program over many boxes. Arguments and tables are read when it is made, so that it describes one run.
///
/// errors   E-MASK-OVERFLOW from check(), E-MASK-TABLE-RANGE from check()
/// cost     making it: a few microseconds; judging a box: tens of nanoseconds, no allocation
/// threads  one thread at a time; a copy serves another thread
class box_judge {
 public:
  /// Reads root number `root` of the program: a predicate (judge) or an index (range).
  explicit box_judge(const program& source, std::size_t root = 0);

  /// Whether the predicate keeps nothing, everything or possibly a part of the box.
  verdict judge(const index_box& box) {
    begin(box);
    return verdict_of(root_predicate_);
  }
  /// Bounds of the index.
  interval range(const index_box& box) {
    begin(box);
    return value(root_value_);
  }

  /// As `judge`, but cuts an undecided box at the places where its parts change (thresholds, multiples of the divisors,
  /// then halves) until it is decided or `budget` verdicts were asked for. An answer `undecided` that came before the
  /// budget ended means that the box is kept in part.
  verdict judge_finely(const index_box& box, int budget);

  /// Whether `judge` alone is exact: the predicate is one comparison of a form whose symbols don't repeat.
  bool is_exact() const { return exact_; }

  /// Refuses a program whose table indices can leave their table in the box, or whose numbers can leave 62 bits.
  void check(const index_box& box);

 private:
  struct term {
    int value;
    index_t factor;
    friend bool operator==(const term&, const term&) = default;
  };
  enum class value_code : std::uint8_t { constant, symbol, sum, quotient, remainder, binary, gather, select };
  struct value_step {
    value_code code = value_code::constant;
    op operation = op::constant;
    int a = -1, b = -1, c = -1;  // operands; of a sum: its terms [a, b); of a select: predicate, value, value
    int shift = -1;              // of a quotient or remainder: log2 of the divisor if it is a power of two
    index_t imm = 0;             // constant, symbol, added constant, divisor, table
  };
  enum class predicate_code : std::uint8_t { constant, leaf, all, any, select, opaque };
  struct residue_class {
    index_t modulus = 1, start = 0, count = 1;  // x mod modulus is one of the `count` values from start on, cyclically
    bool is_everything() const { return count >= modulus; }
    friend bool operator==(const residue_class&, const residue_class&) = default;
  };
  // A predicate node. A leaf says: the form (a sum without constant) lies in one of the intervals and in the residue class.
  struct predicate_step {
    predicate_code code = predicate_code::constant;
    bool constant = false;
    int form = -1;
    std::vector<interval> set;
    residue_class residues;
    int first_gather = -1, second_gather = -1;  // the form is one table value minus another
    std::vector<int> parts;                     // of all, any; of select: condition, then, else
    int cost = 1;
  };

  void begin(const index_box& box) {
    box_[0] = box.b, box_[1] = box.h, box_[2] = box.q, box_[3] = box.kv;
    if (++stamp_ == 0) {
      std::fill(stamps_.begin(), stamps_.end(), 0u);
      stamp_ = 1;
    }
  }

  // --- evaluation over the current box ------------------------------------------------------------------------------

  interval value(int id) {
    const value_step& step = values_[std::size_t(id)];
    if (step.code == value_code::symbol) return box_[std::size_t(step.imm)];
    if (step.code == value_code::constant) return interval::point(step.imm);
    if (stamps_[std::size_t(id)] == stamp_) return ranges_[std::size_t(id)];
    const interval found = compute(id, step);
    stamps_[std::size_t(id)] = stamp_;
    return ranges_[std::size_t(id)] = found;
  }

  static index_t divided(index_t x, const value_step& step) { return step.shift >= 0 ? x >> step.shift : floor_div(x, step.imm); }

  interval compute(int id, const value_step& step) {
    switch (step.code) {
      case value_code::sum: {
        index_t low = step.imm, high = step.imm;
        for (int i = step.a; i < step.b; ++i) {
          const term t = terms_[std::size_t(i)];
          const interval x = value(t.value);
          const interval scaled = t.factor == 1 ? x : t.factor == -1 ? interval{-x.high, -x.low} : rules::mul::bounds(x, interval::point(t.factor));
          // Both summands lie within the saturated range, a quarter of 64 bits: their sum does not wrap.
          low = std::clamp(low + scaled.low, interval::lowest, interval::highest);
          high = std::clamp(high + scaled.high, interval::lowest, interval::highest);
        }
        return {low, high};
      }
      case value_code::quotient: {
        const interval x = value(step.a);
        return {divided(x.low, step), divided(x.high, step)};
      }
      case value_code::remainder: {
        const interval x = value(step.a);
        const index_t whole = divided(x.low, step);
        if (whole != divided(x.high, step)) return {0, step.imm - 1};
        return {x.low - whole * step.imm, x.high - whole * step.imm};
      }
      case value_code::gather: {
        const auto whole = interval::point(0);
        const interval x = value(step.a), y = step.b < 0 ? whole : value(step.b), z = step.c < 0 ? whole : value(step.c);
        const table_contents& table = *tables_[std::size_t(step.imm)];
        const table_range found = step.b < 0 ? table.range(whole, whole, x) : step.c < 0 ? table.range(whole, x, y) : table.range(x, y, z);
        residues_[std::size_t(id)] = found.residues;
        return found.values;
      }
      case value_code::select: return rules::select::bounds(verdict_of(step.a), value(step.b), value(step.c));
      case value_code::binary: {
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

  verdict verdict_of(int id) {
    const predicate_step& step = predicates_[std::size_t(id)];
    switch (step.code) {
      case predicate_code::constant: return step.constant ? verdict::full : verdict::empty;
      case predicate_code::leaf: return verdict_of_leaf(step);
      case predicate_code::all: {
        verdict found = verdict::full;
        for (int part : step.parts) {
          found = found & verdict_of(part);
          if (found == verdict::empty) break;
        }
        return found;
      }
      case predicate_code::any: {
        verdict found = verdict::empty;
        for (int part : step.parts) {
          found = found | verdict_of(part);
          if (found == verdict::full) break;
        }
        return found;
      }
      case predicate_code::select: {
        const verdict condition = verdict_of(step.parts[0]);
        if (condition == verdict::full) return verdict_of(step.parts[1]);
        const verdict otherwise = verdict_of(step.parts[2]);
        if (condition == verdict::empty) return otherwise;
        return otherwise == verdict_of(step.parts[1]) ? otherwise : verdict::undecided;
      }
      case predicate_code::opaque: return verdict::undecided;
    }
    return verdict::undecided;
  }

  verdict verdict_of_leaf(const predicate_step& step) {
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

  // --- cutting undecided boxes --------------------------------------------------------------------------------------

  // Cuts the box in two where a part of the predicate changes; false for a single pair.
  bool cut(const index_box& box, index_box& first, index_box& second) const {
    for (int axis : {2, 3}) {
      const interval range = axis == 2 ? box.q : box.kv;
      for (index_t at : thresholds_[axis - 2])
        if (range.low < at && at <= range.high) return cut_at(box, axis, at, first, second);
    }
    const index_t rows = box.q.high - box.q.low, columns = box.kv.high - box.kv.low;
    if (rows == 0 && columns == 0) return false;
    for (int axis : {2, 3}) {
      const interval range = axis == 2 ? box.q : box.kv;
      for (const grain& g : grains_[axis - 2]) {
        const index_t low = floor_div(range.low + g.offset, g.divisor), high = floor_div(range.high + g.offset, g.divisor);
        if (low != high) return cut_at(box, axis, (low + (high - low + 1) / 2) * g.divisor - g.offset, first, second);
      }
    }
    const int axis = rows >= columns ? 2 : 3;
    const interval range = axis == 2 ? box.q : box.kv;
    return cut_at(box, axis, range.low + (range.high - range.low + 1) / 2, first, second);
  }

  static bool cut_at(const index_box& box, int axis, index_t at, index_box& first, index_box& second) {
    first = second = box;
    (axis == 2 ? first.q : first.kv).high = at - 1;
    (axis == 2 ? second.q : second.kv).low = at;
    return true;
  }

  struct search {
    int budget;
    bool kept = false, hidden = false;
    bool ended() const { return (kept && hidden) || budget <= 0; }
  };

  void refine(const index_box& box, search& state) {
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

  struct grain {
    index_t divisor, offset;
    friend bool operator==(const grain&, const grain&) = default;
  };

  // --- making -------------------------------------------------------------------------------------------------------

  struct sum_of_values {
    std::vector<term> terms;
    index_t constant = 0;
    bool valid = true;
  };

  static sum_of_values joined(sum_of_values x, const sum_of_values& y, index_t factor);
  sum_of_values composed_sum(node_id id);
  sum_of_values sum_of(node_id id);
  int value_of(node_id id);
  int atom_of(node_id id);
  int value_of_sum(const sum_of_values& sum);
  int push_value(const value_step& step);
  int predicate_of(node_id id, bool negated);
  int leaf_of(sum_of_values sum, std::vector<interval> set, residue_class residues);
  int combined(bool is_any, std::vector<int> parts);
  int push_predicate(predicate_step step);
  int constant_predicate(bool value) {
    predicate_step step;
    step.constant = value;
    step.cost = 0;
    return push_predicate(std::move(step));
  }
  int cost_of(int value_id) const;
  void note_grain(int dividend, index_t divisor);
  void note_threshold(const predicate_step& leaf);
  bool symbols_repeat(int value_id, unsigned& seen) const;

  program bound_;
  std::vector<std::shared_ptr<const table_contents>> tables_;
  std::vector<value_step> values_;
  std::vector<term> terms_;
  std::vector<predicate_step> predicates_;
  std::vector<int> value_memo_;
  std::vector<index_t> thresholds_[2];
  std::vector<grain> grains_[2];
  int root_predicate_ = -1, root_value_ = -1;
  bool exact_ = false, unresolved_ = false;

  interval box_[symbol_count];
  std::uint32_t stamp_ = 0;
  std::vector<std::uint32_t> stamps_;
  std::vector<interval> ranges_;
  std::vector<std::uint64_t> residues_;
};

/// Verdict of a predicate over one box; make a box_judge to ask more than once.
inline verdict judge(const program& p, const index_box& box) { return box_judge(p).judge(box); }

// --- implementation ---------------------------------------------------------------------------------------------------

namespace detail {

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

}  // namespace detail

inline box_judge::box_judge(const program& source, std::size_t root) : bound_(canonical(source, true)) {
  ensure(root < bound_.roots.size(), "a judged program has the root that is asked for");
  for (const auto& table : bound_.tables()) tables_.push_back(table->contents());
  value_memo_.assign(bound_.size(), -1);
  const node_id id = bound_.roots[root];
  ensure(bound_[id].kind != value_kind::real, "bounds are for predicates and indices, not for real values");
  if (bound_[id].kind == value_kind::boolean) {
    root_predicate_ = predicate_of(id, false);
    const predicate_step& top = predicates_[std::size_t(root_predicate_)];
    unsigned seen = 0;
    exact_ = top.code == predicate_code::constant || (top.code == predicate_code::leaf && !symbols_repeat(top.form, seen));
  } else {
    root_value_ = value_of(id);
  }
  stamps_.assign(values_.size(), 0);
  ranges_.resize(values_.size());
  residues_.assign(values_.size(), ~std::uint64_t(0));
  for (auto& list : thresholds_) {
    detail::sort_few(list, [](index_t x, index_t y) { return x < y; });
  }
  for (auto& list : grains_) detail::sort_few(list, [](const grain& x, const grain& y) { return x.divisor > y.divisor; });
}

inline verdict box_judge::judge_finely(const index_box& box, int budget) {
  const verdict first = judge(box);
  if (first != verdict::undecided || exact_) return first;
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

inline void box_judge::check(const index_box& box) {
  begin(box);
  for (std::size_t id = 0; id < values_.size(); ++id) {
    const value_step& step = values_[id];
    if (step.code == value_code::gather) {
      const table_contents& table = *tables_[std::size_t(step.imm)];
      const int operands[3] = {step.a, step.b, step.c};
      const int rank = step.b < 0 ? 1 : step.c < 0 ? 2 : 3;
      for (int i = 0; i < rank; ++i) {
        const interval index = value(operands[i]);
        const index_t length = table.dims()[std::size_t(3 - rank + i)];
        if (index.low >= 0 && index.high < length) continue;
        const std::vector<index_t> dims(table.dims().end() - rank, table.dims().end());
        raise("E-MASK-TABLE-RANGE", "mask: index ", i, " of a table of rank ", rank, " and dimensions ", dims, " can be from ", index.low,
              " to ", index.high, " over b ", box.b.low, "..", box.b.high, ", h ", box.h.low, "..", box.h.high, ", q ", box.q.low, "..",
              box.q.high, ", kv ", box.kv.low, "..", box.kv.high, ", but must be from 0 to ", length - 1,
              "; give a table that covers the range, or clamp the index, e.g. t[clamp(i, 0, ", length - 1, ")]");
      }
    } else if (step.code == value_code::sum || step.code == value_code::binary) {
      const interval range = value(int(id));
      if (range.low <= interval::lowest || range.high >= interval::highest)
        raise("E-MASK-OVERFLOW", "mask: an index expression can leave 62 bits over q ", box.q.low, "..", box.q.high, ", kv ", box.kv.low, "..",
              box.kv.high, "; use smaller factors or arguments (a width of 1 << 40 is as good as an infinite one)");
    }
  }
}

inline int box_judge::push_value(const value_step& step) {
  values_.push_back(step);
  return int(values_.size()) - 1;
}

inline box_judge::sum_of_values box_judge::joined(sum_of_values x, const sum_of_values& y, index_t factor) {
  x.valid = x.valid && y.valid && detail::is_foldable(__int128(x.constant) + __int128(y.constant) * factor);
  if (!x.valid) return x;
  x.constant += y.constant * factor;
  for (const term& t : y.terms) {
    auto at = std::find_if(x.terms.begin(), x.terms.end(), [&](const term& o) { return o.value == t.value; });
    const __int128 total = __int128(t.factor) * factor + (at == x.terms.end() ? 0 : at->factor);
    x.valid = x.valid && detail::is_foldable(total);
    if (!x.valid) return x;
    if (at == x.terms.end()) x.terms.push_back({t.value, index_t(total)});
    else if (total == 0) x.terms.erase(at);
    else at->factor = index_t(total);
  }
  return x;
}

// The node as a sum; not valid if it is not one, or if its numbers are too large to fold.
inline box_judge::sum_of_values box_judge::composed_sum(node_id id) {
  const node n = bound_[id];
  switch (n.code) {
    case op::constant: return {{}, n.imm, detail::is_foldable(n.imm)};
    case op::add: return joined(sum_of(n.operands[0]), sum_of(n.operands[1]), 1);
    case op::sub: return joined(sum_of(n.operands[0]), sum_of(n.operands[1]), -1);
    case op::neg: return joined({}, sum_of(n.operands[0]), -1);
    case op::mul: {
      const bool left = detail::is_constant(bound_, n.operands[0]), right = detail::is_constant(bound_, n.operands[1]);
      const index_t factor = left || right ? bound_[n.operands[left ? 0 : 1]].imm : 0;
      if (factor == 0) return {{}, 0, false};
      return joined({}, sum_of(n.operands[left ? 1 : 0]), factor);
    }
    default: return {{}, 0, false};
  }
}

inline box_judge::sum_of_values box_judge::sum_of(node_id id) {
  sum_of_values found = composed_sum(id);
  if (found.valid) return found;
  return {{{atom_of(id), 1}}, 0, true};
}

inline int box_judge::value_of_sum(const sum_of_values& sum) {
  if (sum.terms.empty()) {
    value_step step;
    step.imm = sum.constant;
    return push_value(step);
  }
  if (sum.terms.size() == 1 && sum.terms[0].factor == 1 && sum.constant == 0) return sum.terms[0].value;
  for (std::size_t id = 0; id < values_.size(); ++id) {
    const value_step& v = values_[id];
    if (v.code == value_code::sum && v.imm == sum.constant && std::size_t(v.b - v.a) == sum.terms.size() &&
        std::equal(sum.terms.begin(), sum.terms.end(), terms_.begin() + v.a))
      return int(id);
  }
  value_step step;
  step.code = value_code::sum;
  step.imm = sum.constant;
  step.a = int(terms_.size());
  terms_.insert(terms_.end(), sum.terms.begin(), sum.terms.end());
  step.b = int(terms_.size());
  return push_value(step);
}

inline int box_judge::value_of(node_id id) {
  sum_of_values sum = composed_sum(id);
  if (!sum.valid) return atom_of(id);
  detail::sort_few(sum.terms, [](const term& x, const term& y) { return x.value < y.value; });
  return value_of_sum(sum);
}

inline int box_judge::atom_of(node_id id) {
  if (value_memo_[std::size_t(id)] >= 0) return value_memo_[std::size_t(id)];
  const node n = bound_[id];
  value_step step;
  step.operation = n.code;
  step.imm = n.imm;
  switch (n.code) {
    case op::constant: step.imm = saturate(n.imm); break;
    case op::symbol: step.code = value_code::symbol; break;
    case op::select:
      step.code = value_code::select;
      step.a = predicate_of(n.operands[0], false);
      step.b = value_of(n.operands[1]), step.c = value_of(n.operands[2]);
      break;
    case op::div: case op::mod:
      step.code = n.code == op::div ? value_code::quotient : value_code::remainder;
      step.a = value_of(n.operands[0]);
      step.imm = bound_[n.operands[1]].imm;  // build() allows constant divisors only
      if (std::has_single_bit(std::uint64_t(step.imm))) step.shift = std::countr_zero(std::uint64_t(step.imm));
      note_grain(step.a, step.imm);
      break;
    default:
      step.code = n.code == op::gather ? value_code::gather : value_code::binary;
      step.a = value_of(n.operands[0]);
      if (n.operands[1] != no_node) step.b = value_of(n.operands[1]);
      if (n.operands[2] != no_node) step.c = value_of(n.operands[2]);
      break;
  }
  return value_memo_[std::size_t(id)] = push_value(step);
}

inline int box_judge::push_predicate(predicate_step step) {
  predicates_.push_back(std::move(step));
  return int(predicates_.size()) - 1;
}

inline int box_judge::cost_of(int value_id) const {
  const value_step& v = values_[std::size_t(value_id)];
  switch (v.code) {
    case value_code::constant: case value_code::symbol: return 0;
    case value_code::sum: {
      int total = 1;
      for (int i = v.a; i < v.b; ++i) total += 1 + cost_of(terms_[std::size_t(i)].value);
      return total;
    }
    case value_code::select: return 4 + predicates_[std::size_t(v.a)].cost + cost_of(v.b) + cost_of(v.c);
    default: {
      int total = v.code == value_code::gather ? 12 : v.code == value_code::binary ? 2 : 4;
      for (int operand : {v.a, v.b, v.c})
        if (operand >= 0) total += cost_of(operand);
      return std::min(total, 1 << 20);
    }
  }
}

// Remembers multiples of the divisor as places to cut, if the dividend is q or kv plus a constant.
inline void box_judge::note_grain(int dividend, index_t divisor) {
  const value_step& v = values_[std::size_t(dividend)];
  index_t offset = 0;
  int symbol = dividend;
  if (v.code == value_code::sum) {
    if (v.b - v.a != 1 || terms_[std::size_t(v.a)].factor != 1) return;
    symbol = terms_[std::size_t(v.a)].value;
    offset = v.imm;
  }
  const value_step& s = values_[std::size_t(symbol)];
  if (s.code != value_code::symbol || (s.imm != index_t(symbol_id::q) && s.imm != index_t(symbol_id::kv))) return;
  auto& list = grains_[s.imm == index_t(symbol_id::kv)];
  const grain g{divisor, offset};
  if (std::find(list.begin(), list.end(), g) == list.end()) list.push_back(g);
}

inline void box_judge::note_threshold(const predicate_step& leaf) {
  const value_step& v = values_[std::size_t(leaf.form)];
  if (v.code != value_code::symbol || (v.imm != index_t(symbol_id::q) && v.imm != index_t(symbol_id::kv))) return;
  auto& list = thresholds_[v.imm == index_t(symbol_id::kv)];
  for (const interval& part : leaf.set) {
    if (part.low > interval::lowest) list.push_back(part.low);
    if (part.high < interval::highest) list.push_back(part.high + 1);
  }
}

inline bool box_judge::symbols_repeat(int value_id, unsigned& seen) const {
  const value_step& v = values_[std::size_t(value_id)];
  switch (v.code) {
    case value_code::constant: return false;
    case value_code::symbol: {
      const unsigned bit = 1u << v.imm;
      const bool again = (seen & bit) != 0;
      seen |= bit;
      return again;
    }
    case value_code::sum:
      for (int i = v.a; i < v.b; ++i) {
        if (terms_[std::size_t(i)].factor != 1 && terms_[std::size_t(i)].factor != -1) return true;  // values in between are missing
        if (symbols_repeat(terms_[std::size_t(i)].value, seen)) return true;
      }
      return false;
    case value_code::quotient: return symbols_repeat(v.a, seen);  // leaves no gaps; a remainder or product may
    default: return true;
  }
}

// The form lies in the set: brings the form to its simplest writing first, so that equal forms meet and merge.
inline int box_judge::leaf_of(sum_of_values sum, std::vector<interval> set, residue_class residues) {
  for (interval& part : set) {
    if (part.low > interval::lowest) part.low = saturate(__int128(part.low) - sum.constant);
    if (part.high < interval::highest) part.high = saturate(__int128(part.high) - sum.constant);
  }
  residues.start = floor_mod(residues.start - sum.constant % residues.modulus, residues.modulus);
  sum.constant = 0;
  detail::sort_few(sum.terms, [](const term& x, const term& y) { return x.value < y.value; });
  if (!sum.terms.empty() && sum.terms[0].factor < 0) {
    for (term& t : sum.terms) t.factor = -t.factor;
    for (interval& part : set) part = {-part.high, -part.low};
    std::reverse(set.begin(), set.end());
    residues.start = floor_mod(-(residues.start + residues.count - 1), residues.modulus);
  }
  set = detail::intersection(set, {interval::everything()});
  if (set.empty() || residues.count <= 0) return constant_predicate(false);
  if (sum.terms.empty()) {
    const bool inside = std::any_of(set.begin(), set.end(), [](const interval& part) { return part.contains(0); });
    return constant_predicate(inside && floor_mod(-residues.start, residues.modulus) < residues.count);
  }
  if (detail::is_everything(set) && residues.is_everything()) return constant_predicate(true);
  if (sum.terms.size() == 1 && sum.terms[0].factor == 1) {
    const value_step v = values_[std::size_t(sum.terms[0].value)];
    const auto operand = [&](int id) {
      const value_step& o = values_[std::size_t(id)];
      sum_of_values inner;
      if (o.code == value_code::sum) inner = {{terms_.begin() + o.a, terms_.begin() + o.b}, o.imm, true};
      else inner.terms.push_back({id, 1});
      return inner;
    };
    if (v.code == value_code::binary && v.operation == op::abs && (residues.is_everything() || (residues.start == 0 && residues.count == 1))) {
      std::vector<interval> both;
      for (const interval& part : detail::intersection(set, {{0, interval::highest}})) {
        if (part.low == 0) {
          both.push_back({-part.high, part.high});
        } else {
          both.push_back({-part.high, -part.low});
          both.push_back(part);
        }
      }
      return leaf_of(operand(v.a), detail::intersection(both, {interval::everything()}), residues);
    }
    if (v.code == value_code::quotient && residues.is_everything()) {
      const index_t divisor = v.imm;
      for (interval& part : set) {
        if (part.low > interval::lowest) part.low = saturate(__int128(part.low) * divisor);
        if (part.high < interval::highest) part.high = saturate(__int128(part.high) * divisor + divisor - 1);
      }
      return leaf_of(operand(v.a), set, residues);
    }
    if (v.code == value_code::remainder && residues.is_everything()) {
      const index_t modulus = v.imm;
      set = detail::intersection(set, {{0, modulus - 1}});
      if (set.empty()) return constant_predicate(false);
      const bool is_complement = set.size() == 2 && set[0].low == 0 && set[1].high == modulus - 1;  // cyclically one interval
      if (set.size() == 1) return leaf_of(operand(v.a), {interval::everything()}, {modulus, set[0].low, set[0].high - set[0].low + 1});
      if (is_complement)
        return leaf_of(operand(v.a), {interval::everything()}, {modulus, set[1].low, modulus - set[1].low + set[0].high + 1});
    }
  }
  predicate_step step;
  step.code = predicate_code::leaf;
  step.form = value_of_sum(sum);
  step.set = std::move(set);
  step.residues = residues.is_everything() ? residue_class{} : residues;
  step.cost = 1 + cost_of(step.form);
  if (sum.terms.size() == 2 && sum.terms[0].factor + sum.terms[1].factor == 0 && (sum.terms[0].factor == 1 || sum.terms[0].factor == -1) &&
      values_[std::size_t(sum.terms[0].value)].code == value_code::gather && values_[std::size_t(sum.terms[1].value)].code == value_code::gather)
    step.first_gather = sum.terms[0].value, step.second_gather = sum.terms[1].value;
  note_threshold(step);
  return push_predicate(std::move(step));
}

inline int box_judge::combined(bool is_any, std::vector<int> parts) {
  std::vector<int> flat;
  for (int id : parts) {
    const predicate_step& part = predicates_[std::size_t(id)];
    if (part.code == (is_any ? predicate_code::any : predicate_code::all)) flat.insert(flat.end(), part.parts.begin(), part.parts.end());
    else flat.push_back(id);
  }
  std::vector<int> merged;
  for (int id : flat) {
    const predicate_step part = predicates_[std::size_t(id)];
    if (part.code == predicate_code::constant) {
      if (part.constant == is_any) return id;
      continue;
    }
    bool absorbed = false;
    for (int& other : merged) {
      const predicate_step& o = predicates_[std::size_t(other)];
      if (part.code != predicate_code::leaf || o.code != predicate_code::leaf || o.form != part.form) continue;
      const bool free_of_residues = part.residues.is_everything() && o.residues.is_everything();
      if (is_any && !free_of_residues) continue;
      if (!is_any && !part.residues.is_everything() && !o.residues.is_everything() && !(part.residues == o.residues)) continue;
      predicate_step both = o;
      both.set = is_any ? detail::complement(detail::intersection(detail::complement(o.set), detail::complement(part.set)))
                        : detail::intersection(o.set, part.set);
      if (both.residues.is_everything()) both.residues = part.residues;
      if (both.set.empty()) return constant_predicate(false);
      if (detail::is_everything(both.set) && both.residues.is_everything() && is_any) return constant_predicate(true);
      other = push_predicate(std::move(both));
      absorbed = true;
      break;
    }
    if (!absorbed) merged.push_back(id);
  }
  if (merged.empty()) return constant_predicate(!is_any);
  if (merged.size() == 1) return merged[0];
  detail::sort_few(merged, [&](int x, int y) { return predicates_[std::size_t(x)].cost < predicates_[std::size_t(y)].cost; });
  predicate_step step;
  step.code = is_any ? predicate_code::any : predicate_code::all;
  for (int id : merged) step.cost = std::min(step.cost + predicates_[std::size_t(id)].cost, 1 << 20);
  step.parts = std::move(merged);
  return push_predicate(std::move(step));
}

inline int box_judge::predicate_of(node_id id, bool negated) {
  const node n = bound_[id];
  const node_id a = n.operands[0], b = n.operands[1];
  switch (n.code) {
    case op::constant: return constant_predicate((n.imm != 0) != negated);
    case op::logical_not: return predicate_of(a, !negated);
    case op::logical_and: case op::logical_or: {
      const int left = predicate_of(a, negated), right = predicate_of(b, negated);
      return combined((n.code == op::logical_or) != negated, {left, right});
    }
    case op::less: case op::less_equal: case op::equal: {
      if (bound_[a].kind == value_kind::boolean && n.code == op::equal) {  // equal booleans: a ? b : !b
        predicate_step step;
        step.code = predicate_code::select;
        step.parts = {predicate_of(a, false), predicate_of(b, negated), predicate_of(b, !negated)};
        for (int part : step.parts) step.cost += predicates_[std::size_t(part)].cost;
        return push_predicate(std::move(step));
      }
      if (bound_[a].kind != value_kind::index) break;
      sum_of_values difference = joined(sum_of(a), sum_of(b), -1);
      std::vector<interval> set{{interval::lowest, n.code == op::less ? -1 : 0}};
      if (!difference.valid) break;
      if (n.code == op::equal) set = {interval::point(0)};
      if (negated) set = detail::complement(set);
      return leaf_of(std::move(difference), std::move(set), {});
    }
    case op::select: {
      predicate_step step;
      step.code = predicate_code::select;
      step.parts = {predicate_of(a, false), predicate_of(b, negated), predicate_of(n.operands[2], negated)};
      for (int part : step.parts) step.cost += predicates_[std::size_t(part)].cost;
      return push_predicate(std::move(step));
    }
    default: break;
  }
  predicate_step opaque;
  opaque.code = predicate_code::opaque;
  return push_predicate(std::move(opaque));
}

}  // namespace samite
