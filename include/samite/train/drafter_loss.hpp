// samite/train/drafter_loss.hpp: the drafter's training graph: forward, loss under each trainer's rules, metrics.
#pragma once

#include <samite/mask/dflash.hpp>
#include <samite/model/drafter.hpp>
#include <samite/train/blocks.hpp>

namespace samite {

/// What a slot is trained towards.
enum class draft_target : std::uint8_t {
  text,            // the token of the text
  teacher_argmax,  // the target's most likely token
  teacher          // the target's whole distribution
};

/// How far a draft's distribution q is from the teacher's p.
enum class divergence : std::uint8_t {
  forward_kl,              // sum p log(p / q)
  reverse_kl,              // sum q log(q / p)
  jensen_shannon,          // (KL(p || m) + KL(q || m)) / 2, m = (p + q) / 2
  total_variation,         // sum |p - q| / 2 = 1 - sum min(p, q)
  negative_log_acceptance, // -log sum min(p, q), the sum at least 1e-6
  kl_tv_hybrid             // l * forward KL + (1 - l) * total variation, l = exp(-3 * sum min(p, q)), constant
};

/// Divergence of softmax(logits) from softmax(teacher), which is constant, by row.
///
/// logits, teacher [.., V]; returns [.., 1] fp32 (fp64 for f64 logits)
/// cost    one pass over the rows; no probabilities are stored
/// source  sum min(p, q) is the chance that a sampled proposal is accepted: Leviathan et al. 2023, arXiv:2211.17192, corollary 3.6
value distillation(const value& logits, const value& teacher, divergence kind);

/// How slots are weighted.
enum class draft_weighting : std::uint8_t {
  given,  // the weights of block_batch
  dpace   // from the draft's own confidence, by block
};

/// D-PACE weights [N, bs]: how much of the expected accepted length hangs on each slot. No gradient flows through them.
///
/// token_ce [N, bs] cross-entropy of each slot; valid [N, bs] 1 where the slot counts
/// source  arXiv:2605.18810: q = exp(-ce), s = alpha + (1 - alpha) q (1 where invalid), C_k = prod_{i<=k} s_i,
///         w_k = v_k sum_{j>=k} C_j v_j
struct dpace_parts {
  value weights, confidence, continuation;  // w; C; w / C (both times valid)
};
dpace_parts dpace_weights(const value& token_ce, const value& valid, double alpha = 0.5);

struct drafter_loss_options {
  draft_target target = draft_target::text;
  draft_weighting weighting = draft_weighting::given;
  double dpace_alpha = 0.5;
};

/// Values of a drafter's training step over one packed row of S tokens and N * bs block slots.
struct drafter_step {
  value numerator;    // [1] sum of weight * cross-entropy, fp32
  value denominator;  // [1] sum of the weights
  value token_ce;     // [N * bs, 1]
  value right;        // [N * bs, 1] 1 where the proposal is what it is trained towards: the label, or the teacher's most likely token
  value right_text;   // [N * bs, 1] 1 where the proposal is the text's token
  value logits;       // [1, N * bs, V]
  value teacher;      // [N * bs, V] the target's logits for each slot; none if the target is the text
  drafter_result forward;
  std::vector<value> parameters;  // trained ones
};

/// Builds the graph. Inputs: "features" [1,S,C*H_t] of dtype `used`, "context_positions" [1,S], "block_ids" and
/// "block_positions" [1,N*bs], "labels" [N*bs,1], all i32; "weights" and "valid" [N*bs,1] f32; with a teacher
/// "last_hidden" [S,H_t] (after the final norm) and "teacher_rows" [N*bs] i32. Frozen parameters "target.embedding" and
/// "target.head" [V,H] of dtype `used`.
///
/// masks   one a layer
/// stored  dtype of the trained parameters (fp32 masters);  used  dtype of activations
/// source  DFlash, arXiv:2602.06036, sections 3 and 4
drafter_step build_drafter_step(graph& g, const drafter_config& c, const std::vector<any_mask>& masks, const dim& S, index_t slots, dtype stored, dtype used,
                                const drafter_loss_options& o = {});

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/train/drafter_loss_impl.hpp>
#endif
