#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/jit/compiler.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/testing/compare.hpp>

#include "support/gpu.hpp"
#include "support/masks.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite_tests;
using testing::difference;
using testing::tolerance_of;

namespace {

const std::vector<std::string> results{"out", "lse", "dQ", "dK", "dV"};

struct sizes {
  index_t B = 1, H = 4, key_heads = 2, Q = 0, K = 0, D = 32;
};

/// One attention, forward and backward, as two executors that live through changes of the mask's tables and numbers.
class both_devices {
 public:
  both_devices(dtype type, const sizes& s, const any_mask& mask) : type_(type), sizes_(s), mask_(mask) {
    const value Q = graph_.input("Q", type, {s.B, s.H, s.Q, s.D}), K = graph_.input("K", type, {s.B, s.key_heads, s.K, s.D}), V = graph_.input("V", type, {s.B, s.key_heads, s.K, s.D});
    const value d_out = graph_.input("d_out", f32, {s.B, s.H, s.Q, s.D}), d_lse = graph_.input("d_lse", f32, {s.B, s.H, s.Q, index_t(1)});
    const attention_result a = attention(Q, K, V, {.mask = mask});
    graph_.output("out", contiguous(a.out)), graph_.output("lse", a.lse);
    const auto gradients = gradient(let(total(a.out * d_out) + total(a.lse * d_lse)), {Q, K, V});
    graph_.output("dQ", contiguous(gradients[0])), graph_.output("dK", contiguous(gradients[1])), graph_.output("dV", contiguous(gradients[2]));
    cpu_.emplace(make_plan(graph_, device::cpu())), gpu_.emplace(make_plan(graph_, device::cuda()));
    inputs_ = {{"Q", random_tensor(type, {s.B, s.H, s.Q, s.D}, 11)},
               {"K", random_tensor(type, {s.B, s.key_heads, s.K, s.D}, 12)},
               {"V", random_tensor(type, {s.B, s.key_heads, s.K, s.D}, 13)},
               {"d_out", random_tensor(f32, {s.B, s.H, s.Q, s.D}, 14)},
               {"d_lse", random_tensor(f32, {s.B, s.H, s.Q, 1}, 15)}};
    for (const auto& [name, t] : inputs_) cpu_->bind(name, t), gpu_->bind(name, t);
  }

  /// Runs a step on both and checks every result of the GPU against the CPU's, and rows that see nothing for exact zeros.
  void check(const char* when) {
    INFO(name_of(type_), ", mask ", mask_.label(), ", ", when);
    cpu_->step(), gpu_->step();
    const bool half = type_ == bf16 || type_ == f16;
    for (const std::string& name : results) {
      CAPTURE(name);
      const std::vector<double> expected = numbers(cpu_->output(name)), found = numbers(gpu_->output(name));
      const bool is_lse = name == "lse";
      const tolerance_choice allowed = tolerance_of(is_lse ? f32 : type_, is_lse ? sizes_.K + sizes_.D : half ? 4 : sizes_.K + sizes_.Q + sizes_.D, magnitude_of(expected));
      CHECK(difference(found, expected, allowed) == "");
    }
    check_hidden();
  }

  std::vector<double> result(const std::string& name) { return numbers(gpu_->output(name)); }

 private:
  using tolerance_choice = testing::tolerance;

  bool keeps(index_t b, index_t h, index_t q, index_t kv) const { return naive_value(mask_.program(), mask_.program().roots[0], {b, h, q, kv}) != 0; }

  // The mask is asked pair by pair, so that the two backends can't agree on a wrong reading of it.
  void check_hidden() {
    const std::vector<double> out = result("out"), lse = result("lse"), dQ = result("dQ"), dK = result("dK"), dV = result("dV");
    std::size_t wrong = 0;
    for (index_t b = 0; b < sizes_.B; ++b) {
      for (index_t q = 0; q < sizes_.Q; ++q) {
        bool sees = false;
        for (index_t kv = 0; kv < sizes_.K && !sees; ++kv) sees = keeps(b, 0, q, kv);
        for (index_t h = 0; h < sizes_.H; ++h) {
          const std::size_t row = std::size_t((b * sizes_.H + h) * sizes_.Q + q);
          wrong += sees ? !std::isfinite(lse[row]) : lse[row] != -std::numeric_limits<double>::infinity();
          for (std::size_t d = 0; !sees && d < std::size_t(sizes_.D); ++d) wrong += out[row * std::size_t(sizes_.D) + d] != 0 || dQ[row * std::size_t(sizes_.D) + d] != 0;
        }
      }
      for (index_t kv = 0; kv < sizes_.K; ++kv) {
        bool seen = false;
        for (index_t q = 0; q < sizes_.Q && !seen; ++q) seen = keeps(b, 0, q, kv);
        for (index_t h = 0; h < sizes_.key_heads && !seen; ++h)
          for (std::size_t d = 0, at = std::size_t(((b * sizes_.key_heads + h) * sizes_.K + kv) * sizes_.D); d < std::size_t(sizes_.D); ++d) wrong += dK[at + d] != 0 || dV[at + d] != 0;
      }
    }
    CHECK(wrong == 0);
  }

  dtype type_;
  sizes sizes_;
  any_mask mask_;
  graph graph_;
  named_tensors inputs_;
  std::optional<executor> cpu_, gpu_;
};

/// Two rows of packed context and nine blocks, one slot of each row padded.
struct dflash_case {
  static constexpr index_t S = 83, N = 9, block = 4;
  table_ref anchors = table(std::vector<index_t>{0, 3, 17, 18, 30, 41, 60, 82, 5, /**/ 1, 2, 9, 27, 33, 44, 45, 71, 80}, {2, N});
  table_ref keep = table(std::vector<index_t>{1, 1, 1, 1, 1, 1, 1, 1, 0, /**/ 1, 0, 1, 1, 1, 1, 1, 1, 1}, {2, N});
  table_ref documents = table(ids(25), {2, S});
  scalar context = S, width = 13;

  static std::vector<index_t> ids(index_t length) {
    std::vector<index_t> out;
    for (index_t b = 0; b < 2; ++b)
      for (index_t i = 0; i < S; ++i) out.push_back(b == 1 && i >= S - 3 ? -1 : i / (length + 6 * b));
    return out;
  }
  dflash_mask_options options() const { return {.context_length = context, .block_size = block, .anchors = anchors, .keep = keep, .documents = documents}; }
  sizes extents_of() const { return {.B = 2, .Q = N * block, .K = S + N * block}; }
};

}  // namespace

TEST_CASE("gpu masks: the DFlash training mask, full and sliding, in every variant, agrees with the CPU") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const dflash_case c;
  for (dtype type : {bf16, f32})
    for (bool sliding : {false, true})
      for (bool causal_blocks : {false, true})
        for (padded_slots padded : {padded_slots::own_block, padded_slots::hidden}) {
          dflash_mask_options o = c.options();
          if (sliding) o.window = c.width;
          o.causal = causal_blocks, o.padded = padded;
          both_devices(type, c.extents_of(), dflash_mask(o)).check(sliding ? "sliding" : "full");
        }
  dflash_mask_options fixed_window = c.options();
  fixed_window.window = c.width, fixed_window.rule = window_rule::fixed_at_anchor;
  both_devices(bf16, c.extents_of(), dflash_mask(fixed_window)).check("window fixed at the anchor");
  dflash_mask_options plain = c.options();
  plain.keep.reset(), plain.documents.reset();
  both_devices(bf16, c.extents_of(), dflash_mask(plain)).check("without documents and padding");
}

TEST_CASE("gpu masks: new anchors, padding, documents, lengths and windows reach a live DFlash step without a new kernel") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (dtype type : {bf16, f32}) {
    dflash_case c;
    dflash_mask_options o = c.options();
    o.window = c.width, o.padded = padded_slots::hidden;
    both_devices run(type, c.extents_of(), dflash_mask(o));
    run.check("first");
    const auto compiles = kernel_cache::instance().counters().compiles;
    const std::vector<double> first = run.result("dK");
    c.anchors.update(std::vector<index_t>{2, 2, 4, 8, 16, 32, 64, 65, 66, /**/ 0, 1, 2, 3, 40, 50, 60, 70, 77}), run.check("other anchors");
    CHECK(run.result("dK") != first);
    c.keep.update(std::vector<index_t>{0, 0, 1, 1, 0, 1, 1, 1, 1, /**/ 1, 1, 1, 1, 1, 1, 0, 0, 0}), run.check("other padding");
    c.documents.update(dflash_case::ids(11)), run.check("other documents");
    c.width.set(1), run.check("a window of one token");
    c.width.set(1000), run.check("a window beyond the context");
    c.context.set(dflash_case::S - 3), run.check("a shorter context");
    c.keep.update(std::vector<index_t>(2 * dflash_case::N, 0)), run.check("every slot padded: no row sees anything");
    c.keep.update(std::vector<index_t>{1, 1, 1, 1, 1, 1, 1, 1, 0, /**/ 1, 0, 1, 1, 1, 1, 1, 1, 1}), c.context.set(dflash_case::S), c.width.set(13), c.documents.update(dflash_case::ids(25));
    c.anchors.update(std::vector<index_t>{0, 3, 17, 18, 30, 41, 60, 82, 5, /**/ 1, 2, 9, 27, 33, 44, 45, 71, 80}), run.check("everything as at first");
    CHECK(run.result("dK") == first);
    CHECK(kernel_cache::instance().counters().compiles == compiles);
  }
}

TEST_CASE("gpu masks: token trees behind a prefix agree with the CPU, for other trees and prefixes too") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (dtype type : {bf16, f32}) {
    const std::vector<index_t> bushy{-1, 0, 1, 1, 0, 4, 5, 5, 4, 0, 9, 10}, chain{-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    // The table covers every key, so that the prefix may shrink; keys behind the nodes end at 0 and are seen by nobody.
    const auto ends_of = [](const std::vector<index_t>& parents) {
      std::vector<index_t> all = subtree_ends(parents);
      all.resize(82, 0);
      return all;
    };
    scalar before = 70;
    table_ref ends = table(ends_of(bushy));
    both_devices run(type, {.Q = 12, .K = 82}, any_mask(tree(before, ends), "tree"));
    run.check("a bushy tree");
    const std::vector<double> first = run.result("out");
    ends.update(ends_of(chain)), run.check("a chain");
    CHECK(run.result("out") != first);
    before.set(0), run.check("without a prefix");
    before.set(64), ends.update(ends_of(bushy)), run.check("a prefix that ends with a tile");
    before.set(70), run.check("as at first");
    CHECK(run.result("out") == first);
  }
}

TEST_CASE("gpu masks: block diffusion over a noised and a clean half agrees with the CPU, for other lengths too") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (dtype type : {bf16, f32})
    for (index_t block : {1, 5, 16}) {
      scalar length = 75;
      both_devices run(type, {.B = 2, .Q = 150, .K = 150}, block_diffusion(length, block));
      run.check("whole halves");
      length.set(64), run.check("a half that ends with a tile");
      length.set(1), run.check("a half of one token");
      length.set(75), run.check("as at first");
    }
}

TEST_CASE("gpu masks: rows without a visible key come and go between steps") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  using namespace symbols;
  for (dtype type : {bf16, f32}) {
    scalar from = 1000;
    table_ref shut = table(std::vector<index_t>(130, 0));
    both_devices run(type, {.B = 2, .Q = 130, .K = 97}, any_mask(kv >= from && shut[q] == 0 && kv <= q + fixed(64), "late keys"));
    run.check("no row sees a key");
    from.set(90), run.check("the last keys are seen");
    std::vector<index_t> every_third(130, 0);
    for (std::size_t i = 0; i < every_third.size(); i += 3) every_third[i] = 1;
    shut.update(every_third), run.check("every third row is shut");
    shut.update(std::vector<index_t>(130, 1)), run.check("every row is shut");
    from.set(0), shut.update(std::vector<index_t>(130, 0)), run.check("all rows see keys");
  }
}
