// samite/decode/sampling_impl.hpp: choices from logits.
#pragma once
#include <algorithm>
#include <cmath>

#include <samite/decode/sampling.hpp>

namespace samite {

SAMITE_IMPL std::int32_t most_likely(std::span<const float> logits) {
  return std::int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

SAMITE_IMPL float top2_margin(std::span<const float> logits) {
  float first = -INFINITY, second = -INFINITY;
  for (float x : logits)
    if (x > first) second = first, first = x;
    else if (x > second) second = x;
  return first - second;
}

SAMITE_IMPL std::vector<double> distribution(std::span<const float> logits, double temperature) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  double sum = 0;
  for (float x : logits) p.push_back(std::exp((double(x) - top) / temperature)), sum += p.back();
  for (double& x : p) x /= sum;
  return p;
}

SAMITE_IMPL std::int32_t sample(std::span<const double> weights, counted_random& random) {
  double total = 0;
  for (double w : weights) total += w;
  double left = random.uniform() * total;
  std::int32_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = std::int32_t(i);
    left -= weights[i];
    if (left < 0) break;
  }
  return last;
}

SAMITE_IMPL bool accept(std::int32_t& token, std::span<const double> p, std::span<const double> q, counted_random& random) {
  const std::size_t t = std::size_t(token);
  if (random.uniform() * q[t] < p[t]) return true;
  std::vector<double> rest(p.size());
  double mass = 0;
  for (std::size_t i = 0; i < p.size(); ++i) rest[i] = std::max(p[i] - q[i], 0.0), mass += rest[i];
  token = mass > 0 ? sample(rest, random) : sample(p, random);
  return false;
}

}  // namespace samite
