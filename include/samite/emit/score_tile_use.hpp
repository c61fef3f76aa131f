// samite/emit/score_tile_use.hpp: which score functions the sm_90a kernels take (emit/score_tile.hpp writes their text).
#pragma once
#include <vector>

#include <samite/ir/program.hpp>

namespace samite {

/// Whether score_tile_text serves the score function: it has no sine or cosine, and few enough nodes a pair to be written out for each accumulator.
bool serves_score_tiles(const program& score);

/// Whether its gradient does too: each captured element that it reads is one for all pairs of a head, so that a thread's sum of it stays in a
/// register. Elements that differ from pair to pair are added by a call, which the kernels for sm_90a can't have.
bool serves_score_tile_gradients(const program& score);

/// Whether a forward kernel with it has too few registers for three warpgroups: it reads elements by pair or row, or its tanh is not approximate.
bool score_tiles_fill_registers(const program& score, bool approximates);

namespace detail {
/// Whether some root needs one of these symbols.
bool reads_symbol(const program& p, const std::vector<node_id>& roots, symbol_id first, symbol_id last);
}  // namespace detail

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/emit/score_tile_use_impl.hpp>
#endif
