// & and | bind tighter than comparisons.
// mistake 1: predicates combine with && and not with &
// mistake 2: which binds tighter than a comparison. Write ||. [E-MASK-OPERATOR]
#include <samite/mask.hpp>
using namespace samite;
using namespace samite::symbols;
any_mask mask() {
#if MISTAKE == 1
  return (kv <= q) & (q - kv < 4);
#elif MISTAKE == 2
  return (kv <= q) | (kv < 4);
#else
  return (kv <= q) && (q - kv < 4);
#endif
}
