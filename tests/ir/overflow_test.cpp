#include <doctest/doctest.h>

#include <samite/ir/canonical.hpp>
#include <samite/ir/overflow.hpp>
#include <samite/ir/tile_bits.hpp>

#include "support/large_programs.hpp"

using namespace samite;
using samite_tests::exact_value;
using samite_tests::large_program;
using samite_tests::large_programs;

namespace {

/// The first reading of the predicate that differs from 128 bits somewhere in the box; empty if none does.
std::string unlike_exact(const large_program& both, const index_box& box) {
  const program kernel = canonical(both.built);
  box_judge judge(kernel);
  evaluator point(kernel);
  tile_bits bits(kernel);
  row_evaluator rows(kernel);
  std::uint64_t words[8];
  bits.evaluate(box, words);
  bool has_kept = false, has_hidden = false;
  for (index_t q = box.q.low; q <= box.q.high; ++q) {
    std::uint8_t keep[8];
    rows.row(0, 0, q, box.kv.low, box.kv.high + 1, keep);
    for (index_t kv = box.kv.low; kv <= box.kv.high; ++kv) {
      const auto exact = exact_value(both.plain, {0, 0, q, kv});
      if (!exact) return "";
      const bool truth = *exact != 0;
      (truth ? has_kept : has_hidden) = true;
      if (exact_value(kernel, {0, 0, q, kv}) != exact) return "kernel";
      if ((point(0, 0, q, kv) != 0) != truth) return "evaluator";
      if ((keep[kv - box.kv.low] != 0) != truth) return "row";
      if ((words[q - box.q.low] >> (kv - box.kv.low) & 1) != std::uint64_t(truth)) return "bits";
      if (judge.judge({{}, {}, interval::point(q), interval::point(kv)}) != (truth ? verdict::full : verdict::empty)) return "judge";
    }
  }
  const verdict found = judge.judge_finely(box, 1000), expected = has_kept && has_hidden ? verdict::undecided : has_kept ? verdict::full : verdict::empty;
  return found == expected ? "" : "judge_finely";
}

}  // namespace

TEST_CASE("numbers near 2^53 to 2^63: every reading is as in 128 bits, or the mask is refused; 8000 random predicates") {
  MESSAGE("seed 99");
  int accepted = 0, refused = 0;
  for (std::uint32_t sample = 0; sample < 8000; ++sample) {
    large_programs random(99, sample);
    const large_program both = random.predicate(1 + int(random.below(3)));
    const index_t q = random.below(4), kv = random.below(4);
    const index_box box{{}, {}, {q, q + random.below(6)}, {kv, kv + random.below(6)}};
    try {
      box_judge(canonical(both.built)).check(box);
    } catch (const error&) {
      ++refused;
      continue;
    }
    ++accepted;
    CAPTURE(sample);
    REQUIRE(unlike_exact(both, box) == "");
  }
  CHECK(accepted > 6000);
  CHECK(refused > 300);
}

TEST_CASE("a number on the way that 64 bits don't hold is found, wherever it arises") {
  const auto stays = [](auto make, index_t most) {
    program p;
    make(p);
    return detail::stays_within_64_bits(p.nodes(), {}, index_box::whole(1, 1, most + 1, 1));
  };
  const index_t half = index_t(1) << 62;
  const auto scaled = [&](program& p) { build(p, op::mul, build_symbol(p, symbol_id::q), build_constant(p, half)); };
  CHECK(stays(scaled, 1));
  CHECK_FALSE(stays(scaled, 2));
  const auto shifted = [&](program& p) { build(p, op::shift_left, build_symbol(p, symbol_id::q), build_constant(p, index_t(61))); };
  CHECK(stays(shifted, 3));
  CHECK_FALSE(stays(shifted, 4));
  const auto divided = [&](program& p) { build(p, op::mod, build(p, op::add, build_symbol(p, symbol_id::q), build_constant(p, half - 1 + half)), build_constant(p, index_t(7))); };
  CHECK(stays(divided, 0));
  CHECK_FALSE(stays(divided, 1));
  const auto negated = [&](program& p) { build(p, op::neg, build(p, op::min, build_symbol(p, symbol_id::q), build_constant(p, -half - half))); };
  CHECK_FALSE(stays(negated, 0));
}
