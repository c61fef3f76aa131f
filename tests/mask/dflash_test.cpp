#include <doctest/doctest.h>

#include <samite/mask/dflash.hpp>
#include <samite/ir/evaluate.hpp>
#include <samite/mask/tile_map.hpp>

#include "support/masks.hpp"
#include "support/safetensors.hpp"

using namespace samite;
using keys = std::vector<index_t>;
using samite_tests::golden_integers;

namespace {

std::vector<keys> rows_of(const dflash_mask_options& o, index_t Q, index_t K, index_t b = 0) {
  const any_mask mask = dflash_mask(o);
  std::vector<keys> rows;
  for (index_t q = 0; q < Q; ++q) rows.push_back(samite_tests::visible_keys(mask, q, K, b));
  return rows;
}

dflash_mask_options two_blocks() { return {.context_length = 8, .block_size = 3, .anchors = table({2, 6})}; }

// The mask's table as the golden files hold it: one byte a pair.
std::vector<std::int64_t> visible_of(const any_mask& mask, index_t Q, index_t K) {
  row_evaluator rows(mask.program());
  std::vector<std::uint8_t> bytes(std::size_t(Q * K));
  for (index_t q = 0; q < Q; ++q) rows.row(0, 0, q, 0, K, bytes.data() + q * K);
  return {bytes.begin(), bytes.end()};
}

dflash_mask_options golden_options(const std::string& file) {
  dflash_mask_options o{.context_length = 128, .block_size = 8};
  o.anchors = table(golden_integers(file, "anchors"));
  o.keep = table(golden_integers(file, "keep"));
  return o;
}

}  // namespace

TEST_CASE("DFlash, full attention: a block sees the context before its anchor, and itself") {
  CHECK(rows_of(two_blocks(), 6, 14) == std::vector<keys>{{0, 1, 8, 9, 10}, {0, 1, 8, 9, 10}, {0, 1, 8, 9, 10},
                                                          {0, 1, 2, 3, 4, 5, 11, 12, 13}, {0, 1, 2, 3, 4, 5, 11, 12, 13}, {0, 1, 2, 3, 4, 5, 11, 12, 13}});
}

TEST_CASE("DFlash, window 4: each slot looks back from its own position") {
  auto o = two_blocks();
  o.window = 4;
  CHECK(rows_of(o, 6, 14) == std::vector<keys>{{0, 1, 8, 9, 10}, {0, 1, 8, 9, 10}, {1, 8, 9, 10}, {3, 4, 5, 11, 12, 13}, {4, 5, 11, 12, 13}, {5, 11, 12, 13}});
}

TEST_CASE("DFlash, window 4, causal blocks: a slot sees slots up to itself") {
  auto o = two_blocks();
  o.window = 4, o.causal = true;
  CHECK(rows_of(o, 6, 14) == std::vector<keys>{{0, 1, 8}, {0, 1, 8, 9}, {1, 8, 9, 10}, {3, 4, 5, 11}, {4, 5, 11, 12}, {5, 11, 12, 13}});
}

TEST_CASE("DFlash, the window fixed at the anchor: every slot of a block sees the same context") {
  auto o = two_blocks();
  o.window = 4, o.causal = true, o.rule = window_rule::fixed_at_anchor;
  CHECK(rows_of(o, 6, 14) == std::vector<keys>{{0, 1, 8}, {0, 1, 8, 9}, {0, 1, 8, 9, 10}, {2, 3, 4, 5, 11}, {2, 3, 4, 5, 11, 12}, {2, 3, 4, 5, 11, 12, 13}});
}

TEST_CASE("DFlash, packed documents: the context is the anchor's document") {
  const dflash_mask_options o{.context_length = 10, .block_size = 2, .anchors = table({2, 6}), .documents = table({0, 0, 0, 0, 1, 1, 1, 1, 1, -1})};
  CHECK(rows_of(o, 4, 14) == std::vector<keys>{{0, 1, 10, 11}, {0, 1, 10, 11}, {4, 5, 12, 13}, {4, 5, 12, 13}});
}

TEST_CASE("DFlash: a padded slot sees its own block, or nothing where asked for") {
  dflash_mask_options o{.context_length = 6, .block_size = 2, .anchors = table({3, 0}), .keep = table({1, 0})};
  CHECK(rows_of(o, 4, 10) == std::vector<keys>{{0, 1, 2, 6, 7}, {0, 1, 2, 6, 7}, {8, 9}, {8, 9}});
  o.padded = padded_slots::hidden;
  CHECK(rows_of(o, 4, 10) == std::vector<keys>{{0, 1, 2, 6, 7}, {0, 1, 2, 6, 7}, {}, {}});
}

TEST_CASE("DFlash: the anchor of a padded slot may be anything") {
  dflash_mask_options o{.context_length = 6, .block_size = 2, .anchors = table({3, -7}), .keep = table({1, 0}), .documents = table({0, 0, 0, 0, 0, 0})};
  CHECK(rows_of(o, 4, 10) == std::vector<keys>{{0, 1, 2, 6, 7}, {0, 1, 2, 6, 7}, {8, 9}, {8, 9}});
  CHECK_NOTHROW(tile_map(dflash_mask(o), {.Q = 4, .K = 10}));
}

TEST_CASE("DFlash: rows behind the last block in use see nothing") {
  auto o = two_blocks();
  o.block_count = 2;
  const auto rows = rows_of(o, 9, 17);
  CHECK(rows[5] == keys{0, 1, 2, 3, 4, 5, 11, 12, 13});
  CHECK(rows[6].empty());
  CHECK(rows[8].empty());
  CHECK_NOTHROW(tile_map(dflash_mask(o), {.Q = 9, .K = 17}));
}

TEST_CASE("DFlash: every batch has its own anchors and documents") {
  const dflash_mask_options o{.context_length = 6, .block_size = 2, .anchors = table({2, 5}, {2, 1}), .documents = table({0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1}, {2, 6})};
  CHECK(rows_of(o, 2, 8, 0) == std::vector<keys>{{0, 1, 6, 7}, {0, 1, 6, 7}});
  CHECK(rows_of(o, 2, 8, 1) == std::vector<keys>{{2, 3, 4, 6, 7}, {2, 3, 4, 6, 7}});
}

TEST_CASE("DFlash: context length, window and anchors are arguments: the same hash, hence the same kernel") {
  const auto with = [](index_t S, index_t W, std::initializer_list<index_t> anchors) {
    return dflash_mask({.context_length = S, .block_size = 4, .anchors = table(anchors), .window = W});
  };
  CHECK(with(100, 7, {3, 50}).hash() == with(37, 200, {1, 2, 3}).hash());
  scalar S = 8;
  auto o = two_blocks();
  o.context_length = S;
  const any_mask mask = dflash_mask(o);
  CHECK(samite_tests::visible_keys(mask, 0, 14) == keys{0, 1, 8, 9, 10});
  S.set(7);
  CHECK(samite_tests::visible_keys(mask, 0, 14) == keys{0, 1, 7, 8, 9});
}

TEST_CASE("DFlash: the masks of Automodel are reproduced pair by pair") {
  auto o = golden_options("dflash_training/inputs.safetensors");
  o.documents = table(golden_integers("dflash_training/inputs.safetensors", "document_ids"));
  CHECK(visible_of(dflash_mask(o), 96, 224) == golden_integers("dflash_training/automodel_full.safetensors", "visible"));
  o.window = 16;
  CHECK(visible_of(dflash_mask(o), 96, 224) == golden_integers("dflash_training/automodel_window.safetensors", "visible"));
  o.causal = true;
  CHECK(visible_of(dflash_mask(o), 96, 224) == golden_integers("dflash_training/automodel_window.safetensors", "visible_causal"));
}

TEST_CASE("DFlash: the masks of speculators are reproduced pair by pair") {
  auto o = golden_options("dflash_training/inputs.safetensors");
  o.documents = table(golden_integers("dflash_training/inputs.safetensors", "document_ids"));
  CHECK(visible_of(dflash_mask(o), 96, 224) == golden_integers("dflash_training/speculators_mixed.safetensors", "visible_full"));
  o.window = 16, o.causal = true, o.rule = window_rule::fixed_at_anchor;
  CHECK(visible_of(dflash_mask(o), 96, 224) == golden_integers("dflash_training/speculators_mixed.safetensors", "visible_window"));
}

TEST_CASE("DFlash: the masks of SpecForge are reproduced pair by pair") {
  auto o = golden_options("dflash_training/specforge_mixed.safetensors");
  o.padded = padded_slots::hidden;
  CHECK(visible_of(dflash_mask(o), 96, 224) == golden_integers("dflash_training/specforge_mixed.safetensors", "visible_full"));
  o.window = 16, o.causal = true;
  CHECK(visible_of(dflash_mask(o), 96, 224) == golden_integers("dflash_training/specforge_mixed.safetensors", "visible_window"));
}

TEST_CASE("DFlash: inputs that don't fit are refused, naming them") {
  const auto refuse = [](const dflash_mask_options& o, const char* text) {
    CHECK_THROWS_WITH_AS(dflash_mask(o), doctest::Contains(text), error);
    CHECK_THROWS_WITH_AS(dflash_mask(o), doctest::Contains("E-MASK-DFLASH"), error);
  };
  refuse({.context_length = 8, .block_size = 3}, ".anchors is missing");
  refuse({.context_length = 8, .block_size = 0, .anchors = table({1})}, "block_size is 0");
  refuse({.context_length = -1, .block_size = 3, .anchors = table({0})}, "context_length is -1");
  refuse({.context_length = 8, .block_size = 3, .anchors = table({1, 8})}, "anchor of slot 1 in row 0 is 8");
  refuse({.context_length = 8, .block_size = 3, .anchors = table({1, 2}), .keep = table({1})}, ".anchors has dimensions [2] but .keep has [1]");
  refuse({.context_length = 8, .block_size = 3, .anchors = table({1}), .documents = table({0, 0})}, "covers 2 tokens of a context of 8");
  refuse({.context_length = 8, .block_size = 3, .anchors = table({1}), .window = 0}, "window is 0");
}

TEST_CASE("DFlash: anchors that were promised to be sorted are refused where they fall, padded slots aside") {
  dflash_mask_options o{.context_length = 20, .block_size = 4, .anchors = table({3, 3, 9, 1, 5, 12}, {2, 3}), .sorted_anchors = true};
  CHECK_NOTHROW(dflash_mask(o));  // each row for itself
  o.anchors = table({3, 9, 5, 1, 5, 12}, {2, 3});
  CHECK_THROWS_WITH_AS(dflash_mask(o), doctest::Contains("slot 2 in row 0 is 5, below the one before it, 9"), error);
  o.keep = table({1, 0, 1, 1, 1, 1}, {2, 3});
  CHECK_NOTHROW(dflash_mask(o));
  o.keep = std::nullopt, o.sorted_anchors = false;
  CHECK_NOTHROW(dflash_mask(o));
}

TEST_CASE("counts of blocks that the anchors don't have are refused") {
  dflash_mask_options o{.context_length = 8, .block_size = 4, .anchors = table({1, 3, 5})};
  for (const index_t count : {-3, 0, 4}) {
    o.block_count = count;
    CHECK_THROWS_WITH_AS(dflash_mask(o), doctest::Contains("has 3 blocks a row"), error);
  }
  o.block_count = 3;
  CHECK_NOTHROW(dflash_mask(o));
  o.block_count = std::nullopt;
  o.anchors = table(std::vector<int>{}, {0});
  CHECK_THROWS_WITH_AS(dflash_mask(o), doctest::Contains("and so no block"), error);
}
