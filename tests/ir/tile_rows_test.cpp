#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include <samite/ir/tile_rows.hpp>
#include <samite/mask.hpp>

#include "../support/random_programs.hpp"

using namespace samite;
using namespace samite::symbols;

namespace {

constexpr index_t tile_q = 16, tile_k = 32;
constexpr int budget = 96;

index_box box_of(index_t b, index_t Q, index_t K, index_t i, index_t j) {
  return {interval::point(b), interval::point(0), {i * tile_q, std::min((i + 1) * tile_q, Q) - 1}, {j * tile_k, std::min((j + 1) * tile_k, K) - 1}};
}

// Tiles whose verdict along the row is not the judge's own, or that lie in no stretch although they are not empty.
int differences(const program& p, index_t Q, index_t K, index_t batches, bool& served) {
  box_judge judge(p), alone(p);
  tile_rows rows(judge, K, tile_k);
  int wrong = 0;
  for (index_t b = 0; b < batches; ++b) {
    const index_box whole{interval::point(b), interval::point(0), {0, Q - 1}, {0, K - 1}};
    served = rows.serve(whole);
    if (!served) return 0;
    for (index_t i = 0; i * tile_q < Q; ++i) {
      index_box row = whole;
      row.q = box_of(b, Q, K, i, 0).q;
      std::vector<verdict> found(std::size_t((K + tile_k - 1) / tile_k), verdict::empty);
      for (const tile_rows::stretch& s : rows.row(row, budget)) std::fill(found.begin() + s.first, found.begin() + s.end, s.found);
      for (std::size_t j = 0; j < found.size(); ++j) wrong += found[j] != alone.judge_finely(box_of(b, Q, K, i, index_t(j)), budget);
    }
  }
  return wrong;
}

std::vector<index_t> rising(counted_random& random, index_t count, index_t most) {
  std::vector<index_t> values;
  for (index_t i = 0; i < count; ++i) values.push_back(index_t(random.below(std::uint32_t(most))));
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

TEST_CASE("a row of tiles read at once says of each tile what the judge says of it alone") {
  const std::uint64_t seed = 41;
  MESSAGE("seed ", seed);
  for (std::uint32_t sample = 0; sample < 20; ++sample) {
    counted_random random(seed, 1, 0, sample);
    const index_t K = 150 + index_t(random.below(400)), Q = 150 + index_t(random.below(200)), W = 1 + index_t(random.below(120)), bs = 16;
    const auto docs = table(rising(random, std::max(K, Q), 6)), apart = table(rising(random, std::max(K, Q), 500));
    const auto lengths = table({K / 2, K}), starts = table(rising(random, Q, K));
    const index_t S = 160, N = (Q + bs - 1) / bs;
    dflash_mask_options o{.context_length = S, .block_size = bs, .anchors = table(rising(random, N, S), {1, N}), .documents = table(rising(random, S, 5), {1, S})};
    const any_mask drafted = dflash_mask(o);
    o.window = W;
    const any_mask masks[] = {causal(), causal_bottom_right(K - Q), window(W), window(W, W / 2), prefix(W), sink_window(4, W), document(docs), document(apart), document_causal(docs) && window(W),
                              block_causal(24), chunked_causal(50), length(lengths[b]), kv >= starts[q] && kv < starts[q] + W, !(kv < W) || q < 20, full(), none(), drafted, dflash_mask(o),
                              causal() && docs[q] != 3, kv / 8 - q / 8 <= 3 && kv / 8 - q / 8 >= -5};
    for (std::size_t m = 0; m < std::size(masks); ++m) {
      bool served = false;
      const index_t keys = m == 16 || m == 17 ? S + N * bs : K, queries = m == 16 || m == 17 ? N * bs : Q;
      CAPTURE(sample);
      CAPTURE(m);
      CHECK(differences(masks[m].program(), queries, keys, 2, served) == 0);
      CHECK(served);
    }
  }
}

TEST_CASE("what does not rise with the key is not read by rows") {
  bool served = true;
  for (const any_mask& mask : {any_mask(kv % 7 < 3), any_mask(table(std::vector<index_t>{5, 5, 1, 1, 2, 2})[kv / 100] == 1), any_mask(q * kv < 5000)}) {
    differences(mask.program(), 300, 500, 1, served);
    CHECK_FALSE(served);
  }
}

TEST_CASE("random predicates read by rows: each tile as the judge says") {
  const std::uint64_t seed = 43;
  MESSAGE("seed ", seed);
  int by_rows = 0;
  for (std::uint32_t sample = 0; sample < 1500; ++sample) {
    samite_tests::random_programs random(seed, sample);
    const program p = random.predicate(1 + int(random.below(4)));
    bool served = false;
    REQUIRE(differences(p, 40, 130, 2, served) == 0);
    by_rows += served;
  }
  CHECK(by_rows > 300);
}
