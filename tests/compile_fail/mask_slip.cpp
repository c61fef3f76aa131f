// Slips of the mask language that C++ would take for something else, or refuse in words of its own.
// mistake 1: scalar = number: s.set(1) changes the number for every mask that reads it
// mistake 1: a count of tokens is a whole number: give an integer
// mistake 1: window(table): a table is no number
// mistake 2: x += y, ++x and their like: an index or score is an expression and no variable
// mistake 2: q = x, kv = q and their like: a symbol takes no other value. Compare with ==
// mistake 2: q[x], q(x): a symbol is an index and no table
// mistake 2: float(q), double x = q: an index is an expression over b, h, q and kv
// mistake 2: scalar(x): one number for all pairs was expected
// mistake 2: fixed(index): a number that becomes part of the kernel was expected
// mistake 2: index and bool: an index is a number and no truth value. Write 0 or 1
// mistake 2: index and enumerator: convert it, e.g. `kv < int(limit)`
// mistake 2: index and length: a length of the graph, such as tokens(4096), is no number in a mask
// mistake 2: index and x: x is neither an index nor a whole number
// mistake 2: t[q, kv]: the comma drops what stands before it. Write t(q, kv)
// mistake 2: one side is a mask and the other a number. Every pair is full(), no pair none()
// mistake 2: mask &= x, mask |= x: a mask is a condition, not bits
// mistake 2: mask + x, mask * x and their like
// mistake 2: for `mask == 1` write `mask`
// mistake 2: (mask, mask): the comma drops what stands before it
// mistake 3: table.update(x): a table holds integers, not characters
// mistake 3: t[i] = x: a lookup reads an element and does not store one
// mistake 3: t(a, b, c, d): a table has one to three dimensions
// mistake 3: a table was expected, but this is a number, a tensor or a value of the graph
// mistake 3: a table was expected, but this is a list
// mistake 3: not tensors of the graph
// mistake 3: table.update(x): x is no list of integers in one piece of memory
// mistake 3: table(x, 2, 2): dimensions go in braces, e.g. table(ids, {2, 2})
// mistake 3: table(pointer): how many numbers there are is not known
// mistake 3: table(text): a table holds integers, not characters
// mistake 3: table == x: a table is no number, but its elements are
// mistake 3: with_indices(mask, query, key): query and key are index expressions
// mistake 3: restricted(mask, {4, 12}): two ranges were expected
// mistake 3: dense_mask(x, B, H, Q, K): x is no std::vector of integers or bools
// mistake 3: sizes without names, e.g. report(mask, {512, 512}): which are queries and keys
#include <samite/expr/score.hpp>
#include <samite/mask.hpp>
#include <samite/mask/layouts.hpp>
#include <samite/mask/report.hpp>
#include <samite/mask/transform.hpp>
using namespace samite;
using namespace samite::symbols;
enum limits { limit = 4 };
any_mask mask(const value& ids, [[maybe_unused]] const int* pointer) {
  static_cast<void>(ids);
  [[maybe_unused]] auto t = table({0, 1, 2});
  [[maybe_unused]] scalar s(3);
#if MISTAKE == 1
  s = 1;
  static_cast<void>(draw(causal(), 3.5, 4));
  return window(true) && window('a') && window(t);
#elif MISTAKE == 2
  s += 1, ++q, kv = q;
  static_cast<void>(q[kv] + q(kv) < 1);
  static_cast<void>(float(q));
  static_cast<void>(shifted(causal(), q, kv) && kv < fixed(q));
  static_cast<void>(kv <= true && kv < limit && kv < tokens(4) && kv <= "q");
  static_cast<void>(t[q, kv] == 0);
  static_cast<void>(select(kv <= q, causal(), 1));
  any_mask m;
  m &= causal();
  m = (kv <= q, q - kv < 3);
  static_cast<void>(-causal());
  static_cast<void>(causal() == 1);
  return m;
#elif MISTAKE == 3
  t[0] = 5;
  static_cast<void>(t[q][q][q][q] == 0);
  static_cast<void>(document(ids) && block_table({{1, 0}, {0, 1}}, 4));
  static_cast<void>(any_mask(table(ids)[q] == 1));
  t.update(std::vector<float>{0, 1}), t.update("abc");
  static_cast<void>(table({0, 1, 2, 3}, 2, 2));
  static_cast<void>(table(pointer)), static_cast<void>(table("abc"));
  static_cast<void>(t == 1);
  static_cast<void>(with_indices(causal(), q / 2.0, kv));
  static_cast<void>(restricted(causal(), {4, 12}));
  static_cast<void>(dense_mask(std::vector<float>{1, 0}, 1, 1, 1, 2));
  static_cast<void>(report(causal(), {512, 512}));
  return full();
#else
  s.set(1), s = scalar(2);
  dflash_mask_options options;
  options.window = 3;
  t.update({0, 1});
  t.update(std::vector<bool>{true, false, true});
  int few[3] = {0, 1, 2}, rows[2][3] = {{0, 1, 2}, {3, 4, 5}};
  t.update(few), t.update(std::array{0, 1, 2});
  static_cast<void>(report(causal(), {.Q = 512, .K = 512}));
  static_cast<void>(draw(causal(), 3, 4u));
  static_cast<void>(dense_mask(std::vector<bool>{true, false}, 1, 1, 1, 2) && dense_mask({1, 0}, 1, 1, 1, 2));
  return +q <= kv && kv < s && kv <= int(limit) && table(few)[q] == 0 && table(rows)(q, kv) == 0 && table({{1, 2}, {3, 4}})(q, kv) == 0 && restricted(causal(), {4, 12}, {0, 16}) && window(t[h]) && window(3u, 4L) &&
         shifted(causal(), 1, s);
#endif
}
