// samite/ir/canonical_impl.hpp: the rewriting behind ir/canonical.hpp.
#pragma once
#include <algorithm>

#include <samite/ir/build.hpp>
#include <samite/ir/canonical.hpp>
#include <samite/ir/folding.hpp>
#include <samite/ir/interval.hpp>
#include <samite/ir/linear_form.hpp>
#include <samite/ir/node_order.hpp>

namespace samite {

namespace detail {

class canonicaliser {
 public:
  canonicaliser(const program& source, bool bind_arguments) : source_(source), bind_(bind_arguments) {}

  program run() {
    find_inner_logic();
    image_.reserve(source_.size());
    for (std::size_t i = 0; i < source_.size(); ++i) image_.push_back(inner_[i] ? no_node : translate(node_id(i)));
    return renumber();
  }

 private:
  node_id image(node_id source) const { return source == no_node ? no_node : image_[std::size_t(source)]; }

  static bool is_logic(op code) { return code == op::logical_and || code == op::logical_or; }

  // An `and` that only other `and`s read (and an `or` that only `or`s read) is not translated: the outermost one takes all
  // parts at once. Translating each would sort n parts n times.
  void find_inner_logic() {
    std::vector<char> read(source_.size(), 0);
    inner_.assign(source_.size(), 1);
    for (std::size_t i = 0; i < source_.size(); ++i) {
      if (!is_logic(source_[node_id(i)].code)) inner_[i] = 0;
      for (node_id operand : source_[node_id(i)].operands)
        if (operand != no_node) {
          read[std::size_t(operand)] = 1;
          if (source_[operand].code != source_[node_id(i)].code) inner_[std::size_t(operand)] = 0;
        }
    }
    for (std::size_t i = 0; i < source_.size(); ++i)
      if (!read[i]) inner_[i] = 0;
    for (node_id root : source_.roots) inner_[std::size_t(root)] = 0;
  }

  // Images of what the inner nodes below hold together, each once, from left to right.
  std::vector<node_id> parts_of(node_id source) {
    std::vector<node_id> parts, pending{source};
    if (visited_.empty()) visited_.assign(source_.size(), no_node);
    while (!pending.empty()) {
      const node_id id = pending.back();
      pending.pop_back();
      if (id != source && !inner_[std::size_t(id)]) {
        parts.push_back(image(id));
        continue;
      }
      if (visited_[std::size_t(id)] == source) continue;
      visited_[std::size_t(id)] = source;
      pending.push_back(source_[id].operands[1]);
      pending.push_back(source_[id].operands[0]);
    }
    return parts;
  }

  node_id translate(node_id source) {
    const node n = source_[source];
    if (is_logic(n.code)) return combine(n.code, parts_of(source));
    const node_id a = image(n.operands[0]), b = image(n.operands[1]), c = image(n.operands[2]);
    if (n.code == op::argument) {
      const auto& cell = source_.arguments()[std::size_t(n.imm)];
      if (!bind_) return build_argument(out_, cell);
      return cell->kind() == value_kind::index ? build_constant(out_, cell->index()) : build_constant(out_, cell->real());
    }
    if (n.code == op::gather) return build_gather(out_, source_.tables()[std::size_t(n.imm)], a, b, c);
    if (a == no_node) return out_.push(n);
    const bool indices = out_[a].kind == value_kind::index;
    switch (n.code) {
      case op::logical_not: return negate(a);
      case op::less: case op::less_equal: return indices ? compare(a, b, n.code == op::less) : build(out_, n.code, a, b);
      case op::equal: return indices ? compare_equal(a, b) : build(out_, n.code, a, b);
      case op::select: return build(out_, op::select, a, b, c);
      default: break;
    }
    if (!indices || n.kind != value_kind::index) return build(out_, n.code, a, b, c, n.imm);
    switch (n.code) {
      case op::add: return emit(sum(linear(a), linear(b), 1), n.code, a, b);
      case op::sub: return emit(sum(linear(a), linear(b), -1), n.code, a, b);
      case op::neg: return emit(scaled(linear(a), -1), n.code, a);
      case op::mul:
        if (linear(b).terms.empty()) return emit(scaled(linear(a), linear(b).constant), n.code, a, b);
        if (linear(a).terms.empty()) return emit(scaled(linear(b), linear(a).constant), n.code, a, b);
        return commuting(n.code, a, b);
      case op::shift_left: return emit(scaled(linear(a), index_t(1) << out_[b].imm), n.code, a, b);
      case op::shift_right: return divide(a, index_t(1) << out_[b].imm);
      case op::div: return divide(a, out_[b].imm);
      case op::mod: return remainder(a, out_[b].imm);
      case op::abs: return absolute(a);
      case op::min: case op::max: return a == b ? a : commuting(n.code, a, b);
      default: return build(out_, n.code, a, b, c, n.imm);
    }
  }

  // --- linear forms -------------------------------------------------------------------------------------------------

  linear_form linear(node_id id) {
    if (std::size_t(id) < forms_.size() && forms_[std::size_t(id)].known) return forms_[std::size_t(id)].form;
    const node& n = out_[id];
    if (n.code == op::constant && is_foldable(n.imm)) return {{}, n.imm};
    return {{{id, 1}}, 0};
  }

  linear_form sum(linear_form x, const linear_form& y, index_t factor) {
    x = joined(std::move(x), y, factor);
    return x.valid ? rejoin(std::move(x)) : x;
  }

  // x % c + c * (x / c) is x, and x - c * (x / c) is x % c: both turn up when blocks are laid out by hand.
  linear_form rejoin(linear_form x) {
    for (std::size_t i = 0; i < x.terms.size(); ++i) {
      const node division = out_[x.terms[i].atom];
      if (division.code != op::div) continue;
      const index_t divisor = out_[division.operands[1]].imm, per_unit = x.terms[i].factor;
      if (per_unit % divisor != 0) continue;
      const index_t factor = per_unit / divisor;
      for (std::size_t j = 0; j < x.terms.size(); ++j) {
        const node& other = out_[x.terms[j].atom];
        if (other.code == op::mod && other.operands[0] == division.operands[0] && out_[other.operands[1]].imm == divisor &&
            x.terms[j].factor == factor) {
          const linear_form whole = scaled(linear(division.operands[0]), factor);
          linear_form rest = x;
          rest.terms.erase(rest.terms.begin() + std::ptrdiff_t(std::max(i, j)));
          rest.terms.erase(rest.terms.begin() + std::ptrdiff_t(std::min(i, j)));
          rest = sum(std::move(rest), whole, 1);
          if (rest.valid) return rest;
          continue;
        }
        if (x.terms[j].atom == division.operands[0] && x.terms[j].factor == -factor) {
          linear_form rest = x;
          rest.terms.erase(rest.terms.begin() + std::ptrdiff_t(std::max(i, j)));
          rest.terms.erase(rest.terms.begin() + std::ptrdiff_t(std::min(i, j)));
          const node_id modulo = remainder(division.operands[0], divisor);
          rest = sum(std::move(rest), scaled(linear(modulo), -factor), 1);
          if (rest.valid) return rest;
        }
      }
    }
    return x;
  }

  void sort(std::vector<linear_form::term>& terms) {
    sort_few(terms, [&](const auto& x, const auto& y) { return order_.precedes(x.atom, y.atom); });
  }

  node_id emit(const linear_form& form, op code, node_id a, node_id b = no_node) {
    return !form.valid ? build(out_, code, a, b) : emit_known(form);
  }

  // Positive terms come first, then the subtracted ones, then the constant.
  node_id emit(linear_form form) {
    sort(form.terms);
    node_id total = no_node;
    const auto factor_of = [&](const linear_form::term& t) {
      const index_t size = t.factor < 0 ? -t.factor : t.factor;
      return size == 1 ? t.atom : build(out_, op::mul, t.atom, build_constant(out_, size));
    };
    for (const auto& t : form.terms)
      if (t.factor > 0) total = total == no_node ? factor_of(t) : build(out_, op::add, total, factor_of(t));
    for (const auto& t : form.terms) {
      if (t.factor > 0) continue;
      if (total == no_node && form.constant != 0) total = build_constant(out_, std::exchange(form.constant, 0));
      total = total == no_node ? build(out_, op::neg, factor_of(t)) : build(out_, op::sub, total, factor_of(t));
    }
    if (total == no_node) total = build_constant(out_, form.constant);
    else if (form.constant > 0) total = build(out_, op::add, total, build_constant(out_, form.constant));
    else if (form.constant < 0) total = build(out_, op::sub, total, build_constant(out_, -form.constant));
    return total;
  }

  // The node of a linear form, which remembers the form it stands for.
  node_id remember(node_id id, linear_form form) {
    if (form.terms.empty() || (form.terms.size() == 1 && form.terms[0].factor == 1 && form.constant == 0)) return id;
    if (forms_.size() <= std::size_t(id)) forms_.resize(std::size_t(id) + 16);
    forms_[std::size_t(id)] = {true, std::move(form)};
    return id;
  }

  // --- division, remainder and friends ------------------------------------------------------------------------------

  node_id divide(node_id a, index_t divisor) {
    if (divisor == 1) return a;
    linear_form x = linear(a), whole, rest;
    for (const auto& t : x.terms) {
      if (t.factor % divisor == 0) whole.terms.push_back({t.atom, t.factor / divisor});
      else rest.terms.push_back(t);
    }
    whole.constant = floor_div(x.constant, divisor);
    rest.constant = floor_mod(x.constant, divisor);
    if (rest.terms.empty()) return emit_known(whole);
    const node_id dividend = emit_known(rest);
    const node inner = out_[dividend];
    node_id quotient;
    if (inner.code == op::mod && out_[inner.operands[1]].imm <= divisor) return emit_known(whole);
    if (inner.code == op::div && is_foldable(__int128(out_[inner.operands[1]].imm) * divisor))
      quotient = divide(inner.operands[0], out_[inner.operands[1]].imm * divisor);
    else
      quotient = build(out_, op::div, dividend, build_constant(out_, divisor));
    linear_form total = sum(whole, linear(quotient), 1);
    return total.valid ? emit_known(total) : build(out_, op::add, emit_known(whole), quotient);
  }

  node_id remainder(node_id a, index_t divisor) {
    if (divisor == 1) return build_constant(out_, index_t(0));
    linear_form rest;
    const linear_form x = linear(a);
    for (const auto& t : x.terms)
      if (t.factor % divisor != 0) rest.terms.push_back(t);
    rest.constant = floor_mod(x.constant, divisor);
    const node_id dividend = emit_known(rest);
    const node inner = out_[dividend];
    if (inner.code == op::constant) return build_constant(out_, floor_mod(inner.imm, divisor));  // one too large to fold is not reduced yet
    if (inner.code == op::mod) {
      const index_t modulus = out_[inner.operands[1]].imm;
      if (modulus <= divisor) return dividend;
      if (modulus % divisor == 0) return remainder(inner.operands[0], divisor);
    }
    return build(out_, op::mod, dividend, build_constant(out_, divisor));
  }

  node_id absolute(node_id a) {
    linear_form x = linear(a);
    sort(x.terms);
    if (!x.terms.empty() && x.terms[0].factor < 0) a = emit_known(scaled(x, -1));
    return build(out_, op::abs, a);
  }

  node_id emit_known(const linear_form& form) { return remember(emit(form), form); }

  node_id commuting(op code, node_id a, node_id b) {
    if (order_.precedes(b, a)) std::swap(a, b);
    return build(out_, code, a, b);
  }

  // --- comparisons --------------------------------------------------------------------------------------------------

  // a < b or a <= b as `V <= C` or `C <= V`: V varies, C is arguments and a constant, V's first factor is positive.
  node_id compare(node_id a, node_id b, bool strict) {
    linear_form all = sum(linear(a), linear(b), -1);
    const index_t least = strict ? 1 : 0;
    if (!all.valid || !is_foldable(all.constant + least)) return build(out_, strict ? op::less : op::less_equal, a, b);
    all.constant += least;  // now: all <= 0
    auto [varying, rest] = parted(std::move(all));
    if (varying.terms.empty()) {
      if (rest.terms.empty()) return build_constant(out_, rest.constant <= 0);
      std::swap(varying.terms, rest.terms);
      sort(varying.terms);
    }
    reduce(varying, rest, true);
    const bool lower = varying.terms[0].factor < 0;
    const node_id v = emit_known(lower ? scaled(varying, -1) : varying);
    linear_form bound = lower ? rest : scaled(rest, -1);
    // With an argument on the other side, `V <= A - 1` reads better, and needs one op less, as `V < A`.
    const bool as_strict = !bound.terms.empty() && bound.constant == (lower ? 1 : -1);
    if (as_strict) bound.constant = 0;
    const node_id c = emit_known(bound);
    const op code = as_strict ? op::less : op::less_equal;
    return lower ? build(out_, code, c, v) : build(out_, code, v, c);
  }

  node_id compare_equal(node_id a, node_id b) {
    linear_form all = sum(linear(a), linear(b), -1);
    if (!all.valid) return commuting(op::equal, a, b);
    auto [varying, rest] = parted(std::move(all));
    if (varying.terms.empty()) {
      if (rest.terms.empty()) return build_constant(out_, rest.constant == 0);
      std::swap(varying.terms, rest.terms);
      sort(varying.terms);
    }
    if (!reduce(varying, rest, false)) return build_constant(out_, false);
    if (varying.terms[0].factor < 0) varying = scaled(varying, -1), rest = scaled(rest, -1);
    const bool pair = varying.terms.size() == 2 && varying.terms[0].factor == 1 && varying.terms[1].factor == -1;
    if (pair && rest.terms.empty() && rest.constant == 0) return commuting(op::equal, varying.terms[0].atom, varying.terms[1].atom);
    return build(out_, op::equal, emit_known(varying), emit_known(scaled(rest, -1)));
  }

  std::pair<linear_form, linear_form> parted(linear_form all) {
    linear_form varying, rest;
    rest.constant = all.constant;
    for (const auto& t : all.terms) (order_.varies(t.atom) ? varying : rest).terms.push_back(t);
    sort(varying.terms);
    return {std::move(varying), std::move(rest)};
  }

  // --- logic --------------------------------------------------------------------------------------------------------

  node_id negate(node_id a) {
    const node n = out_[a];
    if (n.code == op::constant) return build_constant(out_, n.imm == 0);
    if (n.code == op::logical_not) return n.operands[0];
    const bool indices = n.operands[0] != no_node && out_[n.operands[0]].kind == value_kind::index;
    if (n.code == op::less && indices) return compare(n.operands[1], n.operands[0], false);
    if (n.code == op::less_equal && indices) return compare(n.operands[1], n.operands[0], true);
    return build(out_, op::logical_not, a);
  }

  void flatten(op code, node_id root, std::vector<node_id>& parts) const {
    std::vector<node_id> pending{root};
    while (!pending.empty()) {
      const node_id id = pending.back();
      pending.pop_back();
      if (out_[id].code != code) {
        parts.push_back(id);
        continue;
      }
      pending.push_back(out_[id].operands[1]);
      pending.push_back(out_[id].operands[0]);
    }
  }

  node_id combine(op code, const std::vector<node_id>& operands) {
    const bool is_or = code == op::logical_or;
    std::vector<node_id> parts, kept;
    for (node_id id : operands) flatten(code, id, parts);
    ++group_;
    const auto has = [&](node_id id) { return std::size_t(id) < group_of_.size() && group_of_[std::size_t(id)] == group_; };
    for (node_id id : parts) {
      if (is_boolean(out_, id, is_or)) return id;
      if (is_boolean(out_, id, !is_or) || has(id)) continue;
      if (group_of_.size() <= std::size_t(id)) group_of_.resize(out_.size(), 0);
      group_of_[std::size_t(id)] = group_;
      kept.push_back(id);
    }
    if (kept.empty()) return build_constant(out_, !is_or);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (has(negate(kept[i]))) return build_constant(out_, is_or);
      if (out_[kept[i]].code != op::logical_not) continue;
      std::vector<node_id> inner;  // a && b && !(a && b)
      flatten(code, out_[kept[i]].operands[0], inner);
      if (std::all_of(inner.begin(), inner.end(), has)) return build_constant(out_, is_or);
    }
    sort_few(kept, [&](node_id x, node_id y) { return order_.precedes(x, y); });
    node_id total = kept[0];
    for (std::size_t i = 1; i < kept.size(); ++i) {
      node n;
      n.code = code;
      n.kind = value_kind::boolean;
      n.operands[0] = total, n.operands[1] = kept[i];
      total = out_.push(n);
    }
    return total;
  }

  // --- order and numbering ------------------------------------------------------------------------------------------

  program renumber() {
    program fresh;
    std::vector<node_id> number(out_.size(), no_node);
    std::vector<node_id> pending;
    for (node_id root : source_.roots) {
      pending.push_back(image(root));
      while (!pending.empty()) {
        const node_id id = pending.back();
        if (number[std::size_t(id)] != no_node) {
          pending.pop_back();
          continue;
        }
        node n = out_[id];
        if (node_order::commutes(n.code) && n.kind != value_kind::real && order_.precedes(n.operands[1], n.operands[0])) std::swap(n.operands[0], n.operands[1]);
        bool ready = true;
        for (int i = 2; i >= 0; --i)
          if (n.operands[i] != no_node && number[std::size_t(n.operands[i])] == no_node) pending.push_back(n.operands[i]), ready = false;
        if (!ready) continue;
        pending.pop_back();
        for (node_id& operand : n.operands)
          if (operand != no_node) operand = number[std::size_t(operand)];
        if (n.code == op::argument) n.imm = fresh.slot_of(out_.arguments()[std::size_t(n.imm)]);
        if (n.code == op::gather) n.imm = fresh.slot_of(out_.tables()[std::size_t(n.imm)]);
        number[std::size_t(id)] = fresh.push(n);
      }
      fresh.roots.push_back(number[std::size_t(image(root))]);
    }
    return fresh;
  }

  struct known_form {
    bool known = false;
    linear_form form;
  };

  const program& source_;
  const bool bind_;
  program out_;
  std::vector<node_id> image_;
  std::vector<char> inner_;
  std::vector<node_id> visited_;                    // by source node: the outermost node that it was last visited for
  std::vector<std::uint32_t> group_of_;             // by node: the last group of parts that it was in
  std::uint32_t group_ = 0;
  std::vector<known_form> forms_;
  node_order order_{out_};
};

}  // namespace detail

SAMITE_IMPL program canonical(const program& source, bool bind_arguments) { return detail::canonicaliser(source, bind_arguments).run(); }

}  // namespace samite
