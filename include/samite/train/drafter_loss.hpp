// samite/train/drafter_loss.hpp: the drafter's training graph: forward, loss under each trainer's rules, metrics.
#pragma once
#include <cmath>

#include <samite/ir/autodiff.hpp>
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
inline value distillation(const value& logits, const value& teacher, divergence kind) {
  const dtype type = logits.type() == dtype::f64 ? dtype::f64 : dtype::f32;
  const auto log_q = logits - log_sum_exp(logits);
  const auto log_p = stop_gradient(teacher - log_sum_exp(teacher));
  const auto q = exp(log_q);
  const auto p = exp(log_p);
  const auto finish = [&](const auto& e, const char* label) { return let(e, {.type = type, .label = label}); };
  const auto forward = [&] { return finish(sum(p * (log_p - log_q)), "forward_kl"); };
  const auto overlap = [&] { return finish(sum(min(p, q)), "acceptance"); };
  switch (kind) {
    case divergence::forward_kl: return forward();
    case divergence::reverse_kl: return finish(sum(q * (log_q - log_p)), "reverse_kl");
    case divergence::jensen_shannon: {
      // log m = log((p + q) / 2) from the logarithms: p and q may both be too small for their sum.
      const auto log_m = max(log_p, log_q) + log(1.0 + exp(-abs(log_p - log_q))) - std::log(2.0);
      return finish(sum(p * (log_p - log_m) + q * (log_q - log_m)) / 2, "jensen_shannon");
    }
    case divergence::total_variation: return finish(sum(abs(p - q)) / 2, "total_variation");
    case divergence::negative_log_acceptance: return finish(-log(max(overlap(), 1e-6)), "negative_log_acceptance");
    case divergence::kl_tv_hybrid: break;
  }
  const auto share = exp(-3.0 * stop_gradient(overlap()));
  return finish(share * forward() + (1.0 - share) * distillation(logits, teacher, divergence::total_variation), "kl_tv_hybrid");
}

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
inline dpace_parts dpace_weights(const value& token_ce, const value& valid, double alpha = 0.5) {
  graph& g = token_ce.owner();
  const index_t bs = token_ce.extent(-1).constant();
  // Cumulative sums along a block are products with a triangle of ones.
  std::vector<double> up_to(std::size_t(bs * bs), 0.0), from(std::size_t(bs * bs), 0.0);
  for (index_t i = 0; i < bs; ++i)
    for (index_t k = 0; k < bs; ++k) {
      up_to[std::size_t(i * bs + k)] = i <= k ? 1 : 0;
      from[std::size_t(i * bs + k)] = i >= k ? 1 : 0;
    }
  const dtype type = token_ce.type();
  const auto q = exp(-stop_gradient(token_ce));
  const value log_s = let(select(valid > 0.5, log(alpha + (1 - alpha) * q), 0.0), {.label = "dpace.log_s"});
  const value C = let(exp(matmul(log_s, g.constant(up_to, type, {bs, bs}))), {.label = "dpace.C"});
  const value suffix = matmul(let(C * valid), g.constant(from, type, {bs, bs}));
  return {let(suffix * valid, {.label = "dpace.w"}), let(C * valid), let(suffix / C * valid)};
}

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
  value right;        // [N * bs, 1] 1 where the proposal is the label
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
inline drafter_step build_drafter_step(graph& g, const drafter_config& c, const std::vector<any_mask>& masks, const dim& S, index_t slots, dtype stored, dtype used,
                                       const drafter_loss_options& o = {}) {
  drafter_step step;
  const drafter_weights w = declare_drafter(g, c, stored, used);
  step.parameters = g.parameters();
  const value embedding_table = g.parameter("target.embedding", used, {c.vocab_size, c.target_hidden});
  const value head = g.parameter("target.head", used, {c.vocab_size, c.target_hidden});
  const value features = g.input("features", used, {1, S, index_t(c.target_layer_ids.size()) * c.target_hidden});
  const value context_positions = g.input("context_positions", i32, {1, S});
  const value block_ids = g.input("block_ids", i32, {1, slots}), block_positions = g.input("block_positions", i32, {1, slots});
  const value labels = g.input("labels", i32, {slots, 1});
  const value weights = g.input("weights", f32, {slots, 1}), valid = g.input("valid", f32, {slots, 1});

  step.forward = drafter(fuse_features(features, w, c), context_positions, embedding(embedding_table, block_ids, "block_embed"), block_positions, w, c, {.masks = masks});
  step.logits = drafter_logits(step.forward.hidden, head, c);
  const value rows = reshape(step.logits, {slots, c.vocab_size});
  const value best = argmax(rows, "proposal");
  if (o.target == draft_target::text) {
    step.token_ce = cross_entropy(rows, labels, "token_ce");
    step.right = let(select(equal(best, labels), 1.0, 0.0 * valid), {.type = f32});
  } else {
    const value& teacher = step.teacher = linear(embedding(g.input("last_hidden", used, {S, c.target_hidden}), g.input("teacher_rows", i32, {slots}), "teacher_hidden"), head, "teacher_head");
    const value teacher_best = argmax(teacher, "teacher_argmax");
    step.token_ce = o.target == draft_target::teacher ? soft_cross_entropy(rows, teacher, "token_ce") : cross_entropy(rows, teacher_best, "token_ce");
    step.right = let(select(equal(best, teacher_best), 1.0, 0.0 * valid), {.type = f32});
  }
  value weight = weights;
  if (o.weighting == draft_weighting::dpace) {
    const shape by_block = {slots / c.block_size, c.block_size};
    weight = reshape(dpace_weights(reshape(step.token_ce, by_block), reshape(valid, by_block), o.dpace_alpha).weights, {slots, 1});
  }
  step.numerator = total(stop_gradient(weight) * step.token_ce, {.label = "loss_numerator"});
  step.denominator = total(weight, {.label = "loss_denominator"});
  return step;
}

}  // namespace samite
