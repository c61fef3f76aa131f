// A thousand random cases (mask, sizes, dtype, strides, sinks) over 40 mask structures against the oracle in double, on at most 60 kernels: one of
// the heavy ones for a path, and what each mask needs there. One test a path, so that they can run beside one another.
#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include <samite/core/random.hpp>
#include <samite/jit/compiler.hpp>
#include <samite/mask.hpp>
#include <samite/mask/grid.hpp>
#include <samite/mask/shared.hpp>
#include <samite/mask/transform.hpp>
#include <samite/runtime/cuda_driver.hpp>

#include "support/attention_check.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite::symbols;
using namespace samite_tests;

namespace {

struct dice {
  counted_random random;
  index_t below(index_t n) { return index_t(random.below(std::uint32_t(n))); }
  index_t pick(std::initializer_list<index_t> from) { return *(from.begin() + below(index_t(from.size()))); }
};

/// Masks of every family, whose tables and numbers are drawn anew for each case: a new draw is never a new kernel.
struct mask_bank {
  static constexpr index_t tokens = 420, block = 8;  // rows and columns that the tables serve
  scalar shift = 0, width = 20, prefix_tokens = 30, rows = 5, columns = 9;
  table_ref ids = table(numbers_of(tokens)), starts = table(numbers_of(tokens)), marks = table(numbers_of(tokens)), padded = table(numbers_of(tokens)), spans = table(numbers_of(tokens));
  table_ref lengths = table(numbers_of(4)), left = table(numbers_of(4)), widths = table(numbers_of(16)), anchors = table(numbers_of(tokens / block + 1)), ends = table(tree_ends(tokens));
  table_ref by_batch = table(numbers_of(4 * tokens), {4, tokens}), blocks = table(numbers_of(27 * 27), {27, 27}), head_blocks = table(numbers_of(16 * 14 * 14), {16, 14, 14});
  std::vector<any_mask> masks;

  static std::vector<index_t> numbers_of(index_t n) { return std::vector<index_t>(std::size_t(n), 0); }
  static std::vector<index_t> tree_ends(index_t nodes) {
    std::vector<index_t> found;
    for (index_t i = 0; i < nodes; ++i) found.push_back(i % 7 == 0 ? std::min(nodes, i + 7) : i % 7 == 3 ? std::min(nodes, i + 2) : i + 1);
    return found;
  }

  mask_bank() {
    const dflash_mask_options drafts{.context_length = prefix_tokens, .block_size = block, .anchors = anchors};
    dflash_mask_options windowed = drafts;
    windowed.window = width, windowed.causal = true, windowed.documents = ids;
    masks = {any_mask(full()),
             any_mask(causal()),
             any_mask(causal_bottom_right(shift)),
             any_mask(window(width)),
             any_mask(dilated(40, 3)),
             any_mask(strided(7)),
             any_mask(neighborhood(tokens, 21)),
             any_mask(prefix(prefix_tokens)),
             any_mask(document(ids)),
             any_mask(document_causal(ids)),
             any_mask(document(padded, -1)),
             any_mask(left_padding(left)),
             any_mask(block_causal(24)),
             any_mask(chunked_causal(32)),
             any_mask(block_table(blocks, 16)),
             any_mask(block_diffusion(prefix_tokens, 10)),
             any_mask(dflash_mask(drafts)),
             any_mask(dflash_mask(windowed)),
             any_mask(neighborhood_2d({.height = 21, .width = 20, .window_height = 5, .window_width = 7})),
             any_mask(shared_question(prefix_tokens, ids)),
             any_mask(shared_prefix(ids, starts)),
             any_mask(global_window(marks, 12)),
             any_mask(image_spans(spans)),
             per_document(any_mask(causal() && window(15)), ids, starts),
             transposed(any_mask(window(width))),
             any_mask(minus(document(ids), window(4, 4))),
             any_mask(restricted(causal(), index_range{7, 300}, index_range{11, 250})),
             shifted(any_mask(causal()), rows, columns),
             any_mask(causal_by_position(starts, ids)),
             any_mask(kv <= q && q - kv < widths[h], "widths by head"),
             any_mask(kv % 50 < 3, "many short runs"),
             any_mask((q / 16 + kv / 16) % 2 == 0, "chessboard"),
             any_mask((max(q, kv) - min(q, kv)) % 3 != 1, "distances"),
             any_mask(select(q % 2 == 0, kv <= q, kv >= q), "both ways"),
             any_mask(by_batch(b, kv) != 0 || kv == 0, "pairs of a batch"),
             any_mask(head_blocks(h, q / 32, kv / 32) != 0, "blocks of a head"),
             // from here on those of decoding and of jagged batches
             any_mask(length(lengths)),
             any_mask(tree(prefix_tokens, ends)),
             any_mask(kv <= q + shift && kv < lengths[b], "lengths, from the end"),
             any_mask((q * 7 + kv * 3 + h) % 5 != 0 && q % 9 != 4, "scattered, with empty rows")};
  }

  void draw(dice& d, index_t B, index_t Q, index_t K) {
    const auto fill = [&](table_ref& t, index_t n, auto&& number) {
      std::vector<index_t> found;
      for (index_t i = 0; i < n; ++i) found.push_back(number(i));
      t.update(found);
    };
    const index_t mean = d.pick({1, 5, 40, 130, 500}), first = d.below(mean);
    shift.set(K - Q), width.set(1 + d.below(150)), prefix_tokens.set(std::max<index_t>(1, std::min(tokens - 1, K - d.below(40) - 10))), rows.set(d.below(40)), columns.set(d.below(40));
    fill(ids, tokens, [&](index_t i) { return (i + first) / mean; });
    fill(starts, tokens, [&](index_t i) { return std::max<index_t>(0, (i + first) / mean * mean - first); });
    fill(padded, tokens, [&](index_t i) { return i < K - 20 ? (i + first) / mean : -1; });
    fill(marks, tokens, [&](index_t) { return index_t(d.below(30) == 0); });
    fill(spans, tokens, [&](index_t i) { return i / 25 % 3 == 1 ? i / 25 : -1; });
    fill(lengths, 4, [&](index_t i) { return i == B - 1 ? K : d.below(K + 1); });
    fill(left, 4, [&](index_t) { return d.below(K + 1); });
    fill(widths, 16, [&](index_t) { return 1 + d.below(200); });
    const index_t step = 1 + d.below(12);
    fill(anchors, tokens / block + 1, [&](index_t i) { return i * step; });
    fill(by_batch, 4 * tokens, [&](index_t) { return index_t(d.below(3) != 0); });
    fill(blocks, 27 * 27, [&](index_t) { return index_t(d.below(3) == 0); });
    fill(head_blocks, 16 * 14 * 14, [&](index_t) { return index_t(d.below(3) == 0); });
  }
};

/// `cases` of the masks from first to last, with at most `kernels` compiled for them all.
void check_cases(std::uint64_t seed, std::size_t first, std::size_t last, int cases, int kernels, const std::function<attention_case(dice&)>& make) {
  CAPTURE(seed);
  dice d{counted_random(seed, 1)};
  mask_bank bank;
  REQUIRE(last <= bank.masks.size());
  const int before = kernel_cache::instance().counters().compiles;
  for (int i = 0; i < cases; ++i) {
    const any_mask& mask = bank.masks[first + std::size_t(i) % (last - first)];
    const attention_case c = make(d);
    bank.draw(d, c.e.batch, c.e.queries, c.e.keys);
    INFO("case ", i);
    check_attention(c, mask);
  }
  CHECK(kernel_cache::instance().counters().compiles - before <= kernels);
}

attention_case square(dice& d, dtype type, bool gradients) {
  const index_t group = d.pick({1, 1, 2, 4, 3});
  attention_case c{.e = {.batch = d.pick({1, 2, 3}), .heads = 2 * group, .key_heads = 2, .queries = d.pick({1, 2, 33, 63, 64, 65, 128, 129, 160}), .keys = d.pick({1, 5, 64, 127, 128, 129, 200, 250}),
                      .head_dim = d.pick({72, 96, 128}), .value_dim = d.pick({72, 120, 128})},
                .type = type, .how = layout(d.below(3)), .sink = !gradients && d.below(3) == 0, .gradients = gradients};
  return c;
}

}  // namespace

TEST_CASE("gpu attention: random cases over masks of every family agree with the oracle, first half") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  check_cases(2101, 0, 16, 320, 17, [](dice& d) { return square(d, bf16, false); });
}

TEST_CASE("gpu attention: random cases over masks of every family agree with the oracle, second half") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  check_cases(2102, 16, 31, 320, 16, [](dice& d) { return square(d, f16, false); });
}

TEST_CASE("gpu attention: random gradients over masks of every family agree with the oracle") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  check_cases(2103, 31, 34, 120, 14, [](dice& d) { return square(d, bf16, true); });
}

TEST_CASE("gpu attention: random cases of jagged batches, trees and pages agree with the oracle while decoding") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const set_variable always("SAMITE_ATTENTION", "decode");
  check_cases(2104, 36, 40, 120, 7, [](dice& d) {
    attention_case c = square(d, bf16, false);
    c.e.queries = d.pick({1, 1, 2, 7, 16}), c.e.heads = 2 * d.pick({1, 4, 8}), c.e.keys = d.pick({1, 64, 127, 300, 380}), c.e.head_dim = c.e.value_dim = 128, c.how = layout(d.below(4));
    return c;
  });
}

TEST_CASE("gpu attention: random cases and gradients agree with the oracle on the portable kernels") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const set_variable always("SAMITE_ATTENTION", "portable");
  check_cases(2105, 34, 36, 120, 6, [](dice& d) {
    attention_case c = square(d, f16, d.below(3) == 0);
    c.e.head_dim = c.e.value_dim = 64;
    return c;
  });
}
