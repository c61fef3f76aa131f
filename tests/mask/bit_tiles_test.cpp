#include <doctest/doctest.h>

#include <samite/ir/tile_bits.hpp>
#include <samite/mask.hpp>
#include <samite/mask/bit_tiles.hpp>
#include <samite/mask/report.hpp>

using namespace samite;
using namespace samite::symbols;

namespace {

struct stored {
  index_t undecided, distinct;
  friend bool operator==(const stored&, const stored&) = default;
};

stored count(const any_mask& mask, index_t Q, index_t K, index_t tile_q = 128, index_t tile_k = 128, index_t H = 1) {
  const tile_map map(mask, {.H = H, .Q = Q, .K = K, .tile_q = tile_q, .tile_k = tile_k});
  const bit_tiles tiles = number_bit_tiles(mask, map);
  CHECK(index_t(tiles.numbers.size()) == map.counts().undecided);
  return {map.counts().undecided, index_t(tiles.distinct.size())};
}

// Pairs of a tile that its shared bits tell wrongly.
int wrong_pairs(const any_mask& mask, const tile_options& o) {
  const tile_map map(mask, o);
  const bit_tiles tiles = number_bit_tiles(mask, map);
  evaluator keep(mask.program());
  const auto visible = [&](index_t b, index_t h, index_t q, index_t kv) { return q < o.Q && kv < o.K && keep(b, h, q, kv) != 0; };
  int wrong = 0;
  std::size_t at = 0;
  for (index_t h = 0; h < (mask.uses(symbol_id::h) ? o.H : 1); ++h)
    for (index_t i = 0; i < map.q_tiles(); ++i)
      for (const tile_run& run : map.row(0, h, i))
        for (index_t j = run.first; run.kind == tile_kind::undecided && j <= run.last; ++j) {
          const bit_tiles::tile& t = tiles.distinct[std::size_t(tiles.numbers[at++])];
          for (index_t r = 0; r < o.tile_q; ++r)
            for (index_t c = 0; c < o.tile_k; ++c) {
              const index_t q = i * o.tile_q + r, kv = j * o.tile_k + c;
              if (q < o.Q) wrong += visible(0, h, q, kv) != visible(t.b, t.h, t.query_tile * o.tile_q + r, t.key_tile * o.tile_k + c);  // rows past the end are never stored
            }
        }
  return wrong;
}

}  // namespace

TEST_CASE("masks that look at the distance of a pair alone keep a few bit tiles at any length") {
  CHECK(count(causal(), 1024, 1024) == stored{8, 1});
  CHECK(count(causal(), 65536, 65536) == stored{512, 1});
  CHECK(count(causal() && window(256), 1024, 1024) == stored{14, 2});
  CHECK(count(causal() && window(200), 1024, 1024) == stored{21, 3});
  CHECK(count(dilated(256, 2), 1024, 1024) == stored{21, 3});
  CHECK(count(block_causal(32), 1024, 1024) == stored{8, 1});
  CHECK(count(causal(), 1024, 1024, 192, 128).distinct == 4);  // every second row of tiles begins in the middle of a tile of keys
}

TEST_CASE("masks that look at more than the distance keep a bit tile for every undecided tile") {
  CHECK(count(prefix(300), 1024, 1024) == stored{8, 8});
  CHECK(count(block_causal(96), 1024, 1024) == stored{13, 13});  // blocks that don't divide the tiles
  std::vector<index_t> ids;
  for (index_t i = 0; i < 1024; ++i) ids.push_back(i / 300);
  const stored found = count(document_causal(table(ids)), 1024, 1024);
  CHECK(found.distinct == found.undecided);
}

TEST_CASE("where no two tiles are equal they are numbered in the order of the rows") {
  for (const any_mask& mask : {any_mask(kv <= q - 127), any_mask(prefix(300))}) {
    const bit_tiles tiles = number_bit_tiles(mask, tile_map(mask, {.Q = 191, .K = 400}));
    CHECK(tiles.distinct.size() > 1);
    for (std::size_t i = 0; i < tiles.numbers.size(); ++i) CHECK(tiles.numbers[i] == std::int32_t(i));
    for (std::size_t i = 1; i < tiles.distinct.size(); ++i) CHECK(tiles.distinct[i - 1].query_tile <= tiles.distinct[i].query_tile);
  }
}

TEST_CASE("tiles that share bits keep the same pairs, at odd lengths and by head") {
  const any_mask by_head = kv <= q && q - kv < 40 * (h + 1);
  for (const any_mask& mask : {any_mask(causal()), any_mask(causal() && window(77)), by_head, any_mask((q - kv) % 32 < 5), any_mask(abs(q - kv) <= 50), any_mask(q / 16 == kv / 16), any_mask(min(q, kv) == q && kv - q < 30)})
    for (const auto& [Q, K] : {std::pair<index_t, index_t>{300, 300}, {257, 130}, {65, 401}}) {
      const tile_options o{.H = 2, .Q = Q, .K = K, .tile_q = 48, .tile_k = 32};
      CHECK(repeats_along_diagonal(mask.program(), 96));
      CHECK(wrong_pairs(mask, o) == 0);
    }
}

TEST_CASE("a mask that a product, a bound or a table ties to its place does not repeat along the diagonal") {
  CHECK_FALSE(repeats_along_diagonal(any_mask(q * kv < 100).program(), 128));
  CHECK_FALSE(repeats_along_diagonal(any_mask(kv < 100).program(), 128));
  CHECK_FALSE(repeats_along_diagonal(any_mask(q + kv < 100).program(), 128));
  CHECK_FALSE(repeats_along_diagonal(any_mask(q / 3 <= kv / 3).program(), 128));
  CHECK(repeats_along_diagonal(any_mask(q / 3 <= kv / 3).program(), 192));
  CHECK(repeats_along_diagonal(any_mask(fixed(2) * q - (kv << 1) < 100).program(), 1));
}

TEST_CASE("a report counts the bit tiles that are stored") {
  const mask_report r = report(any_mask(causal() && window(256), "window"), {.Q = 4096, .K = 4096});
  CHECK(r.tiles.undecided == 62);
  CHECK(r.bit_tiles == 2);
  CHECK(r.bit_bytes == 2 * 2048);
  CHECK(to_text(r).find("4096 bytes of bits in 2 tiles\n") != std::string::npos);
}
