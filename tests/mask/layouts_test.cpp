#include <doctest/doctest.h>

#include <limits>

#include <samite/mask/document.hpp>
#include <samite/mask/draw.hpp>
#include <samite/mask/layouts.hpp>
#include <samite/mask/tile_map.hpp>

#include "support/masks.hpp"
#include "support/raised.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::unlike;
using samite_tests::visible_keys;

TEST_CASE("documents come from lengths, cumulative lengths or positions") {
  CHECK(documents_of_lengths({2, 0, 1}) == keys{0, 0, 2});
  CHECK(documents_of_lengths({2, 1}, 5) == keys{0, 0, 1, -1, -1});
  CHECK(documents_of_lengths({}, 2) == keys{-1, -1});
  CHECK(documents_of_cumulative({0, 2, 2, 3}) == documents_of_lengths({2, 0, 1}));
  CHECK(documents_of_cumulative({0}).empty());
  CHECK(documents_of_positions({0, 1, 2, 0, 0, 1}) == keys{0, 0, 0, 1, 2, 2});
  CHECK(documents_of_positions({5, 6, 3}) == keys{0, 0, 1});
  CHECK(documents_of_positions({}).empty());
  constexpr index_t most = std::numeric_limits<index_t>::max(), least = std::numeric_limits<index_t>::min();
  CHECK(documents_of_positions({most - 1, most, least, least + 1}) == keys{0, 0, 1, 1});
}

TEST_CASE("starts and ends of documents are those of each token") {
  CHECK(document_starts({7, 7, 3, 3, 3, -1}) == keys{0, 0, 2, 2, 2, 5});
  CHECK(document_ends({7, 7, 3, 3, 3, -1}) == keys{2, 2, 5, 5, 5, 6});
}

TEST_CASE("lengths that can't be are refused") {
  CHECK(unlike("E-MASK-LENGTHS", {"document 1", "-2"}, [] { documents_of_lengths({3, -2}); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"add up to 5", "4"}, [] { documents_of_lengths({3, 2}, 4); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"documents_of_lengths: document 0 has 1099511627776 tokens", "at most 2147483647"}, [] { documents_of_lengths({index_t(1) << 40, 3}); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"document 1 has 4611686018427387904 tokens behind 3"}, [] { documents_of_lengths({3, index_t(1) << 62}); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"document 1 has 2147483647 tokens behind 1 "}, [] { documents_of_lengths({1, 2147483647}); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"padded_to is 4611686018427387904"}, [] { documents_of_lengths({3}, index_t(1) << 62); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"padded_to is -1"}, [] { documents_of_lengths({}, -1); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"documents_of_cumulative: document 0 has 1099511627776 tokens"}, [] { documents_of_cumulative({0, index_t(1) << 40}); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"begin with 0"}, [] { documents_of_cumulative({1, 2}); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"begin with 0"}, [] { documents_of_cumulative({}); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"entry 2"}, [] { documents_of_cumulative({0, 3, 2}); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"document 1"}, [] { document_starts({1, 2, 1}); }) == "");
  CHECK(unlike("E-MASK-LENGTHS", {"document 1"}, [] { document_ends({1, 2, 1}); }) == "");
}

TEST_CASE("a dense mask of booleans serves each batch and head, or all of them") {
  const std::vector<std::uint8_t> keep{1, 0, 0, 1, 1, 1, 0, 0};
  const any_mask one = dense_mask({1, 0, 0, 1}, 1, 1, 2, 2), batches = dense_mask(keep, 2, 1, 2, 2), heads = dense_mask(keep, 1, 2, 2, 2);
  CHECK(visible_keys(one, 1, 2, 3, 5) == keys{1});
  CHECK(visible_keys(batches, 0, 2, 1, 3) == keys{0, 1});
  CHECK(visible_keys(heads, 0, 2, 3, 1) == keys{0, 1});
  const any_mask both = dense_mask({1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0}, 2, 2, 2, 2);
  CHECK(visible_keys(both, 1, 2, 1, 0) == keys{1});
  CHECK(visible_keys(both, 0, 2, 1, 1) == keys{1});
  CHECK(unlike("E-MASK-TABLE-SHAPE", {}, [] { dense_mask({1, 0, 0}, 1, 1, 2, 2); }) == "");
  CHECK(unlike("E-MASK-TABLE-SHAPE", {}, [] { dense_mask({}, 0, 1, 2, 2); }) == "");
  CHECK(unlike("E-MASK-TABLE-SHAPE", {"at most 2^40"}, [] { dense_mask({}, index_t(1) << 32, index_t(1) << 32, 2, 2); }) == "");
}

TEST_CASE("B18: a dense mask of another shape than the scores is an error that names both") {
  const any_mask mask = dense_mask(std::vector<std::uint8_t>(150, 1), 1, 1, 10, 15);
  CHECK(unlike("E-MASK-TABLE-RANGE", {"[1,10,15]", "14"}, [&] { tile_map(mask, {.Q = 10, .K = 20}); }) == "");
  CHECK(tile_map(mask, {.Q = 10, .K = 15}).counts().full == 1);
}

TEST_CASE("a jagged batch hides rows and keys behind each batch's lengths") {
  const any_mask mask = jagged(table({2, 0}), table({3, 1}));
  CHECK(visible_keys(mask, 1, 4, 0) == keys{0, 1, 2});
  CHECK(visible_keys(mask, 2, 4, 0) == keys{});
  CHECK(visible_keys(mask, 0, 4, 1) == keys{});
}

TEST_CASE("document_ends is named where it refuses ids") {
  CHECK_THROWS_WITH_AS(document_ends({1, 2, 1}), doctest::Contains("document_ends: the tokens of document 1"), error);
}

TEST_CASE("dense_mask takes integers of any type, and bools") {
  const auto keep = [](const auto& bits) { return draw(dense_mask(bits, 1, 1, 2, 2), 2, 2, {.with_scale = false}); };
  CHECK(keep(std::vector<bool>{true, false, false, true}) == "#.\n.#\n");
  CHECK(keep(std::vector<int>{256, 0, 0, -1}) == "#.\n.#\n");
  CHECK_THROWS_WITH_AS(draw(dense_mask({1, 0, 1, 1}, 1, 1, 2, 2), 3, 2), doctest::Contains("a dense_mask has all queries and keys of the run"), error);
}
