#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include <samite/mask/causal.hpp>
#include <samite/mask/picture.hpp>
#include <samite/mask/window.hpp>

#include "support/raised.hpp"

using namespace samite;
using namespace samite::symbols;

namespace {

std::uint32_t big_endian(const std::vector<std::uint8_t>& bytes, std::size_t at) {
  return std::uint32_t(bytes[at]) << 24 | std::uint32_t(bytes[at + 1]) << 16 | std::uint32_t(bytes[at + 2]) << 8 | bytes[at + 3];
}

}  // namespace

TEST_CASE("an SVG has one rectangle for each run, by kind, and escapes the label") {
  const std::string text = svg(any_mask(causal(), "a < b & c"), {.Q = 512, .K = 512}, {.pixels = 40});
  CHECK(text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"42\" height=\"42\""));
  CHECK(text.find("a &lt; b &amp; c: queries 0 to 511 (down), keys 0 to 511 (across), tiles of 128 x 128") != std::string::npos);
  CHECK(text.find("<path fill=\"#1f4e79\" d=\"M0 10h10v10h-10zM0 20h20v10h-20zM0 30h30v10h-30z\"/>") != std::string::npos);
  CHECK(text.find("<path fill=\"#9dc3e6\" d=\"M0 0h10v10h-10zM10 10h10v10h-10zM20 20h10v10h-10zM30 30h10v10h-10z\"/>") != std::string::npos);
  CHECK(text.ends_with("</svg>\n"));
}

TEST_CASE("an SVG of pairs shows the pairs of any range") {
  const std::string text = svg(window(2), {.Q = 100000, .K = 100000}, {.first_q = 50000, .rows = 2, .first_kv = 49999, .keys = 3, .pairs = true, .pixels = 3});
  CHECK(text.find("d=\"M0 0h2v1h-2zM1 1h2v1h-2z\"") != std::string::npos);
}

TEST_CASE("a PNG holds the picture's pixels in chunks with right lengths and checksums") {
  const std::vector<std::uint8_t> bytes = png(causal(), {.Q = 256, .K = 256}, {.pixels = 2});
  CHECK(std::vector<std::uint8_t>(bytes.begin(), bytes.begin() + 8) == std::vector<std::uint8_t>{0x89, 'P', 'N', 'G', 13, 10, 26, 10});
  CHECK(big_endian(bytes, 8) == 13);
  CHECK(big_endian(bytes, 16) == 2);
  CHECK(big_endian(bytes, 20) == 2);
  const std::vector<std::uint8_t> pixels{0, 1, 0, 0, 2, 1};  // a filter byte, then palette entries: undecided, empty; full, undecided
  CHECK(std::search(bytes.begin(), bytes.end(), pixels.begin(), pixels.end()) != bytes.end());
  const std::vector<std::uint8_t> end{0, 0, 0, 0, 'I', 'E', 'N', 'D', 0xae, 0x42, 0x60, 0x82};  // a known checksum
  CHECK(std::equal(end.begin(), end.end(), bytes.end() - std::ptrdiff_t(end.size())));
}

TEST_CASE("a PNG larger than one stored block keeps every byte") {
  const std::vector<std::uint8_t> bytes = png(causal(), {.Q = 128 * 600, .K = 128 * 600}, {.pixels = 600});
  CHECK(bytes.size() > 600 * 601);
  CHECK(bytes.size() < 600 * 601 + 300);
}

TEST_CASE("ranges outside the matrix, and pictures too large to look at, are refused") {
  using samite_tests::unlike;
  const tile_options sizes{.Q = 512, .K = 512};
  CHECK(unlike("E-MASK-DRAW", {"600 rows"}, [&] { svg(causal(), sizes, {.rows = 600}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {}, [&] { svg(causal(), sizes, {.first_q = -1, .rows = 3}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {}, [&] { png(causal(), sizes, {.b = 1}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {"pairs"}, [&] { png(causal(), {.Q = 10000, .K = 10000}, {.pairs = true}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {}, [&] { svg(causal(), {.Q = 0, .K = 4}); }) == "");
}

TEST_CASE("sizes that a picture can't have are refused before they are computed with") {
  using samite_tests::unlike;
  constexpr index_t most = std::numeric_limits<index_t>::max(), least = std::numeric_limits<index_t>::min();
  const tile_options sizes{.Q = 512, .K = 512};
  CHECK(unlike("E-MASK-DRAW", {"pixels = 9223372036854775807", "32768"}, [&] { png(causal(), sizes, {.pixels = most}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {}, [&] { svg(causal(), sizes, {.first_q = least}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {}, [&] { svg(causal(), sizes, {.first_kv = most}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {}, [&] { svg(causal(), sizes, {.rows = most}); }) == "");
  CHECK(unlike("E-MASK-TILE", {"tiles of 0"}, [&] { svg(causal(), {.Q = 512, .K = 512, .tile_q = 0}); }) == "");
  CHECK(unlike("E-MASK-TILE", {"2^40"}, [&] { svg(causal(), {.Q = most, .K = 512}, {.pairs = true}); }) == "");
}
