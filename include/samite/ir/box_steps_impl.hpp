// samite/ir/box_steps_impl.hpp: the translation of a canonical program into steps.
#pragma once
#include <algorithm>
#include <bit>
#include <numeric>
#include <span>

#include <samite/ir/box_steps.hpp>
#include <samite/ir/build.hpp>
#include <samite/ir/canonical.hpp>
#include <samite/ir/folding.hpp>
#include <samite/ir/interval_set.hpp>

namespace samite::detail {

/// The nodes that the root needs, in their order.
inline std::vector<node> needed_nodes(const program& p, node_id root) {
  std::vector<char> is_needed(p.size(), 0);
  is_needed[std::size_t(root)] = 1;
  for (node_id id = root; id >= 0; --id)
    if (is_needed[std::size_t(id)])
      for (node_id operand : p[id].operands)
        if (operand != no_node) is_needed[std::size_t(operand)] = 1;
  std::vector<node> nodes;
  std::vector<node_id> number(p.size(), no_node);
  for (node_id id = 0; id <= root; ++id) {
    if (!is_needed[std::size_t(id)]) continue;
    number[std::size_t(id)] = node_id(nodes.size());
    node n = p[id];
    for (node_id& operand : n.operands)
      if (operand != no_node) operand = number[std::size_t(operand)];
    nodes.push_back(n);
  }
  return nodes;
}

class step_translator {
 public:
  // bound: with constants in the place of arguments; contents: of its tables
  step_translator(const program& bound, std::span<const std::shared_ptr<const table_contents>> contents) : bound_(canonical(bound, true)), contents_(contents) {
    for (const auto& table : bound_.tables()) slots_.push_back(std::find(bound.tables().begin(), bound.tables().end(), table) - bound.tables().begin());
  }

  box_steps run(std::size_t root) {
    value_memo_.assign(bound_.size(), -1);
    const node_id id = bound_.roots[root];
    out_.computed[1] = needed_nodes(bound_, id);
    for (node& n : out_.computed[1])
      if (n.code == op::gather) n.imm = slots_[std::size_t(n.imm)];
    ensure(bound_[id].kind != value_kind::real, "bounds are for predicates and indices, not for real values");
    if (bound_[id].kind == value_kind::boolean) {
      out_.root_predicate = predicate_of(id, false);
      const predicate_step& top = out_.predicates[std::size_t(out_.root_predicate)];
      // One comparison of a form that takes every value between its bounds is exact.
      out_.is_exact = top.code == predicate_code::constant || (top.code == predicate_code::leaf && is_gapless(top.form));
    } else {
      out_.root_value = value_of(id);
    }
    for (auto& list : out_.thresholds) sort_few(list, [](index_t x, index_t y) { return x < y; });
    for (auto& list : out_.grains) sort_few(list, [](const grain& x, const grain& y) { return x.divisor > y.divisor; });
    return std::move(out_);
  }

 private:
  using value_code = box_steps::value_code;
  using value_step = box_steps::value_step;
  using predicate_code = box_steps::predicate_code;
  using predicate_step = box_steps::predicate_step;
  using residue_class = box_steps::residue_class;
  using term = box_steps::term;
  using grain = box_steps::grain;

  int push_value(value_step step) {
    describe(step);
    const auto axis = box_steps::axis_of(step);
    const bool is_kept = step.code != value_code::symbol && step.code != value_code::constant && !(step.code == value_code::sum && axis == box_steps::pairs);
    if (is_kept) step.place = out_.steps_on[axis]++;
    out_.values.push_back(step);
    return int(out_.values.size()) - 1;
  }

  // What a predicate looks at.
  unsigned symbols_of(int predicate) const {
    const predicate_step& step = out_.predicates[std::size_t(predicate)];
    if (step.code == predicate_code::opaque) return 15;  // anything
    unsigned symbols = step.code == predicate_code::leaf ? out_.values[std::size_t(step.form)].symbols : 0;
    for (int part : step.parts) symbols |= symbols_of(part);
    return symbols;
  }

  // Which values a step takes over a box; see value_step. Nothing is claimed where it is not plain.
  void describe(value_step& step) const {
    constexpr unsigned rows = 1u << unsigned(symbol_id::b) | 1u << unsigned(symbol_id::h);
    const auto operand = [&](int id) -> const value_step& { return out_.values[std::size_t(id)]; };
    switch (step.code) {
      case value_code::constant: step.attains = step.gapless = true; return;
      case value_code::symbol:
        step.attains = step.gapless = true;
        step.symbols = std::uint8_t(1u << step.imm);
        step.block = step.imm == index_t(symbol_id::q);
        step.one_row = (step.symbols & rows) != 0;
        return;
      case value_code::sum:
        step.attains = step.gapless = true;
        for (const bool remainders : {false, true})  // these last, because they are compared with the rest
          for (int i = step.a; i < step.b; ++i) {
            const term& t = out_.terms[std::size_t(i)];
            const value_step& x = operand(t.atom);
            if (is_remainder_of_q(x) != remainders) continue;
            const bool apart = (step.symbols & x.symbols & ~rows) == 0;
            step.attains = step.attains && x.attains && (apart || are_apart_in_periods(step, x)) && share_period(step, x);
            step.gapless = step.gapless && apart && x.gapless && (t.factor == 1 || t.factor == -1);
            step.one_row = step.one_row || x.one_row;
            step.symbols |= x.symbols;
            step.block = std::gcd(step.block, x.block);
          }
        return;
      case value_code::select:
        step.symbols = std::uint8_t(symbols_of(step.a) | operand(step.b).symbols | operand(step.c).symbols);
        step.one_row = (step.symbols & rows) != 0;
        step.block = 1;
        return;
      default: break;
    }
    bool apart = true;
    for (int id : {step.a, step.b, step.c}) {
      if (id < 0) continue;
      apart = apart && (step.symbols & operand(id).symbols & ~rows) == 0;
      step.symbols |= operand(id).symbols;
      step.one_row = step.one_row || operand(id).one_row;
      step.block = std::gcd(step.block, operand(id).block);
      apart = share_period(step, operand(id)) && apart;
    }
    const value_step& x = operand(step.a);
    switch (step.code) {
      case value_code::quotient:
        step.attains = x.attains, step.gapless = x.gapless;
        if (x.code == value_code::symbol) step.block *= step.imm;
        return;
      case value_code::remainder: step.attains = x.gapless; return;
      case value_code::gather: {
        const value_step& last = operand(step.c >= 0 ? step.c : step.b >= 0 ? step.b : step.a);
        if (step.b >= 0) {
          if ((x.symbols & ~rows) != 0 || (step.c >= 0 && (operand(step.b).symbols & ~rows) != 0)) return;
          step.one_row = true;
        }
        const table_contents& table = *contents_[std::size_t(step.imm)];
        step.attains = last.gapless || (last.attains && table.is_non_decreasing());
        step.gapless = last.gapless && table.is_gapless();
        return;
      }
      case value_code::binary: {
        const value_step& y = operand(step.b < 0 ? step.a : step.b);
        const bool both = apart && x.attains && y.attains;
        if (step.operation == op::abs) step.attains = step.gapless = x.gapless;
        if (step.operation == op::mul) step.attains = both;
        if (step.operation == op::min || step.operation == op::max) step.attains = both, step.gapless = both && x.gapless && y.gapless;
        return;
      }
      default: return;
    }
  }

  // The node as a sum; not valid if it is not one, or if its numbers are too large to fold.
  linear_form composed_sum(node_id id) {
    const node n = bound_[id];
    switch (n.code) {
      case op::constant: return {{}, n.imm, is_foldable(n.imm)};
      case op::add: return joined(sum_of(n.operands[0]), sum_of(n.operands[1]), 1);
      case op::sub: return joined(sum_of(n.operands[0]), sum_of(n.operands[1]), -1);
      case op::neg: return joined({}, sum_of(n.operands[0]), -1);
      case op::mul: {
        const bool left = is_constant(bound_, n.operands[0]), right = is_constant(bound_, n.operands[1]);
        const index_t factor = left || right ? bound_[n.operands[left ? 0 : 1]].imm : 0;
        if (factor == 0) return {{}, 0, false};
        return joined({}, sum_of(n.operands[left ? 1 : 0]), factor);
      }
      default: return {{}, 0, false};
    }
  }

  linear_form sum_of(node_id id) {
    linear_form found = composed_sum(id);
    if (found.valid) return found;
    return {{{atom_of(id), 1}}, 0, true};
  }

  int value_of_sum(const linear_form& sum) {
    if (sum.terms.empty()) {
      value_step step;
      step.imm = sum.constant;
      return push_value(step);
    }
    if (sum.terms.size() == 1 && sum.terms[0].factor == 1 && sum.constant == 0) return sum.terms[0].atom;
    for (std::size_t id = 0; id < out_.values.size(); ++id) {
      const value_step& v = out_.values[id];
      if (v.code == value_code::sum && v.imm == sum.constant && std::size_t(v.b - v.a) == sum.terms.size() &&
          std::equal(sum.terms.begin(), sum.terms.end(), out_.terms.begin() + v.a))
        return int(id);
    }
    value_step step;
    step.code = value_code::sum;
    step.imm = sum.constant;
    step.a = int(out_.terms.size());
    out_.terms.insert(out_.terms.end(), sum.terms.begin(), sum.terms.end());
    step.b = int(out_.terms.size());
    return push_value(step);
  }

  int value_of(node_id id) {
    linear_form sum = composed_sum(id);
    if (!sum.valid) return atom_of(id);
    sort_few(sum.terms, [](const term& x, const term& y) { return x.atom < y.atom; });
    return value_of_sum(sum);
  }

  int atom_of(node_id id) {
    if (value_memo_[std::size_t(id)] >= 0) return value_memo_[std::size_t(id)];
    const node n = bound_[id];
    value_step step;
    step.operation = n.code;
    step.imm = n.imm;
    switch (n.code) {
      case op::constant:
        step.imm = samite::saturate(n.imm);
        if (step.imm == n.imm) break;
        // Beyond what bounds hold, a number is a sum that leaves their range too, which box_judge::check refuses.
        step.a = step.b = push_value(step);
        step.code = value_code::binary, step.operation = op::add;
        break;
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
        if (n.code == op::gather) step.imm = slots_[std::size_t(n.imm)];
        step.a = operand_of(n, 0);
        if (n.operands[1] != no_node) step.b = operand_of(n, 1);
        if (n.operands[2] != no_node) step.c = value_of(n.operands[2]);
        break;
    }
    return value_memo_[std::size_t(id)] = push_value(step);
  }

  // The smaller (or larger) of a number beyond what bounds hold and something inside them is the latter (or refused as the result).
  int operand_of(const node& n, int k) {
    const node& x = bound_[n.operands[k]];
    if (x.code != op::constant || (n.code != op::min && n.code != op::max)) return value_of(n.operands[k]);
    return value_of_sum({{}, samite::saturate(x.imm), true});
  }

  int push_predicate(predicate_step step) {
    out_.predicates.push_back(std::move(step));
    return int(out_.predicates.size()) - 1;
  }

  int cost_of(int value_id) const {
    const value_step& v = out_.values[std::size_t(value_id)];
    switch (v.code) {
      case value_code::constant: case value_code::symbol: return 0;
      case value_code::sum: {
        int total = 1;
        for (int i = v.a; i < v.b; ++i) total += 1 + cost_of(out_.terms[std::size_t(i)].atom);
        return total;
      }
      case value_code::select: return 4 + out_.predicates[std::size_t(v.a)].cost + cost_of(v.b) + cost_of(v.c);
      default: {
        int total = v.code == value_code::gather ? 12 : v.code == value_code::binary ? 2 : 4;
        for (int operand : {v.a, v.b, v.c})
          if (operand >= 0) total += cost_of(operand);
        return std::min(total, 1 << 20);
      }
    }
  }

  // Remembers multiples of the divisor as places to cut, if the dividend is q or kv plus a constant.
  void note_grain(int dividend, index_t divisor) {
    const value_step& v = out_.values[std::size_t(dividend)];
    index_t offset = 0;
    int symbol = dividend;
    if (v.code == value_code::sum) {
      if (v.b - v.a != 1 || out_.terms[std::size_t(v.a)].factor != 1) return;
      symbol = out_.terms[std::size_t(v.a)].atom;
      offset = v.imm;
    }
    const value_step& s = out_.values[std::size_t(symbol)];
    if (s.code != value_code::symbol || (s.imm != index_t(symbol_id::q) && s.imm != index_t(symbol_id::kv))) return;
    auto& list = out_.grains[s.imm == index_t(symbol_id::kv)];
    const grain g{divisor, offset};
    if (std::find(list.begin(), list.end(), g) == list.end()) list.push_back(g);
  }

  void note_threshold(const predicate_step& leaf) {
    const value_step& v = out_.values[std::size_t(leaf.form)];
    if (v.code != value_code::symbol || (v.imm != index_t(symbol_id::q) && v.imm != index_t(symbol_id::kv))) return;
    auto& list = out_.thresholds[v.imm == index_t(symbol_id::kv)];
    for (const interval& part : leaf.set) {
      if (part.low > interval::lowest) list.push_back(part.low);
      if (part.high < interval::highest) list.push_back(part.high + 1);
    }
  }

  bool is_gapless(int value_id) const {
    const value_step& v = out_.values[std::size_t(value_id)];
    return v.gapless && !v.one_row;
  }

  // The form lies in the set: brings the form to its simplest writing first, so that equal forms meet and merge.
  int leaf_of(linear_form sum, std::vector<interval> set, residue_class residues) {
    for (interval& part : set) {
      if (part.low > interval::lowest) part.low = samite::saturate(__int128(part.low) - sum.constant);
      if (part.high < interval::highest) part.high = samite::saturate(__int128(part.high) - sum.constant);
    }
    residues.start = floor_mod(residues.start - sum.constant % residues.modulus, residues.modulus);
    sum.constant = 0;
    sort_few(sum.terms, [](const term& x, const term& y) { return x.atom < y.atom; });
    if (!sum.terms.empty() && sum.terms[0].factor < 0) {
      for (term& t : sum.terms) t.factor = -t.factor;
      for (interval& part : set) part = {-part.high, -part.low};
      std::reverse(set.begin(), set.end());
      residues.start = floor_mod(-(residues.start + residues.count - 1), residues.modulus);
    }
    set = intersection(set, {interval::everything()});
    if (set.empty() || residues.count <= 0) return constant_predicate(false);
    if (sum.terms.empty()) {
      const bool inside = std::any_of(set.begin(), set.end(), [](const interval& part) { return part.contains(0); });
      return constant_predicate(inside && floor_mod(-residues.start, residues.modulus) < residues.count);
    }
    if (is_everything(set) && residues.is_everything()) return constant_predicate(true);
    if (sum.terms.size() == 1 && sum.terms[0].factor == 1) {
      const value_step v = out_.values[std::size_t(sum.terms[0].atom)];
      const auto operand = [&](int id) {
        const value_step& o = out_.values[std::size_t(id)];
        linear_form inner;
        if (o.code == value_code::sum) inner = {{out_.terms.begin() + o.a, out_.terms.begin() + o.b}, o.imm, true};
        else inner.terms.push_back({id, 1});
        return inner;
      };
      if (v.code == value_code::binary && v.operation == op::abs && (residues.is_everything() || (residues.start == 0 && residues.count == 1))) {
        std::vector<interval> both;
        for (const interval& part : intersection(set, {{0, interval::highest}})) {
          if (part.low == 0) {
            both.push_back({-part.high, part.high});
          } else {
            both.push_back({-part.high, -part.low});
            both.push_back(part);
          }
        }
        return leaf_of(operand(v.a), intersection(both, {interval::everything()}), residues);
      }
      if (v.code == value_code::quotient && residues.is_everything()) {
        const index_t divisor = v.imm;
        for (interval& part : set) {
          if (part.low > interval::lowest) part.low = samite::saturate(__int128(part.low) * divisor);
          if (part.high < interval::highest) part.high = samite::saturate(__int128(part.high) * divisor + divisor - 1);
        }
        return leaf_of(operand(v.a), set, residues);
      }
      if (v.code == value_code::remainder && v.imm <= interval::highest && residues.is_everything()) {  // sums of larger residues leave 64 bits
        const index_t modulus = v.imm;
        set = intersection(set, {{0, modulus - 1}});
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
        out_.values[std::size_t(sum.terms[0].atom)].code == value_code::gather && out_.values[std::size_t(sum.terms[1].atom)].code == value_code::gather)
      step.first_gather = sum.terms[0].atom, step.second_gather = sum.terms[1].atom;
    note_terms(step);
    note_threshold(step);
    return push_predicate(std::move(step));
  }

  bool is_remainder_of_q(const value_step& x) const {
    return x.code == value_code::remainder && x.symbols == 1u << unsigned(symbol_id::q) && out_.values[std::size_t(x.a)].code == value_code::symbol;
  }

  // q / c and q % c don't depend on each other over whole periods of c. Notes the period in the sum if x is such a remainder.
  bool are_apart_in_periods(value_step& sum, const value_step& x) const {
    const bool kv = (sum.symbols & x.symbols & (1u << unsigned(symbol_id::kv))) != 0;
    if (kv || !is_remainder_of_q(x) || sum.block % x.imm != 0 || sum.period != 1) return false;
    sum.period = x.imm;
    return true;
  }

  static bool share_period(value_step& step, const value_step& x) {
    if (x.period == 1 || step.period == x.period) return true;
    if (step.period != 1) return false;
    step.period = x.period;
    return true;
  }

  // What the leaf is known to attain; see predicate_step.
  void note_terms(predicate_step& leaf) const {
    const value_step& form = out_.values[std::size_t(leaf.form)];
    leaf.is_tight = form.attains;
    if (!form.attains) return;
    if (form.code != value_code::sum) {
      if (form.gapless) leaf.gapless_terms.push_back(leaf.form);
      return;
    }
    for (int i = form.a; i < form.b; ++i) {
      const term& t = out_.terms[std::size_t(i)];
      if ((t.factor == 1 || t.factor == -1) && out_.values[std::size_t(t.atom)].gapless) leaf.gapless_terms.push_back(t.atom);
    }
  }

  int combined(bool is_any, std::vector<int> parts) {
    std::vector<int> flat;
    for (int id : parts) {
      const predicate_step& part = out_.predicates[std::size_t(id)];
      if (part.code == (is_any ? predicate_code::any : predicate_code::all)) flat.insert(flat.end(), part.parts.begin(), part.parts.end());
      else flat.push_back(id);
    }
    std::vector<int> merged;
    const int first_new = int(out_.predicates.size());  // from here on: leaves merged here, which nothing else reads
    for (int id : flat) {
      const predicate_step part = out_.predicates[std::size_t(id)];
      if (part.code == predicate_code::constant) {
        if (part.constant == is_any) return id;
        continue;
      }
      bool absorbed = false;
      for (int& other : merged) {
        const predicate_step& o = out_.predicates[std::size_t(other)];
        if (part.code != predicate_code::leaf || o.code != predicate_code::leaf || o.form != part.form) continue;
        const bool free_of_residues = part.residues.is_everything() && o.residues.is_everything();
        if (is_any && !free_of_residues) continue;
        if (!is_any && !part.residues.is_everything() && !o.residues.is_everything() && !(part.residues == o.residues)) continue;
        predicate_step both = o;
        both.set = is_any ? complement(intersection(complement(o.set), complement(part.set)))
                          : intersection(o.set, part.set);
        if (both.residues.is_everything()) both.residues = part.residues;
        if (both.set.empty()) return constant_predicate(false);
        if (is_everything(both.set) && both.residues.is_everything() && is_any) return constant_predicate(true);
        if (other >= first_new) out_.predicates[std::size_t(other)] = std::move(both);
        else other = push_predicate(std::move(both));
        absorbed = true;
        break;
      }
      if (!absorbed) merged.push_back(id);
    }
    if (merged.empty()) return constant_predicate(!is_any);
    if (merged.size() == 1) return merged[0];
    sort_few(merged, [&](int x, int y) { return out_.predicates[std::size_t(x)].cost < out_.predicates[std::size_t(y)].cost; });
    predicate_step step;
    step.code = is_any ? predicate_code::any : predicate_code::all;
    for (int id : merged) step.cost = std::min(step.cost + out_.predicates[std::size_t(id)].cost, 1 << 20);
    step.parts = std::move(merged);
    return push_predicate(std::move(step));
  }

  int predicate_of(node_id id, bool negated) {
    const node n = bound_[id];
    const node_id a = n.operands[0], b = n.operands[1];
    switch (n.code) {
      case op::constant: return constant_predicate((n.imm != 0) != negated);
      case op::logical_not: return predicate_of(a, !negated);
      case op::logical_and: case op::logical_or: {
        // The whole chain at once: merging after each link would go through all parts for each of them.
        std::vector<node_id> pending{b, a};
        std::vector<int> parts;
        while (!pending.empty()) {
          const node_id next = pending.back();
          pending.pop_back();
          if (bound_[next].code == n.code) pending.insert(pending.end(), {bound_[next].operands[1], bound_[next].operands[0]});
          else parts.push_back(predicate_of(next, negated));
        }
        return combined((n.code == op::logical_or) != negated, std::move(parts));
      }
      case op::less: case op::less_equal: case op::equal: {
        if (bound_[a].kind == value_kind::boolean && n.code == op::equal) {  // equal booleans: a ? b : !b
          predicate_step step;
          step.code = predicate_code::select;
          step.parts = {predicate_of(a, false), predicate_of(b, negated), predicate_of(b, !negated)};
          for (int part : step.parts) step.cost += out_.predicates[std::size_t(part)].cost;
          return push_predicate(std::move(step));
        }
        if (bound_[a].kind != value_kind::index) break;
        const bool is_bounded = is_large(b);  // by a number too large to subtract, which a comparison may have all the same
        linear_form form = is_bounded ? sum_of(a) : is_large(a) ? sum_of(b) : joined(sum_of(a), sum_of(b), -1);
        if (!form.valid) {  // its terms are too large to add up beforehand
          if (value_of(a) == value_of(b)) break;
          form = {{{value_of(a), 1}, {value_of(b), -1}}, 0, true};
        }
        std::vector<interval> set;
        if (is_bounded || is_large(a)) {
          value_of(is_bounded ? a : b);  // for box_judge::check, whatever becomes of the comparison
          const __int128 number = bound_[is_bounded ? b : a].imm, next = n.code == op::less ? 1 : 0;
          // Written out: nvcc 13 crashes on these as conditional expressions.
          if (n.code == op::equal) set = between(number, number);
          else if (is_bounded) set = between(interval::lowest, number - next);
          else set = between(number + next, interval::highest);
        } else if (n.code == op::equal) {
          set = {interval::point(0)};
        } else {
          set = {{interval::lowest, n.code == op::less ? -1 : 0}};
        }
        if (negated) set = complement(set);
        return leaf_of(std::move(form), std::move(set), {});
      }
      case op::select: {
        predicate_step step;
        step.code = predicate_code::select;
        step.parts = {predicate_of(a, false), predicate_of(b, negated), predicate_of(n.operands[2], negated)};
        for (int part : step.parts) step.cost += out_.predicates[std::size_t(part)].cost;
        return push_predicate(std::move(step));
      }
      default: break;
    }
    predicate_step opaque;
    opaque.code = predicate_code::opaque;
    return push_predicate(std::move(opaque));
  }

  bool is_large(node_id id) const { return is_constant(bound_, id) && !is_foldable(bound_[id].imm); }

  // All numbers from `low` to `high` that bounds hold.
  static std::vector<interval> between(__int128 low, __int128 high) {
    if (low > interval::highest || high < interval::lowest) return {};
    return {{samite::saturate(low), samite::saturate(high)}};
  }

  int constant_predicate(bool value) {
    predicate_step step;
    step.constant = value;
    step.cost = 0;
    return push_predicate(std::move(step));
  }

  program bound_;
  std::span<const std::shared_ptr<const table_contents>> contents_;
  std::vector<index_t> slots_;  // of the canonical program's tables in the source
  box_steps out_;
  std::vector<int> value_memo_;
};

/// What steps follow from: the program, the values of its arguments, and which of its tables are sorted or without gaps.
struct step_source {
  std::vector<node> nodes;
  node_id root;
  std::vector<std::uint64_t> values;
  std::vector<std::uint8_t> tables;
  friend bool operator==(const step_source&, const step_source&) = default;
};

// The program with constants in the place of its arguments; its tables keep their slots.
inline program with_values(const program& source, const std::vector<std::uint64_t>& values) {
  program bound;
  for (const auto& table : source.tables()) bound.slot_of(table);
  std::vector<node_id> image;
  for (node n : source.nodes()) {
    for (node_id& operand : n.operands)
      if (operand != no_node) operand = image[std::size_t(operand)];
    if (n.code == op::argument) {
      const std::uint64_t value = values[std::size_t(n.imm)];
      n.code = op::constant;
      n.imm = n.kind == value_kind::index ? index_t(value) : 0;
      if (n.kind == value_kind::real) n.real = std::bit_cast<double>(value);
    }
    image.push_back(bound.push(n));
  }
  for (node_id root : source.roots) bound.roots.push_back(image[std::size_t(root)]);
  return bound;
}

SAMITE_IMPL bound_steps steps_of(const program& source, std::size_t root) {
  ensure(root < source.roots.size(), "a judged program has the root that is asked for");
  bound_steps found;
  step_source from{source.nodes(), source.roots[root], {}, {}};
  for (const auto& cell : source.arguments())
    from.values.push_back(cell->kind() == value_kind::index ? std::uint64_t(cell->index()) : std::bit_cast<std::uint64_t>(cell->real()));
  for (const auto& table : source.tables()) {
    found.tables.push_back(table->contents());
    from.tables.push_back(std::uint8_t(found.tables.back()->is_non_decreasing() + 2 * found.tables.back()->is_gapless()));
  }
  // Translating takes longer than judging the tiles of a small matrix, and a training step asks for the same few masks each time.
  struct translation {
    step_source source;
    std::shared_ptr<const box_steps> steps;
  };
  constexpr std::size_t most = 16;
  thread_local std::vector<translation> known;
  thread_local std::size_t oldest = 0;
  for (const translation& t : known)
    if (t.source == from) {
      found.steps = t.steps;
      return found;
    }
  const program with_numbers = with_values(source, from.values);
  box_steps steps = step_translator(with_numbers, found.tables).run(root);
  steps.computed[0] = needed_nodes(with_numbers, with_numbers.roots[root]);
  found.steps = std::make_shared<const box_steps>(std::move(steps));
  if (known.size() < most) known.push_back({std::move(from), found.steps});
  else known[oldest++ % most] = {std::move(from), found.steps};
  return found;
}

}  // namespace samite::detail
