#include <doctest/doctest.h>

#include <algorithm>

#include <samite/ir/tile_bits.hpp>
#include <samite/mask.hpp>

#include "../support/random_programs.hpp"

using namespace samite;
using namespace samite::symbols;

namespace {

int differences(const program& p, const index_box& tile) {
  tile_bits bits(p);
  row_evaluator rows(p);
  std::uint64_t words[64];
  int wrong = 0;
  for (int again = 0; again < 2; ++again) {  // nothing of a tile stays behind
    bits.evaluate(tile, words);
    for (index_t r = 0; r <= tile.q.high - tile.q.low; ++r) {
      std::uint8_t keep[64];
      rows.row(tile.b.low, tile.h.low, tile.q.low + r, tile.kv.low, tile.kv.high + 1, keep);
      std::uint64_t expected = 0;
      for (index_t c = 0; c <= tile.kv.high - tile.kv.low; ++c) expected |= std::uint64_t(keep[c]) << c;
      wrong += words[r] != expected;
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("the bits of a tile are the predicate's values: 4000 random predicates") {
  const std::uint64_t seed = 47;
  MESSAGE("seed ", seed);
  for (std::uint32_t sample = 0; sample < 4000; ++sample) {
    samite_tests::random_programs random(seed, sample);
    const program p = random.predicate(1 + int(random.below(5)));
    const index_t q0 = random.below(40), k0 = random.below(40);
    REQUIRE(differences(p, {interval::point(random.below(2)), interval::point(random.below(2)), {q0, q0 + random.below(12)}, {k0, k0 + random.below(64)}}) == 0);
  }
}

TEST_CASE("the bits of the masks in use, on tiles of 64 and at the edge") {
  std::vector<index_t> ids, anchors;
  for (index_t i = 0; i < 400; ++i) ids.push_back(i / 70);
  for (index_t i = 0; i < 25; ++i) anchors.push_back(16 * i + 3);
  std::vector<index_t> mixed(ids.rbegin(), ids.rend());
  const dflash_mask_options drafter{.context_length = 400, .anchors = table(anchors, {1, 25}), .documents = table(ids, {1, 400}), .window = 90};
  const any_mask masks[] = {causal(), window(33), document_causal(table(ids)), document(table(mixed)) && kv < 390, block_causal(24), dilated(100, 7), sink_window(4, 32), block_diffusion(200, 12),
                            neighborhood(400, 31), q * kv < 9000, !document(table(ids)), dflash_mask(drafter)};
  for (std::size_t m = 0; m < std::size(masks); ++m)
    for (const index_t q0 : {0, 64, 192, 336})
      for (const index_t k0 : {0, 64, 128, 336}) {
        CAPTURE(m);
        CAPTURE(q0);
        CAPTURE(k0);
        const index_t keys = m == 11 ? k0 + 400 : k0;
        CHECK(differences(masks[m].program(), {interval::point(0), interval::point(0), {q0, q0 + 63}, {keys, keys + (k0 == 336 ? 49 : 63)}}) == 0);
      }
}
