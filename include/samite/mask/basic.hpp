// samite/mask/basic.hpp: every pair, or none.
#pragma once
#include <samite/expr/index.hpp>

namespace samite {

/// Keeps every pair.
constexpr auto full() { return detail::known_predicate(true); }
/// Keeps no pair: every row is empty, its output 0 and its LSE -inf.
constexpr auto none() { return detail::known_predicate(false); }

}  // namespace samite
