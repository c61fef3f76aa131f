#include <doctest/doctest.h>

#include <cmath>

#include <samite/train/blocks.hpp>

#include "support/raised.hpp"

using namespace samite;
using samite_tests::unlike;
using list = std::vector<index_t>;

namespace {

// Counter language: the token at position t is t.
packed_row counter(const std::vector<index_t>& lengths) {
  packed_row row;
  for (std::size_t d = 0; d < lengths.size(); ++d)
    for (index_t p = 0; p < lengths[d]; ++p) {
      row.positions.push_back(std::int32_t(p)), row.documents.push_back(std::int32_t(d)), row.loss_mask.push_back(1);
      row.ids.push_back(std::int32_t(row.ids.size()));
    }
  return row;
}

block_batch blocks(const packed_row& row, list anchors, list keep, const block_options& o) {
  block_batch b;
  b.anchors = std::move(anchors), b.keep = std::move(keep);
  fill_blocks(b, row, o);
  return b;
}

}  // namespace

TEST_CASE("slot k learns token a + k at the same position, a + k + 1 when shifted, with the teacher one row before") {
  const packed_row row = counter({20});
  for (const label_alignment alignment : {label_alignment::same_position, label_alignment::shifted}) {
    const bool shifted = alignment == label_alignment::shifted;
    const block_batch b = blocks(row, {3, 9}, {1, 1}, {.block_size = 4, .mask_token_id = 99, .gamma = 4, .alignment = alignment});
    for (index_t n = 0; n < 2; ++n)
      for (index_t k = 0; k < 4; ++k) {
        const std::size_t i = std::size_t(n * 4 + k);
        const index_t a = b.anchors[std::size_t(n)];
        CHECK(b.ids[i] == (k == 0 ? a : 99));
        CHECK(b.positions[i] == a + k);
        CHECK(b.labels[i] == a + k + (shifted ? 1 : 0));
        CHECK(b.teacher_rows[i] == b.labels[i] - 1);
        CHECK(b.valid[i] == (shifted || k > 0 ? 1 : 0));
        const double weight = !shifted && k == 0 ? 0 : std::exp(-double(shifted ? k : k - 1) / 4);
        CHECK(double(b.weights[i]) == doctest::Approx(weight).epsilon(1e-6));
      }
  }
}

TEST_CASE("labels end with the row, with the document and where nothing is supervised") {
  packed_row row = counter({6, 8});
  row.loss_mask[9] = 0;
  const block_batch b = blocks(row, {3, 4, 7, 12, 0}, {1, 1, 1, 1, 0}, {.block_size = 4, .mask_token_id = 99});
  const std::vector<float> expected = {0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0};
  CHECK(b.valid == expected);
  for (std::size_t i = 0; i < 20; ++i) CHECK((b.weights[i] > 0) == (expected[i] > 0));
  CHECK(b.ids[16] == 99);  // an unused slot is all mask
  CHECK(b.positions[8] == 1);  // row index 7 is position 1 of its document
  CHECK(b.positions[11] == 4);
  CHECK(blocks(row, {0}, {0}, {.block_size = 2, .mask_token_id = 99, .mask_padded_anchor = false}).ids[0] == 0);
}

TEST_CASE("decayed weights have the published values") {
  const auto sum = [](index_t block_size, double gamma) {
    double total = 0;
    for (index_t k = 1; k < block_size; ++k) total += slot_decay(k, {.block_size = block_size, .gamma = gamma});
    return total;
  };
  const double table[] = {1, .8669, .7515, .6514, .5647, .4895, .4244, .3679, .3189, .2765, .2397, .2077, .1801, .1561, .1353};
  for (index_t k = 1; k < 16; ++k) CHECK(std::fabs(slot_decay(k, {.gamma = 7}) - table[k - 1]) < 5.1e-5);
  CHECK(std::fabs(sum(16, 7) - 6.6306) < 5.1e-5);
  CHECK(std::fabs(sum(10, 5) - 4.6048) < 5.1e-5);
  CHECK(std::fabs(sum(8, 4) - 3.7352) < 5.1e-5);
  CHECK(slot_decay(5, {.gamma = 0}) == 1);
}

TEST_CASE("an anchor needs a supervised successor in its document, or room for a whole block") {
  packed_row row = counter({5, 3});
  row.loss_mask[2] = 0;
  row.documents[7] = -1;
  CHECK(anchor_candidates(row, anchor_rule::canonical, 3) == list{0, 3, 5});
  CHECK(anchor_candidates(row, anchor_rule::whole_block, 3) == list{0, 1});
  CHECK(anchor_candidates({}, anchor_rule::canonical, 3).empty());
  row.positions.pop_back();
  CHECK(unlike("E-DATA-ROW", {"8 ids", "7 positions"}, [&] { anchor_candidates(row, anchor_rule::canonical, 3); }) == "");
}

TEST_CASE("anchors are sorted, distinct, from the candidates, and a function of seed, epoch and sample alone") {
  list candidates;
  for (index_t i = 0; i < 50; ++i) candidates.push_back(3 * i + 1);
  const auto choose = [&](counted_random random, index_t count = 20) {
    block_batch b;
    choose_anchors(b, candidates, count, random);
    return b;
  };
  const block_batch b = choose(counted_random(1, 2, 3, 4));
  CHECK(b.anchors.size() == 20);
  for (std::size_t i = 0; i < 20; ++i) {
    CHECK(b.anchors[i] % 3 == 1);
    CHECK((i == 0 || b.anchors[i] > b.anchors[i - 1]));
    CHECK(b.keep[i] == 1);
  }
  CHECK(choose(counted_random(1, 2, 3, 4)).anchors == b.anchors);
  CHECK(choose(counted_random(2, 2, 3, 4)).anchors != b.anchors);
  CHECK(choose(counted_random(1, 2, 4, 4)).anchors != b.anchors);
  CHECK(choose(counted_random(1, 2, 3, 5)).anchors != b.anchors);
  const block_batch all = choose(counted_random(1, 2), 60);
  CHECK(list(all.anchors.begin(), all.anchors.begin() + 50) == candidates);
  for (std::size_t i = 50; i < 60; ++i) CHECK((all.anchors[i] == 0 && all.keep[i] == 0));
  candidates.clear();
  CHECK(choose(counted_random(1, 2), 2).keep == list{0, 0});
}

TEST_CASE("every candidate is chosen about as often as any other") {
  list hits(10, 0);
  for (std::uint32_t epoch = 0; epoch < 2000; ++epoch) {
    block_batch b;
    choose_anchors(b, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 3, counted_random(11, 1, epoch));
    for (const index_t a : b.anchors) ++hits[std::size_t(a)];
  }
  for (const index_t n : hits) CHECK(std::abs(n - 600) < 5 * 21);
}

TEST_CASE("anchors outside the row, flags that don't match and blocks of no slot are refused") {
  const packed_row row = counter({10});
  const block_options o{.block_size = 4, .mask_token_id = 99};
  CHECK(unlike("E-DATA-BLOCKS", {"anchor 1 is 10", "0 to 9"}, [&] { blocks(row, {3, 10}, {1, 1}, o); }) == "");
  CHECK(unlike("E-DATA-BLOCKS", {"anchor 0 is -1"}, [&] { blocks(row, {-1}, {1}, o); }) == "");
  CHECK(unlike("E-DATA-BLOCKS", {"anchor 0 is 10"}, [&] { blocks(row, {10}, {0}, o); }) == "");
  CHECK(unlike("E-DATA-BLOCKS", {"2 anchors", "1 keep"}, [&] { blocks(row, {3, 4}, {1}, o); }) == "");
  CHECK(unlike("E-DATA-BLOCKS", {"blocks of 0 slots"}, [&] { blocks(row, {3}, {1}, {.block_size = 0, .mask_token_id = 99}); }) == "");
  CHECK(unlike("E-DATA-BLOCKS", {"anchor 0 is 0"}, [&] { blocks({}, {0}, {1}, o); }) == "");
  CHECK(blocks({}, {0}, {0}, o).valid == std::vector<float>(4, 0.0f));  // a row of no token has unused slots
  CHECK(unlike("E-DATA-BLOCKS", {"-1 slots"}, [&] { anchor_candidates(row, anchor_rule::whole_block, -1); }) == "");
  block_batch b;
  CHECK(unlike("E-DATA-BLOCKS", {"-1 anchors"}, [&] { choose_anchors(b, {1, 2}, -1, counted_random(1, 1)); }) == "");
  packed_row ragged = row;
  ragged.documents.pop_back();
  CHECK(unlike("E-DATA-ROW", {"9 document"}, [&] { blocks(ragged, {3}, {1}, o); }) == "");
}

TEST_CASE("accepted length counts what a block really accepts; marginal accuracies see more than there is") {
  draft_metrics m;
  m.add(std::vector<float>{0, 1, 1, 0, 1, 1}, std::vector<float>{1, 1, 0, 1, 0, 1}, 3);  // (right, wrong) and (wrong, right)
  CHECK(m.acceptance_length() == 1.5);  // one of two blocks accepts one, plus the bonus token
  CHECK(marginal_acceptance(m) == 0.75);
  CHECK(m.accuracy(1) == 0.5);
  CHECK(m.accuracy(0) == 0);  // the anchor's slot proposes nothing
  CHECK(m.accuracy(-1) == 0);
  CHECK(m.accuracy(3) == 0);
  m.add(std::vector<float>{0, 0, 0}, std::vector<float>{1, 1, 1}, 3);  // a block without a valid slot is no block
  CHECK(m.blocks == 2);
  m.add(std::vector<float>{0, 0, 1}, std::vector<float>{0, 0, 1}, 3);  // an invalid slot ends no run
  CHECK(m.accepted == 5);
}

TEST_CASE("metrics refuse results that are not whole blocks of one size") {
  draft_metrics m;
  CHECK(unlike("E-DATA-BLOCKS", {"blocks of 0"}, [&] { m.add(std::vector<float>(4), std::vector<float>(4), 0); }) == "");
  CHECK(unlike("E-DATA-BLOCKS", {"8 valid", "7 results"}, [&] { m.add(std::vector<float>(8), std::vector<float>(7), 4); }) == "");
  CHECK(unlike("E-DATA-BLOCKS", {"blocks of 3"}, [&] { m.add(std::vector<float>(8), std::vector<float>(8), 3); }) == "");
  m.add(std::vector<float>(8, 1.0f), std::vector<float>(8, 1.0f), 4);
  CHECK(unlike("E-DATA-BLOCKS", {"after blocks of 4"}, [&] { m.add(std::vector<float>(8), std::vector<float>(8), 2); }) == "");
  CHECK(m.blocks == 2);
  CHECK(draft_metrics().acceptance_length() == 0);
  CHECK(marginal_acceptance({}) == 0);
}
