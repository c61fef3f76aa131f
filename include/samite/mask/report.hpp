// samite/mask/report.hpp: what a mask costs at given sizes, and why.
#pragma once
#include <string>
#include <vector>

#include <samite/mask/tile_map.hpp>

namespace samite {

/// One part of a mask's outermost conjunction, and how often it is what keeps a tile undecided.
struct clause_report {
  std::string text;               // e.g. "kv <= q"
  index_t undecided_tiles = 0;    // undecided tiles in which this clause is undecided
  index_t first_q = -1, first_kv = -1;  // the first pair of one of them; -1 if there is none
};

struct mask_report {
  std::string label;
  tile_options sizes;
  index_t pairs = 0, kept = 0;  // over all batches and heads
  tile_counts tiles;            // over all batches and heads
  index_t maps = 1;             // maps that differ
  std::size_t bytes = 0;        // of the runs, both directions
  index_t bit_tiles = 0;        // undecided tiles of each map whose bits are stored: equal ones once
  std::size_t bit_bytes = 0;    // of one bit a pair for these
  double forward_flops = 0, backward_flops = 0;  // of kept pairs: 4 D and 10 D each
  std::vector<clause_report> clauses;
  std::string hint;             // empty if the tiles fit the mask well

  double density() const { return pairs == 0 ? 0 : double(kept) / double(pairs); }
};

/// Kept pairs, tiles, memory and the clauses that stay undecided, for masks at the sizes where they will run.
///
/// head_dim  D, for the FLOPs, from 1 to 2^20
/// errors    E-MASK-TILE (sizes, tiles or head_dim out of range), E-MASK-TABLE-RANGE, E-MASK-OVERFLOW
/// cost      a tile map, and one evaluation for each pair of an undecided tile
mask_report report(const any_mask& mask, const tile_options& sizes, index_t head_dim = 128);
// Near misses: sizes without names.
template <std::integral Q, std::integral K>
mask_report report(const any_mask&, Q, K, index_t = 128) { return detail::refuse_unnamed_sizes<Q, K>(), mask_report(); }

/// The report in lines for people.
std::string to_text(const mask_report& report);

/// A program's node as it would be written in the language, e.g. "q - kv < a0"; arguments are a0, a1, ..., tables t0, t1, ...
std::string infix_text(const program& p, node_id id);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/mask/report_impl.hpp>
#endif
