// A mask combines with masks only.
// mistake 1: mask && x: x is not a predicate over b, h, q, kv
// mistake 2: x && mask: x is not a predicate over b, h, q, kv
// mistake 3: mask || x: x is not a predicate over b, h, q, kv
// mistake 4: or check that a local variable does not hide samite::symbols::q. [E-MASK-OPERAND]
// mistake 5: Compare it, e.g. `docs[q] == 0` for `!docs[q]`
// mistake 6: Compare it, e.g. `docs[q] == 0` for `!docs[q]`
// mistake 7: bool x = mask: a mask is no truth value
// mistake 8: and choose by pairs with select(mask, x, y). [E-MASK-OPERAND]
#include <samite/mask.hpp>
using namespace samite;
using namespace samite::symbols;
any_mask mask() {
  const auto ok = table({1, 0});
#if MISTAKE == 1
  return kv <= q && ok[kv];
#elif MISTAKE == 2
  return true && kv <= q;
#elif MISTAKE == 3
  return kv <= q || 3;
#elif MISTAKE == 4
  const int q = 5;
  return symbols::kv <= symbols::q && q > 3;
#elif MISTAKE == 5
  return !ok[q];
#elif MISTAKE == 6
  return ok[q] && ok[kv];
#elif MISTAKE == 7
  bool x = kv <= q;
  return x ? full() : full();
#elif MISTAKE == 8
  return kv <= q ? window(3) : window(4);
#else
  return kv <= q && ok[kv] != 0 && ok[q] == 0 && select(kv <= q, window(3), window(4));
#endif
}
