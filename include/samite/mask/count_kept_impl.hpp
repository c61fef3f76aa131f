// samite/mask/count_kept_impl.hpp: counting pairs by tiles.
#pragma once
#include <algorithm>

#include <samite/ir/evaluate.hpp>
#include <samite/mask/count_kept.hpp>

namespace samite {

SAMITE_IMPL index_t count_kept(const any_mask& mask, const tile_options& options) {
  detail::checked_pairs("count_kept", options);
  constexpr index_t chunk = index_t(1) << 16;  // keys evaluated at once, so that memory does not follow the tile's size
  const tile_map map(mask, options);
  row_evaluator rows(mask.program());
  std::vector<std::uint8_t> keep;
  index_t kept = 0;
  const index_t batches = mask.uses(symbol_id::b) ? options.B : 1, heads = mask.uses(symbol_id::h) ? options.H : 1;
  for (index_t b = 0; b < batches; ++b)
    for (index_t h = 0; h < heads; ++h)
      for (index_t i = 0; i < map.q_tiles(); ++i)
        for (const tile_run& run : map.row(b, h, i)) {
          const index_t q_first = i * options.tile_q, q_last = std::min(q_first + options.tile_q, options.Q);
          const index_t first = run.first * options.tile_k, last = std::min((index_t(run.last) + 1) * options.tile_k, options.K);
          if (run.kind == tile_kind::full) {
            kept += (q_last - q_first) * (last - first);
            continue;
          }
          for (index_t q = q_first; q < q_last; ++q)
            for (index_t k = first; k < last; k += chunk) {
              const index_t end = std::min(k + chunk, last);
              keep.resize(std::size_t(end - k));
              rows.row(b, h, q, k, end, keep.data());
              for (std::uint8_t one : keep) kept += one;
            }
        }
  return kept * (options.B / batches) * (options.H / heads);
}

}  // namespace samite
