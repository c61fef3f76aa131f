#include <doctest/doctest.h>

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
