// samite/decode/sampling.hpp: greedy choice, temperature and the exact acceptance rule.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <samite/core/random.hpp>

namespace samite {

/// Index of the largest logit, the first of equals.
std::int32_t most_likely(std::span<const float> logits);

/// Difference of the two largest logits: how far rounding may move them without changing the choice.
float top2_margin(std::span<const float> logits);

/// softmax(logits / temperature) in double. temperature > 0.
std::vector<double> distribution(std::span<const float> logits, double temperature);

/// A sample of unnormalised weights.
std::int32_t sample(std::span<const double> weights, counted_random& random);

/// Accepts or replaces one drafted token so that the result follows `p` exactly.
///
/// p  the target's distribution;  q  the one that `token` was drawn from
/// returns  true if the token stays; otherwise `token` is drawn from max(p - q, 0), or from p if that is zero everywhere
/// source   Leviathan et al. 2023, arXiv:2211.17192, section 2.3
bool accept(std::int32_t& token, std::span<const double> p, std::span<const double> q, counted_random& random);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/decode/sampling_impl.hpp>
#endif
