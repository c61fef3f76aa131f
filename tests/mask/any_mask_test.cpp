#include <doctest/doctest.h>

#include <samite/mask/any_mask.hpp>

#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using keys = std::vector<index_t>;
using samite_tests::means;
using samite_tests::visible_keys;

static_assert(predicate_expr<any_mask>);
static_assert(std::is_convertible_v<decltype(kv <= q), any_mask> && !std::is_convertible_v<bool, any_mask> && !std::is_convertible_v<int, any_mask>);

TEST_CASE("a default-made mask keeps every pair") {
  CHECK(any_mask().is_full());
  CHECK(visible_keys(any_mask(), 1, 3) == keys{0, 1, 2});
}

TEST_CASE("masks of one type can be built step by step") {
  any_mask mask = kv <= q;
  mask = mask && q - kv < 2;
  mask = mask || kv == 0;
  CHECK(visible_keys(mask, 4, 6) == keys{0, 3, 4});
  CHECK(visible_keys(!mask, 4, 6) == keys{1, 2, 5});
  CHECK(mask.hash() == any_mask((kv <= q && q - kv < 2) || kv == 0).hash() );
}

TEST_CASE("a mask knows the symbols it depends on") {
  const any_mask mask = kv <= q && kv < table({1, 2})[b];
  CHECK(mask.uses(symbol_id::b));
  CHECK(mask.uses(symbol_id::kv));
  CHECK_FALSE(mask.uses(symbol_id::h));
}

TEST_CASE("arguments and tables stay shared when masks are combined") {
  scalar width(2);
  auto ids = table({0, 0, 0, 0});
  const any_mask inner = q - kv < width && ids[q] == ids[kv];
  const any_mask outer = inner && kv <= q && q - kv < width;
  CHECK(outer.program().arguments().size() == 1);
  CHECK(outer.program().tables().size() == 1);
  width.set(3);
  ids.update(std::vector<int>{0, 0, 1, 1});
  CHECK(visible_keys(outer, 3, 4) == keys{2, 3});
}

TEST_CASE("a label names the mask and is not part of the hash") {
  CHECK(any_mask(kv <= q, "mine").label() == "mine");
  CHECK(any_mask(kv <= q).labelled("other").hash() == any_mask(kv <= q).hash());
}
