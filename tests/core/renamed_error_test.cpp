#include <doctest/doctest.h>

#include <samite/core/renamed_error.hpp>

using namespace samite;

TEST_CASE("an error says another operation's name in the place of its own, and keeps its code") {
  const error e("E-MASK-TILE", "mask: sizes");
  CHECK(std::string(detail::renamed(e, "mask", "mask \"mine\"").what()) == "samite: mask \"mine\": sizes [E-MASK-TILE]");
  CHECK(std::string(detail::renamed(e, "draw", "x").what()) == e.what());
  CHECK(std::string(detail::renamed(e, "", "attention: ").what()) == "samite: attention: mask: sizes [E-MASK-TILE]");
  CHECK(detail::renamed(e, "mask", "x").code() == "E-MASK-TILE");
  CHECK(detail::with_name("mask", "x", [] { return 3; }) == 3);
  CHECK_THROWS_WITH_AS(detail::with_name("mask", "x", [&] { throw e; }), "samite: x: sizes [E-MASK-TILE]", error);
}

TEST_CASE("a title has the label, unless that says nothing more") {
  CHECK(detail::titled("mask", "mine") == "mask \"mine\"");
  CHECK(detail::titled("mask", "mask") == "mask");
  CHECK(detail::titled("mask", "") == "mask");
}
