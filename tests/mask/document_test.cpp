#include <doctest/doctest.h>

#include <samite/mask/document.hpp>
#include <samite/mask/layouts.hpp>
#include <samite/mask/window.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::means;
using samite_tests::visible_keys;

TEST_CASE("document keeps pairs of one document") {
  const auto ids = table({0, 0, 0, 1, 1, 2, 2, 2});
  CHECK(means(document(ids), 8, 8) == std::vector<double>{1, 1, 1, 3.5, 3.5, 6, 6, 6});
  CHECK(means(document_causal(ids), 8, 8) == std::vector<double>{0, .5, 1, 3, 3.5, 5, 5.5, 6});
}

TEST_CASE("documents may be interleaved, and padding neither sees nor is seen where it is named") {
  const auto ids = table({0, 1, 0, 1, -1, 0, 1, -1});
  const std::vector<keys> rows{{0}, {1}, {0, 2}, {1, 3}, {}, {0, 2, 5}, {1, 3, 6}, {}};
  for (index_t i = 0; i < 8; ++i) CHECK(visible_keys(document_causal(ids, -1), i, 8) == rows[std::size_t(i)]);
  CHECK(visible_keys(document(ids, -1), 0, 8) == keys{0, 2, 5});
  CHECK(visible_keys(document(ids), 4, 8) == keys{4, 7});  // not named: padding is a document
}

TEST_CASE("ids may differ from batch to batch, and between queries and keys") {
  const auto ids = table({0, 0, 1, 0, 1, 1}, {2, 3});
  CHECK(visible_keys(document(ids), 1, 3, 0) == keys{0, 1});
  CHECK(visible_keys(document(ids), 1, 3, 1) == keys{1, 2});
  CHECK(visible_keys(document(table({7, 8}), table({8, 7, 8})), 1, 3) == keys{0, 2});
}

TEST_CASE("the zoo and the same mask by hand have one hash") {
  const auto docs = table({0, 0, 1, 1});
  const any_mask zoo = causal() && window(1024) && document(docs);
  CHECK(zoo.hash() == any_mask(kv <= q && q - kv < 1024 && docs[q] == docs[kv]).hash());
  CHECK(zoo.hash() == any_mask(document(table({5, 5})) && window(7)).hash());  // other contents and width, same kernel
}

TEST_CASE("documents of one token see themselves, those of none take nothing, and the id -1 is an id like any other unless it is padding") {
  const auto ids = table(documents_of_lengths({1, 0, 3, 1}));
  for (index_t i = 0; i < 5; ++i) CHECK(visible_keys(document(ids), i, 5) == (i == 0 ? keys{0} : i == 4 ? keys{4} : keys{1, 2, 3}));
  const auto padded = table({-1, 0, 0, -1});
  CHECK(visible_keys(document(padded), 0, 4) == keys{0, 3});
  CHECK(visible_keys(document(padded, -1), 0, 4).empty());
  CHECK(visible_keys(document(padded, -1), 3, 4).empty());
  CHECK(visible_keys(document_causal(padded, -1), 2, 4) == keys{1, 2});
}

TEST_CASE("one table serves many masks, and an update reaches all of them") {
  auto ids = table({0, 0, 1, 1});
  const any_mask same = document(ids), other = document_causal(ids), sees = kv < 2 && ids[kv] == 0;
  ids.update({0, 1, 1, 1});
  CHECK(visible_keys(same, 1, 4) == keys{1, 2, 3});
  CHECK(visible_keys(other, 2, 4) == keys{1, 2});
  CHECK(visible_keys(sees, 0, 4) == keys{0});
}
