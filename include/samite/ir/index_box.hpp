// samite/ir/index_box.hpp: a box of rows and columns of score matrices.
#pragma once
#include <samite/ir/interval.hpp>

namespace samite {

/// A box of indices; every end is included.
struct index_box {
  interval b, h, q, kv;

  /// All rows and columns of a score matrix with these sizes, each at least 1.
  static index_box whole(index_t B, index_t H, index_t Q, index_t K) { return {{0, B - 1}, {0, H - 1}, {0, Q - 1}, {0, K - 1}}; }
};

}  // namespace samite
