// samite/testing/oracle.hpp: dense attention in double precision, forward and backward, slow and obvious.
#pragma once
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <samite/core/dtype.hpp>

namespace samite::testing {

/// Extents of an attention: Q [B,H,Q,D], K [B,G,K,D], V [B,G,K,Dv], all row-major; query head h reads key head h / (H/G).
struct attention_extents {
  index_t batch = 1, heads = 1, key_heads = 1, queries = 1, keys = 1, head_dim = 1, value_dim = 1;

  std::size_t query_size() const { return std::size_t(batch * heads * queries * head_dim); }
  std::size_t key_size() const { return std::size_t(batch * key_heads * keys * head_dim); }
  std::size_t value_size() const { return std::size_t(batch * key_heads * keys * value_dim); }
  std::size_t out_size() const { return std::size_t(batch * heads * queries * value_dim); }
  std::size_t lse_size() const { return std::size_t(batch * heads * queries); }
};

struct attention_values {
  std::vector<double> out;  // [B,H,Q,Dv]; 0 in rows without a kept key
  std::vector<double> lse;  // [B,H,Q], natural logarithm; -infinity in rows without a kept key
};

struct attention_gradients {
  std::vector<double> dQ, dK, dV;
};

namespace detail {

/// Probabilities of one query's row over the keys, 0 where hidden; returns the row's lse.
template <class Keep>
double attention_row(const attention_extents& e, const std::vector<double>& Q, const std::vector<double>& K, double scale, Keep&& keep,
                     index_t b, index_t h, index_t q, std::vector<double>& P) {
  const index_t g = h / (e.heads / e.key_heads);
  const double* query = Q.data() + ((b * e.heads + h) * e.queries + q) * e.head_dim;
  const double* keys = K.data() + (b * e.key_heads + g) * e.keys * e.head_dim;
  const double hidden = -std::numeric_limits<double>::infinity();
  P.assign(std::size_t(e.keys), hidden);
  double largest = hidden;
  for (index_t kv = 0; kv < e.keys; ++kv) {
    if (!keep(b, h, q, kv)) continue;
    double score = 0;
    for (index_t d = 0; d < e.head_dim; ++d) score += query[d] * keys[kv * e.head_dim + d];
    P[std::size_t(kv)] = score * scale;
    largest = std::fmax(largest, score * scale);
  }
  if (largest == hidden) {
    P.assign(std::size_t(e.keys), 0.0);
    return hidden;
  }
  double total = 0;
  for (double& p : P) total += p = std::exp(p - largest);
  for (double& p : P) p /= total;
  return largest + std::log(total);
}

}  // namespace detail

/// out, lse = softmax(scale * Q K^T where keep) V.
///
/// keep  keep(b, h, q, kv): whether query q of head h sees key kv
template <class Keep>
attention_values attention(const attention_extents& e, const std::vector<double>& Q, const std::vector<double>& K, const std::vector<double>& V,
                           double scale, Keep&& keep) {
  attention_values result{std::vector<double>(e.out_size(), 0.0), std::vector<double>(e.lse_size(), 0.0)};
  std::vector<double> P;
  for (index_t b = 0; b < e.batch; ++b)
    for (index_t h = 0; h < e.heads; ++h)
      for (index_t q = 0; q < e.queries; ++q) {
        const index_t row = (b * e.heads + h) * e.queries + q, g = h / (e.heads / e.key_heads);
        result.lse[std::size_t(row)] = detail::attention_row(e, Q, K, scale, keep, b, h, q, P);
        for (index_t kv = 0; kv < e.keys; ++kv)
          for (index_t d = 0; d < e.value_dim; ++d)
            result.out[std::size_t(row * e.value_dim + d)] += P[std::size_t(kv)] * V[std::size_t(((b * e.key_heads + g) * e.keys + kv) * e.value_dim + d)];
      }
  return result;
}

/// Gradients of sum(d_out * out) + sum(d_lse * lse); an empty d_lse counts as zeros, and rows without a kept key as no rows.
template <class Keep>
attention_gradients attention_gradient(const attention_extents& e, const std::vector<double>& Q, const std::vector<double>& K,
                                       const std::vector<double>& V, const std::vector<double>& d_out, const std::vector<double>& d_lse,
                                       double scale, Keep&& keep) {
  attention_gradients result{std::vector<double>(e.query_size(), 0.0), std::vector<double>(e.key_size(), 0.0), std::vector<double>(e.value_size(), 0.0)};
  std::vector<double> P, dP(std::size_t(e.keys));
  for (index_t b = 0; b < e.batch; ++b)
    for (index_t h = 0; h < e.heads; ++h)
      for (index_t q = 0; q < e.queries; ++q) {
        const index_t row = (b * e.heads + h) * e.queries + q, first_key = (b * e.key_heads + h / (e.heads / e.key_heads)) * e.keys;
        const double lse = detail::attention_row(e, Q, K, scale, keep, b, h, q, P);
        if (lse == -std::numeric_limits<double>::infinity()) continue;
        // Delta = sum_k P dP - dLSE; the first term is rowsum(dO * O).
        double delta = d_lse.empty() ? 0.0 : -d_lse[std::size_t(row)];
        for (index_t kv = 0; kv < e.keys; ++kv) {
          double sum = 0;
          for (index_t d = 0; d < e.value_dim; ++d) sum += d_out[std::size_t(row * e.value_dim + d)] * V[std::size_t((first_key + kv) * e.value_dim + d)];
          dP[std::size_t(kv)] = sum;
          delta += P[std::size_t(kv)] * sum;
        }
        for (index_t kv = 0; kv < e.keys; ++kv) {
          const double p = P[std::size_t(kv)], dS = scale * p * (dP[std::size_t(kv)] - delta);
          for (index_t d = 0; d < e.value_dim; ++d) result.dV[std::size_t((first_key + kv) * e.value_dim + d)] += p * d_out[std::size_t(row * e.value_dim + d)];
          for (index_t d = 0; d < e.head_dim; ++d) {
            result.dQ[std::size_t(row * e.head_dim + d)] += dS * K[std::size_t((first_key + kv) * e.head_dim + d)];
            result.dK[std::size_t((first_key + kv) * e.head_dim + d)] += dS * Q[std::size_t(row * e.head_dim + d)];
          }
        }
      }
  return result;
}

}  // namespace samite::testing
