#include <doctest/doctest.h>

#include <samite/decode/speculative.hpp>

#include "support/drafters.hpp"
#include "support/raised.hpp"
#include "support/tiny_models.hpp"

using namespace samite_tests;

namespace {

using ids = std::vector<std::int32_t>;

decoder_config small_target() { return tiny_target({.hidden = 12, .intermediate = 20, .heads = 2, .kv_heads = 1, .head_dim = 6}, 40, 5); }

weight_map target_weights(const decoder_config& c) { return random_weights(c, 8, 0.4); }

}  // namespace

TEST_CASE("a target's session refuses what its cache can't hold and goes on afterwards") {
  const decoder_config c = small_target();
  target_session session(c, target_weights(c), device::cpu(), f32, {.capacity = 8, .chunk = 3});
  CHECK(unlike("E-DECODE-CAPACITY", {"9 tokens after 0", "8"}, [&] { session.read(ids(9, 1)); }) == "");
  CHECK(unlike("E-DECODE-CAPACITY", {"0 tokens"}, [&] { session.read(ids{}); }) == "");
  session.read(ids{1, 2, 3, 4, 5});
  CHECK(unlike("E-DECODE-CROP", {"crop(6)", "5 tokens"}, [&] { session.crop(6); }) == "");
  CHECK(unlike("E-DECODE-CROP", {"crop(-1)"}, [&] { session.crop(-1); }) == "");
  CHECK(unlike("E-DECODE-CAPACITY", {"4 tokens after 5"}, [&] { session.read(ids(4, 1)); }) == "");
  CHECK(unlike("E-RUN-INDEX", {"40"}, [&] { session.read(ids{40}); }) == "");
  CHECK(session.length() == 5);
  // After a crop the sequence goes on as if the rest had never been read.
  session.crop(2);
  const auto again = to_doubles(session.read(ids{7, 8}).logits);
  target_session fresh(c, target_weights(c), device::cpu(), f32, {.capacity = 8});
  const auto whole = to_doubles(fresh.read(ids{1, 2, 7, 8}).logits);
  CHECK(largest_difference(again, {whole.begin() + 80, whole.end()}) < 1e-5);
}

TEST_CASE("a drafter's session refuses blocks and features that don't fit it") {
  const drafter_config c = tiny_drafter({draft_layer{}});
  drafter_session draft(c, tiny_weights(c, f32), device::cpu(), f32, {.capacity = 8});
  CHECK(unlike("E-DECODE-BLOCK", {"5 slots", "1 to 4"}, [&] { draft.propose(tensor(f32, {1, 24}), ids(5, 1)); }) == "");
  CHECK(unlike("E-DECODE-BLOCK", {"0 slots"}, [&] { draft.propose(tensor(f32, {1, 24}), ids{}); }) == "");
  CHECK(unlike("E-DECODE-BLOCK", {"f32 [1,12]", "[m,24]"}, [&] { draft.propose(tensor(f32, {1, 12}), ids{1, 39}); }) == "");
  CHECK(unlike("E-DECODE-BLOCK", {"bf16"}, [&] { draft.propose(tensor(bf16, {1, 24}), ids{1, 39}); }) == "");
  CHECK(unlike("E-DECODE-CAPACITY", {"9 context rows after 0"}, [&] { draft.propose(tensor(f32, {9, 24}), ids{1, 39}); }) == "");
  CHECK(draft.length() == 0);
  CHECK(draft.propose(tensor(f32, {8, 24}), ids{1, 39, 39, 39}).dims() == extents{4, 40});
}

TEST_CASE("decoding refuses prompts and drafters that don't fit the target") {
  const decoder_config c = small_target();
  target_session session(c, target_weights(c), device::cpu(), f32, {.capacity = 32, .taps = {1, 3}});
  CHECK(unlike("E-DECODE-PROMPT", {"empty"}, [&] { generate_plain(session, ids{}); }) == "");
  CHECK(unlike("E-DECODE-PROMPT", {"-1 new tokens"}, [&] { generate_plain(session, ids{1}, {.new_tokens = -1}); }) == "");
  for (const double t : {double(NAN), double(INFINITY)}) CHECK(unlike("E-DECODE-PROMPT", {"temperature"}, [&] { generate_plain(session, ids{1}, {.new_tokens = 1, .temperature = t}); }) == "");
  CHECK(unlike("E-DECODE-PROMPT", {"temperature -0.5"}, [&] { generate_plain(session, ids{1}, {.new_tokens = 1, .temperature = -0.5}); }) == "");
  generate_plain(session, ids{1, 2}, {.new_tokens = 2});
  CHECK(unlike("E-DECODE-PROMPT", {"crop(0)"}, [&] { generate_plain(session, ids{1}); }) == "");
  session.crop(0);
  drafter_config other = tiny_drafter({draft_layer{}});
  other.vocab_size = 48;
  drafter_session draft(other, tiny_weights(other, f32), device::cpu(), f32);
  CHECK(unlike("E-MODEL-CONFIG", {"48 tokens", "40"}, [&] { generate_speculative(session, draft, ids{1}); }) == "");
}

TEST_CASE("a drafter whose features come from other layers is refused before anything is drafted") {
  const decoder_config c = small_target();
  const drafter_config d = tiny_drafter({draft_layer{}});  // taps 1 and 3
  drafter_session draft(d, tiny_weights(d, f32), device::cpu(), f32);
  target_session none(c, target_weights(c), device::cpu(), f32, {.capacity = 32});
  CHECK(unlike("E-MODEL-CONFIG", {"layers [1,3]", "returns []", "target_layer_ids"}, [&] { generate_speculative(none, draft, ids{1, 2}); }) == "");
  // Features of as many other layers, or of the right ones in another order, have the right width: nothing else would notice.
  for (const std::vector<index_t>& taps : {std::vector<index_t>{2, 4}, std::vector<index_t>{3, 1}}) {
    target_session other(c, target_weights(c), device::cpu(), f32, {.capacity = 32, .taps = taps});
    CHECK(unlike("E-MODEL-CONFIG", {"layers [1,3]"}, [&] { generate_speculative(other, draft, ids{1, 2}); }) == "");
    CHECK(other.length() == 0);
  }
  target_session fitting(c, target_weights(c), device::cpu(), f32, {.capacity = 32, .taps = {1, 3}});
  CHECK(generate_speculative(fitting, draft, ids{1, 2}, {.new_tokens = 3}).new_tokens() == 3);
}

TEST_CASE("sessions without room for a token are refused when they are made") {
  const decoder_config c = small_target();
  const drafter_config d = tiny_drafter({draft_layer{}});
  for (const auto& [capacity, chunk] : {std::pair<index_t, index_t>{0, 4}, {8, 0}, {-3, 4}, {8, -1}}) {
    const index_t room = capacity, part = chunk;  // lambdas of clang 14 capture no structured binding
    CHECK(unlike("E-DECODE-CAPACITY", {"at least 1"}, [&] { target_session(c, target_weights(c), device::cpu(), f32, {.capacity = room, .chunk = part}); }) == "");
    CHECK(unlike("E-DECODE-CAPACITY", {"at least 1"}, [&] { drafter_session(d, tiny_weights(d, f32), device::cpu(), f32, {.capacity = room, .chunk = part}); }) == "");
  }
}

TEST_CASE("decoding no token or one needs no drafting, and a stop at the first token is obeyed") {
  const decoder_config c = small_target();
  const drafter_config d = tiny_drafter({draft_layer{}});
  drafter_session draft(d, tiny_weights(d, f32), device::cpu(), f32, {.capacity = 32});
  target_session session(c, target_weights(c), device::cpu(), f32, {.capacity = 32, .taps = {1, 3}});
  CHECK(generate_plain(session, ids{1, 2}, {.new_tokens = 0}).ids == ids{1, 2});
  session.crop(0);
  CHECK(generate_speculative(session, draft, ids{1, 2}, {.new_tokens = 0}).ids == ids{1, 2});
  session.crop(0);
  const generation one = generate_speculative(session, draft, ids{1, 2}, {.new_tokens = 1});
  CHECK(one.new_tokens() == 1);
  CHECK(one.produced.empty());
  CHECK(one.target_forwards == 0);
  session.crop(0);
  const generation stopped = generate_speculative(session, draft, ids{1, 2}, {.new_tokens = 9, .stop_id = one.ids.back()});
  CHECK(stopped.ids == one.ids);
  session.crop(0);
  CHECK(generate_plain(session, ids{1, 2}, {.new_tokens = 9, .stop_id = one.ids.back()}).ids == one.ids);
}

TEST_CASE("sessions are refused a cache or calls of no tokens, before anything is made from the numbers") {
  const decoder_config c = small_target();
  const drafter_config d = tiny_drafter({draft_layer{}});
  for (const index_t none : {index_t(0), index_t(-3)}) {
    const std::string found = std::to_string(none);
    CHECK(unlike("E-DECODE-CAPACITY", {"target_session", found.c_str()}, [&] { target_session(c, target_weights(c), device::cpu(), f32, {.capacity = none}); }) == "");
    CHECK(unlike("E-DECODE-CAPACITY", {"target_session", found.c_str()}, [&] { target_session(c, target_weights(c), device::cpu(), f32, {.capacity = 8, .chunk = none}); }) == "");
    CHECK(unlike("E-DECODE-CAPACITY", {"drafter_session", found.c_str()}, [&] { drafter_session(d, tiny_weights(d, f32), device::cpu(), f32, {.capacity = none}); }) == "");
    CHECK(unlike("E-DECODE-CAPACITY", {"drafter_session", found.c_str()}, [&] { drafter_session(d, tiny_weights(d, f32), device::cpu(), f32, {.capacity = 8, .chunk = none}); }) == "");
  }
}

TEST_CASE("a window shorter than the block is refused, since trainers differ in what it hides; one as long serves") {
  for (const bool causal : {false, true}) {
    const drafter_config narrow = tiny_drafter({draft_layer{.window = 3, .causal = causal}}), fits = tiny_drafter({draft_layer{.window = 4, .causal = causal}});
    CHECK(unlike("E-MODEL-CONFIG", {"window of 3", "block of 4"}, [&] { drafter_session(narrow, tiny_weights(fits, f32), device::cpu(), f32, {.capacity = 8}); }) == "");
    drafter_session(fits, tiny_weights(fits, f32), device::cpu(), f32, {.capacity = 8});
  }
}
