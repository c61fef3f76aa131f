#include <doctest/doctest.h>

#include <samite/mask/causal.hpp>
#include <samite/mask/document.hpp>
#include <samite/mask/basic.hpp>
#include <samite/mask/report.hpp>
#include <samite/mask/strided.hpp>
#include <samite/mask/window.hpp>

using namespace samite;
using namespace samite::symbols;

TEST_CASE("a report counts pairs, tiles, FLOPs and bytes") {
  const mask_report r = report(any_mask(causal() && window(256), "window"), {.B = 2, .H = 4, .Q = 1024, .K = 1024}, 64);
  CHECK(r.pairs == 8 * 1024 * 1024);
  CHECK(r.kept == 8 * (256 * 257 / 2 + 768 * 256));
  CHECK(r.tiles == tile_counts{8 * 43, 8 * 7, 8 * 14});
  CHECK(r.maps == 1);
  CHECK(r.bit_tiles == 2);  // of 14 undecided ones
  CHECK(r.bit_bytes == 2 * 2048);
  CHECK(r.forward_flops == 4.0 * 64 * double(r.kept));
  CHECK(r.backward_flops == 10.0 * 64 * double(r.kept));
  CHECK(r.hint.empty());
  CHECK(to_text(r).find("tiles      128 x 128: 344 empty (67.2 %), 56 full, 112 undecided\n") != std::string::npos);
}

TEST_CASE("a report says which clauses keep tiles undecided, and where") {
  const mask_report r = report(causal() && window(256), {.Q = 1024, .K = 1024});
  REQUIRE(r.clauses.size() == 2);
  for (const clause_report& c : r.clauses) {
    CAPTURE(c.text);
    if (c.text == "q - kv >= 0") CHECK(c.undecided_tiles == 8);
    else {
      CHECK(c.text == "q - kv < a0");
      CHECK(c.undecided_tiles == 6);
      CHECK(c.first_q == 256);
      CHECK(c.first_kv == 0);
    }
  }
}

TEST_CASE("a report hints at masks that tiles can't skip well") {
  CHECK(report(dilated(64, 8), {.Q = 1024, .K = 1024}).hint.find("permute by residue") != std::string::npos);
  CHECK(report(none(), {.Q = 256, .K = 256}).hint.find("keeps no pair") != std::string::npos);
  CHECK(report(full(), {.Q = 256, .K = 256}).hint.empty());
  CHECK(report(full(), {.Q = 0, .K = 256}).hint.empty());
}

TEST_CASE("a report of head sizes that can't be is refused, and FLOPs beyond 64 bits stay positive") {
  for (const index_t head_dim : {index_t(0), index_t(-1), index_t(1) << 21, index_t(1) << 62})
    CHECK_THROWS_WITH_AS(report(causal(), {.Q = 64, .K = 64}, head_dim), doctest::Contains("head_dim is"), error);
  const index_t tokens = index_t(1) << 31, tile = index_t(1) << 28;  // 2^62 pairs in 64 full tiles
  const mask_report r = report(full(), {.Q = tokens, .K = tokens, .tile_q = tile, .tile_k = tile}, 1024);
  CHECK(r.backward_flops == 10.0 * 1024 * 0x1p62);
  CHECK(to_text(r).find('-') == std::string::npos);
}

TEST_CASE("programs read as they are written") {
  const auto text = [](const any_mask& m) { return infix_text(m.program(), m.program().roots[0]); };
  CHECK(text(causal()) == "q - kv >= 0");
  CHECK(text(document(table({0, 1}))) == "t0[q] == t0[kv]");
  CHECK(text(any_mask((q + kv) * 2 % 6 == 0 || !(q < kv && h == 1))) .size() > 10);
  CHECK(text(any_mask(max(q, kv) < 7)) == "max(q, kv) < a0");
  CHECK(text(full()) == "true");
}

TEST_CASE("a report of more pairs, or bytes, than 62 bits hold is refused") {
  CHECK_THROWS_WITH_AS(report(full(), {.Q = index_t(1) << 40, .K = index_t(1) << 40, .tile_q = index_t(1) << 40, .tile_k = index_t(1) << 40}), doctest::Contains("more than 2^62; count a part"), error);
  CHECK_THROWS_WITH_AS(report(causal(), {.Q = 64, .K = 64, .tile_q = index_t(1) << 40, .tile_k = index_t(1) << 40}), doctest::Contains("smaller tiles"), error);
}
