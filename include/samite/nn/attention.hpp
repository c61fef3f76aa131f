// samite/nn/attention.hpp: scaled dot-product attention under any mask.
#pragma once
#include <optional>

#include <samite/ir/tensor_ops.hpp>
#include <samite/mask/any_mask.hpp>
#include <samite/score/any_score.hpp>

namespace samite {

struct attention_options {
  /// Which pairs (b, h, q, kv) are kept; all if unset.
  any_mask mask{};
  /// Multiplies the scores; 1 / sqrt(D) if unset.
  std::optional<double> scale{};
  /// What is made of scale * q.k before the mask and the softmax, e.g. softcap(30.0) or score + table(bias)(h, kv - q + 8).
  any_score score{};
  /// A learned logit for each head [H] that takes part in the softmax as a key without a value.
  value sink{};
  std::string label{};
};

/// out is what most callers want; lse is the natural log of the softmax's denominator.
struct attention_result {
  value out, lse;
  operator value() const { return out; }
};

/// softmax(score(scale * Q K^T) where mask) V.
///
/// Q        [B,H,Q,D];  K [B,G,K,D];  V [B,G,K,Dv], H a multiple of G; f64, f32, bf16 or f16, any strides
/// returns  out [B,H,Q,Dv], stored token-major so that transposing it to [B,Q,H,Dv] is free; lse [B,H,Q,1] f32 (f64 for f64).
///          A row without a visible key has out 0, lse -inf (with a sink: the sink) and gradients 0
/// errors   E-ATTN-RANK, E-ATTN-HEADS, E-ATTN-SHAPE, E-ATTN-SCALE, E-ATTN-SINK, E-DTYPE-OPERANDS; at the run E-SCORE-RANGE
/// cost     proportional to the tiles that the mask keeps
/// source   Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1; grouped heads: Ainslie et al. 2023, arXiv:2305.13245
attention_result attention(const value& Q, const value& K, const value& V, attention_options options = {});
/// A sentence for a mask or a score in the place of the options.
template <class E>
  requires(predicate_expr<E> || score_expr<E> || std::same_as<E, any_score> || detail::score_condition<E>)
attention_result attention(const value& Q, const value& K, const value& V, const E&) {
  static_assert(detail::never<E>, "attention(Q, K, V, mask): options go by name: attention(Q, K, V, {.mask = ..., .score = ...}). [E-MASK-OPERAND]");
  return attention(Q, K, V);
}

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/nn/attention_impl.hpp>
#endif
