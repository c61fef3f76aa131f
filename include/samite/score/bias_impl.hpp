// samite/score/bias_impl.hpp: the bodies behind score/bias.hpp.
#pragma once
#include <bit>
#include <cmath>

#include <samite/score/bias.hpp>

namespace samite {

SAMITE_IMPL any_score alibi(index_t heads, scalar offset) {
  using namespace symbols;
  if (heads <= 0) raise("E-SCORE-HEADS", "alibi(", heads, "): there must be at least one head");
  const index_t power = index_t(std::bit_floor(std::uint64_t(heads)));
  const double step = -8 * std::log(2.0) / double(power);
  const auto steps_down = select(h < power, real(h + 1), real(2 * (h - power) + 1) * 0.5);
  return any_score(score - exp(steps_down * step) * abs(q + offset - kv), "alibi", heads);
}

SAMITE_IMPL any_score relative_bias(const value& bias, index_t max_distance) {
  using namespace symbols;
  if (max_distance < 0) raise("E-SCORE-DISTANCE", "relative_bias: the largest distance is ", max_distance, ", but must be 0 or more");
  if (bias.rank() == 2 && bias.extent(1).is_constant() && bias.extent(1).constant() != 2 * max_distance + 1)
    raise("E-SCORE-DISTANCE", "relative_bias: the bias has shape ", to_text(bias.dims()), ", but the distances -", max_distance, " to ", max_distance, " need 2 * ", max_distance, " + 1 = ",
          2 * max_distance + 1, " entries a head");
  return any_score(score + table(bias)(h, clamp(kv - q, -max_distance, max_distance) + max_distance), "relative_bias");
}

SAMITE_IMPL node_id detail::t5_bucket::lower(program& p) const {
  using namespace symbols;
  const index_t side = options.bidirectional ? buckets / 2 : buckets, exact = side / 2;
  if (exact < 1 || options.max_distance <= exact)
    raise("E-SCORE-BUCKETS", "t5_bias: ", buckets, " buckets up to distance ", options.max_distance, " leave ", exact,
          " exact ones a side; there must be at least ", options.bidirectional ? 4 : 2, " buckets and a max_distance above the exact ones");
  const node_id one = build_constant(p, index_t(1)), zero = build_constant(p, index_t(0));
  const node_id away = (options.bidirectional ? build(p, op::abs, (kv - q).lower(p)) : max(q - kv, fixed(0)).lower(p));
  node_id bucket = build(p, op::min, away, build_constant(p, exact));
  for (index_t i = 1; i < side - exact; ++i) {
    const double edge = double(exact) * std::pow(double(options.max_distance) / double(exact), double(i) / double(side - exact));
    const node_id passed = build(p, op::less_equal, build_constant(p, index_t(std::ceil(edge * (1 - 1e-12)))), away);
    bucket = build(p, op::add, bucket, build(p, op::select, passed, one, zero));
  }
  if (!options.bidirectional) return bucket;
  const node_id behind = (q < kv).lower(p);
  return build(p, op::add, bucket, build(p, op::select, behind, build_constant(p, side), zero));
}

SAMITE_IMPL any_score t5_bias(const value& bias, t5_options options) {
  using namespace symbols;
  if (bias.rank() != 2 || !bias.extent(1).is_constant())
    raise("E-SCORE-RANK", "t5_bias: the bias has shape ", to_text(bias.dims()), "; expected [heads, buckets]");
  return any_score(score + table(bias)(h, detail::t5_bucket(bias.extent(1).constant(), options)), "t5_bias");
}

}  // namespace samite
