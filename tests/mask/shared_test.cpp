#include <doctest/doctest.h>

#include <samite/mask/document.hpp>
#include <samite/mask/shared.hpp>
#include <samite/mask/prefix.hpp>

#include "support/masks.hpp"
#include "support/raised.hpp"
#include "support/tile_checks.hpp"

using namespace samite;
using keys = std::vector<index_t>;
using samite_tests::visible_keys;

TEST_CASE("answers share a question and don't see one another") {
  const any_mask mask = shared_question(3, table({9, 9, 9, 0, 0, 1, 1, 1}));
  CHECK(visible_keys(mask, 1, 8) == keys{0, 1});
  CHECK(visible_keys(mask, 4, 8) == keys{0, 1, 2, 3, 4});
  CHECK(visible_keys(mask, 6, 8) == keys{0, 1, 2, 5, 6});
}

TEST_CASE("documents continue a prefix document") {
  // Document 0 is the prefix of 1 and 2; document 3 stands alone.
  const any_mask mask = shared_prefix(table({0, 0, 1, 1, 2, 3}), table({0, 0, 0, 0, 0, 3}));
  CHECK(visible_keys(mask, 3, 6) == keys{0, 1, 2, 3});
  CHECK(visible_keys(mask, 4, 6) == keys{0, 1, 4});
  CHECK(visible_keys(mask, 5, 6) == keys{5});
}

TEST_CASE("global tokens see and are seen by all") {
  const any_mask mask = global_window(table({1, 0, 0, 0, 0, 0, 0, 0}), 1);
  CHECK(visible_keys(mask, 0, 8) == keys{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(visible_keys(mask, 3, 8) == keys{0, 2, 3, 4});
  CHECK(visible_keys(mask, 7, 8) == keys{0, 6, 7});
  CHECK(samite_tests::unlike("E-MASK-WINDOW", {"-1"}, [] { global_window(table({1}), -1); }) == "");
}

TEST_CASE("tokens of one image see one another, text is causal") {
  const any_mask mask = image_spans(table({-1, 0, 0, -1, 1, 1}));
  CHECK(visible_keys(mask, 0, 6) == keys{0});
  CHECK(visible_keys(mask, 1, 6) == keys{0, 1, 2});
  CHECK(visible_keys(mask, 3, 6) == keys{0, 1, 2, 3});
  CHECK(visible_keys(mask, 4, 6) == keys{0, 1, 2, 3, 4, 5});
}

TEST_CASE("tiles of shared tokens are sound and decided") {
  std::vector<index_t> answers(300);
  for (std::size_t i = 0; i < answers.size(); ++i) answers[i] = index_t(i) < 70 ? -1 : (index_t(i) - 70) / 50;
  samite_tests::check_exact("shared question", shared_question(70, table(answers)), {.Q = 300, .K = 300, .tile_q = 16, .tile_k = 16});
  samite_tests::check_exact("image spans", image_spans(table(answers)), {.Q = 300, .K = 300, .tile_q = 16, .tile_k = 16});
}

TEST_CASE("a question has no negative count of tokens") {
  CHECK_THROWS_WITH_AS(shared_question(-1, table({0, 0})), doctest::Contains("shared_question: -1 tokens"), error);
}
