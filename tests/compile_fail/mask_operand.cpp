// A mask combines with masks only.
// mistake 1: mask && x: x is not a predicate over b, h, q, kv
// mistake 2: x && mask: x is not a predicate over b, h, q, kv
// mistake 3: mask || x: x is not a predicate over b, h, q, kv
// mistake 4: or check that a local variable does not hide samite::symbols::q. [E-MASK-OPERAND]
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
#else
  return kv <= q && ok[kv] != 0;
#endif
}
