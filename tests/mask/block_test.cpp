#include <doctest/doctest.h>

#include <samite/mask/any_mask.hpp>
#include <samite/mask/block.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::means;
using samite_tests::visible_keys;

TEST_CASE("block_causal and chunked_causal") {
  CHECK(means(block_causal(3), 8, 8) == std::vector<double>{1, 1, 1, 2.5, 2.5, 2.5, 3.5, 3.5});
  CHECK(means(chunked_causal(3), 8, 8) == std::vector<double>{0, .5, 1, 3, 3.5, 4, 6, 6.5});
}

TEST_CASE("block_diffusion: noised blocks see themselves and earlier clean ones, clean blocks are block-causal") {
  const std::vector<keys> rows{{0, 1}, {0, 1}, {2, 3, 4, 5}, {2, 3, 4, 5}, {4, 5}, {4, 5}, {4, 5, 6, 7}, {4, 5, 6, 7}};
  for (index_t i = 0; i < 8; ++i) CHECK(visible_keys(block_diffusion(4, 2), i, 8) == rows[std::size_t(i)]);
  // A last block that the half cuts off ends with the half.
  CHECK(visible_keys(block_diffusion(3, 2), 2, 6) == keys{2, 3, 4});
  CHECK(any_mask(block_diffusion(4, 2)).hash() == any_mask(block_diffusion(500, 2)).hash());
}

TEST_CASE("block_table keeps the blocks that are set") {
  const auto blocks = table({1, 0, 0, 2}, {2, 2});
  CHECK(visible_keys(block_table(blocks, 2), 1, 4) == keys{0, 1});
  CHECK(visible_keys(block_table(blocks, 2), 2, 4) == keys{2, 3});
}

TEST_CASE("blocks have at least one token") {
  CHECK_THROWS_WITH_AS(block_causal(0), doctest::Contains("block_causal(0)"), error);
  CHECK_THROWS_WITH_AS(chunked_causal(-4), doctest::Contains("E-MASK-BLOCK"), error);
  CHECK_THROWS_WITH_AS(block_diffusion(0, 2), doctest::Contains("length=0"), error);
}
