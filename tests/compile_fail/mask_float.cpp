// Indices are integers.
// mistake 1: x is a floating-point number, but b, h, q, kv and tables are integers
// mistake 2: x is a floating-point number; a table is indexed by integers
// mistake 3: a modulus is a whole number, e.g. `q % 16`. [E-EXPR-FLOAT]
// mistake 4: x is a floating-point number; a table is indexed by integers
#include <samite/mask.hpp>
using namespace samite;
using namespace samite::symbols;
any_mask mask() {
  const auto ids = table({0, 1});
  const auto pairs = table({0, 1}, {1, 2});
#if MISTAKE == 1
  return q - kv < 0.5;
#elif MISTAKE == 2
  return ids[0.5] == 0;
#elif MISTAKE == 3
  return q % 2.0 == 0;
#elif MISTAKE == 4
  return pairs(b, 0.5) == 0;
#else
  return q - kv < 5 && ids[q] == 0 && q % 2 == 0 && pairs(b, q) == 0;
#endif
}
