// A mask combines with masks only.
// mistake 1: mask && x: x is not a predicate over b, h, q, kv
// mistake 2: x && mask: x is not a predicate over b, h, q, kv
// mistake 3: mask || x: x is not a predicate over b, h, q, kv
// mistake 4: or check that a local variable does not hide samite::symbols::q. [E-MASK-OPERAND]
// mistake 5: Compare it, e.g. `docs[q] == 0` for `!docs[q]`
// mistake 6: Compare it, e.g. `docs[q] == 0` for `!docs[q]`
// mistake 7: bool x = mask: a mask is no truth value
// mistake 8: and choose by pairs with select(mask, x, y). [E-MASK-OPERAND]
// mistake 9: the condition is no comparison over b, h, q and kv
// mistake 9: mask == true, mask < false and their like: a mask is no truth value
// mistake 9: a mask was expected, but this is no condition over b, h, q and kv
// mistake 9: with_indices(mask, query, key): query and key are index expressions
// mistake 9: index and x: x is neither an index nor a whole number
// mistake 9: this is a function that makes one: call it
#include <samite/mask.hpp>
#include <samite/mask/transform.hpp>
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
#elif MISTAKE == 9
  static_cast<void>(select(true, window(3), window(4)));
  static_cast<void>(q == nullptr);
  static_cast<void>(causal() && causal);
  static_cast<void>(minus(causal(), q) && with_indices(causal(), 0.5, kv));
  return causal() == true;
#else
  return minus(causal(), window(3)) && with_indices(causal(), q, kv) && kv <= q && ok[kv] != 0 && ok[q] == 0 && select(kv <= q, window(3), window(4));
#endif
}
