// samite/ir/ops.hpp: what each scalar op means: value, bounds, derivative and CUDA text, each op in one place.
//
// A rule is a struct with these static members, as far as they apply:
//   name        for print and errors
//   text        CUDA text of the real reading; $0 $1 $2 stand for the operands
//   index_text  CUDA text of the index or boolean reading where it differs
//   value       the meaning on numbers; templates serve float, double and index_t
//   bounds      the smallest interval that holds every value over intervals (index ops)
//   decide      the verdict over intervals (comparisons)
//   derivative  adjoints of the operands as nodes of the same program; no_node where there is none
// To add an op: a rule here, its enumerator in program.hpp, a line in visit_op; docs/contributing.md shows one.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>

#include <samite/core/math.hpp>
#include <samite/ir/interval.hpp>
#include <samite/ir/program.hpp>

namespace samite {

using adjoints = std::array<node_id, 3>;

/// What a derivative rule sees: the program it extends, the operands x, the result y and its adjoint dy.
struct derivative_context {
  program& p;
  const node_id* x;
  node_id y, dy;
};

namespace rules {

struct add {
  static constexpr const char* name = "add";
  static constexpr const char* text = "($0 + $1)";
  template <class T> static SAMITE_INLINE T value(T a, T b) { return a + b; }
  static constexpr interval bounds(interval a, interval b) {
    return {saturate(__int128(a.low) + b.low), saturate(__int128(a.high) + b.high)};
  }
  static adjoints derivative(derivative_context c) { return {c.dy, c.dy, no_node}; }
};

struct sub {
  static constexpr const char* name = "sub";
  static constexpr const char* text = "($0 - $1)";
  template <class T> static SAMITE_INLINE T value(T a, T b) { return a - b; }
  static constexpr interval bounds(interval a, interval b) {
    return {saturate(__int128(a.low) - b.high), saturate(__int128(a.high) - b.low)};
  }
  static adjoints derivative(derivative_context c) { return {c.dy, build(c.p, op::neg, c.dy), no_node}; }
};

struct mul {
  static constexpr const char* name = "mul";
  static constexpr const char* text = "($0 * $1)";
  template <class T> static SAMITE_INLINE T value(T a, T b) { return a * b; }
  static constexpr interval bounds(interval a, interval b) {
    const __int128 p[4] = {__int128(a.low) * b.low, __int128(a.low) * b.high, __int128(a.high) * b.low, __int128(a.high) * b.high};
    return {saturate(std::min(std::min(p[0], p[1]), std::min(p[2], p[3]))), saturate(std::max(std::max(p[0], p[1]), std::max(p[2], p[3])))};
  }
  static adjoints derivative(derivative_context c) {
    return {build(c.p, op::mul, c.dy, c.x[1]), build(c.p, op::mul, c.dy, c.x[0]), no_node};
  }
};

// Index division has a constant positive divisor: build() refuses anything else, and shifts stay shifts in the kernel.
struct div {
  static constexpr const char* name = "div";
  static constexpr const char* text = "($0 / $1)";
  static constexpr const char* index_text = "floor_div($0, $1)";
  template <class T> static SAMITE_INLINE T value(T a, T b) {
    if constexpr (std::is_integral_v<T>) return floor_div(a, b);
    else return a / b;
  }
  static constexpr interval bounds(interval a, interval b) {
    if (b.low <= 0) return interval::everything();
    const index_t p[4] = {floor_div(a.low, b.low), floor_div(a.low, b.high), floor_div(a.high, b.low), floor_div(a.high, b.high)};
    return {std::min(std::min(p[0], p[1]), std::min(p[2], p[3])), std::max(std::max(p[0], p[1]), std::max(p[2], p[3]))};
  }
  static adjoints derivative(derivative_context c) {
    const node_id da = build(c.p, op::div, c.dy, c.x[1]);
    return {da, build(c.p, op::neg, build(c.p, op::mul, da, c.y)), no_node};
  }
};

struct mod {
  static constexpr const char* name = "mod";
  static constexpr const char* text = "floor_mod($0, $1)";
  template <class T> static SAMITE_INLINE T value(T a, T b) { return floor_mod(a, b); }
  static constexpr interval bounds(interval a, interval b) {
    if (b.low <= 0) return interval::everything();
    // A range that stays between two multiples of the divisor is only shifted; any other takes every remainder.
    if (b.is_point() && floor_div(a.low, b.low) == floor_div(a.high, b.low)) return {floor_mod(a.low, b.low), floor_mod(a.high, b.low)};
    return {0, b.high - 1};
  }
};

struct neg {
  static constexpr const char* name = "neg";
  static constexpr const char* text = "(-$0)";
  template <class T> static SAMITE_INLINE T value(T a) { return -a; }
  static constexpr interval bounds(interval a) { return {-a.high, -a.low}; }
  static adjoints derivative(derivative_context c) { return {build(c.p, op::neg, c.dy), no_node, no_node}; }
};

struct abs {
  static constexpr const char* name = "abs";
  static constexpr const char* text = "fabs($0)";
  static constexpr const char* index_text = "index_abs($0)";
  template <class T> static SAMITE_INLINE T value(T a) { return a < T(0) ? -a : a; }
  static constexpr interval bounds(interval a) {
    if (a.low >= 0) return a;
    if (a.high <= 0) return {-a.high, -a.low};
    return {0, std::max(-a.low, a.high)};
  }
  static adjoints derivative(derivative_context c) {
    const node_id negative = build(c.p, op::less, c.x[0], build_constant(c.p, 0.0));
    return {build(c.p, op::select, negative, build(c.p, op::neg, c.dy), c.dy), no_node, no_node};
  }
};

struct min {
  static constexpr const char* name = "min";
  static constexpr const char* text = "fmin($0, $1)";
  static constexpr const char* index_text = "index_min($0, $1)";
  template <class T> static SAMITE_INLINE T value(T a, T b) { return b < a ? b : a; }
  static constexpr interval bounds(interval a, interval b) { return {std::min(a.low, b.low), std::min(a.high, b.high)}; }
  static adjoints derivative(derivative_context c) {
    const node_id second = build(c.p, op::less, c.x[1], c.x[0]), zero = build_constant(c.p, 0.0);
    return {build(c.p, op::select, second, zero, c.dy), build(c.p, op::select, second, c.dy, zero), no_node};
  }
};

struct max {
  static constexpr const char* name = "max";
  static constexpr const char* text = "fmax($0, $1)";
  static constexpr const char* index_text = "index_max($0, $1)";
  template <class T> static SAMITE_INLINE T value(T a, T b) { return a < b ? b : a; }
  static constexpr interval bounds(interval a, interval b) { return {std::max(a.low, b.low), std::max(a.high, b.high)}; }
  static adjoints derivative(derivative_context c) {
    const node_id second = build(c.p, op::less, c.x[0], c.x[1]), zero = build_constant(c.p, 0.0);
    return {build(c.p, op::select, second, zero, c.dy), build(c.p, op::select, second, c.dy, zero), no_node};
  }
};

// The shift is a constant from 0 to 62: build() refuses anything else.
struct shift_left {
  static constexpr const char* name = "shift_left";
  static constexpr const char* text = "($0 << $1)";
  template <class T> static SAMITE_INLINE T value(T a, T b) { return T(std::uint64_t(a) << b); }
  static constexpr interval bounds(interval a, interval b) {
    return b.is_point() ? mul::bounds(a, interval::point(index_t(1) << b.low)) : interval::everything();
  }
};

struct shift_right {
  static constexpr const char* name = "shift_right";
  static constexpr const char* text = "($0 >> $1)";
  template <class T> static SAMITE_INLINE T value(T a, T b) { return a >> b; }
  static constexpr interval bounds(interval a, interval b) {
    return b.is_point() ? interval{a.low >> b.low, a.high >> b.low} : interval::everything();
  }
};

struct exp {
  static constexpr const char* name = "exp";
  static constexpr const char* text = "real_exp($0)";
  template <class T> static SAMITE_INLINE T value(T a) {
    if constexpr (std::is_same_v<T, float>) return fast_exp(a);
    else return std::exp(a);
  }
  static adjoints derivative(derivative_context c) { return {build(c.p, op::mul, c.dy, c.y), no_node, no_node}; }
};

struct log {
  static constexpr const char* name = "log";
  static constexpr const char* text = "real_log($0)";
  template <class T> static SAMITE_INLINE T value(T a) { return std::log(a); }
  static adjoints derivative(derivative_context c) { return {build(c.p, op::div, c.dy, c.x[0]), no_node, no_node}; }
};

struct sqrt {
  static constexpr const char* name = "sqrt";
  static constexpr const char* text = "real_sqrt($0)";
  template <class T> static SAMITE_INLINE T value(T a) { return std::sqrt(a); }
  static adjoints derivative(derivative_context c) {
    return {build(c.p, op::div, c.dy, build(c.p, op::add, c.y, c.y)), no_node, no_node};
  }
};

struct rsqrt {
  static constexpr const char* name = "rsqrt";
  static constexpr const char* text = "real_rsqrt($0)";
  template <class T> static SAMITE_INLINE T value(T a) { return T(1) / std::sqrt(a); }
  static adjoints derivative(derivative_context c) {  // -1/2 * y^3
    const node_id cube = build(c.p, op::mul, c.y, build(c.p, op::mul, c.y, c.y));
    return {build(c.p, op::mul, build(c.p, op::mul, build_constant(c.p, -0.5), cube), c.dy), no_node, no_node};
  }
};

struct tanh {
  static constexpr const char* name = "tanh";
  static constexpr const char* text = "real_tanh($0)";
  template <class T> static SAMITE_INLINE T value(T a) { return std::tanh(a); }
  static adjoints derivative(derivative_context c) {
    const node_id slope = build(c.p, op::sub, build_constant(c.p, 1.0), build(c.p, op::mul, c.y, c.y));
    return {build(c.p, op::mul, c.dy, slope), no_node, no_node};
  }
};

struct sin {
  static constexpr const char* name = "sin";
  static constexpr const char* text = "real_sin($0)";
  template <class T> static SAMITE_INLINE T value(T a) { return std::sin(a); }
  static adjoints derivative(derivative_context c) {
    return {build(c.p, op::mul, c.dy, build(c.p, op::cos, c.x[0])), no_node, no_node};
  }
};

struct cos {
  static constexpr const char* name = "cos";
  static constexpr const char* text = "real_cos($0)";
  template <class T> static SAMITE_INLINE T value(T a) { return std::cos(a); }
  static adjoints derivative(derivative_context c) {
    return {build(c.p, op::neg, build(c.p, op::mul, c.dy, build(c.p, op::sin, c.x[0]))), no_node, no_node};
  }
};

// Rounding to a storage type; its derivative is that of the identity.
struct round_to {
  static constexpr const char* name = "round_to";
  static adjoints derivative(derivative_context c) { return {c.dy, no_node, no_node}; }
};

struct to_real {
  static constexpr const char* name = "to_real";
  static constexpr const char* text = "real($0)";
};

struct to_index {
  static constexpr const char* name = "to_index";
  static constexpr const char* text = "index($0)";
};

struct stop {
  static constexpr const char* name = "stop";
  static constexpr const char* text = "$0";
  template <class T> static SAMITE_INLINE T value(T a) { return a; }
};

struct less {
  static constexpr const char* name = "less";
  static constexpr const char* text = "($0 < $1)";
  template <class T> static SAMITE_INLINE bool value(T a, T b) { return a < b; }
  static constexpr verdict decide(interval a, interval b) {
    return a.high < b.low ? verdict::full : a.low >= b.high ? verdict::empty : verdict::undecided;
  }
};

struct less_equal {
  static constexpr const char* name = "less_equal";
  static constexpr const char* text = "($0 <= $1)";
  template <class T> static SAMITE_INLINE bool value(T a, T b) { return a <= b; }
  static constexpr verdict decide(interval a, interval b) {
    return a.high <= b.low ? verdict::full : a.low > b.high ? verdict::empty : verdict::undecided;
  }
};

struct equal {
  static constexpr const char* name = "equal";
  static constexpr const char* text = "($0 == $1)";
  template <class T> static SAMITE_INLINE bool value(T a, T b) { return a == b; }
  static constexpr verdict decide(interval a, interval b) {
    if (disjoint(a, b)) return verdict::empty;
    return a.is_point() && a == b ? verdict::full : verdict::undecided;
  }
};

// && and || are evaluated without short-circuit: operands must be pure (design decision).
struct logical_and {
  static constexpr const char* name = "and";
  static constexpr bool is_logic = true;
  static constexpr const char* text = "($0 & $1)";
  static SAMITE_INLINE bool value(bool a, bool b) { return a & b; }
};

struct logical_or {
  static constexpr const char* name = "or";
  static constexpr bool is_logic = true;
  static constexpr const char* text = "($0 | $1)";
  static SAMITE_INLINE bool value(bool a, bool b) { return a | b; }
};

struct logical_not {
  static constexpr const char* name = "not";
  static constexpr bool is_logic = true;
  static constexpr const char* text = "(!$0)";
  static SAMITE_INLINE bool value(bool a) { return !a; }
};

struct select {
  static constexpr const char* name = "select";
  static constexpr const char* text = "($0 ? $1 : $2)";
  template <class T> static SAMITE_INLINE T value(bool c, T a, T b) { return c ? a : b; }
  static constexpr interval bounds(verdict c, interval a, interval b) {
    return c == verdict::full ? a : c == verdict::empty ? b : hull(a, b);
  }
  static adjoints derivative(derivative_context c) {
    const node_id zero = build_constant(c.p, 0.0);
    return {no_node, build(c.p, op::select, c.x[0], c.dy, zero), build(c.p, op::select, c.x[0], zero, c.dy)};
  }
};

// Across a row. A row's sum is the same at every column, so its adjoint arrives summed over the row already
// (ir/derivative.hpp); here it spreads back to the columns.
struct row_sum {
  static constexpr const char* name = "row_sum";
  static adjoints derivative(derivative_context c) { return {c.dy, no_node, no_node}; }
};

// Ties share the derivative equally.
template <class Self>
adjoints extreme_derivative(derivative_context c) {
  const node_id one = build_constant(c.p, 1.0), zero = build_constant(c.p, 0.0);
  const node_id hit = build(c.p, op::select, build(c.p, op::equal, c.x[0], c.y), one, zero);
  return {build(c.p, op::mul, c.dy, build(c.p, op::div, hit, build(c.p, op::row_sum, hit))), no_node, no_node};
}

struct row_max {
  static constexpr const char* name = "row_max";
  static adjoints derivative(derivative_context c) { return extreme_derivative<row_max>(c); }
};

struct row_min {
  static constexpr const char* name = "row_min";
  static adjoints derivative(derivative_context c) { return extreme_derivative<row_min>(c); }
};

struct roll {
  static constexpr const char* name = "roll";
  static adjoints derivative(derivative_context c) {
    return {build(c.p, op::roll, c.dy, no_node, no_node, -c.p[c.y].imm), no_node, no_node};
  }
};

struct leaf {
  static constexpr const char* name = "leaf";
};

}  // namespace rules

/// Calls `f(rule)` with the rule of an op; leaves and gathers get rules::leaf.
template <class F>
decltype(auto) visit_op(op code, F&& f) {
  switch (code) {
    case op::add: return f(rules::add{});
    case op::sub: return f(rules::sub{});
    case op::mul: return f(rules::mul{});
    case op::div: return f(rules::div{});
    case op::mod: return f(rules::mod{});
    case op::neg: return f(rules::neg{});
    case op::abs: return f(rules::abs{});
    case op::min: return f(rules::min{});
    case op::max: return f(rules::max{});
    case op::shift_left: return f(rules::shift_left{});
    case op::shift_right: return f(rules::shift_right{});
    case op::exp: return f(rules::exp{});
    case op::log: return f(rules::log{});
    case op::sqrt: return f(rules::sqrt{});
    case op::rsqrt: return f(rules::rsqrt{});
    case op::tanh: return f(rules::tanh{});
    case op::sin: return f(rules::sin{});
    case op::cos: return f(rules::cos{});
    case op::round_to: return f(rules::round_to{});
    case op::to_real: return f(rules::to_real{});
    case op::to_index: return f(rules::to_index{});
    case op::stop: return f(rules::stop{});
    case op::less: return f(rules::less{});
    case op::less_equal: return f(rules::less_equal{});
    case op::equal: return f(rules::equal{});
    case op::logical_and: return f(rules::logical_and{});
    case op::logical_or: return f(rules::logical_or{});
    case op::logical_not: return f(rules::logical_not{});
    case op::select: return f(rules::select{});
    case op::row_sum: return f(rules::row_sum{});
    case op::row_max: return f(rules::row_max{});
    case op::row_min: return f(rules::row_min{});
    case op::roll: return f(rules::roll{});
    default: return f(rules::leaf{});
  }
}

}  // namespace samite
