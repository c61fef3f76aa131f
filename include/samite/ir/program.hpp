// samite/ir/program.hpp: the flat scalar program that masks, scores and fused layers lower to.
//
// One program has many readings: its value on numbers (ir/evaluate.hpp), its bounds on intervals (ir/bounds.hpp), its
// derivative (ir/derivative.hpp), its CUDA text (emit/) and its hash. What each op means stands in ir/ops.hpp.
#pragma once
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include <samite/core/dtype.hpp>
#include <samite/core/hash.hpp>

namespace samite {

class index_table;  // ir/table.hpp

/// Index of a node inside its program; operands always precede their users.
using node_id = std::int32_t;
inline constexpr node_id no_node = -1;

enum class value_kind : std::uint8_t { boolean, index, real };

/// The free variables. b, h, q, kv, score belong to attention; row, column and columns (their count) to fused layers.
enum class symbol_id : std::uint8_t { b, h, q, kv, score, row, column, columns };
inline constexpr int symbol_count = 8;
inline constexpr const char* symbol_names[symbol_count] = {"b", "h", "q", "kv", "score", "row", "column", "columns"};

enum class op : std::uint8_t {
  // leaves; `imm` says which
  symbol,    // imm = symbol_id
  constant,  // imm (boolean, index) or real
  argument,  // imm = slot in `arguments`: a number read anew at each run
  operand,   // imm = slot of a tensor: its element at this row and column
  gather,    // imm = slot in `tables`, operands = 1 to 3 indices
  // arithmetic on indices or reals; div and mod of indices round towards minus infinity
  add, sub, mul, div, mod, neg, abs, min, max, shift_left, shift_right,
  // reals only
  exp, log, sqrt, rsqrt, tanh, sin, cos, round_to,  // round_to: imm = dtype
  to_real, to_index,                                // to_index truncates
  stop,                                             // the value; its derivative is 0
  // comparisons and logic; greater, not-equal and the like are built from these
  less, less_equal, equal, logical_and, logical_or, logical_not, select,
  // across the columns of a row
  row_sum, row_max, row_min, roll,  // roll: value at (column + imm) mod columns
  // leaves of score functions
  lookup,  // imm = slot of a tensor, operands = 1 to 3 indices
  count_
};

struct node {
  op code = op::constant;
  value_kind kind = value_kind::index;
  node_id operands[3] = {no_node, no_node, no_node};
  index_t imm = 0;
  double real = 0;

  int operand_count() const { return operands[0] == no_node ? 0 : operands[1] == no_node ? 1 : operands[2] == no_node ? 2 : 3; }

  friend bool operator==(const node& l, const node& r) {
    return l.code == r.code && l.kind == r.kind && l.operands[0] == r.operands[0] && l.operands[1] == r.operands[1] &&
           l.operands[2] == r.operands[2] && l.imm == r.imm && std::bit_cast<std::uint64_t>(l.real) == std::bit_cast<std::uint64_t>(r.real);
  }
};

/// Hash of one node, its operands by their ids.
std::uint64_t hash_of(const node& n);

/// A number captured by a program and read anew at each run: another value is not another kernel.
///
/// threads  `set` may run beside readers; a run reads the value once, when it starts
class scalar_cell {
 public:
  explicit scalar_cell(index_t value) : kind_(value_kind::index), index_(value) {}
  explicit scalar_cell(double value) : kind_(value_kind::real), real_(value) {}

  value_kind kind() const { return kind_; }
  index_t index() const { return index_.load(std::memory_order_relaxed); }
  double real() const { return real_.load(std::memory_order_relaxed); }
  void set(index_t value) { index_.store(value, std::memory_order_relaxed); }
  void set(double value) { real_.store(value, std::memory_order_relaxed); }

 private:
  value_kind kind_;
  std::atomic<index_t> index_{0};
  std::atomic<double> real_{0};
};

/// Cells for numbers that expressions capture.
std::shared_ptr<scalar_cell> make_cell(index_t value);
std::shared_ptr<scalar_cell> make_cell(double value);

/// A directed acyclic graph of scalar operations in topological order, every node once (hash-consed).
class program {
 public:
  program();
  program(const program&);
  program(program&&) noexcept;
  program& operator=(const program&);
  program& operator=(program&&) noexcept;
  ~program();

  const std::vector<node>& nodes() const { return nodes_; }
  const node& operator[](node_id id) const { return nodes_[std::size_t(id)]; }
  std::size_t size() const { return nodes_.size(); }

  /// What the program computes. Masks and scores have one root; a fused kernel may have several.
  std::vector<node_id> roots;

  const std::vector<std::shared_ptr<scalar_cell>>& arguments() const { return arguments_; }
  const std::vector<std::shared_ptr<const index_table>>& tables() const { return tables_; }

  /// The node's id; an equal node that already stands in the program is returned instead of a second one.
  /// Use `build`, which also folds.
  node_id push(const node& n);

  /// Slot of a captured number; the same cell has one slot.
  index_t slot_of(const std::shared_ptr<scalar_cell>& cell);
  /// Slot of a table; the same table has one slot.
  index_t slot_of(const std::shared_ptr<const index_table>& table);

  /// Hash of the structure: operators, baked constants and slots, but not the values of arguments and tables.
  std::uint64_t hash() const;

 private:
  void grow_index();

  std::vector<node> nodes_;
  std::vector<node_id> index_;  // finds equal nodes: an open-addressing table of 2^n places, at most half of them taken
  std::vector<std::shared_ptr<scalar_cell>> arguments_;
  std::vector<std::shared_ptr<const index_table>> tables_;
  std::vector<std::int32_t> argument_index_, table_index_;  // find the slot of a cell or table once there are many
};

namespace detail {
/// Nodes that some of these roots needs.
std::vector<char> used_nodes(const program& p, const std::vector<node_id>& roots);
}  // namespace detail

/// Builds a node: folds what is known, drops what has no effect, and gives commuting operands one order.
///
/// errors  E-EXPR-DIVISOR if an index is divided by, or shifted by, anything but a fitting constant
node_id build(program& p, op code, node_id a, node_id b = no_node, node_id c = no_node, index_t imm = 0);
node_id build_constant(program& p, double value);
node_id build_constant(program& p, index_t value);
node_id build_constant(program& p, bool value);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/program_impl.hpp>
#endif
