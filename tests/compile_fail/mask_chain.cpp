// Comparisons don't chain.
// mistake 1: a < b < c: the left side is a predicate or condition already
// mistake 2: and masks have no order: `!a && b`. [E-MASK-CHAIN]
#include <samite/mask.hpp>
using namespace samite;
using namespace samite::symbols;
any_mask mask() {
#if MISTAKE == 1
  return 0 <= kv < 8;
#elif MISTAKE == 2
  return kv == q == 1;
#else
  return 0 <= kv && kv < 8 && (kv == q) == (q < 1);
#endif
}
