// What stands where an index or a mask should: a name that hides a symbol, a table without an index, a table without a size.
// mistake 1: If it is a tensor or a value of the graph, its name may hide a symbol: rename it, or write symbols::q
// mistake 2: a table is no number, but its elements are. Look one up
// mistake 3: how many numbers there are is not known. Give their count
// mistake 4: a mask was expected, but this is no condition over b, h, q and kv
// mistake 5: a table was expected, but this is a list
// mistake 6: a table was expected, but this is a list
// mistake 7: If it is a comparison, a local variable hides a symbol: rename it
// mistake 7: a mask was expected, but this is a function that makes one: call it, e.g. `causal()`
// mistake 7: Functions of C++ and lambdas are no masks: write an expression
// mistake 7: Look numbers up in a table, e.g. `table(list)[kv]`
// mistake 7: t[x]: x is neither an index nor a whole number
// mistake 7: t(a, b, c, d): a table has one to three dimensions
// mistake 7: table(x): x is no list of integers in one piece of memory
#include <samite/ir/graph.hpp>
#include <samite/mask.hpp>
using namespace samite;
any_mask mask(const value& Q, const index_t* numbers) {
  using symbols::kv;
  const table_ref docs = table({0, 1});
#if MISTAKE == 1
  const value q = Q;
  return kv <= q;
#elif MISTAKE == 2
  return docs == docs[kv];
#elif MISTAKE == 3
  return table(numbers)[kv] == 0;
#elif MISTAKE == 4
  return docs[kv];
#elif MISTAKE == 5
  return document(std::vector{0, 1});
#elif MISTAKE == 6
  return document({0, 1});
#elif MISTAKE == 7
  static_cast<void>(Q);
  const int q = 1, hidden = 2;
  static_cast<void>(std::vector{0, 1}[kv] + numbers[kv]);
  static_cast<void>(docs(causal()) + docs["a"] + docs(kv, kv, kv, kv));
  static_cast<void>(table(std::vector{0.5, 1.5}));
  static_cast<void>(any_mask(causal));
  static_cast<void>(any_mask([](int x) { return x; }));
  return hidden <= q;
#else
  using symbols::q;
  static_cast<void>(Q);
  static_cast<void>(table(std::vector{true, false}));
  int writable[] = {0, 1};
  static_cast<void>(table(std::span(writable)));
  static_cast<void>(table(std::array{0, 1}));
  return kv <= q && document(table(std::vector{0, 1})) && document(table({0, 1})) && docs[q] == docs[kv] && table(std::span(numbers, 2))[kv] == 0;
#endif
}
