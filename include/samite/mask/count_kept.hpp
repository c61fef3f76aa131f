// samite/mask/count_kept.hpp: how many pairs a mask keeps.
#pragma once
#include <samite/mask/tile_map.hpp>

namespace samite {

/// Query-key pairs that the mask keeps, over all batches and heads: full tiles by their size, undecided ones pair by pair.
///
/// cost  a tile map, and tile_q * tile_k evaluations for each undecided tile of each map that differs
index_t count_kept(const any_mask& mask, const tile_options& options);
// Near misses: sizes without names.
template <std::integral Q, std::integral K>
index_t count_kept(const any_mask&, Q, K) { return detail::refuse_unnamed_sizes<Q, K>(), index_t(0); }

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/mask/count_kept_impl.hpp>
#endif
