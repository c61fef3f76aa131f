// samite/mask/picture.hpp: a mask as an image file: tiles by kind, or single pairs.
#pragma once
#include <string>
#include <vector>

#include <samite/mask/tile_map.hpp>

namespace samite {

/// What an image shows. Without a range it shows everything.
struct picture_options {
  index_t b = 0, h = 0;
  index_t first_q = 0, rows = 0;    // rows and keys of 0: up to the end
  index_t first_kv = 0, keys = 0;
  bool pairs = false;               // single pairs instead of tiles
  index_t pixels = 512;             // of the longer side, about; at most 32768
};

/// The image as SVG text. Full tiles are dark, undecided ones light, empty ones blank; single pairs are kept or blank.
///
/// errors  E-MASK-DRAW (a range outside the matrix; more than 4096 tiles or pairs a side), E-MASK-TILE, E-MASK-TABLE-RANGE
/// cost    one rectangle a run: a million tokens of a window are as cheap as their tile map
std::string svg(const any_mask& mask, const tile_options& sizes, const picture_options& options = {});
// Near misses: sizes without names.
template <std::integral Q, std::integral K>
std::string svg(const any_mask&, Q, K, const picture_options& = {}) { return detail::refuse_unnamed_sizes<Q, K>(), std::string(); }

/// The same image as the bytes of a PNG file, at least one pixel a tile or pair.
std::vector<std::uint8_t> png(const any_mask& mask, const tile_options& sizes, const picture_options& options = {});
// Near misses: sizes without names.
template <std::integral Q, std::integral K>
std::vector<std::uint8_t> png(const any_mask&, Q, K, const picture_options& = {}) { return detail::refuse_unnamed_sizes<Q, K>(), std::vector<std::uint8_t>(); }

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/mask/picture_impl.hpp>
#endif
