// samite/core/random_impl.hpp: normal numbers.
#pragma once
#include <cmath>

#include <samite/core/random.hpp>

namespace samite {

SAMITE_IMPL double counted_random::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(6.283185307179586476925 * uniform());
}

}  // namespace samite
