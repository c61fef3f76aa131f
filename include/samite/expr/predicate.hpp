// samite/expr/predicate.hpp: predicates over b, h, q and kv and how they combine.
#pragma once
#include <concepts>
#include <utility>

#include <samite/ir/build.hpp>

namespace samite {

namespace detail {
template <class...>
inline constexpr bool never = false;
}  // namespace detail

/// Base of every predicate expression; deriving from it is what makes a type one.
struct predicate_tag {
  /// A sentence for `bool x = kv <= q`, `if (kv <= q)` and `kv <= q ? x : y`.
  template <std::same_as<bool> T>
  constexpr operator T() const {
    static_assert(detail::never<T>,
                  "bool x = mask: a mask is no truth value, but a condition over b, h, q and kv that is evaluated for every pair. Keep it with `auto` or any_mask, "
                  "and choose by pairs with select(mask, x, y). [E-MASK-OPERAND]");
    return true;
  }
};

/// An expression that says whether query q of head h in batch b sees key kv.
template <class E>
concept predicate_expr = std::derived_from<E, predicate_tag> && requires(const E e, program& p) {
  { e.lower(p) } -> std::same_as<node_id>;  // an expression is a front end: it ends as nodes of a program
};

namespace detail {

template <op Code, predicate_expr L, predicate_expr R>
struct logic_expr : predicate_tag {
  L left;
  R right;
  constexpr logic_expr(L l, R r) : left(std::move(l)), right(std::move(r)) {}
  node_id lower(program& p) const {
    const node_id a = left.lower(p), b = right.lower(p);
    return build(p, Code, a, b);
  }
};

template <predicate_expr E>
struct not_expr : predicate_tag {
  E inner;
  constexpr explicit not_expr(E e) : inner(std::move(e)) {}
  node_id lower(program& p) const { return build(p, op::logical_not, inner.lower(p)); }
};

// Pairs on which both say the same (Same), or of which exactly one keeps.
template <bool Same, predicate_expr L, predicate_expr R>
struct agreement_expr : predicate_tag {
  L left;
  R right;
  constexpr agreement_expr(L l, R r) : left(std::move(l)), right(std::move(r)) {}
  node_id lower(program& p) const {
    const node_id a = left.lower(p), b = right.lower(p);
    const node_id not_a = build(p, op::logical_not, a), not_b = build(p, op::logical_not, b);
    const node_id with_a = build(p, op::logical_and, a, Same ? b : not_b), without_a = build(p, op::logical_and, not_a, Same ? not_b : b);
    return build(p, op::logical_or, with_a, without_a);
  }
};

struct known_predicate : predicate_tag {
  bool value;
  constexpr explicit known_predicate(bool v) : value(v) {}
  node_id lower(program& p) const { return build_constant(p, value); }
};

}  // namespace detail

/// Pairs that both keep. Both sides are always evaluated: a table lookup on the right is not guarded by the left.
template <predicate_expr L, predicate_expr R>
constexpr auto operator&&(L left, R right) {
  return detail::logic_expr<op::logical_and, L, R>{std::move(left), std::move(right)};
}
/// Pairs that at least one keeps. Both sides are always evaluated.
template <predicate_expr L, predicate_expr R>
constexpr auto operator||(L left, R right) {
  return detail::logic_expr<op::logical_or, L, R>{std::move(left), std::move(right)};
}
/// Pairs that the predicate hides.
template <predicate_expr E>
constexpr auto operator!(E inner) {
  return detail::not_expr<E>{std::move(inner)};
}

/// Pairs on which both predicates say the same.
template <predicate_expr L, predicate_expr R>
constexpr auto operator==(L left, R right) {
  return detail::agreement_expr<true, L, R>{std::move(left), std::move(right)};
}
/// Pairs that exactly one of the predicates keeps (exclusive or).
template <predicate_expr L, predicate_expr R>
constexpr auto operator!=(L left, R right) {
  return detail::agreement_expr<false, L, R>{std::move(left), std::move(right)};
}

// --- near misses: mistakes that users make, answered with a sentence ---------------------------------------------------

/// Bases of score expressions and of comparisons between them (expr/score.hpp), which has sentences of its own.
struct score_tag {};
struct score_condition_tag {};

namespace detail {
template <class T>
constexpr void refuse_function() {
  static_assert(!std::is_function_v<T>, "a mask was expected, but this is a function that makes one: call it, e.g. `causal()`. [E-MASK-OPERAND]");
}
template <class E>
concept stray_operand = !predicate_expr<E> && !std::derived_from<E, score_tag> && !std::derived_from<E, score_condition_tag>;
}  // namespace detail

template <predicate_expr L, class R>
  requires detail::stray_operand<R>
constexpr L operator&&(L left, const R&) {
  detail::refuse_function<R>();
  static_assert(detail::never<R> || std::is_function_v<R>,
                "mask && x: x is not a predicate over b, h, q, kv. Compare it with something, e.g. `x[kv] != 0`, "
                "or check that a local variable does not hide samite::symbols::q. [E-MASK-OPERAND]");
  return left;
}
template <class L, predicate_expr R>
  requires detail::stray_operand<L>
constexpr R operator&&(const L&, R right) {
  detail::refuse_function<L>();
  static_assert(detail::never<L> || std::is_function_v<L>,
                "x && mask: x is not a predicate over b, h, q, kv. Compare it with something, e.g. `x[kv] != 0`, "
                "or check that a local variable does not hide samite::symbols::q. [E-MASK-OPERAND]");
  return right;
}
template <predicate_expr L, class R>
  requires detail::stray_operand<R>
constexpr L operator||(L left, const R&) {
  detail::refuse_function<R>();
  static_assert(detail::never<R> || std::is_function_v<R>,
                "mask || x: x is not a predicate over b, h, q, kv. Compare it with something, e.g. `x[kv] != 0`, "
                "or check that a local variable does not hide samite::symbols::q. [E-MASK-OPERAND]");
  return left;
}
template <class L, predicate_expr R>
  requires detail::stray_operand<L>
constexpr R operator||(const L&, R right) {
  detail::refuse_function<L>();
  static_assert(detail::never<L> || std::is_function_v<L>,
                "x || mask: x is not a predicate over b, h, q, kv. Compare it with something, e.g. `x[kv] != 0`, "
                "or check that a local variable does not hide samite::symbols::q. [E-MASK-OPERAND]");
  return right;
}

template <predicate_expr L, class R>
constexpr L operator&(L left, const R&) {
  static_assert(detail::never<R>,
                "mask & x: predicates combine with && and not with &: a mask is a condition, not bits. Write &&. [E-MASK-OPERATOR]");
  return left;
}
template <predicate_expr L, class R>
constexpr L operator|(L left, const R&) {
  static_assert(detail::never<R>,
                "mask | x: predicates combine with || and not with |: a mask is a condition, not bits. Write ||. [E-MASK-OPERATOR]");
  return left;
}

template <class L, predicate_expr R>
  requires detail::stray_operand<L>
constexpr R operator&(const L&, R right) {
  static_assert(detail::never<L>, "x & mask: predicates combine with && and not with &: a mask is a condition, not bits. Write &&. [E-MASK-OPERATOR]");
  return right;
}
template <class L, predicate_expr R>
  requires detail::stray_operand<L>
constexpr R operator|(const L&, R right) {
  static_assert(detail::never<L>, "x | mask: predicates combine with || and not with |: a mask is a condition, not bits. Write ||. [E-MASK-OPERATOR]");
  return right;
}

namespace detail {
template <class T>
constexpr void refuse_chain() {
  static_assert(!std::same_as<T, bool>, "mask == true, mask < false and their like: a mask is no truth value. Write `mask`, or `!mask` where it is to be false. [E-MASK-OPERAND]");
  static_assert(never<T> || std::same_as<T, bool>,
                "a < b < c: the left side is a predicate or condition already, so that the second comparison has no meaning here. "
                "Write `a < b && b < c`, e.g. `0 <= kv && kv < 8`; for `mask == 1` write `mask`, for `mask == 0` write `!mask`, and masks have no order: `!a && b`. [E-MASK-CHAIN]");
}
}  // namespace detail

// Not of variables: `a = x, b = y` drops nothing.
template <class L, predicate_expr R>
  requires(!std::is_reference_v<L> && predicate_expr<L>)
R operator,(L&&, R right) {
  static_assert(detail::never<L, R>, "(mask, mask): the comma drops what stands before it. Write `a && b` for pairs that both keep, `a || b` for either. [E-MASK-OPERATOR]");
  return right;
}
template <predicate_expr L, class R> constexpr L operator<(L left, const R&) { return detail::refuse_chain<R>(), left; }
template <predicate_expr L, class R> constexpr L operator<=(L left, const R&) { return detail::refuse_chain<R>(), left; }
template <predicate_expr L, class R> constexpr L operator>(L left, const R&) { return detail::refuse_chain<R>(), left; }
template <predicate_expr L, class R> constexpr L operator>=(L left, const R&) { return detail::refuse_chain<R>(), left; }
template <predicate_expr L, class R> requires(!predicate_expr<R>) constexpr L operator==(L left, const R&) { return detail::refuse_chain<R>(), left; }
template <predicate_expr L, class R> requires(!predicate_expr<R>) constexpr L operator!=(L left, const R&) { return detail::refuse_chain<R>(), left; }

namespace detail {
template <class T>
constexpr void refuse_sum() {
  static_assert(never<T>,
                "mask + x, mask * x and their like: a mask is a condition and no number. Predicates combine with &&, || and !; a number where the mask keeps is "
                "select(mask, 1, 0). [E-MASK-OPERATOR]");
}
template <class T>
constexpr void refuse_change_of_mask() {
  static_assert(never<T>, "mask &= x, mask |= x: a mask is a condition, not bits. Write `m = m && x` or `m = m || x`, for an any_mask m. [E-MASK-OPERATOR]");
}
}  // namespace detail

template <predicate_expr L, class R> constexpr L operator+(L left, const R&) { return detail::refuse_sum<R>(), left; }
template <predicate_expr L, class R> constexpr L operator-(L left, const R&) { return detail::refuse_sum<R>(), left; }
template <predicate_expr L, class R> constexpr L operator*(L left, const R&) { return detail::refuse_sum<R>(), left; }
template <predicate_expr E> constexpr E operator-(E inner) { return detail::refuse_sum<E>(), inner; }
template <predicate_expr L, class R> constexpr const L& operator&=(const L& left, const R&) { return detail::refuse_change_of_mask<R>(), left; }
template <predicate_expr L, class R> constexpr const L& operator|=(const L& left, const R&) { return detail::refuse_change_of_mask<R>(), left; }
template <predicate_expr L, class R>
constexpr L operator^(L left, const R&) {
  static_assert(detail::never<R>,
                "mask ^ x: predicates combine with &&, || and !: a mask is a condition, not bits. For pairs that exactly one keeps write `a != b`. [E-MASK-OPERATOR]");
  return left;
}
template <predicate_expr E>
constexpr E operator~(E inner) {
  static_assert(detail::never<E>, "~mask: a mask is a condition, not bits. Write !mask. [E-MASK-OPERATOR]");
  return inner;
}

}  // namespace samite
