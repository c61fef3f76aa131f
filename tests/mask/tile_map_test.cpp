#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include <samite/ir/evaluate.hpp>
#include <samite/mask.hpp>
#include <samite/mask/count_kept.hpp>

#include "support/random_programs.hpp"
#include "support/tile_checks.hpp"

using namespace samite;
using namespace samite::symbols;
using samite_tests::check_exact;

namespace {

tile_counts counts_of(const any_mask& mask, index_t Q, index_t K, index_t tile_q = 128, index_t tile_k = 128) {
  return tile_map(mask, {.Q = Q, .K = K, .tile_q = tile_q, .tile_k = tile_k}).counts();
}

std::vector<int> ids_of_lengths(const std::vector<int>& lengths) {
  std::vector<int> ids;
  for (std::size_t i = 0; i < lengths.size(); ++i) ids.insert(ids.end(), std::size_t(lengths[i]), int(i));
  return ids;
}

any_mask block_diffusion_of(index_t S, index_t B) { return block_diffusion(S, B); }

}  // namespace

TEST_CASE("tile counts (empty, full, undecided) of the masks in use, 1024 x 1024 in tiles of 128") {
  CHECK(counts_of(causal(), 1024, 1024) == tile_counts{28, 28, 8});
  CHECK(counts_of(causal(), 1000, 1000) == tile_counts{28, 28, 8});
  CHECK(counts_of(causal(), 1025, 1025) == tile_counts{36, 37, 8});
  CHECK(counts_of(causal(), 2048, 2048) == tile_counts{120, 120, 16});
  CHECK(counts_of(causal_bottom_right(512), 512, 1024) == tile_counts{6, 22, 4});
  CHECK(counts_of(causal_bottom_right(-512), 1024, 512) == tile_counts{22, 6, 4});
  CHECK(counts_of(kv > q, 1024, 1024) == tile_counts{28, 28, 8});
  CHECK(counts_of(window(256), 1024, 1024) == tile_counts{43, 7, 14});
  CHECK(counts_of(window(257), 1024, 1024) == tile_counts{43, 7, 14});
  CHECK(counts_of(window(255), 1024, 1024) == tile_counts{43, 0, 21});
  CHECK(counts_of(window(100), 1024, 1024) == tile_counts{49, 0, 15});
  CHECK(counts_of(prefix(300), 1024, 1024) == tile_counts{25, 31, 8});
  CHECK(counts_of(prefix(256), 1024, 1024) == tile_counts{27, 31, 6});
  CHECK(counts_of(sink_window(4, 128), 1024, 1024) == tile_counts{43, 0, 21});
  CHECK(counts_of(global_window(4, 128), 1024, 1024) == tile_counts{30, 8, 26});
  CHECK(counts_of(block_causal(32), 1024, 1024) == tile_counts{28, 28, 8});
  CHECK(counts_of(block_causal(96), 1024, 1024) == tile_counts{23, 28, 13});
  CHECK(counts_of(block_causal(128), 1024, 1024) == tile_counts{28, 36, 0});
  CHECK(counts_of(dilated(256, 2), 1024, 1024) == tile_counts{43, 0, 21});
  const auto either = (kv <= q && kv >= 256) || (kv > q && kv < 256);  // (kv <= q) xor (kv < 256)
  CHECK(counts_of(either, 1024, 1024) == tile_counts{40, 16, 8});
}

TEST_CASE("tile counts of packed documents") {
  const auto docs = table(ids_of_lengths({300, 212, 512}));
  CHECK(counts_of(document(docs), 1024, 1024) == tile_counts{36, 21, 7});
  CHECK(counts_of(document_causal(docs), 1024, 1024) == tile_counts{46, 7, 11});
  std::vector<int> turns;
  for (int i = 0; i < 1024; ++i) turns.push_back(i / 256 % 2);
  CHECK(counts_of(document(table(turns)), 1024, 1024) == tile_counts{32, 32, 0});
}

TEST_CASE("tile counts of block diffusion") {
  CHECK(counts_of(block_diffusion_of(512, 32), 1024, 1024) == tile_counts{40, 12, 12});
  CHECK(counts_of(block_diffusion_of(512, 128), 1024, 1024) == tile_counts{44, 20, 0});
  CHECK(counts_of(block_diffusion_of(500, 32), 1000, 1000) == tile_counts{30, 7, 27});
}

TEST_CASE("tile counts and kept pairs of DFlash training, 16 blocks of 16 over 1024 tokens") {
  std::vector<int> anchors;
  for (int i = 0; i < 16; ++i) anchors.push_back(64 * i);
  dflash_mask_options o{.context_length = 1024, .block_size = 16, .anchors = table(anchors)};
  const any_mask full = dflash_mask(o);
  CHECK(counts_of(full, 256, 1280) == tile_counts{6, 4, 10});
  CHECK(counts_of(full, 256, 1280, 64, 128) == tile_counts{16, 12, 12});
  CHECK(count_kept(full, {.Q = 256, .K = 1280}) == 126976);
  o.window = 256;
  const any_mask sliding = dflash_mask(o);
  CHECK(counts_of(sliding, 256, 1280) == tile_counts{8, 0, 12});
  CHECK(counts_of(sliding, 256, 1280, 64, 128) == tile_counts{22, 0, 18});
  CHECK(count_kept(sliding, {.Q = 256, .K = 1280}) == 57760);
}

TEST_CASE("verdicts are exact, tile by tile, on the masks in use and on odd sizes") {
  const auto docs = table(ids_of_lengths({100, 1, 55, 130, 14}));  // 300 tokens
  const auto padded = [&] {
    auto ids = ids_of_lengths({100, 60, 80});
    ids.insert(ids.end(), 60, -1);
    return table(ids);
  }();
  struct named {
    const char* name;
    any_mask mask;
  };
  const named masks[] = {{"causal", causal()}, {"bottom right", causal_bottom_right(37)}, {"bottom right, empty rows", causal_bottom_right(-50)},
                         {"window", window(33)}, {"two-sided", window(20, 7)}, {"never", q - kv >= 5 && q - kv < 3},
                         {"document", document(docs)}, {"document, causal", document_causal(docs)},
                         {"document, window", document(docs) && window(40)}, {"document, padding", document(padded, -1)},
                         {"document, padding, causal", document_causal(padded, -1)}, {"prefix", prefix(77)}, {"length", length(199)},
                         {"block causal", block_causal(24)}, {"chunked", chunked_causal(50)}, {"block diffusion", block_diffusion_of(150, 12)},
                         {"block diffusion, ragged", block_diffusion_of(149, 10)}, {"dilated", dilated(100, 7)}, {"strided", strided(16)},
                         {"sinks", sink_window(4, 32)}, {"neighborhood", neighborhood(300, 31)}, {"globals", global_window(5, 20)},
                         {"full", full()}, {"none", none()}};
  for (const named& m : masks)
    for (const index_t tile : {16, 64})
      check_exact(m.name, m.mask, {.Q = 300, .K = 300, .tile_q = tile, .tile_k = tile, .budget = 2000});
  for (const named& m : {masks[0], masks[1], masks[2], masks[3], masks[11], masks[13]})
    check_exact(m.name, m.mask, {.Q = 129, .K = 201, .tile_q = 32, .tile_k = 64, .budget = 2000});
}

TEST_CASE("verdicts are exact on DFlash masks: full, sliding, packed, with padded slots, in both rules") {
  counted_random random(5, 1);
  MESSAGE("seed 5");
  for (int round = 0; round < 6; ++round) {
    const index_t S = 150 + random.below(60), bs = round % 2 ? 8 : 5, N = 12;
    std::vector<int> anchors, keep;
    for (index_t i = 0; i < N; ++i) anchors.push_back(int(random.below(std::uint32_t(S)))), keep.push_back(random.below(6) != 0);
    if (round < 4) std::sort(anchors.begin(), anchors.end());
    dflash_mask_options o{.context_length = S, .block_size = bs, .anchors = table(anchors), .keep = table(keep)};
    if (round >= 1) o.window = 20 + index_t(random.below(40));
    if (round >= 2) o.documents = table(ids_of_lengths({50, 40, int(S) - 90}));
    o.causal = round % 3 == 0;
    o.padded = round % 2 ? padded_slots::hidden : padded_slots::own_block;
    o.rule = round == 4 ? window_rule::fixed_at_anchor : window_rule::per_slot;
    CAPTURE(round);
    check_exact("dflash", dflash_mask(o), {.Q = N * bs, .K = S + N * bs, .tile_q = 16, .tile_k = 32, .budget = 4000});
  }
}

TEST_CASE("random masks: no tile is wrong, and rows and columns agree") {
  for (std::uint32_t sample = 0; sample < 500; ++sample) {
    samite_tests::random_programs random(9, sample);
    const any_mask mask(random.predicate(1 + int(sample % 4)));
    const tile_options o{.B = 2, .H = 2, .Q = 45, .K = 50, .tile_q = 8, .tile_k = 16};
    tile_map map(mask, o);
    map.build_columns();
    const tile_counts truth = samite_tests::enumerated_counts(mask, o);
    CAPTURE(sample);
    CHECK(map.counts().empty <= truth.empty);
    CHECK(map.counts().full <= truth.full);
    for (index_t b = 0; b < 2; ++b)
      for (index_t h = 0; h < 2; ++h)
        for (index_t i = 0; i < map.q_tiles(); ++i)
          for (index_t j = 0; j < map.k_tiles(); ++j) {
            std::optional<tile_kind> kind;
            for (const tile_run& run : map.column(b, h, j))
              if (run.first <= i && i <= run.last) kind = run.kind;
            REQUIRE(kind == map.kind_of(b, h, i, j));
          }
  }
}

TEST_CASE("tables by kv compared with tables by head, batch or number are right in every row of tiles") {
  const table_ref ids = table({7, 3, 3, 9, 0, 1, 7, 7, 2, 5, 3, 8, 8, 1, 0, 4}), documents = table({0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4}), heads = table({3, 7, 1, 2});
  const tile_options o{.B = 4, .H = 4, .Q = 40, .K = 16, .tile_q = 8, .tile_k = 4, .budget = 4000};
  for (const table_ref& keys : {ids, documents}) {
    check_exact("equal by head", any_mask(keys[kv] == heads[h]), o);
    check_exact("other by head", any_mask(keys[kv] != heads[h]), o);
    check_exact("equal by batch", any_mask(keys[kv] == heads[b]), o);
    check_exact("other by batch under causal", any_mask(causal() && keys[kv] != heads[b]), o);
    check_exact("equal by a number", any_mask(keys[kv] == heads[scalar(2)]), o);
    check_exact("equal by the row", any_mask(keys[kv] == heads[q % 4]), o);
    check_exact("by the row, with head", any_mask(keys[min(q, 15)] == heads[h]), o);
  }
}

TEST_CASE("runs ascend, neighbours of one kind are joined, and causal needs two a row") {
  const tile_map map(causal(), {.Q = 1024, .K = 1024});
  CHECK(map.row(0, 0, 0).size() == 1);
  const auto row = map.row(0, 0, 5);
  REQUIRE(row.size() == 2);
  CHECK(row[0] == tile_run{tile_kind::full, 0, 4});
  CHECK(row[1] == tile_run{tile_kind::undecided, 5, 5});
}

TEST_CASE("a mask without b and h has one map for all batches and heads; one with h has a map per head") {
  const tile_map shared(causal(), {.B = 4, .H = 8, .Q = 256, .K = 256});
  CHECK(shared.maps() == 1);
  CHECK(shared.row(3, 7, 1).data() == shared.row(0, 0, 1).data());
  const auto widths = table({1, 2, 4, 300});
  const tile_map heads(window(widths[h]), {.B = 4, .H = 4, .Q = 512, .K = 512});
  CHECK(heads.maps() == 4);
  CHECK(heads.row(0, 0, 3).size() == 1);
  CHECK(heads.row(2, 3, 3).size() == 3);
  const auto lengths = table({100, 512});
  const tile_map batches(length(lengths), {.B = 2, .H = 4, .Q = 512, .K = 512});
  CHECK(batches.maps() == 2);
  CHECK(batches.counts() == tile_counts{12, 16, 4});
}

TEST_CASE("a map follows the arguments and tables as they are when it is made") {
  scalar width(128);
  auto docs = table(std::vector<int>(512, 0));
  const any_mask mask = causal() && q - kv < width && document(docs);
  const std::uint64_t before = mask.hash();
  CHECK(tile_map(mask, {.Q = 512, .K = 512}).counts() == tile_counts{9, 0, 7});
  width.set(1000);
  docs.update(ids_of_lengths({128, 128, 256}));
  CHECK(tile_map(mask, {.Q = 512, .K = 512}).counts() == tile_counts{11, 1, 4});
  CHECK(mask.hash() == before);
}

TEST_CASE("empty sizes give empty maps") {
  CHECK(tile_map(causal(), {.Q = 0, .K = 64}).counts() == tile_counts{0, 0, 0});
  tile_map no_keys(causal(), {.Q = 64, .K = 0});
  no_keys.build_columns();
  CHECK(no_keys.row(0, 0, 0).empty());
}

TEST_CASE("sizes without meaning are refused") {
  tile_map small(causal(), {.B = 1, .H = 2, .Q = 100, .K = 300});
  CHECK_THROWS_WITH_AS(tile_map(causal(), {.Q = 100, .K = 100, .budget = -1}), doctest::Contains("a budget of -1 verdicts"), error);
  CHECK_THROWS_WITH_AS(small.row(0, 0, 77), doctest::Contains("row(0, 0, 77): the map has batches 0 to 0, heads 0 to 1 and tiles 0 to 0"), error);
  CHECK_THROWS_WITH_AS(small.row(1, 0, 0), doctest::Contains("E-MASK-TILE"), error);
  CHECK_THROWS_WITH_AS(small.column(0, 0, 0), doctest::Contains("build_columns() first"), error);
  CHECK_THROWS_WITH_AS(small.kind_of(0, 0, 0, 3), doctest::Contains("tiles 0 to 2"), error);
  small.build_columns();
  CHECK_THROWS_WITH_AS(small.column(0, 2, 0), doctest::Contains("E-MASK-TILE"), error);
  CHECK_THROWS_WITH_AS(tile_map(causal(), {.B = 0, .Q = 1, .K = 1}), doctest::Contains("E-MASK-TILE"), error);
  CHECK_THROWS_WITH_AS(tile_map(causal(), {.Q = -1, .K = 1}), doctest::Contains("Q -1"), error);
  CHECK_THROWS_WITH_AS(tile_map(causal(), {.Q = 1, .K = 1, .tile_q = 0}), doctest::Contains("tiles of 0"), error);
  const auto short_table = table({0, 0, 0});
  CHECK_THROWS_WITH_AS(tile_map(document(short_table), {.Q = 4, .K = 4}), doctest::Contains("E-MASK-TABLE-RANGE"), error);
}

TEST_CASE("tiles may be larger than the matrix, up to 2^40; larger numbers are refused before they are added") {
  constexpr index_t most = std::numeric_limits<index_t>::max(), large = index_t(1) << 40;
  const tile_map map(causal(), {.Q = 1024, .K = 1024, .tile_q = large, .tile_k = large});
  CHECK(map.q_tiles() == 1);
  CHECK(map.counts() == tile_counts{0, 0, 1});
  const tile_map whole(full(), {.Q = large, .K = large, .tile_q = large, .tile_k = large});
  CHECK(whole.counts() == tile_counts{0, 1, 0});
  for (const tile_options& o : {tile_options{.Q = 1024, .K = 1024, .tile_q = most, .tile_k = 128}, tile_options{.Q = 1024, .K = 1024, .tile_q = 128, .tile_k = most}, tile_options{.Q = most, .K = 1}})
    CHECK_THROWS_WITH_AS(tile_map(causal(), o), doctest::Contains("2^40"), error);
}

TEST_CASE("indices beyond 2^31 are ordinary numbers") {
  const index_t S = index_t(1) << 34, tile = index_t(1) << 30;
  CHECK(counts_of(causal(), S, S, tile, tile) == tile_counts{120, 120, 16});
  CHECK(counts_of(window(tile), S, S, tile, tile) == tile_counts{225, 0, 31});
  CHECK(counts_of(q / 8 + (index_t(1) << 33) > kv / 8 + (index_t(1) << 33), S, S, tile, tile) == tile_counts{120, 120, 16});
  const any_mask mask = kv == q + (index_t(1) << 33);
  evaluator at(mask.program());
  CHECK(at(0, 0, 5, (index_t(1) << 33) + 5) == 1);
  CHECK(at(0, 0, 5, 5) == 0);
  row_evaluator rows(mask.program());
  std::uint8_t keep[3];
  rows.row(0, 0, 5, (index_t(1) << 33) + 4, (index_t(1) << 33) + 7, keep);
  CHECK(keep[0] + 2 * keep[1] + 4 * keep[2] == 2);
}

TEST_CASE("a table read out of another layout is the same mask") {
  const std::vector<index_t> interleaved{0, 9, 0, 9, 1, 9, 1, 9};  // every second number is the table's
  const auto ids = table(std::span<const index_t>(interleaved), {4}, {2}), transposed = table(std::span<const index_t>(interleaved), {2, 4}, {1, 2});
  CHECK(samite_tests::visible_keys(document(ids), 0, 4) == std::vector<index_t>{0, 1});
  CHECK(samite_tests::visible_keys(document(transposed), 3, 4, 0) == std::vector<index_t>{2, 3});
  CHECK(samite_tests::visible_keys(document(transposed), 3, 4, 1) == std::vector<index_t>{0, 1, 2, 3});
}

TEST_CASE("a map is as fine as asked for where rows of tiles are read whole, of drafting masks with unused slots too, and coarse elsewhere") {
  std::vector<index_t> anchors, keep;
  for (index_t i = 0; i < 16; ++i) anchors.push_back(15 * i), keep.push_back(i % 5 != 4);
  const any_mask drafting = dflash_mask({.context_length = 256, .block_size = 16, .anchors = table(anchors, {1, 16}), .keep = table(keep, {1, 16})});
  const tile_options coarse{.Q = 256, .K = 512};
  tile_options fine = coarse;
  fine.tile_q = fine.tile_k = 32;
  for (const any_mask& mask : {any_mask(causal()), drafting}) {
    const tile_map found = tile_map::as_fine_as(mask, fine, coarse);
    CHECK(found.options().tile_q == 32);
    CHECK(found.counts() == tile_map(mask, fine).counts());
    CHECK(found.with_joined_keys(4).q_tiles() == 8);
    CHECK(found.with_joined_keys(4).k_tiles() == 4);
  }
  using namespace symbols;
  const tile_map scattered = tile_map::as_fine_as(any_mask((q * 7 + kv * 3) % 5 != 0), fine, coarse);
  CHECK(scattered.options().tile_q == 128);
  CHECK(scattered.counts().undecided == 8);
}
