// samite/expr/score.hpp: score functions: what attention adds to, or makes of, scale * q.k before the softmax.
//
// An expression over the symbol `score`, the indices b, h, q, kv and captured tensors, in reals. Indices become reals where
// they meet one. Its derivative is derived from it, for the score and for every captured tensor.
#pragma once
#include <vector>

#include <samite/expr/number.hpp>
#include <samite/expr/table.hpp>
#include <samite/ir/graph.hpp>

namespace samite {

/// What a score is lowered into: the program, and the tensors that its lookups read, by slot.
struct score_builder {
  program p;
  std::vector<value> tensors;

  node_id real(node_id id);  // an index becomes a real
  index_t slot_of(const value& tensor);
};

/// A real number that depends on the pair (b, h, q, kv) and its score.
template <class E>
concept score_expr = std::derived_from<E, score_tag> && requires(const E e, score_builder& b) {
  { e.lower(b) } -> std::same_as<node_id>;
};

template <class E>
concept score_operand = score_expr<E> || index_expr<E> || (std::is_arithmetic_v<E> && !std::same_as<E, bool>);

namespace detail {

struct score_symbol : score_tag {
  node_id lower(score_builder& b) const { return build_symbol(b.p, symbol_id::score); }
};

struct score_number : score_tag {
  captured_real number;
  explicit score_number(double n) : number(n) {}
  node_id lower(score_builder& b) const { return number.lower(b.p); }
};

template <index_expr E>
struct score_of_index : score_tag {
  E index;
  explicit score_of_index(E e) : index(std::move(e)) {}
  node_id lower(score_builder& b) const { return b.real(index.lower(b.p)); }
};

template <op Code, score_expr A>
struct score_unary : score_tag {
  A a;
  explicit score_unary(A x) : a(std::move(x)) {}
  node_id lower(score_builder& b) const { return build(b.p, Code, a.lower(b)); }
};

// Of two reals: a score, or with score_condition_tag a condition for `select`.
template <op Code, class Tag, score_expr A, score_expr B>
struct score_binary : Tag {
  A a;
  B b;
  score_binary(A x, B y) : a(std::move(x)), b(std::move(y)) {}
  node_id lower(score_builder& to) const {
    const node_id x = a.lower(to), y = b.lower(to);
    return build(to.p, Code, x, y);
  }
};

template <class C>
concept score_condition = std::derived_from<C, score_condition_tag>;

// A predicate over b, h, q and kv beside a condition on scores.
template <predicate_expr E>
struct condition_of_mask : score_condition_tag {
  E mask;
  explicit condition_of_mask(E m) : mask(std::move(m)) {}
  node_id lower(score_builder& to) const { return mask.lower(to.p); }
};
template <score_condition C> C as_condition(C c) { return c; }
template <predicate_expr E> condition_of_mask<E> as_condition(E e) { return condition_of_mask<E>(std::move(e)); }
template <class L, class R>
concept condition_pair = (score_condition<L> && (score_condition<R> || predicate_expr<R>)) || (predicate_expr<L> && score_condition<R>);

template <op Code, score_condition A, score_condition B>
struct condition_binary : score_condition_tag {
  A a;
  B b;
  condition_binary(A x, B y) : a(std::move(x)), b(std::move(y)) {}
  node_id lower(score_builder& to) const {
    const node_id x = a.lower(to), y = b.lower(to);
    return build(to.p, Code, x, y);
  }
};

template <op Code, class A, class B>
auto condition_call(A a, B b) {
  auto x = as_condition(std::move(a));
  auto y = as_condition(std::move(b));
  return condition_binary<Code, decltype(x), decltype(y)>(std::move(x), std::move(y));
}

template <score_condition A>
struct condition_not : score_condition_tag {
  A a;
  explicit condition_not(A x) : a(std::move(x)) {}
  node_id lower(score_builder& to) const { return build(to.p, op::logical_not, a.lower(to)); }
};

template <class C, score_expr A, score_expr B>
struct score_select : score_tag {
  C condition;
  A a;
  B b;
  score_select(C c, A x, B y) : condition(std::move(c)), a(std::move(x)), b(std::move(y)) {}
  node_id lower(score_builder& to) const {
    node_id c;
    if constexpr (score_condition<C>) c = condition.lower(to);
    else c = condition.lower(to.p);
    const node_id x = a.lower(to), y = b.lower(to);
    return build(to.p, op::select, c, x, y);
  }
};

template <index_expr A, lookup_index B, lookup_index C>
struct tensor_lookup : score_tag {
  value source;
  A first;
  B second;
  C third;
  tensor_lookup(value v, A a, B b, C c) : source(std::move(v)), first(std::move(a)), second(std::move(b)), third(std::move(c)) {}
  node_id lower(score_builder& to) const {
    const node_id a = first.lower(to.p);
    node_id b = no_node, c = no_node;
    if constexpr (index_expr<B>) b = second.lower(to.p);
    if constexpr (index_expr<C>) c = third.lower(to.p);
    return build_lookup(to.p, to.slot_of(source), a, b, c);
  }
};

template <score_expr E> E as_score(E e) { return e; }
template <index_expr E> score_of_index<E> as_score(E e) { return score_of_index<E>(std::move(e)); }
template <class T> requires std::is_arithmetic_v<T>
score_number as_score(T number) { return score_number(double(number)); }

// At least one side makes it a real: a score, or a fraction beside an index.
template <class L, class R>
concept score_pair = score_operand<L> && score_operand<R> &&
                     (score_expr<L> || score_expr<R> || index_and_float<L, R>);
template <class L, class R>
concept with_score = score_pair<L, R> && (score_expr<L> || score_expr<R>);
// Said by way of index_and_float, so that these operators are nearer than the sentences of expr/index.hpp.
template <class L, class R>
concept with_fraction = index_and_float<L, R> && score_operand<L> && score_operand<R>;

template <op Code, class A>
auto score_call(A a) {
  auto x = as_score(std::move(a));
  return score_unary<Code, decltype(x)>(std::move(x));
}
template <op Code, class Tag = score_tag, class A, class B>
auto score_call(A a, B b) {
  auto x = as_score(std::move(a));
  auto y = as_score(std::move(b));
  return score_binary<Code, Tag, decltype(x), decltype(y)>(std::move(x), std::move(y));
}
template <op Code, class A, class B>
auto score_compare(A a, B b) { return score_call<Code, score_condition_tag>(std::move(a), std::move(b)); }

}  // namespace detail

namespace symbols {
/// scale * q.k of the pair, in natural units and fp32 (fp64 for f64 operands).
inline constexpr detail::score_symbol score{};
}  // namespace symbols

/// A tensor of the graph that scores read at integer indices; it gets a gradient. Made by `table(value)`.
class tensor_table : public table_tag {
 public:
  explicit tensor_table(value tensor) : tensor_(std::move(tensor)) {}

  /// Element at one index: slope[h].
  ///
  /// errors  E-SCORE-RANK when there are more or fewer indices than the tensor has axes. Whether an index can leave the
  ///         tensor is checked when lengths are known (E-SCORE-RANGE)
  template <index_operand A>
  auto operator[](A first) const { return (*this)(std::move(first)); }
  /// Element at one to three indices: bias(h, q - kv + offset).
  template <index_operand A, class B = detail::no_index, class C = detail::no_index>
    requires((index_operand<B> || std::same_as<B, detail::no_index>) && (index_operand<C> || std::same_as<C, detail::no_index>))
  auto operator()(A first, B second = {}, C third = {}) const {
    check_rank(1 + (std::same_as<B, detail::no_index> ? 0 : 1) + (std::same_as<C, detail::no_index> ? 0 : 1));
    auto a = detail::as_index(std::move(first));
    auto b = detail::as_lookup_index(std::move(second));
    auto c = detail::as_lookup_index(std::move(third));
    return detail::tensor_lookup<decltype(a), decltype(b), decltype(c)>(tensor_, std::move(a), std::move(b), std::move(c));
  }
  /// Element at four indices: bias(b, h, q, kv). The second extent must be a number.
  template <index_operand A, index_operand B, index_operand C, index_operand D>
  auto operator()(A first, B second, C third, D fourth) const {
    check_rank(4);
    auto row = detail::as_index(std::move(first)) * fixed(second_extent()) + detail::as_index(std::move(second));
    auto c = detail::as_index(std::move(third));
    auto d = detail::as_index(std::move(fourth));
    return detail::tensor_lookup<decltype(row), decltype(c), decltype(d)>(merged(), std::move(row), std::move(c), std::move(d));
  }

  template <detail::stray_index E>
  auto operator[](const E&) const { return detail::refuse_index<E>(); }
  template <class A, class B = detail::no_index, class C = detail::no_index>
    requires(detail::stray_index<A> || detail::stray_index<B> || detail::stray_index<C>)
  auto operator()(const A&, const B& = {}, const C& = {}) const { return detail::refuse_index<A, B, C>(); }
  template <class A, class B, class C, class D, class E, class... More>
  auto operator()(const A&, const B&, const C&, const D&, const E&, const More&...) const { return detail::refuse_rank<A, B, C, D, E, More...>(); }

  const value& tensor() const { return tensor_; }

 private:
  void check_rank(int indices) const;
  index_t second_extent() const;
  value merged() const;  // [A,B,C,D] as [A*B,C,D]

  value tensor_;
};

/// A real tensor of the graph as a table for score functions, e.g. learned slopes: score + table(slope)[h] * (kv - q).
inline tensor_table table(value tensor) { return tensor_table(std::move(tensor)); }

template <class L, class R> requires detail::with_score<L, R>
auto operator+(L l, R r) { return detail::score_call<op::add>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_fraction<L, R>
auto operator+(L l, R r) { return detail::score_call<op::add>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_score<L, R>
auto operator-(L l, R r) { return detail::score_call<op::sub>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_fraction<L, R>
auto operator-(L l, R r) { return detail::score_call<op::sub>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_score<L, R>
auto operator*(L l, R r) { return detail::score_call<op::mul>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_fraction<L, R>
auto operator*(L l, R r) { return detail::score_call<op::mul>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_score<L, R>
auto operator/(L l, R r) { return detail::score_call<op::div>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_fraction<L, R>
auto operator/(L l, R r) { return detail::score_call<op::div>(std::move(l), std::move(r)); }
template <score_expr E> auto operator-(E e) { return detail::score_call<op::neg>(std::move(e)); }
template <score_expr E> E operator+(E e) { return e; }

template <score_expr E> auto exp(E e) { return detail::score_call<op::exp>(std::move(e)); }
template <score_expr E> auto log(E e) { return detail::score_call<op::log>(std::move(e)); }
template <score_expr E> auto sqrt(E e) { return detail::score_call<op::sqrt>(std::move(e)); }
template <score_expr E> auto tanh(E e) { return detail::score_call<op::tanh>(std::move(e)); }
template <score_expr E> auto sin(E e) { return detail::score_call<op::sin>(std::move(e)); }
template <score_expr E> auto cos(E e) { return detail::score_call<op::cos>(std::move(e)); }
template <score_expr E> auto abs(E e) { return detail::score_call<op::abs>(std::move(e)); }
template <class L, class R> requires detail::with_score<L, R>
auto min(L l, R r) { return detail::score_call<op::min>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_fraction<L, R>
auto min(L l, R r) { return detail::score_call<op::min>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_score<L, R>
auto max(L l, R r) { return detail::score_call<op::max>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_fraction<L, R>
auto max(L l, R r) { return detail::score_call<op::max>(std::move(l), std::move(r)); }
/// The nearest number from `low` to `high`; `high` where the two cross.
template <score_expr E, score_operand L, score_operand H>
auto clamp(E e, L low, H high) { return min(max(std::move(e), std::move(low)), std::move(high)); }
/// 1 / (1 + exp(-x)).
template <score_expr E> auto sigmoid(E e) { return 1.0 / (1.0 + exp(-std::move(e))); }
/// The index as a real number, e.g. log(real(q + 1)).
template <index_expr E> auto real(E e) { return detail::score_of_index<E>(std::move(e)); }
/// The value; gradients stop here.
template <score_expr E> auto stop_gradient(E e) { return detail::score_call<op::stop>(std::move(e)); }

// Comparisons of reals choose between scores. They are no masks: a mask decides by indices alone, so that tiles are known.
template <class L, class R> requires detail::with_score<L, R>
auto operator<(L l, R r) { return detail::score_compare<op::less>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_score<L, R>
auto operator>(L l, R r) { return detail::score_compare<op::less>(std::move(r), std::move(l)); }
template <class L, class R> requires detail::with_score<L, R>
auto operator<=(L l, R r) { return detail::score_compare<op::less_equal>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_score<L, R>
auto operator>=(L l, R r) { return detail::score_compare<op::less_equal>(std::move(r), std::move(l)); }
template <class L, class R> requires detail::with_score<L, R>
auto operator==(L l, R r) { return detail::score_compare<op::equal>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::with_score<L, R>
auto operator!=(L l, R r) { return !detail::score_compare<op::equal>(std::move(l), std::move(r)); }

// Conditions combine among themselves and with masks; both sides are always evaluated. The result is for `select`, and no mask.
template <detail::score_condition C> auto operator!(C c) { return detail::condition_not<C>(std::move(c)); }
template <class L, class R> requires detail::condition_pair<L, R>
auto operator&&(L l, R r) { return detail::condition_call<op::logical_and>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::condition_pair<L, R>
auto operator||(L l, R r) { return detail::condition_call<op::logical_or>(std::move(l), std::move(r)); }

/// `then` where the condition holds, else `otherwise`; both are evaluated. A derivative that is infinite or NaN where the other side is taken does not reach
/// the gradient, as in select(q == kv, 0.0, score / (q - kv)).
template <class C, score_operand L, score_operand R>
  requires((predicate_expr<C> || detail::score_condition<C>) && detail::score_pair<L, R>)
auto select(C condition, L then, R otherwise) {
  auto x = detail::as_score(std::move(then));
  auto y = detail::as_score(std::move(otherwise));
  return detail::score_select<C, decltype(x), decltype(y)>(std::move(condition), std::move(x), std::move(y));
}

// --- near misses -------------------------------------------------------------------------------------------------------

namespace detail {
template <class T>
constexpr void refuse_score_in_mask() {
  static_assert(never<T>, "mask && score: a score is a number, not a condition. Pass both to attention: {.mask = ..., .score = ...}. [E-EXPR-SCORE]");
}
}  // namespace detail

template <predicate_expr L, score_expr R> L operator&&(L mask, const R&) { return detail::refuse_score_in_mask<R>(), mask; }
template <score_expr L, predicate_expr R> R operator&&(const L&, R mask) { return detail::refuse_score_in_mask<L>(), mask; }
template <predicate_expr L, score_expr R> L operator||(L mask, const R&) { return detail::refuse_score_in_mask<R>(), mask; }
template <score_expr L, predicate_expr R> R operator||(const L&, R mask) { return detail::refuse_score_in_mask<L>(), mask; }

/// Base of any_score (score/any_score.hpp), which is no operand.
struct finished_score_tag {};

namespace detail {
// What stands beside a score and is no number: masks, tables without an index, tensors and values of a graph.
template <class T>
concept foreign_to_scores = predicate_expr<T> || std::derived_from<T, table_tag> || foreign_operand<T>;
template <class L, class R>
concept score_and_foreign = (score_expr<L> && foreign_to_scores<R>) || (foreign_to_scores<L> && score_expr<R>);

template <class L, class R>
concept score_and_thing = score_and_foreign<L, R> && !predicate_expr<L> && !predicate_expr<R>;

template <class L, class R>
constexpr void refuse_finished_score() {
  static_assert(never<L, R>,
                "any_score + x, alibi(8) + softcap(30.0): any_score, as alibi(heads), relative_bias and t5_bias return it, is a finished score function, and adding two would count the score "
                "twice. Write one expression in which the score occurs once, e.g. `softcap(30.0) - table(slopes)[h] * abs(q - kv)`. [E-EXPR-SCORE]");
}

template <class L, class R>
score_number refuse_in_score() {
  if constexpr (std::derived_from<L, finished_score_tag> || std::derived_from<R, finished_score_tag>)
    refuse_finished_score<L, R>();
  else if constexpr (std::same_as<L, bool> || std::same_as<R, bool>)
    static_assert(never<L, R>, "score * bool: a score is a number and no truth value. Write 1.0 or 0.0, or choose with `if`; by pairs choose with select(mask, x, y). [E-EXPR-SCORE]");
  else if constexpr (predicate_expr<L> || predicate_expr<R>)
    static_assert(never<L, R>, "score + mask: a mask is a condition and no number. Pass it as attention's `.mask`; a number where it keeps is select(mask, 1, 0). [E-EXPR-SCORE]");
  else if constexpr (std::derived_from<L, table_tag> || std::derived_from<R, table_tag>)
    static_assert(never<L, R>, "score + table: a table is no number, but its elements are. Look one up, e.g. `score + bias[h]`. [E-EXPR-SCORE]");
  else
    static_assert(never<L, R>, "score + x: x is neither a score, an index nor a number. A tensor of the graph is read through a table, e.g. `score + table(bias)(h, q, kv)`. [E-EXPR-SCORE]");
  return score_number(0);
}

template <class... T>
score_number refuse_index_call() {
  static_assert(never<T...>, "exp(index), log(index) and their like: an index is a whole number. Make it a real one first, e.g. `log(real(q + 1))`. [E-EXPR-SCORE]");
  return score_number(0);
}

template <class C>
score_number refuse_number_as_condition() {
  static_assert(never<C>, "!score, score && x, select(score, x, y): a score is a number and no condition. Compare it with something, e.g. `score > 0`. [E-EXPR-SCORE]");
  return score_number(0);
}

template <class T>
score_number refuse_score_count() {
  static_assert(never<T>, "a count of heads or tokens is a whole number: give an integer, e.g. `alibi(8)`. [E-EXPR-FLOAT]");
  return score_number(0);
}

template <class T>
concept score_or_arithmetic = score_operand<T> || std::same_as<T, bool>;
}  // namespace detail

template <class L, class R> requires detail::score_and_foreign<L, R>
auto operator+(const L&, const R&) { return detail::refuse_in_score<L, R>(); }
template <class L, class R> requires detail::score_and_foreign<L, R>
auto operator-(const L&, const R&) { return detail::refuse_in_score<L, R>(); }
template <class L, class R> requires detail::score_and_foreign<L, R>
auto operator*(const L&, const R&) { return detail::refuse_in_score<L, R>(); }
template <class L, class R> requires detail::score_and_foreign<L, R>
auto operator/(const L&, const R&) { return detail::refuse_in_score<L, R>(); }
template <class L, class R> requires detail::score_and_thing<L, R>
auto operator<(const L&, const R&) { return detail::refuse_in_score<L, R>(); }
template <class L, class R> requires detail::score_and_thing<L, R>
auto operator>(const L&, const R&) { return detail::refuse_in_score<L, R>(); }
template <class L, class R> requires detail::score_and_thing<L, R>
auto operator<=(const L&, const R&) { return detail::refuse_in_score<L, R>(); }
template <class L, class R> requires detail::score_and_thing<L, R>
auto operator>=(const L&, const R&) { return detail::refuse_in_score<L, R>(); }
template <class L, class R> requires detail::score_and_thing<L, R>
auto operator==(const L&, const R&) { return detail::refuse_in_score<L, R>(); }
template <class L, class R> requires detail::score_and_thing<L, R>
auto operator!=(const L&, const R&) { return detail::refuse_in_score<L, R>(); }

template <index_expr E> auto exp(const E&) { return detail::refuse_index_call<E>(); }
template <index_expr E> auto log(const E&) { return detail::refuse_index_call<E>(); }
template <index_expr E> auto sqrt(const E&) { return detail::refuse_index_call<E>(); }
template <index_expr E> auto tanh(const E&) { return detail::refuse_index_call<E>(); }
template <index_expr E> auto sin(const E&) { return detail::refuse_index_call<E>(); }
template <index_expr E> auto cos(const E&) { return detail::refuse_index_call<E>(); }
template <index_expr E> auto sigmoid(const E&) { return detail::refuse_index_call<E>(); }

template <class B, class E> requires(score_expr<B> || score_expr<E> || index_expr<B>)
auto pow(const B&, const E&) {
  static_assert(detail::never<B, E>, "pow(score, x): there is no power of scores. Multiply, e.g. `score * score`, or write exp(x * log(y)) for a y above 0. [E-EXPR-SCORE]");
  return detail::score_number(0);
}
template <score_expr L, class R>
L operator^(L left, const R&) {
  static_assert(detail::never<R>, "score ^ x: there is no power of scores, and no bits. Multiply, e.g. `score * score`, or write exp(x * log(y)) for a y above 0. [E-EXPR-SCORE]");
  return left;
}
template <score_expr L, class R>
L operator%(L left, const R&) {
  static_assert(detail::never<R>, "score % x: a remainder is for indices, e.g. `q % 16`, and a score is a real number. [E-EXPR-SCORE]");
  return left;
}

template <score_expr E> auto operator!(const E&) { return detail::refuse_number_as_condition<E>(); }
template <score_expr L, detail::score_or_arithmetic R> auto operator&&(const L&, const R&) { return detail::refuse_number_as_condition<L>(); }
template <score_expr L, detail::score_or_arithmetic R> auto operator||(const L&, const R&) { return detail::refuse_number_as_condition<L>(); }
template <predicate_expr C, class L, class R>
  requires(std::is_arithmetic_v<L> && std::is_arithmetic_v<R> && (std::floating_point<L> || std::floating_point<R>))
auto select(const C&, const L&, const R&) {
  static_assert(detail::never<C>, "select(mask, 1.0, 0.0): the score does not occur, and b, h, q and kv are whole numbers. Write whole numbers, `select(mask, 1, 0)`, or let a side be the score's, e.g. "
                                  "`select(mask, score, 0.0)`. [E-EXPR-FLOAT]");
  return detail::score_number(0);
}
template <score_expr C, class L, class R> auto select(const C&, const L&, const R&) { return detail::refuse_number_as_condition<C>(); }

template <detail::score_condition L, class R> L operator<(L left, const R&) { return detail::refuse_chain<R>(), left; }
template <detail::score_condition L, class R> L operator<=(L left, const R&) { return detail::refuse_chain<R>(), left; }
template <detail::score_condition L, class R> L operator>(L left, const R&) { return detail::refuse_chain<R>(), left; }
template <detail::score_condition L, class R> L operator>=(L left, const R&) { return detail::refuse_chain<R>(), left; }

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/expr/score_impl.hpp>
#endif
