// samite/train/drafter_loss_impl.hpp: the drafter's training graph and its losses.
#pragma once
#include <cmath>

#include <samite/ir/autodiff.hpp>
#include <samite/nn/layers.hpp>
#include <samite/train/drafter_loss.hpp>

namespace samite {

SAMITE_IMPL value distillation(const value& logits, const value& teacher, divergence kind) {
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

SAMITE_IMPL dpace_parts dpace_weights(const value& token_ce, const value& valid, double alpha) {
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

SAMITE_IMPL drafter_step build_drafter_step(graph& g, const drafter_config& c, const std::vector<any_mask>& masks, const dim& S, index_t slots, dtype stored, dtype used,
                                            const drafter_loss_options& o) {
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
  const auto hits = [&](const value& wanted) { return let(select(equal(best, wanted), 1.0, 0.0 * valid), {.type = f32}); };
  step.right_text = hits(labels);
  if (o.target == draft_target::text) {
    step.token_ce = cross_entropy(rows, labels, "token_ce");
    step.right = step.right_text;
  } else {
    const value& teacher = step.teacher = linear(embedding(g.input("last_hidden", used, {S, c.target_hidden}), g.input("teacher_rows", i32, {slots}), "teacher_hidden"), head, "teacher_head");
    const value teacher_best = argmax(teacher, "teacher_argmax");
    step.token_ce = o.target == draft_target::teacher ? soft_cross_entropy(rows, teacher, "token_ce") : cross_entropy(rows, teacher_best, "token_ce");
    step.right = hits(teacher_best);
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
