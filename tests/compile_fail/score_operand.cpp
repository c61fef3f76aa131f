// A score is a number and a mask is a condition.
// mistake 1: mask && score: a score is a number, not a condition
// mistake 2: mask && score: a score is a number, not a condition
// mistake 3: a mask was expected, but this compares real numbers
// mistake 4: a score was expected, but this is a mask. Pass it as attention's `.mask`. [E-EXPR-SCORE]
// mistake 5: mask && score: a score is a number, not a condition
// mistake 6: a table is indexed by integers
// mistake 6: any_score + x, alibi(8) + softcap(30.0): any_score, as alibi(heads)
// mistake 6: score * bool: a score is a number and no truth value
// mistake 6: score ^ x: there is no power of scores, and no bits
// mistake 6: select(mask, 1.0, 0.0): the score does not occur
// mistake 7: a mask was expected, but this compares real numbers
// mistake 7: score + mask: a mask is a condition and no number
// mistake 7: score + table: a table is no number, but its elements are
// mistake 7: score + x: x is neither a score, an index nor a number
// mistake 7: Make it a real one first, e.g. `log(real(q + 1))`
// mistake 7: pow(score, x): there is no power of scores
// mistake 7: score % x: a remainder is for indices
// mistake 7: a score is a number and no condition. Compare it with something
// mistake 7: a < b < c: the left side is a predicate or condition already
// mistake 7: a score was expected, but this is an index or a number
// mistake 7: a score was expected, but this is a condition
// mistake 7: a score was expected, but this is no expression over score, b, h, q and kv
// mistake 7: a count of heads or tokens is a whole number
// mistake 7: options go by name: attention(Q, K, V, {.mask = ..., .score = ...})
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/score/bias.hpp>
#include <samite/score/scale.hpp>
using namespace samite;
using namespace samite::symbols;
any_mask mask() {
#if MISTAKE == 1
  return kv <= q && softcap(30.0);
#elif MISTAKE == 2
  return 2 * score && kv <= q;
#elif MISTAKE == 3
  return kv <= q && score < 0.5;
#elif MISTAKE == 5
  return kv <= q || softcap(30.0);
#else
  return kv <= q;
#endif
}
any_score function(const value& bias) {
#if MISTAKE == 4
  return kv <= q;
#elif MISTAKE == 6
  static_cast<void>(alibi(8) + softcap(30.0) + any_score(alibi(8) + alibi(4)));
  static_cast<void>(score * true + (score ^ 2) + select(kv <= q, 1.0, 0.0));
  return score + table(bias)(h, 0.5 * q);
#elif MISTAKE == 7
  static_cast<void>(any_mask(q / 2.5 < kv));
  static_cast<void>(score + causal() + (score * table({1, 2})) + (score - bias));
  static_cast<void>(log(q + 1) * pow(score, 2) + score % 2);
  static_cast<void>(select(score, 1.0, score));
  static_cast<void>(0 < score < 1);
  static_cast<void>(any_score(kv));
  static_cast<void>(any_score(score > 0));
  static_cast<void>(any_score(bias));
  static_cast<void>(alibi(2.5));
  return attention(bias, bias, bias, causal()).out ? any_score(1.0) : any_score();
#else
  return softcap(30.0) + 0.5 * (kv - q) + table(bias)(h, q) + log(real(q + 1)) * score * score + sigmoid(score) + clamp(score, -1, 2.5) + min(q, 2.5) +
         select((0 < score && score < 1) || !(score != 0), 1.0, score) + select(kv <= q && (score > 0.1 || q < 3), score, 0.0) + (+score);
#endif
}
