// samite/ir/evaluate_impl.hpp: the loops behind ir/evaluate.hpp.
#pragma once
#include <algorithm>
#include <type_traits>

#include <samite/ir/canonical.hpp>
#include <samite/ir/evaluate.hpp>
#include <samite/ir/ops.hpp>

namespace samite {

SAMITE_IMPL evaluator::evaluator(const program& source, std::size_t root) : program_(canonical(source, true)), root_(program_.roots.at(root)) {
  for (const auto& table : program_.tables()) tables_.push_back(table->contents());
  scratch_.resize(program_.size());
}

SAMITE_IMPL index_t evaluator::operator()(index_t b, index_t h, index_t q, index_t kv) {
  const index_t symbols[] = {b, h, q, kv};
  for (std::size_t i = 0; i <= std::size_t(root_); ++i) scratch_[i] = step(program_[node_id(i)], symbols);
  return scratch_[std::size_t(root_)];
}

SAMITE_IMPL index_t evaluator::step(const node& n, const index_t* symbols) const {
  const auto x = [&](int i) { return scratch_[std::size_t(n.operands[i])]; };
  switch (n.code) {
    case op::constant: return n.imm;
    case op::symbol: return symbols[n.imm];
    case op::select: return x(0) ? x(1) : x(2);
    case op::gather: {
      const table_contents& table = *tables_[std::size_t(n.imm)];
      const int rank = n.operand_count();
      index_t at[3] = {0, 0, 0};
      for (int i = 0; i < rank; ++i) {
        at[3 - rank + i] = x(i);
        if (x(i) < 0 || x(i) >= table.dims()[std::size_t(3 - rank + i)])
          raise("E-MASK-TABLE-RANGE", "mask at b ", symbols[0], ", h ", symbols[1], ", q ", symbols[2], ", kv ", symbols[3], ": index ", i,
                " of a table of rank ", rank, " is ", x(i), ", but must be from 0 to ", table.dims()[std::size_t(3 - rank + i)] - 1,
                "; give a table that covers the range, or clamp the index");
      }
      return table.clamped(at[0], at[1], at[2]);
    }
    default:
      return visit_op(n.code, [&](auto rule) -> index_t {
        using rule_type = decltype(rule);
        if constexpr (requires { rule_type::value(index_t(1), index_t(1)); }) return index_t(rule_type::value(x(0), x(1)));
        else if constexpr (requires { rule_type::value(true, true); }) return index_t(rule_type::value(x(0) != 0, x(1) != 0));
        else if constexpr (std::is_same_v<rule_type, rules::logical_not>) return x(0) == 0;
        else if constexpr (std::is_same_v<rule_type, rules::neg> || std::is_same_v<rule_type, rules::abs> ||
                           std::is_same_v<rule_type, rules::stop>)
          return rule_type::value(x(0));
        else
          return ensure(false, "an evaluated program holds only indices and predicates"), 0;
      });
  }
}

SAMITE_IMPL row_evaluator::row_evaluator(const program& source, std::size_t root) : program_(canonical(source, true)), root_(program_.roots.at(root)) {
  for (const auto& table : program_.tables()) tables_.push_back(table->contents());
  lane_.assign(program_.size(), -1);
  fixed_.resize(program_.size());
  int lanes = 0;
  for (std::size_t i = 0; i < program_.size(); ++i) {
    const node& n = program_[node_id(i)];
    bool varies = n.code == op::symbol && n.imm == index_t(symbol_id::kv);
    for (node_id operand : n.operands) varies = varies || (operand != no_node && lane_[std::size_t(operand)] >= 0);
    if (varies) lane_[i] = lanes++, varying_.push_back(node_id(i));
    else constant_.push_back(node_id(i));
  }
  lanes_.resize(std::size_t(lanes) * width);
}

SAMITE_IMPL void row_evaluator::row(index_t b, index_t h, index_t q, index_t k0, index_t k1, std::uint8_t* keep) {
  if (!has_row_ || b != b_ || h != h_ || q != q_) {
    b_ = b, h_ = h, q_ = q, has_row_ = true;
    for (node_id id : constant_) fixed_[std::size_t(id)] = scalar(program_[id]);
  }
  for (index_t k = k0; k < k1; k += width) {
    const int count = int(std::min<index_t>(width, k1 - k));
    for (node_id id : varying_) block(id, k, count);
    std::uint8_t* out = keep + (k - k0);
    if (lane_[std::size_t(root_)] < 0) {
      std::fill(out, out + count, std::uint8_t(fixed_[std::size_t(root_)] != 0));
    } else {
      const index_t* from = lane(root_);
      for (int i = 0; i < count; ++i) out[i] = std::uint8_t(from[i] != 0);
    }
  }
}

SAMITE_IMPL index_t row_evaluator::gather(const node& n, index_t x, index_t y, index_t z) const {
  const table_contents& table = *tables_[std::size_t(n.imm)];
  if (n.operands[1] == no_node) return table.clamped(0, 0, x);
  return n.operands[2] == no_node ? table.clamped(0, x, y) : table.clamped(x, y, z);
}

namespace detail {

// `f` is called with the rule as a function of two indices.
template <class F>
decltype(auto) with_index_rule(op code, F&& f) {
  return visit_op(code, [&](auto rule) -> decltype(auto) {
    using rule_type = decltype(rule);
    if constexpr (requires { rule_type::value(index_t(1), index_t(1)); })
      return f([](index_t x, index_t y) { return index_t(rule_type::value(x, y)); });
    else if constexpr (requires { rule_type::value(true, true); })
      return f([](index_t x, index_t y) { return index_t(rule_type::value(x != 0, y != 0)); });
    else if constexpr (std::is_same_v<rule_type, rules::logical_not>)
      return f([](index_t x, index_t) { return index_t(x == 0); });
    else if constexpr (std::is_same_v<rule_type, rules::neg> || std::is_same_v<rule_type, rules::abs>)
      return f([](index_t x, index_t) { return rule_type::value(x); });
    else
      return f([](index_t x, index_t) { return x; });
  });
}

}  // namespace detail

SAMITE_IMPL index_t row_evaluator::scalar(const node& n) const {
  const auto x = [&](int i) { return n.operands[i] == no_node ? 0 : fixed_[std::size_t(n.operands[i])]; };
  switch (n.code) {
    case op::constant: return n.imm;
    case op::symbol: return n.imm == index_t(symbol_id::b) ? b_ : n.imm == index_t(symbol_id::h) ? h_ : q_;
    case op::select: return x(0) ? x(1) : x(2);
    case op::gather: return gather(n, x(0), x(1), x(2));
    default: return detail::with_index_rule(n.code, [&](auto rule) { return rule(x(0), x(1)); });
  }
}

SAMITE_IMPL void row_evaluator::block(node_id id, index_t k, int count) {
  const node& n = program_[id];
  index_t* out = lane(id);
  if (n.code == op::symbol) {
    for (int i = 0; i < count; ++i) out[i] = k + i;
    return;
  }
  const index_t* at[3] = {nullptr, nullptr, nullptr};
  index_t same[3] = {0, 0, 0};
  for (int j = 0; j < 3; ++j) {
    if (n.operands[j] == no_node) continue;
    if (lane_[std::size_t(n.operands[j])] >= 0) at[j] = lane(n.operands[j]);
    else same[j] = fixed_[std::size_t(n.operands[j])];
  }
  const auto read = [&](int j, int i) { return at[j] ? at[j][i] : same[j]; };
  if (n.code == op::select) {
    for (int i = 0; i < count; ++i) out[i] = read(0, i) ? read(1, i) : read(2, i);
  } else if (n.code == op::gather) {
    for (int i = 0; i < count; ++i) out[i] = gather(n, read(0, i), read(1, i), read(2, i));
  } else {
    detail::with_index_rule(n.code, [&](auto rule) {
      const index_t *x = at[0], *y = at[1];
      const index_t x0 = same[0], y0 = same[1];
      if (x && y) for (int i = 0; i < count; ++i) out[i] = rule(x[i], y[i]);
      else if (x) for (int i = 0; i < count; ++i) out[i] = rule(x[i], y0);
      else for (int i = 0; i < count; ++i) out[i] = rule(x0, y[i]);
    });
  }
}

}  // namespace samite
