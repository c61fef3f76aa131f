// samite/expr/index_mistakes.hpp: near misses of the index language, each with the sentence that it deserves. Included by expr/index.hpp.
#pragma once
#include <samite/expr/index.hpp>

namespace samite {

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

// For masks that take counts of tokens: what else C++ would convert to one.
template <class... T>
concept some_fraction = ((std::floating_point<T> || std::same_as<T, bool> || std::same_as<T, char>) || ...);

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
concept foreign_operand = (std::is_class_v<T> || std::is_pointer_v<T> || std::is_array_v<T> || std::is_enum_v<T> || std::is_null_pointer_v<T> || std::same_as<T, bool>) && !std::derived_from<T, index_tag> && !std::derived_from<T, predicate_tag> &&
                          !std::derived_from<T, score_tag> && !std::derived_from<T, score_condition_tag>;
template <class L, class R>
concept index_and_foreign = (index_expr<L> && foreign_operand<R>) || (foreign_operand<L> && index_expr<R>);

template <class T>
concept run_time_length = requires(const T& length) { length.is_constant(), length.constant(); };

template <class L, class R>
constexpr void refuse_foreign() {
  if constexpr (std::derived_from<L, table_tag> || std::derived_from<R, table_tag>)
    static_assert(never<L, R>, "index and table: a table is no number, but its elements are. Look one up, e.g. `docs[q] == docs[kv]`. [E-MASK-OPERAND]");
  else if constexpr (std::same_as<L, bool> || std::same_as<R, bool>)
    static_assert(never<L, R>, "index and bool: an index is a number and no truth value. Write 0 or 1, e.g. `keep[kv] != 0` for `keep[kv] == true`. [E-MASK-OPERAND]");
  else if constexpr (std::is_enum_v<L> || std::is_enum_v<R>)
    static_assert(never<L, R>, "index and enumerator: convert it, e.g. `kv < int(limit)`. [E-MASK-OPERAND]");
  else if constexpr (run_time_length<L> || run_time_length<R>)
    static_assert(never<L, R>, "index and length: a length of the graph, such as tokens(4096), is no number in a mask. The run's own keys and queries end by themselves; another limit is a `scalar`, "
                               "e.g. `kv < limit` and limit.set(n) before the run. [E-MASK-OPERAND]");
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
// Scores too (expr/score.hpp).
template <class E>
concept index_or_score = index_expr<E> || std::derived_from<E, score_tag>;
template <class E>
constexpr void refuse_change() {
  static_assert(never<E>, "x += y, ++x and their like: an index or score is an expression and no variable. Write another one, e.g. `q + 1`; a scalar's number changes by s.set(s.value() + 1). [E-MASK-OPERATOR]");
}
}  // namespace detail

template <detail::index_or_score L, class R> const L& operator+=(const L& left, const R&) { return detail::refuse_change<L>(), left; }
template <detail::index_or_score L, class R> const L& operator-=(const L& left, const R&) { return detail::refuse_change<L>(), left; }
template <detail::index_or_score L, class R> const L& operator*=(const L& left, const R&) { return detail::refuse_change<L>(), left; }
template <detail::index_or_score L, class R> const L& operator/=(const L& left, const R&) { return detail::refuse_change<L>(), left; }
template <detail::index_or_score E> const E& operator++(const E& inner) { return detail::refuse_change<E>(), inner; }
template <detail::index_or_score E> const E& operator--(const E& inner) { return detail::refuse_change<E>(), inner; }
template <detail::index_or_score E> const E& operator++(const E& inner, int) { return detail::refuse_change<E>(), inner; }
template <detail::index_or_score E> const E& operator--(const E& inner, int) { return detail::refuse_change<E>(), inner; }

// In C++20 the comma in t[q, kv] is an operator that drops its left side.
template <index_expr L, index_operand R>
  requires(!std::same_as<L, scalar>)
R operator,(const L&, R right) {
  static_assert(detail::never<L, R>, "t[q, kv]: the comma drops what stands before it. Write t(q, kv). [E-MASK-TABLE-RANK]");
  return right;
}

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

template <predicate_expr C, class L, class R>
  requires(predicate_expr<L> != predicate_expr<R> && (std::is_arithmetic_v<L> || std::is_arithmetic_v<R>))
C select(C condition, const L&, const R&) {
  static_assert(detail::never<L, R>, "select(condition, x, y): one side is a mask and the other a number. Every pair is full(), no pair none(), e.g. `select(kv <= q, causal(), none())`. [E-MASK-OPERAND]");
  return condition;
}

}  // namespace samite
