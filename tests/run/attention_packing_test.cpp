#include <doctest/doctest.h>

#include <algorithm>

#include <samite/ir/evaluate.hpp>
#include <samite/mask.hpp>
#include <samite/run/attention_packing.hpp>
#include <samite/run/device_tile_maps.hpp>

using namespace samite;
using namespace samite::symbols;
using detail::heads_to_pack;
using detail::packed_tiles;

namespace {

/// DFlash training: blocks of 16 queries behind an even context, each with its own keys.
any_mask drafting(index_t blocks, index_t document) {
  std::vector<index_t> anchors, ids;
  for (index_t i = 0; i < blocks; ++i) anchors.push_back(16 * i + i * 7 % 13);
  for (index_t i = 0; i < 16 * blocks; ++i) ids.push_back(i / document);
  return dflash_mask({.context_length = 16 * blocks, .block_size = 16, .anchors = table(anchors, {1, blocks}), .documents = table(ids, {1, 16 * blocks})});
}

tile_options sizes(index_t Q, index_t K, index_t H = 1) { return {.H = H, .Q = Q, .K = K, .tile_q = 128, .tile_k = 128}; }

}  // namespace

TEST_CASE("query heads share a tile as far as they divide the group and the mask, and a score function, tell none of them apart") {
  const any_mask plain = causal();
  const auto pack = [](const any_mask& mask, index_t group, bool has_score = false) { return heads_to_pack(mask.program(), group, has_score); };
  for (const auto& [group, expected] : {std::pair<index_t, index_t>{1, 1}, {2, 2}, {3, 3}, {4, 4}, {7, 7}, {8, 8}, {11, 1}, {12, 6}, {16, 8}}) CHECK(pack(plain, group) == expected);
  for (const auto& [group, expected] : {std::pair<index_t, index_t>{3, 1}, {4, 4}, {6, 2}, {12, 4}, {16, 8}}) CHECK(pack(plain, group, true) == expected);
  CHECK(pack(any_mask(kv <= q + h), 4) == 1);
  CHECK(pack(any_mask(kv <= q + h / 4), 4) == 4);
  CHECK(pack(any_mask(kv <= q + h / 2), 4) == 2);
  CHECK(pack(any_mask(kv <= q + h / 4 + h % 2), 4) == 1);
}

TEST_CASE("heads share tiles where this shortens the lists: of drafting masks and short windows, but not of causal ones and of masks that rows of tiles don't tell") {
  const auto packed = [](const any_mask& mask, index_t Q, index_t K) { return packed_tiles::by_queries(mask, sizes(Q, K), 4, true).pack; };
  CHECK(packed(drafting(128, 1500), 2048, 4096) == 4);
  CHECK(packed(drafting(128, 2048), 2048, 4096) == 4);
  CHECK(packed(any_mask(kv <= q && q - kv < 100), 2048, 2048) == 4);
  CHECK(packed(causal(), 8192, 8192) == 1);
  CHECK(packed(prefix(300), 8192, 8192) == 1);
  CHECK(packed(any_mask((q * 7 + kv * 3) % 5 != 0), 512, 512) == 1);
}

TEST_CASE("a block's own keys are a narrow tile, in every list of a drafting mask") {
  const packed_tiles found = packed_tiles::by_queries(drafting(128, 1500), sizes(2048, 4096), 4, true);
  CHECK(found.map.options().tile_q == 32);
  CHECK(found.map.options().tile_k == 128);
  REQUIRE(found.marks.narrow.size() == 64);
  for (std::size_t list = 0; list < 64; ++list) CHECK(found.marks.narrow[list] == 64 + std::int32_t(list));
  CHECK(packed_tiles::by_queries(drafting(128, 1500), sizes(2048, 4096), 4, false).marks.narrow.empty());
}

TEST_CASE("joined tiles hold what their parts do, and a narrow tile all that its tile keeps") {
  const auto ids = table({0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4});
  const std::vector<any_mask> masks{any_mask(), any_mask(kv <= q), any_mask(kv <= q && q - kv < 40), any_mask(ids[q / 32] == ids[kv / 32]), any_mask(kv >= 300 && kv < 330), any_mask(q / 16 == kv / 16 || (kv < 50 && q > 100)),
                                    any_mask(kv < 30 * (b + 1))};
  int narrow_lists = 0;
  for (const any_mask& mask : masks)
    for (const auto& [queries, keys] : {std::pair<index_t, index_t>{192, 384}, {97, 330}, {130, 129}, {1, 200}}) {
      const tile_options fine{.B = 2, .Q = queries, .K = keys, .tile_q = 32, .tile_k = 32};
      INFO(mask.label(), ", Q ", fine.Q, ", K ", fine.K);
      const tile_map parts(mask, fine), joined = parts.with_joined_keys(4);
      const std::vector<std::int32_t> lone = detail::find_lone_parts(parts, 4);
      CHECK(joined.k_tiles() == (fine.K + 127) / 128);
      tile_counts counts;
      for (index_t b = 0; b < 2; ++b)
        for (index_t i = 0; i < joined.q_tiles(); ++i) {
          std::int32_t expected_lone = -1;
          for (index_t j = 0; j < joined.k_tiles(); ++j) {
            index_t full = 0, listed = 0, all = 0;
            std::int32_t part = -1;
            for (index_t k = 4 * j; k < std::min(4 * j + 4, parts.k_tiles()); ++k, ++all)
              if (const auto kind = parts.kind_of(b, 0, i, k)) ++listed, full += *kind == tile_kind::full, part = std::int32_t(k);
            const auto kind = joined.kind_of(b, 0, i, j);
            CHECK(kind.has_value() == (listed > 0));
            if (kind) CHECK((*kind == tile_kind::full) == (full == all));
            if (listed == 1) expected_lone = part;
            if (b < parts.maps()) ++(!kind ? counts.empty : *kind == tile_kind::full ? counts.full : counts.undecided);
          }
          if (b >= parts.maps()) continue;
          CHECK(lone[std::size_t(b * joined.q_tiles() + i)] == expected_lone);
          narrow_lists += expected_lone >= 0;
        }
      CHECK(joined.counts() == counts);
    }
  CHECK(narrow_lists > 20);
}

TEST_CASE("a narrow tile comes first in its list, says its columns, and keeps its bits; the others stay in order") {
  const std::vector<tile_run> runs{{tile_kind::undecided, 0, 2}, {tile_kind::full, 3, 4}, {tile_kind::undecided, 6, 6}, {tile_kind::full, 0, 0}, {tile_kind::undecided, 1, 3}};
  const std::vector<std::int32_t> starts{0, 3, 5}, numbers{10, 11, 12, 13, 20, 21, 22};
  const auto text = [&](const std::vector<std::int32_t>& narrow) {
    const detail::lists_of_runs lists = detail::lists_with_bits(runs, starts, &numbers, {narrow, 4, {}});
    std::string said;
    for (std::size_t list = 0; list < 2; ++list, said += "|")
      for (std::int64_t r = lists.begin[list]; r < lists.begin[list + 1]; ++r) {
        const detail::device_tile_run& run = lists.runs[std::size_t(r)];
        said += concat_text(" ", run.first, "-", run.last, ":", run.full, ":", run.bits);
      }
    return said;
  };
  CHECK(text({}) == " 0-3:0:10 3-5:1:-1 6-7:0:13| 0-1:1:-1 1-4:0:20|");
  CHECK(text({26, -1}) == " 6-7:-3:13 0-3:0:10 3-5:1:-1| 0-1:1:-1 1-4:0:20|");
  CHECK(text({5, 3}) == " 1-2:-2:11 0-1:0:10 2-3:0:12 3-5:1:-1 6-7:0:13| 0-1:1:-1 1-4:0:20|");  // a full tile is none
  CHECK(text({-1, 8}) == " 0-3:0:10 3-5:1:-1 6-7:0:13| 2-3:-1:21 0-1:1:-1 1-2:0:20 3-4:0:22|");
}
