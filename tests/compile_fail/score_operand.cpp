// A score is a number and a mask is a condition.
// mistake 1: mask && score: a score is a number, not a condition
// mistake 2: score && mask: a score is a number, not a condition
// mistake 3: a mask decides by b, h, q and kv alone
// mistake 4: a score was expected, but this is a mask. Pass it as attention's `.mask`. [E-EXPR-SCORE]
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
#else
  return kv <= q;
#endif
}
any_score function() {
#if MISTAKE == 4
  return kv <= q;
#else
  return softcap(30.0) + 0.5 * (kv - q);
#endif
}
