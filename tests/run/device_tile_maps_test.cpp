#include <doctest/doctest.h>

#include <samite/ir/evaluate.hpp>
#include <samite/mask.hpp>
#include <samite/run/device_tile_maps.hpp>

using namespace samite;
using namespace samite::symbols;

namespace {

struct tally {
  int wrong = 0, undecided = 0;
};

// Lists with bits, row by row or column by column, against the map and against every pair of the tiles whose bits they name.
tally check_lists(const any_mask& mask, const tile_options& o, bool by_keys) {
  tile_map map(mask, o);
  map.build_columns();
  bit_tiles stored = number_bit_tiles(mask, map);
  if (by_keys) detail::sort_by_keys(map, stored.numbers);
  const detail::lists_of_runs lists = by_keys ? detail::lists_with_bits(map.column_runs(), map.column_starts(), &stored.numbers) : detail::lists_with_bits(map.row_runs(), map.row_starts(), &stored.numbers);
  evaluator keep(mask.program());
  const index_t tiles = by_keys ? map.k_tiles() : map.q_tiles(), heads = mask.uses(symbol_id::h) ? o.H : 1;
  tally found;
  for (index_t list = 0; list < map.maps() * tiles; ++list) {
    index_t covered = 0, listed = 0;
    for (const tile_run& r : by_keys ? map.column(list / tiles / heads, list / tiles % heads, list % tiles) : map.row(list / tiles / heads, list / tiles % heads, list % tiles)) listed += r.last - r.first + 1;
    for (std::int64_t at = lists.begin[std::size_t(list)]; at < lists.begin[std::size_t(list) + 1]; ++at) {
      const detail::device_tile_run& run = lists.runs[std::size_t(at)];
      covered += run.last - run.first;
      for (std::int32_t t = run.first; run.bits >= 0 && t < run.last; ++t) {
        ++found.undecided;
        const bit_tiles::tile& bits = stored.distinct[std::size_t(run.bits + t - run.first)];
        const index_t i = by_keys ? t : list % tiles, j = by_keys ? list % tiles : t, b = list / tiles / heads, h = list / tiles % heads;
        for (index_t r = 0; r < o.tile_q; ++r)
          for (index_t c = 0; c < o.tile_k; ++c) {
            const index_t q = i * o.tile_q + r, kv = j * o.tile_k + c, other_q = bits.query_tile * o.tile_q + r, other_kv = bits.key_tile * o.tile_k + c;
            if (q >= o.Q || kv >= o.K) continue;
            const bool other = other_q < o.Q && other_kv < o.K && keep(bits.b, bits.h, other_q, other_kv) != 0;
            found.wrong += other != (keep(b, h, q, kv) != 0);
          }
      }
    }
    found.wrong += covered != listed;
  }
  return found;
}

}  // namespace

TEST_CASE("the lists that kernels read name bits with the pairs of each tile, by rows and by keys, whether tiles share them or not") {
  const auto ids = table({0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 3});
  scalar shift = 0;
  const std::vector<any_mask> masks{any_mask(kv <= q + shift, "shifted"), any_mask(causal() && window(50)), any_mask(kv <= q && ids[q / 32] == ids[kv / 32]), any_mask((q * 7 + kv * 3 + h) % 5 != 0),
                                    any_mask(kv < 30 * (b + 1) && q % 9 != 4), any_mask(abs(q - kv) <= 33 + 8 * h)};
  for (const auto& [Q, K] : {std::pair<index_t, index_t>{191, 64}, {193, 129}, {300, 300}, {65, 257}}) {
    shift.set(K - Q);
    for (const any_mask& mask : masks)
      for (const bool by_keys : {false, true}) {
        CAPTURE(mask.label());
        const tally found = check_lists(mask, {.B = 2, .H = 2, .Q = Q, .K = K, .tile_q = by_keys ? 32 : 48, .tile_k = 32}, by_keys);
        CHECK(found.wrong == 0);
        CHECK(found.undecided > 0);
      }
  }
}
