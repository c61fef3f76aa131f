// tests/support/tile_checks.cpp: a tile map against enumeration of every pair.
#include "tile_checks.hpp"

namespace samite_tests {

samite::tile_counts enumerated_counts(const samite::any_mask& mask, const samite::tile_options& o) {
  samite::tile_counts counts;
  samite::row_evaluator rows(mask.program());
  std::vector<std::uint8_t> keep(std::size_t(o.K));
  const index_t columns = (o.K + o.tile_k - 1) / o.tile_k;
  for (index_t b = 0; b < (mask.uses(samite::symbol_id::b) ? o.B : 1); ++b)
    for (index_t h = 0; h < (mask.uses(samite::symbol_id::h) ? o.H : 1); ++h)
      for (index_t q0 = 0; q0 < o.Q; q0 += o.tile_q) {
        std::vector<index_t> kept(std::size_t(columns), 0), all(std::size_t(columns), 0);
        for (index_t q = q0; q < std::min(o.Q, q0 + o.tile_q); ++q) {
          rows.row(b, h, q, 0, o.K, keep.data());
          for (index_t kv = 0; kv < o.K; ++kv) kept[std::size_t(kv / o.tile_k)] += keep[std::size_t(kv)], ++all[std::size_t(kv / o.tile_k)];
        }
        for (std::size_t j = 0; j < kept.size(); ++j) ++(kept[j] == 0 ? counts.empty : kept[j] == all[j] ? counts.full : counts.undecided);
      }
  return counts;
}

void check_exact(const char* what, const samite::any_mask& mask, const samite::tile_options& o) {
  CAPTURE(what);
  samite::tile_map map(mask, o);
  map.build_columns();
  CHECK(map.counts() == enumerated_counts(mask, o));
  samite::row_evaluator rows(mask.program());
  std::vector<std::uint8_t> keep(std::size_t(o.K));
  int wrong = 0, transposed_wrong = 0;
  for (index_t b = 0; b < o.B; ++b)
    for (index_t h = 0; h < o.H; ++h) {
      for (index_t q = 0; q < o.Q; ++q) {
        rows.row(b, h, q, 0, o.K, keep.data());
        std::vector<char> kind(std::size_t(map.k_tiles()), 'e');
        for (const auto& run : map.row(b, h, q / o.tile_q))
          for (index_t j = run.first; j <= run.last; ++j) kind[std::size_t(j)] = run.kind == samite::tile_kind::full ? 'f' : 'u';
        for (index_t kv = 0; kv < o.K; ++kv) {
          const char k = kind[std::size_t(kv / o.tile_k)];
          wrong += (k == 'e' && keep[std::size_t(kv)]) || (k == 'f' && !keep[std::size_t(kv)]);
        }
      }
      for (index_t j = 0; j < map.k_tiles(); ++j) {
        index_t next = 0;
        for (index_t i = 0; i < map.q_tiles(); ++i) {
          std::optional<samite::tile_kind> kind;
          for (const auto& run : map.column(b, h, j))
            if (run.first <= i && i <= run.last) kind = run.kind;
          transposed_wrong += kind != map.kind_of(b, h, i, j);
        }
        for (const auto& run : map.column(b, h, j)) transposed_wrong += run.first < next || run.last < run.first, next = run.last + 1;
      }
    }
  CHECK(wrong == 0);
  CHECK(transposed_wrong == 0);
}

}  // namespace samite_tests
