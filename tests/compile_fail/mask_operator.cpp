// Masks combine with && and ||; indices have no bit operations.
// mistake 1: predicates combine with && and not with &
// mistake 2: predicates combine with || and not with |: a mask is a condition, not bits. Write ||. [E-MASK-OPERATOR]
// mistake 3: Use / and % with powers of two, e.g. `q % 16` for `q & 15`. [E-MASK-OPERATOR]
// mistake 4: x & mask: predicates combine with && and not with &
// mistake 5: x | mask: predicates combine with || and not with |
// mistake 6: mask + x, mask * x and their like: a mask is a condition and no number
// mistake 7: a number where the mask keeps is select(mask, 1, 0). [E-MASK-OPERATOR]
// mistake 8: For pairs that exactly one keeps write `a != b`. [E-MASK-OPERATOR]
// mistake 9: Write !mask. [E-MASK-OPERATOR]
// mistake 10: index ^ x, ~index: there are no bit operations on indices
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
#elif MISTAKE == 6
  return causal() + window(3);
#elif MISTAKE == 7
  return 2 * (kv <= q) < 3;
#elif MISTAKE == 8
  return window(3) ^ causal();
#elif MISTAKE == 9
  return ~causal();
#elif MISTAKE == 10
  return (~q ^ kv) == 0;
#else
  return (kv <= q) && (q - kv < 4) && q % 16 == 0 && ok[kv] != 0 && (window(3) != causal()) && !causal() && 2 * select(kv <= q, 1, 0) < 3;
#endif
}
