// samite/score/bias.hpp: biases by position: ALiBi, relative tables, T5 buckets, whole bias tensors.
#pragma once
#include <samite/score/any_score.hpp>

namespace samite {

/// score - slope[h] * |q + offset - kv| with fixed slopes: 2^(-8 (h + 1) / heads) for a power of two; for other counts those
/// of the next lower power of two, followed by every second one of twice that power.
///
/// offset  keys - queries where the queries stand at the end of the keys (decoding), 0 where both start together
/// errors  E-SCORE-HEADS unless heads > 0
/// source  Press et al. 2022, "Train Short, Test Long", arXiv:2108.12409, section 3
any_score alibi(index_t heads, scalar offset = 0);

/// The same with slopes [heads] of the graph, which get a gradient.
inline auto alibi(const value& slopes, scalar offset = 0) {
  using namespace symbols;
  return score - table(slopes)[h] * abs(q + offset - kv);
}

template <std::floating_point T>
any_score alibi(T, const scalar& = 0) { return detail::refuse_score_count<T>(); }

/// score + bias[h, kv - q + D] with the distance clamped to -D..D.
///
/// bias    [heads, 2 D + 1]
/// errors  E-SCORE-DISTANCE unless max_distance >= 0, or if the bias has another width
/// source  Shaw et al. 2018, arXiv:1803.02155, section 3.2; as a bias on scores: Raffel et al. 2020, arXiv:1910.10683, section 2.1
any_score relative_bias(const value& bias, index_t max_distance);
template <std::floating_point T>
any_score relative_bias(const value&, T) { return detail::refuse_score_count<T>(); }

struct t5_options {
  /// From this distance on all keys share a bucket.
  index_t max_distance = 128;
  /// Half of the buckets for keys behind the query; without it those share the bucket of distance 0.
  bool bidirectional = true;
};

namespace detail {

// Bucket of a distance: exact up to `exact`, then as many thresholds as passed. Whole numbers only, so that the bucket does
// not depend on how a backend rounds logarithms.
struct t5_bucket : index_tag {
  index_t buckets;
  t5_options options;
  t5_bucket(index_t n, t5_options o) : buckets(n), options(o) {}
  node_id lower(program& p) const;
};

}  // namespace detail

/// score + bias[h, bucket(kv - q)] with T5's buckets: one a distance at first, then logarithmically wider ones.
///
/// bias    [heads, buckets]
/// errors  E-SCORE-BUCKETS if there are too few buckets, or max_distance does not exceed the exact ones
/// source  Raffel et al. 2020, arXiv:1910.10683, section 2.1
any_score t5_bias(const value& bias, t5_options options = {});

/// score + bias[b, h, q, kv]: a whole bias tensor, whose gradient is as large as itself.
///
/// bias    [B, heads, Q, K]; broadcast extents are written out by the caller, e.g. table(bias)(q, kv) for [Q, K]
inline auto full_bias(const value& bias) {
  using namespace symbols;
  return score + table(bias)(b, h, q, kv);
}

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/score/bias_impl.hpp>
#endif
