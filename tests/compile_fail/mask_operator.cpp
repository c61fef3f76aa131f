// Masks combine with && and ||; indices have no bit operations.
// mistake 1: predicates combine with && and not with &
// mistake 2: predicates combine with || and not with |: a mask is a condition, not bits. Write ||. [E-MASK-OPERATOR]
// mistake 3: Use / and % with powers of two, e.g. `q % 16` for `q & 15`. [E-MASK-OPERATOR]
// mistake 4: x & mask: predicates combine with && and not with &
// mistake 5: x | mask: predicates combine with || and not with |
#include <samite/mask.hpp>
using namespace samite;
using namespace samite::symbols;
any_mask mask() {
  const auto ok = table({1, 0});
#if MISTAKE == 1
  return (kv <= q) & (q - kv < 4);
#elif MISTAKE == 2
  return (kv <= q) | (kv < 4);
#elif MISTAKE == 3
  return (q & 15) == 0;
#elif MISTAKE == 4
  return true & (kv <= q);
#elif MISTAKE == 5
  return false | (kv <= q);
#else
  return (kv <= q) && (q - kv < 4) && q % 16 == 0 && ok[kv] != 0;
#endif
}
