// What stands where an index or a mask should: a name that hides a symbol, a table without an index, a table without a size.
// mistake 1: If it is a tensor or a value of the graph, its name may hide a symbol: rename it, or write symbols::q
// mistake 2: a table is no number, but its elements are. Look one up
// mistake 3: how many numbers there are is not known. Give their count
// mistake 4: a mask was expected, but this is no condition over b, h, q and kv
// mistake 5: a table was expected, but this is a list
// mistake 6: a table was expected, but this is a list
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
#else
  using symbols::q;
  static_cast<void>(Q);
  return kv <= q && document(table(std::vector{0, 1})) && document(table({0, 1})) && docs[q] == docs[kv] && table(std::span(numbers, 2))[kv] == 0;
#endif
}
