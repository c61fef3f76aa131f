// samite/mask/grid.hpp: masks over images: neighbourhoods in two dimensions.
#pragma once
#include <samite/expr/index.hpp>

namespace samite {

/// Sizes of `neighborhood_2d`, in tokens.
struct grid_options {
  index_t height = 1, width = 1;              // of the image
  index_t window_height = 1, window_width = 1;  // keys around each query
};

/// Tokens of an image in row-major order: each query sees exactly window_height x window_width keys around it, shifted
/// inwards at the borders (NATTEN). An axis is clamped by its own length.
///
/// errors  E-MASK-WINDOW if a window is smaller than 1 or larger than the image
/// cost    in row-major order nearly every tile of the band is undecided: a patch-major order has far fewer
/// source  Hassani et al. 2022, arXiv:2204.07143, section 3
inline auto neighborhood_2d(grid_options o) {
  using namespace symbols;
  if (o.window_height < 1 || o.window_width < 1 || o.height < o.window_height || o.width < o.window_width)
    raise("E-MASK-WINDOW", "neighborhood_2d: a window of ", o.window_height, " x ", o.window_width, " in an image of ", o.height, " x ", o.width,
          "; each side must be at least 1 and at most the image's");
  const auto start = [](auto at, index_t length, index_t window) { return clamp(at - window / 2, 0, length - window); };
  const auto top = start(q / o.width, o.height, o.window_height);
  const auto left = start(q % o.width, o.width, o.window_width);
  const auto y = kv / o.width;
  const auto x = kv % o.width;
  return y >= top && y < top + o.window_height && x >= left && x < left + o.window_width;
}

}  // namespace samite
