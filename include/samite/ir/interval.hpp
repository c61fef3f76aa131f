// samite/ir/interval.hpp: closed integer intervals and three-valued verdicts.
#pragma once
#include <limits>

#include <samite/core/dtype.hpp>

namespace samite {

/// All integers from `low` to `high`; both ends saturate, so that bounds never wrap.
struct interval {
  index_t low = 0, high = 0;

  static constexpr index_t lowest = std::numeric_limits<index_t>::min() / 4;
  static constexpr index_t highest = std::numeric_limits<index_t>::max() / 4;
  static constexpr interval everything() { return {lowest, highest}; }
  static constexpr interval point(index_t value) { return {value, value}; }

  constexpr bool is_point() const { return low == high; }
  constexpr bool contains(index_t value) const { return low <= value && value <= high; }
  friend constexpr bool operator==(const interval&, const interval&) = default;
};

constexpr index_t saturate(__int128 value) {
  if (value < interval::lowest) return interval::lowest;
  if (value > interval::highest) return interval::highest;
  return index_t(value);
}

constexpr interval hull(interval a, interval b) { return {a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high}; }
constexpr bool disjoint(interval a, interval b) { return a.high < b.low || b.high < a.low; }

/// What is known of a predicate over a box: false everywhere, true everywhere, or undecided.
enum class verdict : std::uint8_t { empty, full, undecided };

constexpr verdict operator!(verdict v) {
  return v == verdict::empty ? verdict::full : v == verdict::full ? verdict::empty : verdict::undecided;
}
constexpr verdict operator&(verdict a, verdict b) {
  if (a == verdict::empty || b == verdict::empty) return verdict::empty;
  return a == verdict::full && b == verdict::full ? verdict::full : verdict::undecided;
}
constexpr verdict operator|(verdict a, verdict b) { return !((!a) & (!b)); }

/// Quotient and remainder that round towards minus infinity; the divisor is positive (checked where it enters).
constexpr index_t floor_div(index_t a, index_t b) { return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0); }
constexpr index_t floor_mod(index_t a, index_t b) { return a % b != 0 && (a % b < 0) != (b < 0) ? a % b + b : a % b; }  // a product could pass 64 bits

}  // namespace samite
