// samite/expr/index.hpp: the symbols b, h, q, kv and index arithmetic on them.
//
// A number written in an expression is an argument of the kernel: another value is not another kernel. Baked into the
// structure are 0, divisors, moduli, shift amounts and what `fixed` marks.
#pragma once
#include <type_traits>
#include <utility>

#include <samite/expr/predicate.hpp>

namespace samite {

/// Base of every index expression; deriving from it is what makes a type one.
struct index_tag {
  /// A sentence for `list[kv]` with a list of C++, `int n = q` and `if (q)`.
  template <std::integral T>
  constexpr operator T() const {
    static_assert(detail::never<T>,
                  "int x = q, list[kv], if (q): an index is an expression over b, h, q and kv, and no number of C++. Look numbers up in a table, e.g. `table(list)[kv]`; "
                  "a scalar's number is its .value(). [E-MASK-OPERAND]");
    return T();
  }
};
/// Base of tables (expr/table.hpp, expr/score.hpp): they are no indices, but their elements are numbers.
struct table_tag {};

/// An integer that depends on the pair (b, h, q, kv).
template <class E>
concept index_expr = std::derived_from<E, index_tag> && requires(const E e, program& p) {
  { e.lower(p) } -> std::same_as<node_id>;
};

/// An index expression or a plain integer.
template <class E>
concept index_operand = index_expr<E> || (std::integral<E> && !std::same_as<E, bool>);

namespace detail {

template <std::integral T>
constexpr index_t checked_number(T value) {
  constexpr bool is_character = std::same_as<T, char> || std::same_as<T, wchar_t> || std::same_as<T, char8_t> || std::same_as<T, char16_t> || std::same_as<T, char32_t>;
  static_assert(!is_character, "a whole number was expected, but this is a character: convert it, e.g. `q == int('a')`. [E-MASK-OPERAND]");
  if constexpr (!is_character)
    if (!std::in_range<index_t>(value)) raise("E-EXPR-NUMBER", "a number in an index expression does not fit 64 bits: ", value);
  return index_t(value);
}

// What is read as a whole number: integers of any type, and what converts to one.
template <class T>
concept plain_number = std::convertible_to<const T&, index_t> && !std::derived_from<T, index_tag>;

template <plain_number T>
constexpr index_t whole_number(const T& value) {
  static_assert(!std::floating_point<T>, "a whole number was expected, but this is a floating-point number: b, h, q, kv, lengths and counts are integers. Round it, e.g. `scalar(3)`. [E-EXPR-FLOAT]");
  static_assert(!std::same_as<T, bool>, "a whole number was expected, but this is a bool: write 0 or 1. [E-MASK-OPERAND]");
  if constexpr (std::integral<T>) return checked_number(value);
  else return index_t(value);
}

}  // namespace detail

/// A captured number that may be set later: lengths, offsets and widths that change from run to run.
///
/// threads  `set` may run beside readers; a run reads the value once, when it starts. Copies share the number
class scalar : public index_tag {
 public:
  /// errors  E-EXPR-NUMBER (beyond 64 bits), here and from `set`
  template <detail::plain_number T>
  scalar(const T& value) : cell_(make_cell(detail::whole_number(value))) {}

  template <detail::plain_number T>
  void set(const T& value) { cell_->set(detail::whole_number(value)); }
  index_t value() const { return cell_->index(); }
  node_id lower(program& p) const { return build_argument(p, cell_); }

 private:
  std::shared_ptr<scalar_cell> cell_;
};

namespace detail {

template <symbol_id Id>
struct symbol_expr : index_tag {
  node_id lower(program& p) const { return build_symbol(p, Id); }
};

struct fixed_number : index_tag {
  index_t value;
  constexpr explicit fixed_number(index_t v) : value(v) {}
  node_id lower(program& p) const { return build_constant(p, value); }
};

// A number as the user wrote it. The cell is made once, so that copies of one expression share one argument.
struct captured_number : index_tag {
  index_t value;
  std::shared_ptr<scalar_cell> cell;
  explicit captured_number(index_t v) : value(v) {
    if (v != 0) cell = make_cell(v);
  }
  node_id lower(program& p) const { return cell ? build_argument(p, cell) : build_constant(p, value); }
};

template <index_expr E> E as_index(E e) { return e; }
template <std::integral T> captured_number as_index(T value) { return captured_number(checked_number(value)); }
// Divisors, moduli and shifts: plain numbers are baked.
template <index_expr E> E as_divisor(E e) { return e; }
template <std::integral T> constexpr fixed_number as_divisor(T value) { return fixed_number(checked_number(value)); }

template <class L, class R>
concept index_pair = index_operand<L> && index_operand<R> && (index_expr<L> || index_expr<R>);

template <op Code, index_expr L, index_expr R>
struct index_binary : index_tag {
  L left;
  R right;
  constexpr index_binary(L l, R r) : left(std::move(l)), right(std::move(r)) {}
  node_id lower(program& p) const {
    const node_id a = left.lower(p), b = right.lower(p);
    return build(p, Code, a, b);
  }
};

template <op Code, index_expr E>
struct index_unary : index_tag {
  E inner;
  constexpr explicit index_unary(E e) : inner(std::move(e)) {}
  node_id lower(program& p) const { return build(p, Code, inner.lower(p)); }
};

template <predicate_expr C, index_expr L, index_expr R>
struct index_select : index_tag {
  C condition;
  L then;
  R otherwise;
  constexpr index_select(C c, L l, R r) : condition(std::move(c)), then(std::move(l)), otherwise(std::move(r)) {}
  node_id lower(program& p) const {
    const node_id c = condition.lower(p), a = then.lower(p), b = otherwise.lower(p);
    return build(p, op::select, c, a, b);
  }
};

template <predicate_expr C, predicate_expr L, predicate_expr R>
struct predicate_select : predicate_tag {
  C condition;
  L then;
  R otherwise;
  constexpr predicate_select(C c, L l, R r) : condition(std::move(c)), then(std::move(l)), otherwise(std::move(r)) {}
  node_id lower(program& p) const {
    const node_id c = condition.lower(p), a = then.lower(p), b = otherwise.lower(p);
    return build(p, op::select, c, a, b);
  }
};

template <op Code, index_expr L, index_expr R>
struct comparison_expr : predicate_tag {
  L left;
  R right;
  constexpr comparison_expr(L l, R r) : left(std::move(l)), right(std::move(r)) {}
  node_id lower(program& p) const {
    const node_id a = left.lower(p), b = right.lower(p);
    return build(p, Code, a, b);
  }
};

template <op Code, class L, class R>
auto index_op(L l, R r) {
  if constexpr (Code == op::div || Code == op::mod || Code == op::shift_left || Code == op::shift_right) {
    auto left = as_index(std::move(l));
    auto right = as_divisor(std::move(r));
    return index_binary<Code, decltype(left), decltype(right)>(std::move(left), std::move(right));
  } else {
    auto left = as_index(std::move(l));
    auto right = as_index(std::move(r));
    return index_binary<Code, decltype(left), decltype(right)>(std::move(left), std::move(right));
  }
}

template <op Code, class L, class R>
auto comparison(L l, R r) {
  auto left = as_index(std::move(l));
  auto right = as_index(std::move(r));
  return comparison_expr<Code, decltype(left), decltype(right)>(std::move(left), std::move(right));
}

}  // namespace detail

/// The symbols of an attention mask: batch, query head, query row, key column. Beware of loop variables of the same name.
namespace symbols {
inline constexpr detail::symbol_expr<symbol_id::b> b{};
inline constexpr detail::symbol_expr<symbol_id::h> h{};
inline constexpr detail::symbol_expr<symbol_id::q> q{};
inline constexpr detail::symbol_expr<symbol_id::kv> kv{};
}  // namespace symbols

/// A number that becomes part of the kernel instead of an argument.
template <detail::plain_number T>
constexpr auto fixed(const T& value) { return detail::fixed_number(detail::whole_number(value)); }

// Division and remainder round towards minus infinity and take a positive number; E-EXPR-DIVISOR refuses others.
template <class L, class R> requires detail::index_pair<L, R>
auto operator+(L l, R r) { return detail::index_op<op::add>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::index_pair<L, R>
auto operator-(L l, R r) { return detail::index_op<op::sub>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::index_pair<L, R>
auto operator*(L l, R r) { return detail::index_op<op::mul>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::index_pair<L, R>
auto operator/(L l, R r) { return detail::index_op<op::div>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::index_pair<L, R>
auto operator%(L l, R r) { return detail::index_op<op::mod>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::index_pair<L, R>
auto operator<<(L l, R r) { return detail::index_op<op::shift_left>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::index_pair<L, R>
auto operator>>(L l, R r) { return detail::index_op<op::shift_right>(std::move(l), std::move(r)); }
template <index_expr E> auto operator-(E e) { return detail::index_unary<op::neg, E>(std::move(e)); }

template <class L, class R> requires detail::index_pair<L, R>
auto min(L l, R r) { return detail::index_op<op::min>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::index_pair<L, R>
auto max(L l, R r) { return detail::index_op<op::max>(std::move(l), std::move(r)); }
template <index_expr E> auto abs(E e) { return detail::index_unary<op::abs, E>(std::move(e)); }
/// The nearest number from `low` to `high`; `high` where the two cross.
template <class E, index_operand L, index_operand H>
  requires(index_expr<E> || (index_operand<E> && (index_expr<L> || index_expr<H>)))
auto clamp(E e, L low, H high) {
  return min(max(detail::as_index(std::move(e)), std::move(low)), std::move(high));
}

template <class L, class R> requires detail::index_pair<L, R>
auto operator<(L l, R r) { return detail::comparison<op::less>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::index_pair<L, R>
auto operator>(L l, R r) { return detail::comparison<op::less>(std::move(r), std::move(l)); }
template <class L, class R> requires detail::index_pair<L, R>
auto operator<=(L l, R r) { return detail::comparison<op::less_equal>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::index_pair<L, R>
auto operator>=(L l, R r) { return detail::comparison<op::less_equal>(std::move(r), std::move(l)); }
template <class L, class R> requires detail::index_pair<L, R>
auto operator==(L l, R r) { return detail::comparison<op::equal>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::index_pair<L, R>
auto operator!=(L l, R r) { return !detail::comparison<op::equal>(std::move(l), std::move(r)); }

/// `then` where the condition holds, else `otherwise`; both are evaluated.
template <predicate_expr C, index_operand L, index_operand R>
auto select(C condition, L then, R otherwise) {
  auto left = detail::as_index(std::move(then));
  auto right = detail::as_index(std::move(otherwise));
  return detail::index_select<C, decltype(left), decltype(right)>(std::move(condition), std::move(left), std::move(right));
}
template <predicate_expr C, predicate_expr L, predicate_expr R>
auto select(C condition, L then, R otherwise) {
  return detail::predicate_select<C, L, R>(std::move(condition), std::move(then), std::move(otherwise));
}

// --- near misses -------------------------------------------------------------------------------------------------------

namespace detail {
template <class L, class R>
concept index_and_float = (index_expr<L> && std::floating_point<R>) || (std::floating_point<L> && index_expr<R>);

template <class L, class R>
known_predicate refuse_float() {
  static_assert(never<L, R>,
                "index < x: x is a floating-point number, but b, h, q, kv and tables are integers. "
                "Write a whole number, e.g. `q - kv < 128`, or scale both sides; and check that a local variable does not hide samite::symbols::q. [E-EXPR-FLOAT]");
  return known_predicate(true);
}
}  // namespace detail

template <class L, class R> requires detail::index_and_float<L, R>
auto operator<(const L&, const R&) { return detail::refuse_float<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto operator>(const L&, const R&) { return detail::refuse_float<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto operator<=(const L&, const R&) { return detail::refuse_float<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto operator>=(const L&, const R&) { return detail::refuse_float<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto operator==(const L&, const R&) { return detail::refuse_float<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto operator!=(const L&, const R&) { return detail::refuse_float<L, R>(); }
template <index_expr L, std::floating_point R>
L operator%(L left, R) {
  static_assert(detail::never<R>, "index % x: x is a floating-point number; a modulus is a whole number, e.g. `q % 16`. [E-EXPR-FLOAT]");
  return left;
}

namespace detail {
template <class... E>
fixed_number refuse_fraction() {
  static_assert(never<E...>,
                "index / x, min(index, x) and their like: x is a floating-point number, but b, h, q, kv and tables are integers. Write a whole number or scale both sides, e.g. "
                "`q > 2 * kv`. Reals are for score functions: include <samite/score/scale.hpp>. [E-EXPR-FLOAT]");
  return fixed_number(0);
}

// For masks that take counts of tokens.
template <class... T>
concept some_fraction = (std::floating_point<T> || ...);

template <class... T>
known_predicate refuse_token_fraction() {
  static_assert(never<T...>, "a count of tokens is a whole number: give an integer, e.g. `window(3)`. [E-EXPR-FLOAT]");
  return known_predicate(true);
}

template <class E>
known_predicate refuse_truth() {
  static_assert(never<E>,
                "!x, x && y, x || y: x is an index or an element of a table, which is a number and no condition. Compare it, e.g. `docs[q] == 0` for `!docs[q]`. [E-MASK-OPERAND]");
  return known_predicate(true);
}
template <class E>
concept number_like = index_expr<E> || std::is_arithmetic_v<E>;
template <class L, class R>
concept index_and_number = (index_expr<L> && number_like<R>) || (number_like<L> && index_expr<R>);
}  // namespace detail

// The operators of scores (expr/score.hpp) are more constrained, and so nearer where they are included.
template <class L, class R> requires detail::index_and_float<L, R>
auto operator+(L, R) { return detail::refuse_fraction<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto operator-(L, R) { return detail::refuse_fraction<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto operator*(L, R) { return detail::refuse_fraction<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto operator/(L, R) { return detail::refuse_fraction<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto operator<<(L, R) { return detail::refuse_fraction<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto operator>>(L, R) { return detail::refuse_fraction<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto min(L, R) { return detail::refuse_fraction<L, R>(); }
template <class L, class R> requires detail::index_and_float<L, R>
auto max(L, R) { return detail::refuse_fraction<L, R>(); }

template <index_expr E> auto operator!(const E&) { return detail::refuse_truth<E>(); }
template <class L, class R> requires detail::index_and_number<L, R>
auto operator&&(const L&, const R&) { return detail::refuse_truth<L>(); }
template <class L, class R> requires detail::index_and_number<L, R>
auto operator||(const L&, const R&) { return detail::refuse_truth<L>(); }

template <detail::number_like L, predicate_expr R> R operator+(const L&, R mask) { return detail::refuse_sum<L>(), mask; }
template <detail::number_like L, predicate_expr R> R operator-(const L&, R mask) { return detail::refuse_sum<L>(), mask; }
template <detail::number_like L, predicate_expr R> R operator*(const L&, R mask) { return detail::refuse_sum<L>(), mask; }

namespace detail {
// Objects, pointers and truth values that stand where an index should: tensors and values of a graph whose names hide a symbol,
// tables without an index, lists.
template <class T>
concept foreign_operand = (std::is_class_v<T> || std::is_pointer_v<T> || std::is_null_pointer_v<T> || std::same_as<T, bool>) && !std::derived_from<T, index_tag> && !std::derived_from<T, predicate_tag> &&
                          !std::derived_from<T, score_tag> && !std::derived_from<T, score_condition_tag>;
template <class L, class R>
concept index_and_foreign = (index_expr<L> && foreign_operand<R>) || (foreign_operand<L> && index_expr<R>);

template <class L, class R>
constexpr void refuse_foreign() {
  if constexpr (std::derived_from<L, table_tag> || std::derived_from<R, table_tag>)
    static_assert(never<L, R>, "index and table: a table is no number, but its elements are. Look one up, e.g. `docs[q] == docs[kv]`. [E-MASK-OPERAND]");
  else
    static_assert(never<L, R>,
                  "index and x: x is neither an index nor a whole number. If it is a tensor or a value of the graph, its name may hide a symbol: rename it, or write "
                  "symbols::q. If it is a list, make it a table and look an element up, e.g. `table(ids)[kv]`. [E-MASK-OPERAND]");
}
template <class L, class R>
known_predicate foreign_comparison() {
  refuse_foreign<L, R>();
  return known_predicate(true);
}
template <class L, class R>
fixed_number foreign_number() {
  refuse_foreign<L, R>();
  return fixed_number(0);
}

template <class L, class R>
constexpr void refuse_bits() {
  static_assert(never<L, R>,
                "index & x, index | x, index ^ x, ~index: there are no bit operations on indices. Use / and % with powers of two, e.g. `q % 16` for `q & 15`. [E-MASK-OPERATOR]");
}
}  // namespace detail

template <class L, class R> requires detail::index_and_foreign<L, R>
auto operator<(const L&, const R&) { return detail::foreign_comparison<L, R>(); }
template <class L, class R> requires detail::index_and_foreign<L, R>
auto operator>(const L&, const R&) { return detail::foreign_comparison<L, R>(); }
template <class L, class R> requires detail::index_and_foreign<L, R>
auto operator<=(const L&, const R&) { return detail::foreign_comparison<L, R>(); }
template <class L, class R> requires detail::index_and_foreign<L, R>
auto operator>=(const L&, const R&) { return detail::foreign_comparison<L, R>(); }
template <class L, class R> requires detail::index_and_foreign<L, R>
auto operator==(const L&, const R&) { return detail::foreign_comparison<L, R>(); }
template <class L, class R> requires detail::index_and_foreign<L, R>
auto operator!=(const L&, const R&) { return detail::foreign_comparison<L, R>(); }
template <class L, class R> requires detail::index_and_foreign<L, R>
auto operator+(const L&, const R&) { return detail::foreign_number<L, R>(); }
template <class L, class R> requires detail::index_and_foreign<L, R>
auto operator-(const L&, const R&) { return detail::foreign_number<L, R>(); }
template <class L, class R> requires detail::index_and_foreign<L, R>
auto operator*(const L&, const R&) { return detail::foreign_number<L, R>(); }

template <index_expr L, class R> L operator&(L left, const R&) { return detail::refuse_bits<L, R>(), left; }
template <index_expr L, class R> L operator|(L left, const R&) { return detail::refuse_bits<L, R>(), left; }
template <std::integral L, index_expr R> R operator&(L, R right) { return detail::refuse_bits<L, R>(), right; }
template <std::integral L, index_expr R> R operator|(L, R right) { return detail::refuse_bits<L, R>(), right; }
template <index_expr L, class R> L operator^(L left, const R&) { return detail::refuse_bits<L, R>(), left; }
template <std::integral L, index_expr R> R operator^(L, R right) { return detail::refuse_bits<L, R>(), right; }
template <index_expr E> E operator~(E inner) { return detail::refuse_bits<E, E>(), inner; }

namespace detail {
// Conditions of `select` that are the same for all pairs, or no condition at all.
template <class C>
concept stray_condition = std::is_arithmetic_v<C> || std::derived_from<C, index_tag> || std::derived_from<C, table_tag>;
}  // namespace detail

template <detail::stray_condition C, class L, class R>
auto select(const C&, L then, const R&) {
  static_assert(detail::never<C>,
                "select(condition, x, y): the condition is no comparison over b, h, q and kv. Compare an index or an element of a table with something, e.g. `ok[kv] != 0`; if it is a "
                "bool of C++, check that a local variable does not hide samite::symbols::q, or choose with `if`. [E-MASK-OPERAND]");
  return then;
}

}  // namespace samite
