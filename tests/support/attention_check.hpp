// tests/support/attention_check.hpp: one attention on the GPU, in any layout of its operands, against the oracle in double.
#pragma once
#include <optional>
#include <string>

#include <samite/mask/any_mask.hpp>
#include <samite/testing/oracle.hpp>

#include "gpu.hpp"

namespace samite_tests {

/// How Q, K and V lie in memory: [B,heads,rows,channels]; [B,rows,heads,channels]; columns of something wider, 8 columns from its edge;
/// or K and V in pages of 16 tokens that are read through a list.
enum class layout { heads_first, tokens_first, part_of_rows, paged };

struct attention_case {
  samite::testing::attention_extents e;
  samite::dtype type = samite::bf16;
  layout how = layout::heads_first;
  bool sink = false;       // a logit a head that takes part in the softmax; not checked beside gradients
  bool gradients = false;  // dQ, dK and dV too, of a loss that weighs out and lse
  std::optional<double> scale = std::nullopt;
};

/// Its sizes and kind, for INFO.
std::string text_of(const attention_case& c);

named_tensors inputs_of(const attention_case& c);

/// out and lse, and with gradients dQ, dK and dV of a loss that weighs out by d_out and lse by d_lse.
void build(samite::graph& g, const attention_case& c, const samite::any_mask& mask);

/// Runs the case with random inputs on the GPU and checks its results.
void check_attention(const attention_case& c, const samite::any_mask& mask);

}  // namespace samite_tests
