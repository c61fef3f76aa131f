// Indices are integers.
// mistake 1: x is a floating-point number, but b, h, q, kv and tables are integers
// mistake 2: x is a floating-point number; a table is indexed by integers
// mistake 3: a modulus is a whole number, e.g. `q % 16`. [E-EXPR-FLOAT]
// mistake 4: x is a floating-point number; a table is indexed by integers
// mistake 5: Write a whole number or scale both sides, e.g. `q > 2 * kv`
// mistake 6: Write a whole number or scale both sides, e.g. `q > 2 * kv`
// mistake 7: a count of tokens is a whole number: give an integer
// mistake 8: a count of tokens is a whole number: give an integer
// mistake 9: a whole number was expected, but this is a floating-point number
// mistake 9: a count of tokens is a whole number: give an integer
// mistake 9: index / x, min(index, x) and their like: x is a floating-point number
// mistake 9: and check that a local variable does not hide samite::symbols::q
// mistake 9: a whole number was expected, but this is a bool: write 0 or 1
// mistake 9: a whole number was expected, but this is a character: convert it
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
#elif MISTAKE == 5
  return q / 2.0 > kv;
#elif MISTAKE == 6
  return 1.5 + q > kv;
#elif MISTAKE == 7
  return window(3.7);
#elif MISTAKE == 8
  return global_window(4, 3.5f);
#elif MISTAKE == 9
  scalar width(2.9f);
  width.set(true);
  const double row = 3;
  return kv <= q + fixed(1.9) && dflash_mask({.window = 2.9L}) && causal_bottom_right(2.5) && block_table(pairs, 1.5f) && block_diffusion(4, 2.5L) && min(q, 2.5) == kv && kv <= row && (q << 2.0f) == kv &&
         q == 'a';
#else
  return scalar(3u) + fixed(short(2)) <= kv && dflash_mask({.anchors = table({0}), .window = 3}) && causal_bottom_right(2) && min(q, 2) == kv && q == int('a') && (q << 2) == kv && q - kv < 5 && ids[q] == 0 && q % 2 == 0 && pairs(b, q) == 0 && q / 2 > kv && window(3) && global_window(4, 3);
#endif
}
