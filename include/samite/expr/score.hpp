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
                     (score_expr<L> || score_expr<R> || (index_expr<L> && std::floating_point<R>) || (std::floating_point<L> && index_expr<R>));

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

  template <detail::real_index E>
  auto operator[](const E&) const { return detail::refuse_real_index<E>(); }
  template <class A, class B, class C = detail::no_index>
    requires(detail::real_index<A> || detail::real_index<B> || detail::real_index<C>)
  auto operator()(const A&, const B&, const C& = {}) const { return detail::refuse_real_index<A, B, C>(); }

  const value& tensor() const { return tensor_; }

 private:
  void check_rank(int indices) const;
  index_t second_extent() const;
  value merged() const;  // [A,B,C,D] as [A*B,C,D]

  value tensor_;
};

/// A real tensor of the graph as a table for score functions, e.g. learned slopes: score + table(slope)[h] * (kv - q).
inline tensor_table table(value tensor) { return tensor_table(std::move(tensor)); }

template <class L, class R> requires detail::score_pair<L, R>
auto operator+(L l, R r) { return detail::score_call<op::add>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::score_pair<L, R>
auto operator-(L l, R r) { return detail::score_call<op::sub>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::score_pair<L, R>
auto operator*(L l, R r) { return detail::score_call<op::mul>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::score_pair<L, R>
auto operator/(L l, R r) { return detail::score_call<op::div>(std::move(l), std::move(r)); }
template <score_expr E> auto operator-(E e) { return detail::score_call<op::neg>(std::move(e)); }

template <score_expr E> auto exp(E e) { return detail::score_call<op::exp>(std::move(e)); }
template <score_expr E> auto log(E e) { return detail::score_call<op::log>(std::move(e)); }
template <score_expr E> auto sqrt(E e) { return detail::score_call<op::sqrt>(std::move(e)); }
template <score_expr E> auto tanh(E e) { return detail::score_call<op::tanh>(std::move(e)); }
template <score_expr E> auto sin(E e) { return detail::score_call<op::sin>(std::move(e)); }
template <score_expr E> auto cos(E e) { return detail::score_call<op::cos>(std::move(e)); }
template <score_expr E> auto abs(E e) { return detail::score_call<op::abs>(std::move(e)); }
template <class L, class R> requires detail::score_pair<L, R>
auto min(L l, R r) { return detail::score_call<op::min>(std::move(l), std::move(r)); }
template <class L, class R> requires detail::score_pair<L, R>
auto max(L l, R r) { return detail::score_call<op::max>(std::move(l), std::move(r)); }
/// The index as a real number, e.g. log(real(q + 1)).
template <index_expr E> auto real(E e) { return detail::score_of_index<E>(std::move(e)); }
/// The value; gradients stop here.
template <score_expr E> auto stop_gradient(E e) { return detail::score_call<op::stop>(std::move(e)); }

// Comparisons of reals choose between scores. They are no masks: a mask decides by indices alone, so that tiles are known.
template <class L, class R> requires(score_expr<L> || score_expr<R>) && detail::score_pair<L, R>
auto operator<(L l, R r) { return detail::score_compare<op::less>(std::move(l), std::move(r)); }
template <class L, class R> requires(score_expr<L> || score_expr<R>) && detail::score_pair<L, R>
auto operator>(L l, R r) { return detail::score_compare<op::less>(std::move(r), std::move(l)); }
template <class L, class R> requires(score_expr<L> || score_expr<R>) && detail::score_pair<L, R>
auto operator<=(L l, R r) { return detail::score_compare<op::less_equal>(std::move(l), std::move(r)); }
template <class L, class R> requires(score_expr<L> || score_expr<R>) && detail::score_pair<L, R>
auto operator>=(L l, R r) { return detail::score_compare<op::less_equal>(std::move(r), std::move(l)); }

/// `then` where the condition holds, else `otherwise`; both are evaluated.
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
concept score_or_condition = score_expr<T> || score_condition<T>;

template <class T>
constexpr void refuse_score_in_mask() {
  if constexpr (score_condition<T>)
    static_assert(never<T>, "mask && (score < x): a mask decides by b, h, q and kv alone. Use select(score < x, ..., ...) inside the score function. [E-EXPR-SCORE]");
  else
    static_assert(never<T>, "mask && score: a score is a number, not a condition. Pass both to attention: {.mask = ..., .score = ...}. [E-EXPR-SCORE]");
}
}  // namespace detail

template <predicate_expr L, detail::score_or_condition R> L operator&&(L mask, const R&) { return detail::refuse_score_in_mask<R>(), mask; }
template <detail::score_or_condition L, predicate_expr R> R operator&&(const L&, R mask) { return detail::refuse_score_in_mask<L>(), mask; }
template <predicate_expr L, detail::score_or_condition R> L operator||(L mask, const R&) { return detail::refuse_score_in_mask<R>(), mask; }
template <detail::score_or_condition L, predicate_expr R> R operator||(const L&, R mask) { return detail::refuse_score_in_mask<L>(), mask; }

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/expr/score_impl.hpp>
#endif
