#include <doctest/doctest.h>

#include <samite/mask/basic.hpp>
#include <samite/mask/document.hpp>
#include <samite/mask/layouts.hpp>
#include <samite/mask/transform.hpp>
#include <samite/mask/window.hpp>

#include "support/masks.hpp"
#include "support/tile_checks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::visible_keys;

TEST_CASE("a shifted mask keeps at (rows, columns) what it kept at (0, 0)") {
  const any_mask moved = shifted(causal(), 2, 1);
  CHECK(visible_keys(moved, 0, 6) == keys{});
  CHECK(visible_keys(moved, 1, 6) == keys{0});
  CHECK(visible_keys(moved, 4, 6) == keys{0, 1, 2, 3});
  CHECK(moved.hash() == any_mask(kv - scalar(1) <= q - scalar(2)).hash());
}

TEST_CASE("a transposed mask has rows and columns exchanged, and twice is the mask itself") {
  CHECK(visible_keys(transposed(causal()), 3, 6) == keys{3, 4, 5});
  const any_mask mask = causal() && window(3) && q / 4 == kv / 4;
  CHECK(any_mask(transposed(any_mask(transposed(mask)))).hash() == mask.hash());
}

TEST_CASE("minus hides what the other mask keeps") {
  CHECK(visible_keys(minus(causal(), window(2)), 4, 6) == keys{0, 1, 2});
  CHECK(any_mask(minus(causal(), causal())).is_none());
}

TEST_CASE("a restricted mask keeps nothing outside its ranges, and the ranges are arguments") {
  index_range queries{1, 3};
  const any_mask part = restricted(full(), queries, {2, 5});
  CHECK(visible_keys(part, 0, 8) == keys{});
  CHECK(visible_keys(part, 2, 8) == keys{2, 3, 4});
  CHECK(visible_keys(part, 3, 8) == keys{});
  queries.end.set(4);
  CHECK(visible_keys(part, 3, 8) == keys{2, 3, 4});
}

TEST_CASE("a range that ends before it begins is refused, an empty one is not") {
  CHECK_THROWS_WITH_AS(any_mask(restricted(full(), {3, 1}, {0, 4})), doctest::Contains("the range of queries is {3, 1}"), error);
  CHECK_THROWS_WITH_AS(any_mask(restricted(full(), {0, 4}, {3, 1})), doctest::Contains("E-MASK-RANGE"), error);
  CHECK(visible_keys(restricted(full(), {2, 2}, {0, 4}), 2, 4) == keys{});
}

TEST_CASE("a mask repeated per document counts positions from the document's start") {
  const std::vector<index_t> ids = documents_of_lengths({3, 0, 5, 1});
  const any_mask mask = per_document(causal() && (q % 2 == kv % 2 || kv < 1), table(ids), table(document_starts(ids)));
  CHECK(visible_keys(mask, 0, 9) == keys{0});
  CHECK(visible_keys(mask, 2, 9) == keys{0, 2});
  CHECK(visible_keys(mask, 4, 9) == keys{3, 4});
  CHECK(visible_keys(mask, 6, 9) == keys{3, 4, 6});
  CHECK(visible_keys(mask, 8, 9) == keys{8});
}

TEST_CASE("masks at other indices read tables and batches of their own") {
  const auto table_of_two = table({0, 1, 1, 0, 0, 1}, {2, 3});
  const any_mask mask = with_indices(any_mask(per_batch(table_of_two, kv) == 1 && q >= h), 2 - q, kv);
  CHECK(visible_keys(mask, 0, 3, 0) == keys{1, 2});
  CHECK(visible_keys(mask, 0, 3, 1) == keys{2});
  CHECK(visible_keys(mask, 2, 3, 0, 1) == keys{});
}

TEST_CASE("tile maps of transformed masks decide every tile") {
  samite_tests::check_exact("shifted window", shifted(causal() && window(40), 17, 5), {.Q = 200, .K = 200, .tile_q = 16, .tile_k = 16});
  samite_tests::check_exact("transposed", transposed(causal() && window(40)), {.Q = 130, .K = 200, .tile_q = 16, .tile_k = 16});
  samite_tests::check_exact("restricted", restricted(causal(), {30, 90}, {10, 170}), {.Q = 200, .K = 200, .tile_q = 16, .tile_k = 16});
}
