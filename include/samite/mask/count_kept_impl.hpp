// samite/mask/count_kept_impl.hpp: counting pairs by tiles.
#pragma once
#include <algorithm>

#include <samite/ir/evaluate.hpp>
#include <samite/mask/count_kept.hpp>

namespace samite {

SAMITE_IMPL index_t count_kept(const any_mask& mask, const tile_options& options) {
  const tile_map map(mask, options);
  row_evaluator rows(mask.program());
  std::vector<std::uint8_t> keep;
  index_t kept = 0;
  const index_t batches = mask.uses(symbol_id::b) ? options.B : 1, heads = mask.uses(symbol_id::h) ? options.H : 1;
  for (index_t b = 0; b < batches; ++b)
    for (index_t h = 0; h < heads; ++h)
      for (index_t q = 0; q < options.Q; ++q)
        for (const tile_run& run : map.row(b, h, q / options.tile_q)) {
          const index_t first = run.first * options.tile_k, last = std::min((run.last + 1) * options.tile_k, options.K);
          if (run.kind == tile_kind::full) {
            kept += last - first;
            continue;
          }
          keep.resize(std::size_t(last - first));
          rows.row(b, h, q, first, last, keep.data());
          for (std::uint8_t one : keep) kept += one;
        }
  return kept * (options.B / batches) * (options.H / heads);
}

}  // namespace samite
