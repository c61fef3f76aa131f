// samite/run/row_kernel.hpp: runs a fused row program on the CPU.
//
// Strategy: rows are taken in blocks of a few thousand elements; every scalar node becomes one vector loop over the block,
// with registers that stay in the cache. A node that is the same at all columns has one element a row. Blocks have a fixed
// size and don't share anything, so the result does not depend on the number of threads. Score functions of attention run
// in the same way: rows are queries, columns are keys.
#pragma once
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <samite/ir/derivative.hpp>
#include <samite/ir/table.hpp>
#include <samite/run/backend.hpp>
#include <samite/run/row_loops.hpp>
#include <samite/runtime/thread_pool.hpp>

namespace samite::detail {

/// Where an operand's element (row, column) lies.
struct row_access {
  const std::byte* data = nullptr;
  dtype type = dtype::f32;
  extents outer_dims, outer_strides;  // axes before the last, of the domain
  index_t column_stride = 0;          // 0: the same at all columns
  index_t uniform_row_stride = -1;    // elements from one row to the next where that is the same everywhere

  index_t row_offset(index_t row) const {
    if (uniform_row_stride >= 0) return row * uniform_row_stride;
    index_t offset = 0;
    for (std::size_t i = outer_dims.size(); i-- > 0;) {
      offset += row % outer_dims[i] * outer_strides[i];
      row /= outer_dims[i];
    }
    return offset;
  }
};

inline row_access access_rows(const tensor_view& v, const extents& domain) {
  row_access a;
  a.data = v.data, a.type = v.type;
  const std::size_t missing = domain.size() - v.dims.size();
  for (std::size_t i = 0; i < domain.size(); ++i) {
    const bool absent = i < missing || (v.dims[i - missing] == 1 && domain[i] != 1);
    const index_t stride = absent ? 0 : v.strides[i - missing];
    if (i + 1 == domain.size()) a.column_stride = domain[i] == 1 ? 0 : stride;
    else a.outer_dims.push_back(domain[i]), a.outer_strides.push_back(stride);
  }
  // Axes of extent 1 don't matter; the others must step as one.
  index_t step = 0, expected = 0;
  bool uniform = true, innermost = true;
  for (std::size_t i = a.outer_dims.size(); i-- > 0;) {
    if (a.outer_dims[i] == 1) continue;
    if (innermost) step = a.outer_strides[i];
    else if (a.outer_strides[i] != expected) uniform = false;
    innermost = false;
    expected = a.outer_strides[i] * a.outer_dims[i];
  }
  if (uniform) a.uniform_row_stride = step;
  return a;
}

/// Pairs of one batch and head at which a score function is evaluated; rows are queries, columns are keys.
template <class T>
struct pair_block {
  index_t b = 0, h = 0, q = 0, kv = 0;  // of the first pair
  index_t rows = 0, columns = 0;
  const T* score = nullptr;    // [rows, columns]
  const T* adjoint = nullptr;  // [rows, columns], what operand 0 reads; null if there is none
  index_t stride = 0;          // elements from one row of both to the next
};

/// What lookups and gathers of a score function read during one run.
struct pair_sources {
  std::vector<tensor_view> tensors;
  std::vector<std::shared_ptr<const table_contents>> tables;
  std::vector<std::uint64_t> arguments;  // bits of a double or an index_t, by the kind of each
};

/// A program compiled for blocks of rows; T is the type that reals are computed in.
template <class T>
class row_kernel {
 public:
  /// operand_varies[slot]: the operand has more than one column.
  row_kernel(std::shared_ptr<const program> fn, std::vector<char> operand_varies)
      : fn_(std::move(fn)), varies_(column_dependence(*fn_, operand_varies)) {
    assign_registers();
    for (const node& n : fn_->nodes())
      if (n.kind == value_kind::index) element_bytes_ = sizeof(index_t);
  }

  void run(std::span<const tensor_view> inputs, std::span<const tensor_view> outputs, const extents& domain) const {
    const index_t columns = domain.empty() ? 1 : domain.back();
    const index_t rows = domain.empty() ? 1 : count(std::span(domain).first(domain.size() - 1));
    if (rows == 0) return;  // rows without columns still have their sums and extremes
    std::vector<row_access> in;
    for (const tensor_view& v : inputs) in.push_back(access_rows(v, domain));
    const index_t block = block_elements / std::clamp<index_t>(columns, 1, block_elements);
    const std::vector<std::uint64_t> arguments = read_arguments();
    parallel_for((rows + block - 1) / block, [&](index_t i) {
      const index_t first = i * block;
      run_block(in, outputs, arguments, first, std::min(block, rows - first), columns, block);
    });
  }

  /// The tables and arguments as they are now, for `run_pairs`.
  pair_sources read_sources(std::vector<tensor_view> tensors) const {
    pair_sources sources{std::move(tensors), {}, read_arguments()};
    for (const auto& table : fn_->tables()) sources.tables.push_back(table->contents());
    return sources;
  }

  /// The value of one root at the pairs of a block.
  struct pair_values {
    const void* data;
    bool full;  // else one value a row
    index_t columns;
    template <class V>
    V at(index_t r, index_t c) const { return static_cast<const V*>(data)[full ? r * columns + c : r]; }
  };

  /// Evaluates a block of pairs and calls use(root) -> pair_values by way of `f`. A thousand pairs a block fit the cache.
  template <class F>
  void run_pairs(const pair_block<T>& block, const pair_sources& sources, F&& f) const {
    std::vector<void*> at = registers(block.rows * block.columns);
    const frame where{0, block.rows, block.columns, &block, &sources};
    for (std::size_t i = 0; i < fn_->size(); ++i) evaluate(node_id(i), where, {}, sources.arguments, at);
    f([&](std::size_t root) {
      const node_id id = fn_->roots[root];
      return pair_values{at[std::size_t(id)], full(id), block.columns};
    });
  }

 private:
  static constexpr index_t block_elements = 1024;  // a register of 4 KiB: a dozen of them stay in the L1 and L2

  struct frame {
    index_t first, rows, columns;
    const pair_block<T>* pairs = nullptr;
    const pair_sources* sources = nullptr;
  };

  /// Scratch of one thread, kept between blocks; grows to the largest block it met.
  struct scratch {
    std::vector<std::byte> memory;
  };

  bool full(node_id id) const { return varies_[std::size_t(id)] != 0; }

  std::vector<std::uint64_t> read_arguments() const {
    std::vector<std::uint64_t> numbers;  // not all doubles: an index may lie beyond 2^53
    for (const auto& cell : fn_->arguments()) numbers.push_back(cell->kind() == value_kind::real ? std::bit_cast<std::uint64_t>(cell->real()) : std::uint64_t(cell->index()));
    return numbers;
  }

  // Linear scan: a register is free again after the last use of its node.
  void assign_registers() {
    const std::size_t n = fn_->size();
    std::vector<std::size_t> last(n, 0);
    for (std::size_t i = 0; i < n; ++i)
      for (node_id operand : fn_->nodes()[i].operands)
        if (operand != no_node) last[std::size_t(operand)] = i;
    for (node_id root : fn_->roots) last[std::size_t(root)] = n;
    register_.assign(n, -1);
    std::vector<std::vector<int>> free_at(n + 1);
    std::vector<int> free;
    for (std::size_t i = 0; i < n; ++i) {
      if (free.empty()) free.push_back(registers_++);
      register_[i] = free.back();
      free.pop_back();
      free_at[std::max(last[i], i)].push_back(register_[i]);
      for (int r : free_at[i]) free.push_back(r);
    }
  }

  /// Where each node's values go, in this thread's scratch.
  std::vector<void*> registers(index_t elements) const {
    static thread_local scratch memory;
    const std::size_t stride = (std::size_t(elements) * element_bytes_ + 63) / 64 * 64;
    if (memory.memory.size() < stride * std::size_t(registers_) + 64) memory.memory.resize(stride * std::size_t(registers_) + 64);
    std::byte* base = memory.memory.data();
    base += (64 - reinterpret_cast<std::uintptr_t>(base) % 64) % 64;
    std::vector<void*> at(fn_->size());
    for (std::size_t i = 0; i < fn_->size(); ++i) at[i] = base + stride * std::size_t(register_[i]);
    return at;
  }

  void run_block(const std::vector<row_access>& in, std::span<const tensor_view> outputs, const std::vector<std::uint64_t>& arguments,
                 index_t first, index_t rows, index_t columns, index_t block) const {
    std::vector<void*> at = registers(block * std::max<index_t>(1, columns));
    const frame f{first, rows, columns};
    for (std::size_t i = 0; i < fn_->size(); ++i) evaluate(node_id(i), f, in, arguments, at);
    for (std::size_t o = 0; o < outputs.size(); ++o) store(outputs[o], fn_->roots[o], f, at);
  }

  void evaluate(node_id id, const frame& f, const std::vector<row_access>& in, const std::vector<std::uint64_t>& arguments, std::vector<void*>& at) const {
    const node& n = (*fn_)[id];
    void* out = at[std::size_t(id)];
    const index_t length = full(id) ? f.rows * f.columns : f.rows;
    switch (n.code) {
      case op::constant:
        if (n.kind == value_kind::real) return fill(static_cast<T*>(out), length, T(n.real));
        if (n.kind == value_kind::index) return fill(static_cast<index_t*>(out), length, n.imm);
        return fill(static_cast<std::uint8_t*>(out), length, std::uint8_t(n.imm));
      case op::argument:
        if (n.kind == value_kind::real) return fill(static_cast<T*>(out), length, T(std::bit_cast<double>(arguments[std::size_t(n.imm)])));
        return fill(static_cast<index_t*>(out), length, index_t(arguments[std::size_t(n.imm)]));
      case op::symbol:
        if (n.imm == index_t(symbol_id::score)) return load_pairs(f.pairs->score, f, at[std::size_t(id)]);
        return symbols(symbol_id(n.imm), f, static_cast<index_t*>(out));
      case op::operand:
        if (f.pairs != nullptr) return load_pairs(f.pairs->adjoint, f, at[std::size_t(id)]);
        return load(in[std::size_t(n.imm)], n.kind, full(id), f, at[std::size_t(id)]);
      default: break;
    }
    const node_id a = n.operands[0], b = n.operands[1], c = n.operands[2];
    const auto arg = [&](node_id operand) { return loop_operand{at[std::size_t(operand)], full(operand)}; };
    if (n.code == op::gather || n.code == op::lookup) {
      ensure(f.sources != nullptr, "only score functions read tables");
      const int rank = n.operand_count();
      loop_operand indices[3];
      for (int i = 0; i < rank; ++i) indices[i] = arg(n.operands[i]);
      if (n.code == op::gather) gather(*f.sources->tables[std::size_t(n.imm)], indices, rank, length, f.columns, full(id), static_cast<index_t*>(out));
      else lookup(f.sources->tensors[std::size_t(n.imm)], indices, rank, length, f.columns, full(id), static_cast<T*>(out));
      return;
    }
    const loop_shape shape{full(id) ? f.rows : 1, full(id) ? f.columns : f.rows, full(id)};
    switch (n.code) {
      case op::row_sum: case op::row_max: case op::row_min: return reduce(n.code, static_cast<const T*>(at[std::size_t(a)]), full(a), f, static_cast<T*>(out));
      case op::roll: return rolled(n, a, f, at);
      case op::to_real: return unary_loop<T, index_t>([](index_t x) SAMITE_LAMBDA_INLINE { return T(x); }, arg(a), shape, out);
      case op::to_index: return unary_loop<index_t, T>([](T x) SAMITE_LAMBDA_INLINE { return index_t(x); }, arg(a), shape, out);
      case op::round_to: return round_loop_as<T>(dtype(n.imm), arg(a), shape, out);
      case op::select:
        if (n.kind == value_kind::real) return select_loop<T>(arg(a), arg(b), arg(c), shape, out);
        if (n.kind == value_kind::index) return select_loop<index_t>(arg(a), arg(b), arg(c), shape, out);
        return select_loop<std::uint8_t>(arg(a), arg(b), arg(c), shape, out);
      default: break;
    }
    const value_kind kind = (*fn_)[a].kind;
    visit_op(n.code, [&](auto rule) {
      using rule_type = decltype(rule);
      if constexpr (requires { rule_type::is_logic; }) {
        logic_loop<rule_type>(arg(a), b == no_node ? arg(a) : arg(b), shape, out);
      } else if constexpr (requires { rule_type::decide; }) {
        if (kind == value_kind::index) binary_loop<std::uint8_t, index_t, rule_type>(arg(a), arg(b), shape, out);
        else if (kind == value_kind::real) binary_loop<std::uint8_t, T, rule_type>(arg(a), arg(b), shape, out);
        else binary_loop<std::uint8_t, std::uint8_t, rule_type>(arg(a), arg(b), shape, out);
      } else if constexpr (requires { rule_type::value(index_t(1), index_t(1)); }) {
        if constexpr (requires { rule_type::derivative; })
          if (kind == value_kind::real) return binary_loop<T, T, rule_type>(arg(a), arg(b), shape, out);
        binary_loop<index_t, index_t, rule_type>(arg(a), arg(b), shape, out);
      } else if constexpr (requires { rule_type::value(T(1)); }) {
        if constexpr (requires { rule_type::bounds; })
          if (kind == value_kind::index) return unary_loop<index_t, index_t>([](index_t x) SAMITE_LAMBDA_INLINE { return rule_type::value(x); }, arg(a), shape, out);
        if (kind == value_kind::index) return void(std::memcpy(out, at[std::size_t(a)], std::size_t(length) * sizeof(index_t)));  // stop
        unary_loop<T, T>([](T x) SAMITE_LAMBDA_INLINE { return rule_type::value(x); }, arg(a), shape, out);
      } else {
        ensure(false, "row kernels know every op");
      }
    });
  }

  template <class V>
  static void fill(V* out, index_t length, V number) { std::fill_n(out, length, number); }

  void symbols(symbol_id id, const frame& f, index_t* out) const {
    switch (id) {
      case symbol_id::columns: return fill(out, f.rows, f.columns);
      case symbol_id::b: return fill(out, f.rows, f.pairs->b);
      case symbol_id::h: return fill(out, f.rows, f.pairs->h);
      case symbol_id::row: case symbol_id::q:
        for (index_t r = 0; r < f.rows; ++r) out[r] = (id == symbol_id::q ? f.pairs->q : f.first) + r;
        return;
      default: {
        const index_t first = id == symbol_id::kv ? f.pairs->kv : 0;
        for (index_t r = 0; r < f.rows; ++r)
          for (index_t c = 0; c < f.columns; ++c) out[r * f.columns + c] = first + c;
      }
    }
  }

  static void load_pairs(const T* from, const frame& f, void*& at) {
    if (f.pairs->stride == f.columns) return void(at = const_cast<T*>(from));
    for (index_t r = 0; r < f.rows; ++r) std::copy_n(from + r * f.pairs->stride, f.columns, static_cast<T*>(at) + r * f.columns);
  }

  // Index i of element e; an operand with one value a row is read at the element's row.
  static index_t index_at(const loop_operand& x, index_t e, index_t columns, bool is_full) {
    return static_cast<const index_t*>(x.data)[is_full && !x.full ? e / columns : e];
  }

  static void gather(const table_contents& table, const loop_operand* indices, int rank, index_t length, index_t columns, bool is_full, index_t* out) {
    for (index_t e = 0; e < length; ++e) {
      index_t at[3] = {0, 0, 0};
      for (int i = 0; i < rank; ++i) at[3 - rank + i] = index_at(indices[i], e, columns, is_full);
      out[e] = table.clamped(at[0], at[1], at[2]);
    }
  }

  static void lookup(const tensor_view& tensor, const loop_operand* indices, int rank, index_t length, index_t columns, bool is_full, T* out) {
    for (index_t e = 0; e < length; ++e) {
      index_t offset = 0;
      for (int i = 0; i < rank; ++i) offset += index_at(indices[i], e, columns, is_full) * tensor.strides[std::size_t(i)];
      load_row(out + e, tensor.data + offset * index_t(size_of(tensor.type)), tensor.type, 0, 1);
    }
  }

  void load(const row_access& a, value_kind kind, bool is_full, const frame& f, void*& at) const {
    const index_t columns = is_full ? f.columns : 1;
    // A dense operand of the computing type is read in place.
    const bool same_type = (kind == value_kind::real && a.type == (sizeof(T) == 8 ? dtype::f64 : dtype::f32)) || (kind == value_kind::index && a.type == dtype::i64);
    if (same_type && a.uniform_row_stride == columns && (a.column_stride == 1 || !is_full)) {
      at = const_cast<std::byte*>(a.data) + std::size_t(f.first * columns) * size_of(a.type);
      return;
    }
    for (index_t r = 0; r < f.rows; ++r) {
      const std::byte* from = a.data + a.row_offset(f.first + r) * index_t(size_of(a.type));
      const index_t stride = is_full ? a.column_stride : 0;
      if (kind == value_kind::real) load_row(static_cast<T*>(at) + r * columns, from, a.type, stride, columns);
      else load_row(static_cast<index_t*>(at) + r * columns, from, a.type, stride, columns);
    }
  }

  static void reduce(op code, const T* from, bool is_full, const frame& f, T* out) {
    for (index_t r = 0; r < f.rows; ++r) {
      if (!is_full) out[r] = code == op::row_sum ? from[r] * T(f.columns) : from[r];
      else if (code == op::row_sum) out[r] = row_sum(from + r * f.columns, f.columns);
      else out[r] = row_extreme(from + r * f.columns, f.columns, code == op::row_max);
    }
  }

  void rolled(const node& n, node_id a, const frame& f, std::vector<void*>& at) const {
    void*& out = at[std::size_t(&n - fn_->nodes().data())];
    const std::size_t bytes = n.kind == value_kind::boolean ? 1 : n.kind == value_kind::index ? sizeof(index_t) : sizeof(T);
    if (!full(a)) return void(std::memcpy(out, at[std::size_t(a)], bytes * std::size_t(f.rows)));
    if (f.columns == 0) return;
    const index_t shift = floor_mod(n.imm, f.columns);
    for (index_t r = 0; r < f.rows; ++r) {
      const std::byte* from = static_cast<const std::byte*>(at[std::size_t(a)]) + std::size_t(r * f.columns) * bytes;
      std::byte* to = static_cast<std::byte*>(out) + std::size_t(r * f.columns) * bytes;
      std::memcpy(to, from + std::size_t(shift) * bytes, std::size_t(f.columns - shift) * bytes);
      std::memcpy(to + std::size_t(f.columns - shift) * bytes, from, std::size_t(shift) * bytes);
    }
  }

  void store(const tensor_view& out, node_id root, const frame& f, const std::vector<void*>& at) const {
    const index_t columns = out.dims.empty() ? 1 : out.dims.back();
    std::byte* to = out.data + std::size_t(f.first * columns) * size_of(out.type);
    if (full(root) || columns == 1) return store_row(to, out.type, static_cast<const T*>(at[std::size_t(root)]), f.rows * columns);
    for (index_t r = 0; r < f.rows; ++r) {  // one number a row, repeated over the columns
      std::vector<T> repeated(std::size_t(columns), static_cast<const T*>(at[std::size_t(root)])[r]);
      store_row(to + std::size_t(r * columns) * size_of(out.type), out.type, repeated.data(), columns);
    }
  }

  std::shared_ptr<const program> fn_;
  std::vector<char> varies_;
  std::vector<int> register_;
  int registers_ = 0;
  std::size_t element_bytes_ = sizeof(T);
};

}  // namespace samite::detail
