// samite/emit/score_tile_impl.hpp: the text of score functions on accumulators, with what pairs share taken out.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <samite/emit/score_tile.hpp>
#include <samite/ir/derivative.hpp>

namespace samite {
namespace detail {

/// Writes each node at the level of what it depends on. Factors and offsets that pairs share are kept beside a pair's number and multiplied
/// in where they cost least: cap * tanh(score / cap) becomes one product before the exponential unit and one after it.
class score_tile_emitter {
 public:
  score_tile_emitter(const program& score, std::span<const dtype> types, bool by_keys, bool approximates)
      : score_(score), types_(types), by_keys_(by_keys), approximates_(approximates), derivative_(differentiate_score(score)) {}

  std::string emit(const char* name) {
    const program& d = derivative_.p;
    std::vector<std::pair<node_id, bool>> beginning;
    const bool begins = is_score_and(score_.roots[0], true, beginning) == 1;
    std::string beginning_text = "    return 0;\n";
    if (begins) beginning_text = function(score_, [&] { return concat_text("    return ", plain(sum_of(beginning)), ";\n"); });
    std::string scale = "1.0f", unit = "1.0f";
    const auto value_with = [&](std::string& factor, bool positive) {
      return function(score_, [&] {
        if (!begins) return concat_text("    return ", plain(unscaled(scaled(score_.roots[0], constant("log2_e")), factor, positive)), ";\n");
        factor = define(level::head, "float", concat_text(define(level::head, "float", "scale"), " * log2_e"));
        return concat_text("    return ", plain(sum({value_kind::real, "x", level::pair}, sum_of(beginning))), ";\n");
      });
    };
    const std::string value = value_with(scale, true);
    is_forward_ = false;
    const std::string any_value = value_with(unit, false);
    const bool reads = parts_[int(level::pair)].reads;
    const std::string adjoint = function(d, [&] { return concat_text("    return ", plain(of(d.roots[0])), ";\n"); });
    std::vector<node_id> roots{d.roots[0]};
    const std::string gradient = function(d, [&] {
      std::string sums;
      if (!serves_score_tile_gradients(score_)) return sums;
      for (std::size_t i = 0; i < derivative_.elements.size(); ++i) {
        roots.push_back(d.roots[derivative_.elements[i].adjoint]);
        sums += concat_text("    sums[", i, "] += ", plain(of(roots.back())), ";\n");
      }
      return sums;
    });
    const bool keeps_score = reads_symbol(d, roots, symbol_id::score, symbol_id::score);

    std::string out = concat_text("struct ", name, " : score_function, tile_arithmetic {\n");
    for (const level at : {level::head, level::row, level::tile}) out += concat_text("  struct of_", names_[int(at)], " {\n", parts_[int(at)].members, "  };\n");
    const auto flag = [&](const char* word, bool is_so, const char* comment) { out += concat_text("  static constexpr bool ", word, " = ", is_so ? "true" : "false", ";  // ", comment, "\n"); };
    flag("keeps_score", keeps_score, "the adjoint needs the score");
    flag("reads", reads, "the value reads memory for each pair");
    flag("fills_registers", score_tiles_fill_registers(score_, approximates_), "of three warpgroups");
    flag("bounded", bounded_, "the value is within 1 of 0");
    flag("begins", begins, "the value is the score and a number that does not depend on it");
    const auto part = [&](level at, const char* parameters) {
      const char* word = names_[int(at)];
      out += concat_text("  __device__ of_", word, " ", word, "_of(", parameters, ") const {\n    of_", word, " ", word, ";\n", parts_[int(at)].lines, "    return ", word, ";\n  }\n");
    };
    part(level::head, "i32 b, i32 h, float scale");
    part(level::row, "const of_head& head, i32 at");
    part(level::tile, "const of_head& head, const of_row& row, i32 first");
    const char* pair = "const of_head& head, const of_row& row, const of_tile& tile, int c, float x";
    for (const auto& [word, factor] : {std::pair<const char*, const std::string&>{"scale_of", scale}, {"offset_of", offset_}, {"unit_of", unit}})
      out += concat_text("  __device__ float ", word, "(const of_head& head) const { return ", factor, "; }\n");
    out += concat_text("  __device__ float beginning(const of_head& head, const of_row& row, const of_tile& tile, int c) const {\n", beginning_text, "  }\n");
    out += concat_text("  __device__ float value(", pair, ") const {\n", value, "  }\n  __device__ float value_in_units(", pair, ") const {\n", any_value, "  }\n  __device__ float adjoint(", pair, ", float dy) const {\n", adjoint, "  }\n");
    return out + concat_text("  __device__ void gradient(", pair, ", float dy, float* sums) const {\n", gradient, "  }\n};\n\n");
  }

 private:
  enum class level : int { fixed, head, row, tile, pair };
  /// A number at some level. One at the level of a tile is text + slope * c. One of a pair is text * factor + offset.
  struct shared_text {
    std::string text;
    level at = level::fixed;
  };
  struct term {
    value_kind kind = value_kind::real;
    std::string text;
    level at = level::fixed;
    std::optional<shared_text> slope{}, factor{}, offset{};
  };

  template <class Return>
  std::string function(const program& p, Return&& result) {
    program_ = &p, terms_.clear(), tanh_arguments_.clear(), parts_[int(level::pair)] = {};
    std::string text = result();
    // Lines that a later one or the result reads.
    const std::vector<std::pair<std::string, std::string>>& lines = parts_[int(level::pair)].pair_lines;
    for (auto line = lines.rbegin(); line != lines.rend(); ++line)
      if (reads_name(text, line->first)) text = line->second + text;
    return text;
  }
  static bool reads_name(const std::string& text, const std::string& name) {
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
      const char before = at == 0 ? ' ' : text[at - 1], after = at + name.size() < text.size() ? text[at + name.size()] : ' ';
      if (std::string_view(" (-!").find(before) != std::string_view::npos && (after < '0' || after > '9')) return true;
    }
    return false;
  }

  static const char* type_of(value_kind kind) { return kind == value_kind::real ? "float" : kind == value_kind::index ? "i32" : "bool"; }

  /// The name of an expression at its level, computed there once.
  std::string define(level at, const std::string& type, const std::string& expression) {
    if (at == level::fixed) return expression;
    auto& [members, lines, known, pair_lines, reads] = parts_[int(at)];
    const auto [found, fresh] = known.try_emplace(concat_text(type, " ", expression));
    if (!fresh) return found->second;
    const std::string name = concat_text(names_[int(at)][0], known.size() - 1);
    if (at == level::pair) {
      pair_lines.emplace_back(name, concat_text("    const ", type, " ", name, " = ", expression, ";\n"));
      return found->second = name;
    }
    members += concat_text("    ", type, " ", name, ";\n");
    lines += concat_text("    ", names_[int(at)], ".", name, " = ", expression, ";\n");
    return found->second = concat_text(names_[int(at)], ".", name);
  }
  shared_text define(level at, value_kind kind, const std::string& expression) { return {define(at, std::string(type_of(kind)), expression), at}; }

  static term constant(const char* text) { return {value_kind::real, text, level::fixed}; }
  static bool is_shared(const term& t) { return t.at <= level::row; }
  static shared_text shared(const term& t) { return {t.text, t.at}; }

  /// A term as one number.
  std::string plain(const term& t) {
    if (is_shared(t)) return t.text;
    const std::string type = type_of(t.kind), c = t.kind == value_kind::real ? "float(c)" : "c";
    if (t.at == level::tile) {
      if (!t.slope) return t.text;
      const std::string& slope = t.slope->text;
      if (slope == "1" || slope == "1.0f") return define(level::pair, type, concat_text(t.text, " + ", c));
      if (slope == "-1" || slope == "-1.0f") return define(level::pair, type, concat_text(t.text, " - ", c));
      return define(level::pair, type, t.kind == value_kind::real ? concat_text("__fmaf_rn(", slope, ", ", c, ", ", t.text, ")") : concat_text(t.text, " + ", slope, " * c"));
    }
    if (t.factor && t.offset) return define(level::pair, type, concat_text("__fmaf_rn(", t.text, ", ", t.factor->text, ", ", t.offset->text, ")"));
    if (t.factor) return define(level::pair, type, concat_text(t.text, " * ", t.factor->text));
    return t.offset ? define(level::pair, type, concat_text(t.text, " + ", t.offset->text)) : t.text;
  }

  shared_text combine(const char* sign, const shared_text& a, const shared_text& b, value_kind kind) {
    return define(std::max(a.at, b.at), kind, concat_text("(", a.text, " ", sign, " ", b.text, ")"));
  }
  std::optional<shared_text> product(const std::optional<shared_text>& a, const std::optional<shared_text>& b, value_kind kind = value_kind::real) {
    if (!a || !b) return a ? a : b;
    if (kind == value_kind::index && (a->text == "1" || b->text == "1")) return a->text == "1" ? b : a;
    return combine("*", *a, *b, kind);
  }

  term sum(const term& a, const term& b) {
    const value_kind kind = a.kind;
    const level at = std::max(a.at, b.at);
    if (at <= level::row) {
      const shared_text s = combine("+", shared(a), shared(b), kind);
      return {kind, s.text, s.at};
    }
    if (at == level::tile) {
      term t{kind, combine("+", {a.text, level::tile}, {b.text, level::tile}, kind).text, level::tile, a.slope ? a.slope : b.slope};
      if (a.slope && b.slope) t.slope = combine("+", *a.slope, *b.slope, kind);
      return t;
    }
    if (b.at == level::pair && (a.at != level::pair || !a.factor)) return sum_of_pairs(b, a);
    return sum_of_pairs(a, b);
  }
  // a is of a pair.
  term sum_of_pairs(const term& a, const term& b) {
    term t = a;
    if (is_shared(b)) {
      t.offset = t.offset ? combine("+", *t.offset, shared(b), t.kind) : shared(b);
      return t;
    }
    const std::string other = plain(b);
    t.factor.reset();
    t.text = define(level::pair, "float", a.factor ? concat_text("__fmaf_rn(", a.text, ", ", a.factor->text, ", ", other, ")") : concat_text(a.text, " + ", other));
    return t;
  }

  term product(const term& a, const term& b) {
    if (is_shared(a) && !is_shared(b)) return product(b, a);
    const value_kind kind = a.kind;
    if (is_shared(b)) {
      const shared_text by = shared(b);
      term t = a;
      if (a.at == level::pair) {
        t.factor = product(a.factor, by);
        if (a.offset) t.offset = product(a.offset, by);
        return t;
      }
      const shared_text s = combine("*", shared(a), by, kind);
      t.text = s.text, t.at = s.at;
      if (a.slope) t.slope = product(a.slope, by, kind);
      return t;
    }
    term x = a, y = b;
    for (term* t : {&x, &y})
      if (t->at == level::tile || t->offset) *t = {kind, plain(*t), level::pair};
    return {kind, define(level::pair, "float", concat_text(x.text, " * ", y.text)), level::pair, {}, product(x.factor, y.factor)};
  }

  term negated(const term& a) {
    term t = a;
    const auto minus = [&](const shared_text& s) {
      if (s.text == "1" || s.text == "1.0f" || s.text == "2.0f") return shared_text{"-" + s.text, s.at};
      return define(s.at, a.kind, concat_text("(-", s.text, ")"));
    };
    if (a.at != level::pair) {
      t.text = minus(shared(a)).text;
      if (a.slope) t.slope = minus(*a.slope);
      return t;
    }
    t.factor = a.factor ? minus(*a.factor) : shared_text{"-1.0f", level::fixed};
    if (a.offset) t.offset = minus(*a.offset);
    return t;
  }
  term quotient(const term& a, const term& b) {
    if (is_shared(b)) {
      const shared_text inverse = define(b.at == level::fixed ? level::head : b.at, value_kind::real, concat_text("reciprocal(", b.text, ")"));
      return product(a, {value_kind::real, inverse.text, inverse.at});
    }
    return product(a, {value_kind::real, define(level::pair, "float", concat_text("reciprocal(", plain(b), ")")), level::pair});
  }

  /// A function of one number that all operands of a level share, or of a pair's.
  term applied(const term& a, const char* function) {
    const std::string x = plain(a);
    const level at = a.at == level::tile ? level::pair : a.at;
    return {value_kind::real, define(at == level::fixed ? level::head : at, "float", concat_text(function, "(", x, ")")), at == level::fixed ? level::head : at};
  }
  term tangent(const term& a) {
    if (is_forward_) {
      const term t = applied(a, approximates_ ? "approximate_tanh" : "exact_tanh");
      if (t.at == level::pair) tanh_arguments_.insert_or_assign(t.text, a);
      return t;
    }
    term t = applied(product(a, constant("(2.0f * log2_e)")), "tanh_part");
    if (t.at != level::pair) {
      t.text = define(t.at, value_kind::real, concat_text("(1.0f - 2.0f * ", t.text, ")")).text;
      return t;
    }
    t.factor = shared_text{"-2.0f", level::fixed}, t.offset = shared_text{"1.0f", level::fixed};
    return t;
  }

  /// How often the score itself is among the terms of a sum; 2 if it can't be taken out. `others`: the terms without it, and whether they are added.
  int is_score_and(node_id id, bool added, std::vector<std::pair<node_id, bool>>& others) const {
    const node& n = score_[id];
    if (n.code == op::symbol && n.imm == index_t(symbol_id::score)) return added ? 1 : 2;
    if (!reads_symbol(score_, {id}, symbol_id::score, symbol_id::score)) {
      others.emplace_back(id, added);
      return 0;
    }
    if (n.code != op::add && n.code != op::sub) return 2;
    return is_score_and(n.operands[0], added, others) + is_score_and(n.operands[1], added == (n.code == op::add), others);
  }
  /// Their sum, in units of what the score is multiplied with.
  term sum_of(const std::vector<std::pair<node_id, bool>>& terms) {
    const std::string inverse = define(level::head, "float", concat_text("reciprocal(", define(level::head, "float", "scale"), ")"));
    term total{value_kind::real, "0.0f", level::fixed};
    for (std::size_t i = 0; i < terms.size(); ++i) {
      term t = scaled(terms[i].first, {value_kind::real, inverse, level::head});
      if (!terms[i].second) t = negated(t);
      total = i == 0 ? t : sum(total, t);
    }
    return total;
  }
  /// A value without a factor that it is multiplied with later. If that must be positive, a tanh takes its sign.
  term unscaled(const term& t, std::string& factor, bool positive) {
    const auto argument = tanh_arguments_.find(t.text);
    if (t.at != level::pair || t.offset || !t.factor || t.factor->at > level::head || (positive && argument == tanh_arguments_.end())) return t;
    factor = define(level::head, "float", positive ? concat_text("fabs(", t.factor->text, ")") : t.factor->text);
    if (!positive) return {value_kind::real, t.text, level::pair};
    const shared_text sign = define(level::head, value_kind::real, concat_text("::copysignf(1.0f, ", t.factor->text, ")"));
    const term odd = product(argument->second, {value_kind::real, sign.text, sign.at});
    if (approximates_) {
      bounded_ = true;
      return applied(odd, "approximate_tanh");
    }
    offset_ = factor;  // tanh = 1 - 2 r: the softmax multiplies -r
    factor = define(level::head, "float", concat_text("2.0f * ", offset_));
    return applied(product(odd, constant("(2.0f * log2_e)")), "negative_tanh_part");
  }

  /// A product with a sum is taken apart: its parts may have factors to merge it with.
  term scaled(node_id id, const term& by) {
    const node& n = (*program_)[id];
    if (n.kind == value_kind::real && n.code == op::add) return sum(scaled(n.operands[0], by), scaled(n.operands[1], by));
    if (n.kind == value_kind::real && n.code == op::sub) return sum(scaled(n.operands[0], by), negated(scaled(n.operands[1], by)));
    return product(of(id), by);
  }

  const term& of(node_id id) {
    const auto found = terms_.find(id);
    return found != terms_.end() ? found->second : terms_.emplace(id, made(id)).first->second;
  }

  term made(node_id id) {
    const program& p = *program_;
    const node& n = p[id];
    const bool real = n.kind == value_kind::real;
    const auto x = [&](int k) -> const term& { return of(n.operands[k]); };
    switch (n.code) {
      case op::symbol: return symbol(symbol_id(n.imm));
      case op::operand: return {value_kind::real, "dy", level::pair};
      case op::constant: return {n.kind, literal(n), level::fixed};
      case op::argument: {
        const shared_text s = define(level::head, n.kind, real ? concat_text("float(reals[", n.imm, "])") : concat_text("i32(indices[", n.imm, "])"));
        return {n.kind, s.text, s.at};
      }
      case op::lookup:
      case op::gather: return element(n);
      case op::stop: return x(0);
      case op::to_real: return real_of(n.operands[0]);
      case op::add: if (real || std::max(x(0).at, x(1).at) <= level::tile) return sum(x(0), x(1)); break;
      case op::sub: if (real || std::max(x(0).at, x(1).at) <= level::tile) return sum(x(0), negated(x(1))); break;
      case op::mul: if (real || (std::max(x(0).at, x(1).at) <= level::tile && std::min(x(0).at, x(1).at) <= level::row)) return product(x(0), x(1)); break;
      case op::neg: if (real || x(0).at <= level::tile) return negated(x(0)); break;
      case op::div: if (real) return quotient(x(0), x(1)); break;
      case op::tanh: return tangent(x(0));
      case op::exp:
        if (!is_shared(x(0))) return applied(product(x(0), constant("log2_e")), "power_of_2");
        break;
      default: break;
    }
    return written(n);
  }

  term symbol(symbol_id id) {
    if (id == symbol_id::score) return {value_kind::real, "x", level::pair, {}, define(level::head, value_kind::real, "scale")};
    if (id == symbol_id::b || id == symbol_id::h) return {value_kind::index, define(level::head, "i32", symbol_names[int(id)]), level::head};
    if ((id == symbol_id::q) != by_keys_) return {value_kind::index, define(level::row, "i32", "at"), level::row};
    return {value_kind::index, define(level::tile, "i32", "first"), level::tile, shared_text{"1", level::fixed}};
  }

  /// An operator's text with its operands filled in.
  term written(const node& n) {
    std::string x[3];
    level at = level::head;
    for (int k = 0; k < 3 && n.operands[k] != no_node; ++k) x[k] = plain(of(n.operands[k])), at = std::max(at, of(n.operands[k]).at);
    if (at == level::tile) at = level::pair;
    return {n.kind, define(at, type_of(n.kind), node_text(*program_, n, x)), at};
  }

  /// An index as a real. Sums, products and distances of indices are those of reals as long as both are whole numbers below 2^24 (their caller
  /// knows): so distances need no conversion for each pair.
  term real_of(node_id id) {
    const node& n = (*program_)[id];
    const term& t = of(id);
    const auto real = [&](const shared_text& s) { return s.text == "1" || s.text == "-1" ? shared_text{s.text + ".0f", s.at} : define(s.at, value_kind::real, concat_text("float(", s.text, ")")); };
    if (t.at <= level::tile) {
      term r{value_kind::real, real(shared(t)).text, t.at};
      if (t.slope) r.slope = real(*t.slope);
      return r;
    }
    const auto x = [&](int k) { return real_of(n.operands[k]); };
    switch (n.code) {
      case op::add: return sum(x(0), x(1));
      case op::sub: return sum(x(0), negated(x(1)));
      case op::mul: return product(x(0), x(1));
      case op::neg: return negated(x(0));
      case op::abs: return applied(x(0), "fabs");
      default: return {value_kind::real, define(level::pair, "float", concat_text("float(", t.text, ")")), level::pair};
    }
  }

  /// An element of a tensor or table: a pointer from the indices that pairs share, then the others.
  term element(const node& n) {
    const bool tensor = n.code == op::lookup;
    const int rank = n.operand_count(), first = tensor ? 0 : 3 - rank;  // a table of lower rank fills the last of three axes
    const std::string from = concat_text(tensor ? "tensors[" : "tables[", n.imm, "]"), type = tensor ? name_of(types_[std::size_t(n.imm)]) : "i32";
    const auto length = [&](int axis) { return concat_text(from, ".dims[", axis, "]"); };
    const auto stride = [&](int axis) { return tensor ? concat_text(from, ".strides[", axis, "]") : axis == 2 ? std::string("1") : axis == 1 ? length(2) : concat_text("(", length(1), " * ", length(2), ")"); };
    std::string base = tensor ? concat_text("static_cast<const ", type, "*>(", from, ".data)") : from + ".values", place;
    level at = level::head;
    for (int k = 0; k < rank; ++k) {
      const term& i = of(n.operands[k]);
      if (!is_shared(i)) continue;
      base += concat_text(" + inside(", i.text, ", ", length(first + k), ") * ", stride(first + k));
      at = std::max(at, i.at);
    }
    const std::string pointer = define(at, concat_text("const ", type, "*"), base);
    for (int k = 0; k < rank; ++k) {
      const term& i = of(n.operands[k]);
      if (is_shared(i)) continue;
      // 32 bits by 32 bits to 64: one instruction.
      place += concat_text(place.empty() ? "" : " + ", "index(within(", plain(i), ", ", define(level::head, "i32", concat_text("i32(", length(first + k), ")")), ")) * ",
                           define(level::head, "i32", concat_text("i32(", stride(first + k), ")")));
      at = level::pair;
    }
    if (at == level::pair) parts_[int(at)].reads = true;
    const std::string value = concat_text(pointer, "[", place.empty() ? "0" : place, "]");
    return {n.kind, define(at, type_of(n.kind), tensor ? concat_text("arithmetic<float>::load(", value, ")") : value), at};
  }

  struct part {
    std::string members{}, lines{};
    std::map<std::string, std::string> known{};
    std::vector<std::pair<std::string, std::string>> pair_lines{};  // of a pair, with the names that they define
    bool reads = false;
  };
  static constexpr const char* names_[] = {"", "head", "row", "tile", "v"};
  const program& score_;
  std::span<const dtype> types_;
  bool by_keys_, approximates_;
  score_derivative derivative_;
  part parts_[5]{};
  bool is_forward_ = true, bounded_ = false;
  std::string offset_ = "0.0f";
  const program* program_ = nullptr;
  std::map<node_id, term> terms_;
  std::map<std::string, term> tanh_arguments_;  // of a pair, by the name of the result
};

}  // namespace detail

SAMITE_IMPL std::string score_tile_text(const program& score, std::span<const dtype> types, bool by_keys, bool approximates, const char* name) {
  return detail::score_tile_emitter(score, types, by_keys, approximates).emit(name);
}

}  // namespace samite
