// A score is a number and a mask is a condition.
// mistake 1: mask && score: a score is a number, not a condition
// mistake 2: mask && score: a score is a number, not a condition
// mistake 3: a mask decides by b, h, q and kv alone
// mistake 4: a score was expected, but this is a mask. Pass it as attention's `.mask`. [E-EXPR-SCORE]
// mistake 5: mask && score: a score is a number, not a condition
// mistake 6: a table is indexed by integers
#include <samite/mask.hpp>
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
  return score + table(bias)(h, 0.5 * q);
#else
  return softcap(30.0) + 0.5 * (kv - q) + table(bias)(h, q);
#endif
}
