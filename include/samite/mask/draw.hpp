// samite/mask/draw.hpp: a mask as text, to look at while writing it.
#pragma once
#include <string>

#include <samite/mask/any_mask.hpp>

namespace samite {

/// What part of a mask `draw` shows, and how.
struct draw_options {
  index_t b = 0, h = 0;            // batch and head
  index_t first_q = 0, first_kv = 0;
  index_t columns = 64, lines = 64;  // largest picture in characters; a larger range is shown in tiles
  bool with_scale = true;          // a line of numbers above and the row's number in front
};

/// A picture of rows `rows` and columns `keys` of a mask. No GPU is needed.
///
/// returns  one character a pair: # kept, . hidden. A range that does not fit is shown by tiles: # all kept, . none, + a part of them
///          (of tiles of more than 1024 pairs also those that bounds of 96 parts do not tell)
/// errors   E-MASK-DRAW (a range that is empty, negative or past 2^40; a picture of more than 2^26 characters), E-MASK-TABLE-RANGE
std::string draw(const any_mask& mask, index_t rows, index_t keys, const draw_options& options = {});
// A near miss: counts with fractions.
template <class R, class K> requires detail::some_fraction<R, K>
std::string draw(const any_mask&, R, K, const draw_options& = {}) { return detail::refuse_token_fraction<R, K>(), std::string(); }

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/mask/draw_impl.hpp>
#endif
