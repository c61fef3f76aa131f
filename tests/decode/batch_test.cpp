#include <doctest/doctest.h>

#include <samite/decode/batch.hpp>
#include <samite/decode/sampling.hpp>
#include <samite/decode/speculative.hpp>

#include "support/chi_square.hpp"
#include "support/raised.hpp"
#include "support/tiny_models.hpp"

using namespace samite;
using samite_tests::unlike;

namespace {

using ids = std::vector<std::int32_t>;

constexpr std::uint64_t seed = 31;

decoder_config small_target() { return samite_tests::tiny_target({.hidden = 12, .intermediate = 20, .heads = 2, .kv_heads = 1, .head_dim = 6}, 20, 2); }

weight_map tiny_weights() { return samite_tests::random_weights(small_target(), 8, 0.5); }

}  // namespace

TEST_CASE("sequences decoded side by side are those decoded one by one, also when the decoder is used again") {
  const decoder_config c = small_target();
  batch_decoder batch(c, tiny_weights(), device::cpu(), f32, 3, 24);
  target_session single(c, tiny_weights(), device::cpu(), f32, {.capacity = 24});
  for (const std::vector<ids>& prompts : {std::vector<ids>{{1, 2, 3}, {4, 4, 9}, {0, 19, 7}}, std::vector<ids>{{5}, {6}, {7}}}) {
    const std::vector<ids> all = batch.generate(prompts, {.new_tokens = 16});
    for (std::size_t b = 0; b < 3; ++b) {
      CAPTURE(b);
      single.crop(0);
      CHECK(all[b] == generate_plain(single, prompts[b], {.new_tokens = 16}).ids);
    }
  }
  CHECK(batch.generate({{1}, {2}, {3}}, {.new_tokens = 0}) == std::vector<ids>{{1}, {2}, {3}});
}

TEST_CASE("each sequence has its own temperature and random numbers, which follow from seed and epoch alone") {
  const decoder_config c = small_target();
  batch_decoder batch(c, tiny_weights(), device::cpu(), f32, 4, 24);
  const std::vector<ids> prompts(4, ids{1, 2, 3});
  const std::vector<double> temperatures = {0, 1, 1, 0};
  const auto all = batch.generate(prompts, {.new_tokens = 20, .temperatures = temperatures, .seed = seed});
  CHECK(all[0] == all[3]);
  CHECK(all[0] == batch.generate(prompts, {.new_tokens = 20})[0]);
  CHECK(all[1] != all[2]);
  CHECK(all == batch.generate(prompts, {.new_tokens = 20, .temperatures = temperatures, .seed = seed}));
  CHECK(all[1] != batch.generate(prompts, {.new_tokens = 20, .temperatures = temperatures, .seed = seed, .epoch = 1})[1]);
  CHECK(all[1] != batch.generate(prompts, {.new_tokens = 20, .temperatures = temperatures, .seed = seed + 1})[1]);
}

TEST_CASE("sampled sequences follow the target's distribution") {
  MESSAGE("seed " << seed);
  const decoder_config c = small_target();
  constexpr index_t B = 500;
  batch_decoder batch(c, tiny_weights(), device::cpu(), f32, B, 8);
  target_session single(c, tiny_weights(), device::cpu(), f32, {.capacity = 8});
  const target_output out = single.read(ids{1, 2});
  const std::vector<double> first = distribution(detail::row_of(out.logits, 1), 0.7);
  std::vector<double> counts(20, 0.0);
  for (std::uint32_t epoch = 0; epoch < 8; ++epoch)
    for (const ids& one : batch.generate(std::vector<ids>(B, ids{1, 2}), {.new_tokens = 1, .temperatures = std::vector<double>(B, 0.7), .seed = seed, .epoch = epoch})) ++counts[std::size_t(one[2])];
  CHECK(samite_tests::chi_square_excess(counts, first) < 1);
}

TEST_CASE("a batch decoder refuses prompts, temperatures and lengths that don't fit it") {
  const decoder_config c = small_target();
  batch_decoder batch(c, tiny_weights(), device::cpu(), f32, 2, 8), none(c, tiny_weights(), device::cpu(), f32, 0, 8);
  CHECK(unlike("E-DECODE-PROMPT", {"1 prompts", "2"}, [&] { batch.generate({{1}}, {}); }) == "");
  CHECK(unlike("E-DECODE-PROMPT", {"0 prompts"}, [&] { none.generate({}, {}); }) == "");
  CHECK(unlike("E-DECODE-PROMPT", {"empty"}, [&] { batch.generate({{}, {}}, {}); }) == "");
  CHECK(unlike("E-DECODE-PROMPT", {"2 and 1 tokens"}, [&] { batch.generate({{1, 2}, {1}}, {.new_tokens = 2}); }) == "");
  CHECK(unlike("E-DECODE-CAPACITY", {"1 + 8"}, [&] { batch.generate({{1}, {1}}, {.new_tokens = 8}); }) == "");
  CHECK(unlike("E-DECODE-PROMPT", {"1 temperatures for 2"}, [&] { batch.generate({{1}, {1}}, {.new_tokens = 2, .temperatures = {1.0}}); }) == "");
  CHECK(unlike("E-DECODE-PROMPT", {"-1"}, [&] { batch.generate({{1}, {1}}, {.new_tokens = 2, .temperatures = {0.0, -1.0}}); }) == "");
  CHECK(unlike("E-DECODE-CAPACITY", {"batch_decoder", "capacity 0"}, [&] { batch_decoder(c, tiny_weights(), device::cpu(), f32, 2, 0); }) == "");
  CHECK(unlike("E-DECODE-PROMPT", {"-2 new tokens"}, [&] { batch.generate({{1}, {1}}, {.new_tokens = -2}); }) == "");
  CHECK(unlike("E-RUN-INDEX", {"20"}, [&] { batch.generate({{1}, {20}}, {.new_tokens = 2}); }) == "");
  CHECK(batch.generate({{1}, {2}}, {.new_tokens = 7}).size() == 2);
  decoder_config brief = c;
  brief.max_positions = 4;
  batch_decoder of_brief(brief, tiny_weights(), device::cpu(), f32, 2, 8);
  CHECK(unlike("E-MODEL-POSITIONS", {"batch_decoder", "5 tokens", "up to 4"}, [&] { of_brief.generate({{1}, {1}}, {.new_tokens = 4}); }) == "");
  CHECK(of_brief.generate({{1}, {2}}, {.new_tokens = 3}).size() == 2);
  target_session session(brief, tiny_weights(), device::cpu(), f32, {.capacity = 8});
  CHECK(unlike("E-MODEL-POSITIONS", {"decoding", "5 tokens", "up to 4"}, [&] { generate_plain(session, ids{1}, {.new_tokens = 4}); }) == "");
}
