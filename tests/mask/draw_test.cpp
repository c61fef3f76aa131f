#include <doctest/doctest.h>

#include <limits>

#include <samite/mask.hpp>
#include <samite/mask/transform.hpp>

#include "support/raised.hpp"

using namespace samite;
using namespace samite::symbols;
using samite_tests::unlike;

TEST_CASE("draw shows one character a pair") {
  CHECK(draw(window(2), 3, 4) ==
        "  0\n"
        "0 #...\n"
        "1 ##..\n"
        "2 .##.\n");
  CHECK(draw(causal(), 2, 2, {.with_scale = false}) == "#.\n##\n");
}

TEST_CASE("draw shows any part of the matrix, of any batch and head") {
  CHECK(draw(kv <= q + 4 * h + b, 1, 8, {.b = 1, .h = 1, .first_q = 100, .first_kv = 102, .with_scale = false}) == "####....\n");
}

TEST_CASE("a large mask is shown by tiles: all kept, a part, none") {
  CHECK(draw(causal(), 4096, 4096, {.columns = 4, .lines = 4, .with_scale = false}) == "+...\n#+..\n##+.\n###+\n");
  CHECK(draw(causal(), 4096, 4096, {.columns = 4, .lines = 4}).find("1024 x 1024 pairs") != std::string::npos);
}

TEST_CASE("a tile is shown as a part only where it has kept and hidden pairs, also where bounds do not tell") {
  std::vector<index_t> turns(64);
  for (std::size_t i = 0; i < 64; ++i) turns[i] = index_t(i % 2 * 128);
  const auto a = table(turns), c = table(std::vector<index_t>(64, 64));
  const draw_options coarse{.columns = 2, .lines = 2, .with_scale = false};
  CHECK(draw(a[q] == c[kv], 64, 64, coarse) == "..\n..\n");
  CHECK(draw(a[q] != c[kv], 64, 64, coarse) == "##\n##\n");
}

TEST_CASE("the scale numbers every tenth column and every row") {
  const std::string text = draw(full(), 11, 12);
  CHECK(text.substr(0, text.find('\n')) == "   0         10");
  CHECK(text.find("\n10 ############\n") != std::string::npos);
}

TEST_CASE("draw refuses an empty range, and a table that is too short") {
  CHECK_THROWS_WITH_AS(draw(causal(), 0, 4), doctest::Contains("E-MASK-DRAW"), error);
  CHECK_THROWS_WITH_AS(draw(document(table({0, 0})), 4, 4), doctest::Contains("E-MASK-TABLE-RANGE"), error);
}

TEST_CASE("draw takes any size of picture, and refuses numbers that can't be added up, naming what is wrong") {
  constexpr index_t most = std::numeric_limits<index_t>::max();
  CHECK(draw(causal(), 3, 3, {.columns = most, .lines = most, .with_scale = false}) == "#..\n##.\n###\n");
  CHECK(draw(causal(), 1, 4, {.first_q = index_t(1) << 40, .first_kv = (index_t(1) << 40) - 2, .with_scale = false}) == "###.\n");
  CHECK(unlike("E-MASK-DRAW", {"rows from 9223372036854775805", "2^40"}, [] { draw(causal(), 5, 5, {.first_q = most - 2}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {"2^40"}, [] { draw(causal(), most, 5); }) == "");
  CHECK(unlike("E-MASK-DRAW", {"columns = 0", "lines = 64"}, [] { draw(causal(), 5, 5, {.columns = 0}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {"head h = -1"}, [] { draw(causal(), 5, 5, {.h = -1}); }) == "");
  CHECK(unlike("E-MASK-DRAW", {"2^26 characters"}, [] { draw(causal(), index_t(1) << 40, index_t(1) << 40, {.columns = most, .lines = most}); }) == "");
}

TEST_CASE("numbers beyond 2^55 are what they are: each pair is as in 128 bits, or the mask is refused") {
  const index_t large = index_t(1) << 60, seed = 0x1234567890abcdef;
  const auto picture = [](index_t rows, index_t keys, auto keep) {
    std::string text;
    for (index_t i = 0; i < rows; ++i, text += '\n')
      for (index_t j = 0; j < keys; ++j) text += keep(__int128(i), __int128(j)) ? '#' : '.';
    return text;
  };
  CHECK(draw((q + large) % 10 == 6, 24, 3, {.with_scale = false}) == picture(24, 3, [&](__int128 i, __int128) { return (i + large) % 10 == 6; }));
  CHECK(draw((q * 31 + kv * 17 + scalar(seed)) % 7 == 0, 16, 16, {.with_scale = false}) == picture(16, 16, [&](__int128 i, __int128 j) { return (i * 31 + j * 17 + seed) % 7 == 0; }));
  const index_t nanoseconds = 1764545000123456789;  // % 8 is 5
  CHECK(draw(kv == scalar(nanoseconds) % 8, 1, 8, {.with_scale = false}) == ".....#..\n");
  CHECK(draw(with_indices(q % 8 == kv, scalar(nanoseconds), kv), 1, 8, {.with_scale = false}) == ".....#..\n");
  CHECK(draw(q * large >= kv * (large / 4), 2, 4, {.with_scale = false}) == picture(2, 4, [&](__int128 i, __int128 j) { return i * large >= j * (large / 4); }));
  CHECK(unlike("E-MASK-OVERFLOW", {"mask: an index expression can leave 62 bits"}, [&] { draw(q * large >= kv * (large / 4), 4, 10); }) == "");
  CHECK(unlike("E-MASK-OVERFLOW", {}, [&] { draw((q + scalar(std::numeric_limits<index_t>::max())) % 10 == 6, 4, 4); }) == "");
  CHECK(draw(fixed(std::numeric_limits<index_t>::max()) + fixed(1) > kv, 1, 4, {.with_scale = false}) == "####\n");
  CHECK(unlike("E-MASK-OVERFLOW", {}, [&] { draw((fixed(std::numeric_limits<index_t>::max()) + fixed(1)) % 7 == kv, 4, 4); }) == "");
  CHECK(unlike("E-MASK-OVERFLOW", {}, [&] { draw(max(q, scalar(index_t(1) << 61)) % 7 == kv, 4, 4); }) == "");
  CHECK(unlike("E-MASK-OVERFLOW", {}, [&] { draw(kv < select(q < 2, scalar(std::numeric_limits<index_t>::max()), 3) % 7, 4, 4); }) == "");
}

TEST_CASE("a number that a comparison has by itself may be as large as it likes") {
  for (const index_t large : {index_t(1) << 56, (index_t(1) << 61) - 1, index_t(1) << 61, std::numeric_limits<index_t>::max()}) {
    CAPTURE(large);
    CHECK(draw(window(scalar(large)) && kv >= -large && !(kv > large) && kv != large && !(kv == -large), 2, 3, {.with_scale = false}) == "#..\n##.\n");
    CHECK(draw(kv <= q + scalar(large) && abs(q - kv) <= large && kv <= min(q, large), 2, 3, {.with_scale = false}) == "#..\n##.\n");
    CHECK(draw(q >= large || kv + large < q, 2, 3, {.with_scale = false}) == "...\n...\n");
  }
}

TEST_CASE("what is refused of a mask with a label says which mask") {
  const auto ids = table({1, 2});
  CHECK(unlike("E-MASK-TABLE-RANGE", {"mask \"mine\": index 0 of a table"}, [&] { draw(any_mask(ids[kv] == 1, "mine"), 4, 4); }) == "");
  CHECK(unlike("E-MASK-TABLE-RANGE", {"mask \"mine\": index 0 of a table"}, [&] { tile_map(any_mask(ids[kv] == 1, "mine"), {.Q = 4, .K = 4}); }) == "");
  CHECK(unlike("E-MASK-TABLE-RANGE", {"samite: mask: index 0 of a table"}, [&] { draw(ids[kv] == 1, 4, 4); }) == "");
}
