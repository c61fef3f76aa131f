// samite/ir/build.hpp: builds the leaves and lookups of programs; `build` itself is declared beside the program (ir/program.hpp).
#pragma once
#include <samite/ir/program.hpp>

namespace samite {

/// Leaves of a program.
node_id build_symbol(program& p, symbol_id id);
node_id build_argument(program& p, const std::shared_ptr<scalar_cell>& cell);

/// Element of tensor operand `slot` at the current row and column. Index operands (ids, positions) are `index`.
node_id build_operand(program& p, index_t slot, value_kind kind);

namespace detail {

inline bool is_constant(const program& p, node_id id) { return p[id].code == op::constant; }
inline bool is_index(const program& p, node_id id, index_t value) {
  return p[id].code == op::constant && p[id].kind == value_kind::index && p[id].imm == value;
}
inline bool is_real(const program& p, node_id id, double value) {
  return p[id].code == op::constant && p[id].kind == value_kind::real && p[id].real == value;
}
inline bool is_boolean(const program& p, node_id id, bool value) {
  return p[id].code == op::constant && p[id].kind == value_kind::boolean && p[id].imm == index_t(value);
}

}  // namespace detail

/// Reads the tensor in `slot` of a score function at one to three indices; a real number.
node_id build_lookup(program& p, index_t slot, node_id a, node_id b = no_node, node_id c = no_node);

/// Reads `table` at one to three indices.
///
/// errors  E-MASK-TABLE-RANK if there are more or fewer indices than the table has dimensions
node_id build_gather(program& p, const std::shared_ptr<const index_table>& table, node_id a, node_id b = no_node, node_id c = no_node);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/build_impl.hpp>
#endif
