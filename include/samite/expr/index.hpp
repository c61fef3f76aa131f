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
  /// A sentence for `float(q)` and `double x = q`.
  template <std::floating_point T>
  constexpr operator T() const {
    static_assert(detail::never<T>, "float(q), double x = q: an index is an expression over b, h, q and kv, and no number of C++. In a score it is real(q); masks compare whole numbers. [E-EXPR-FLOAT]");
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

  /// A sentence for `scalar(q)`, `shifted(mask, q, kv)` and their like.
  template <class E>
    requires((std::derived_from<E, index_tag> && !std::same_as<E, scalar>) || std::derived_from<E, table_tag>)
  scalar(const E&) {
    static_assert(detail::never<E>,
                  "scalar(x): one number for all pairs was expected, but this is an index expression or a table, which has many. Use the expression itself, e.g. `kv < lengths[b]`, move a "
                  "mask by it with with_indices(mask, q - x, kv - y), or check the order of the arguments. [E-MASK-OPERAND]");
  }
  // A moved-from scalar stays as it is: moving copies.
  scalar(const scalar&) = default;
  scalar& operator=(const scalar&) = default;
  template <detail::plain_number T>
  scalar& operator=(const T&) = delete;  // scalar = number: s.set(1) changes the number for every mask that reads it; s = scalar(1) is another one from now on [E-MASK-OPERAND]

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
  /// Sentences for `kv = q`, `q[kv]` and `q(kv)`.
  template <class T>
  const symbol_expr& operator=(const T&) const {
    static_assert(never<T>, "q = x, kv = q and their like: a symbol takes no other value. Compare with ==, e.g. `kv == q`. [E-MASK-OPERAND]");
    return *this;
  }
  template <class T>
  symbol_expr operator[](const T&) const { return refuse_call<T>(), *this; }
  template <class... T>
  symbol_expr operator()(const T&...) const { return refuse_call<T...>(), *this; }

 private:
  template <class... T>
  static constexpr void refuse_call() {
    static_assert(never<T...>, "q[x], q(x): a symbol is an index and no table. Look a number up in a table, e.g. `ids[q]`, or see a mask at another query with with_indices. [E-MASK-OPERAND]");
  }
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
template <index_expr E>
constexpr E fixed(E index) {
  static_assert(detail::never<E>, "fixed(index): a number that becomes part of the kernel was expected, but this is known for each pair only, or set later. Write it without fixed. [E-MASK-OPERAND]");
  return index;
}

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
template <index_expr E> E operator+(E e) { return e; }

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

}  // namespace samite

#include <samite/expr/index_mistakes.hpp>
