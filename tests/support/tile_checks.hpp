// tests/support/tile_checks.hpp: a tile map against enumeration of every pair.
#pragma once
#include <doctest/doctest.h>

#include <samite/ir/evaluate.hpp>
#include <samite/mask/tile_map.hpp>

#include "masks.hpp"

namespace samite_tests {

/// Tiles by kind, by looking at every pair.
samite::tile_counts enumerated_counts(const samite::any_mask& mask, const samite::tile_options& o);

/// Checks that the map decides exactly what enumeration decides, tile by tile, and that rows and columns tell the same.
void check_exact(const char* what, const samite::any_mask& mask, const samite::tile_options& o);

}  // namespace samite_tests
