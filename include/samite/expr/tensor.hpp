// samite/expr/tensor.hpp: elementwise and row-reduction expressions over tensor values.
//
// A chain such as x * rsqrt(mean(x * x) + eps) * w is one expression type and becomes one kernel. `let` ends the type: the
// result is a value of the graph. The last axis are the columns; sum, mean, largest and smallest reduce over them.
#pragma once
#include <concepts>
#include <string>
#include <vector>

#include <samite/expr/number.hpp>
#include <samite/ir/build.hpp>
#include <samite/ir/tensor_ops.hpp>

namespace samite {

struct tensor_tag {};

/// What a row program is built in: the program and the tensors that its operand slots read.
struct row_builder {
  program p;
  std::vector<value> operands;

  row_builder();
  ~row_builder();

  /// The element of a tensor at this row and column.
  node_id load(const value& v);
  /// Reals meet reals: an integer tensor or the column number is converted where it meets one.
  node_id real(node_id id);
  /// A reduction over the columns of the row. What is the same at all columns has one: it is its own sum, largest and smallest element.
  node_id reduced(op code, node_id x);
};

/// An elementwise or row-reduction expression.
template <class E>
concept tensor_expr = std::derived_from<E, tensor_tag> && requires(const E e, row_builder& b) {
  { e.lower(b) } -> std::same_as<node_id>;
};

template <class E>
concept tensor_operand = tensor_expr<E> || std::same_as<E, value>;

namespace detail {

void check_condition(const row_builder& b, node_id condition);

struct value_expr : tensor_tag {
  value v;
  node_id lower(row_builder& b) const { return b.load(v); }
};

struct number_expr : tensor_tag {
  captured_real number;
  explicit number_expr(double n) : number(n) {}
  node_id lower(row_builder& b) const { return number.lower(b.p); }
};

struct column_expr : tensor_tag {
  symbol_id id;
  node_id lower(row_builder& b) const { return build_symbol(b.p, id); }
};

template <op Code, class A>
struct unary_expr : tensor_tag {
  A a;
  index_t imm = 0;
  node_id lower(row_builder& b) const {
    const node_id x = a.lower(b);
    if constexpr (Code == op::row_sum || Code == op::row_max || Code == op::row_min) return b.reduced(Code, b.real(x));
    return build(b.p, Code, Code == op::stop ? x : b.real(x), no_node, no_node, imm);
  }
};

template <class A>
struct mean_expr : tensor_tag {
  A a;
  node_id lower(row_builder& b) const {
    const node_id x = b.real(a.lower(b)), sum = b.reduced(op::row_sum, x);
    if (sum == x) return x;
    const node_id count = build_symbol(b.p, symbol_id::columns);
    return build(b.p, op::div, sum, b.real(count));
  }
};

template <op Code, class A, class B>
struct binary_expr : tensor_tag {
  A a;
  B b;
  node_id lower(row_builder& to) const {
    node_id x = a.lower(to), y = b.lower(to);
    if constexpr (Code == op::logical_and || Code == op::logical_or) return build(to.p, Code, x, y);
    // Two integers compare as integers; anything else happens in reals.
    const bool indices = to.p[x].kind == value_kind::index && to.p[y].kind == value_kind::index;
    if (!indices || Code == op::div) x = to.real(x), y = to.real(y);
    return build(to.p, Code, x, y);
  }
};

template <class C, class A, class B>
struct select_expr : tensor_tag {
  C c;
  A a;
  B b;
  node_id lower(row_builder& to) const {
    const node_id condition = c.lower(to), x = to.real(a.lower(to)), y = to.real(b.lower(to));
    detail::check_condition(to, condition);
    return build(to.p, op::select, condition, x, y);
  }
};

inline value_expr as_expr(const value& v) { return {{}, v}; }
inline number_expr as_expr(double number) { return number_expr(number); }
template <tensor_expr E>
const E& as_expr(const E& e) { return e; }

template <class E>
using expr_of = std::remove_cvref_t<decltype(as_expr(std::declval<const E&>()))>;

template <class L, class R>
concept tensor_pair = (tensor_operand<L> && (tensor_operand<R> || std::is_arithmetic_v<R>)) || (std::is_arithmetic_v<L> && tensor_operand<R>);

template <class E>
concept operand_or_number = tensor_operand<E> || std::is_arithmetic_v<E>;

template <op Code, class A>
auto unary(const A& a, index_t imm = 0) {
  return unary_expr<Code, expr_of<A>>{{}, as_expr(a), imm};
}
template <op Code, class A, class B>
auto binary(const A& a, const B& b) {
  return binary_expr<Code, expr_of<A>, expr_of<B>>{{}, as_expr(a), as_expr(b)};
}

}  // namespace detail

template <class L, class R> requires detail::tensor_pair<L, R>
auto operator+(const L& l, const R& r) { return detail::binary<op::add>(l, r); }
template <class L, class R> requires detail::tensor_pair<L, R>
auto operator-(const L& l, const R& r) { return detail::binary<op::sub>(l, r); }
template <class L, class R> requires detail::tensor_pair<L, R>
auto operator*(const L& l, const R& r) { return detail::binary<op::mul>(l, r); }
template <class L, class R> requires detail::tensor_pair<L, R>
auto operator/(const L& l, const R& r) { return detail::binary<op::div>(l, r); }
template <tensor_operand E>
auto operator-(const E& e) { return detail::unary<op::neg>(e); }

template <class L, class R> requires detail::tensor_pair<L, R>
auto operator<(const L& l, const R& r) { return detail::binary<op::less>(l, r); }
template <class L, class R> requires detail::tensor_pair<L, R>
auto operator>(const L& l, const R& r) { return detail::binary<op::less>(r, l); }
template <class L, class R> requires detail::tensor_pair<L, R>
auto operator<=(const L& l, const R& r) { return detail::binary<op::less_equal>(l, r); }
template <class L, class R> requires detail::tensor_pair<L, R>
auto operator>=(const L& l, const R& r) { return detail::binary<op::less_equal>(r, l); }
/// Equality of numbers is a function: == between values compares handles.
template <class L, class R> requires detail::tensor_pair<L, R>
auto equal(const L& l, const R& r) { return detail::binary<op::equal>(l, r); }

/// The number of the column, 0 to C-1, and the count C.
inline auto column() { return detail::column_expr{{}, symbol_id::column}; }
inline auto columns() { return detail::column_expr{{}, symbol_id::columns}; }

template <tensor_operand E> auto exp(const E& e) { return detail::unary<op::exp>(e); }
template <tensor_operand E> auto log(const E& e) { return detail::unary<op::log>(e); }
template <tensor_operand E> auto sqrt(const E& e) { return detail::unary<op::sqrt>(e); }
template <tensor_operand E> auto rsqrt(const E& e) { return detail::unary<op::rsqrt>(e); }
template <tensor_operand E> auto tanh(const E& e) { return detail::unary<op::tanh>(e); }
template <tensor_operand E> auto sin(const E& e) { return detail::unary<op::sin>(e); }
template <tensor_operand E> auto cos(const E& e) { return detail::unary<op::cos>(e); }
template <tensor_operand E> auto abs(const E& e) { return detail::unary<op::abs>(e); }
template <class L, class R> requires detail::tensor_pair<L, R>
auto min(const L& l, const R& r) { return detail::binary<op::min>(l, r); }
template <class L, class R> requires detail::tensor_pair<L, R>
auto max(const L& l, const R& r) { return detail::binary<op::max>(l, r); }
/// The value; gradients stop here.
template <tensor_operand E> auto stop_gradient(const E& e) { return detail::unary<op::stop>(e); }
/// Rounded to what `type` can hold, still inside the expression: the reference rounds between the steps of a norm.
template <tensor_operand E> auto round_to(const E& e, dtype type) { return detail::unary<op::round_to>(e, index_t(type)); }
/// Element (column + shift) mod C of the row.
template <tensor_operand E> auto roll(const E& e, index_t shift) { return detail::unary<op::roll>(e, shift); }

/// a where the condition holds, else b. Both are computed; a derivative that is infinite or NaN where the other side is taken does not reach the gradient,
/// as in select(x > 0.0, sqrt(x), 0.0).
template <tensor_expr C, class A, class B> requires(detail::operand_or_number<A> && detail::operand_or_number<B>)
auto select(const C& condition, const A& a, const B& b) {
  return detail::select_expr<C, detail::expr_of<A>, detail::expr_of<B>>{{}, condition, detail::as_expr(a), detail::as_expr(b)};
}

/// Reductions over the columns of each row. What is the same at all columns counts as one column, as it does after `let`: sum(sum(x)) is sum(x).
template <tensor_operand E> auto sum(const E& e) { return detail::unary<op::row_sum>(e); }
template <tensor_operand E> auto mean(const E& e) { return detail::mean_expr<detail::expr_of<E>>{{}, detail::as_expr(e)}; }
template <tensor_operand E> auto largest(const E& e) { return detail::unary<op::row_max>(e); }
template <tensor_operand E> auto smallest(const E& e) { return detail::unary<op::row_min>(e); }

template <tensor_operand E> auto square(const E& e) { return e * e; }
/// 1 / (1 + exp(-x)).
template <tensor_operand E> auto sigmoid(const E& e) { return 1.0 / (1.0 + exp(-e)); }
/// x * sigmoid(x).  source  Elfwing et al. 2018, arXiv:1702.03118
template <tensor_operand E> auto silu(const E& e) { return e / (1.0 + exp(-e)); }

struct let_options {
  /// Dtype of the result; the widest of the real operands if unset.
  std::optional<dtype> type{};
  std::string label{};
};

namespace detail {
value end_row(row_builder& b, node_id root, const let_options& options);
}  // namespace detail

/// Ends an expression: computes it in one kernel and gives the result as a value of the graph.
///
/// returns  the broadcast shape of the operands; last extent 1 if the result is the same at all columns
/// errors   E-SHAPE-BROADCAST, E-EXPR-EMPTY
template <tensor_operand E>
value let(const E& e, const let_options& options = {}) {
  if constexpr (std::same_as<E, value>) {
    if (!options.type || *options.type == e.type()) return e;
  }
  row_builder b;
  const node_id root = detail::as_expr(e).lower(b);
  return detail::end_row(b, root, options);
}

/// The value in another dtype.
value cast(const value& x, dtype type);

/// Sum over all elements: shape [1].
template <tensor_operand E>
value total(const E& e, const let_options& options = {}) {
  return reshape(sum_to(let(sum(e), options), {1}), {1});
}

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/expr/tensor_impl.hpp>
#endif
