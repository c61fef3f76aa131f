// samite/emit/score_impl.hpp: the text of score functions.
#pragma once
#include <algorithm>
#include <bit>
#include <cstring>

#include <samite/emit/score.hpp>
#include <samite/ir/derivative.hpp>

namespace samite {
namespace detail {

class score_emitter {
 public:
  score_emitter(const program& score, std::span<const dtype> types, bool in_double) : score_(score), types_(types), in_double_(in_double), derivative_(differentiate_score(score)) {}

  std::string emit() {
    const std::size_t numbers = score_.arguments().size(), tables = score_.tables().size();
    std::string out = concat_text("using real = ", in_double_ ? "double" : "float", ";\n\nstruct score_function {\n");
    if (numbers > 0) out += concat_text("  double reals[", numbers, "];\n  index indices[", numbers, "];\n");
    if (!types_.empty()) out += concat_text("  score_tensor tensors[", types_.size(), "];\n  element_sums sums[", types_.size(), "];\n");
    if (tables > 0) out += concat_text("  score_table tables[", tables, "];\n");
    if (numbers + tables + types_.size() == 0) out += "  index unused;\n";
    const program& d = derivative_.p;
    std::vector<const score_derivative::element*> held, scattered;
    const std::vector<char> moves = moving(d);
    for (const score_derivative::element& e : derivative_.elements) {
      const std::vector<node_id> indices = indices_of(e);
      const bool moved = std::any_of(indices.begin(), indices.end(), [&](node_id id) { return moves[std::size_t(id)] != 0; });
      (moved ? scattered : held).push_back(&e);
    }
    out += concat_text("  static constexpr bool identity = false;\n  static constexpr int held = ", held.size(), ";  // elements that all pairs of a head share\n\n");
    out += concat_text("  __device__ real value(", pair_, ") const {\n", body(score_, {score_.roots[0]}), "    return ", name(score_, score_.roots[0]), ";\n  }\n");
    out += concat_text("  __device__ real adjoint(", pair_, ", real dy) const {\n", body(d, {d.roots[0]}), "    return ", name(d, d.roots[0]), ";\n  }\n");

    std::vector<node_id> roots;
    for (const auto* e : held) roots.push_back(d.roots[e->adjoint]);
    out += concat_text("  __device__ void gradient(", pair_, ", real dy, real* shared_sums) const {\n", body(d, roots));
    for (std::size_t i = 0; i < held.size(); ++i) out += concat_text("    shared_sums[", i, "] += ", name(d, d.roots[held[i]->adjoint]), ";\n");
    if (!scattered.empty()) out += "    scatter(b, h, q, kv, score, dy);\n";
    out += "  }\n";
    if (!scattered.empty()) {  // a call, so that it stands once in a kernel and not once for each pair of a thread
      roots.clear();
      for (const auto* e : scattered) {
        roots.push_back(d.roots[e->adjoint]);
        for (node_id id : indices_of(*e)) roots.push_back(id);
      }
      out += concat_text("  __device__ __noinline__ void scatter(", pair_, ", real dy) const {\n", body(d, roots));
      for (const auto* e : scattered) out += concat_text("    add_to(", place(*e), ", ", name(d, d.roots[e->adjoint]), ");\n");
      out += "  }\n";
    }
    out += "  __device__ void add_held(int which, index b, index h, real x) const {\n";
    for (std::size_t i = 0; i < held.size(); ++i) out += concat_text("    if (which == ", i, ") {\n", body(d, indices_of(*held[i])), "    add_to(", place(*held[i]), ", x);\n    }\n");
    return out + "  }\n};\n\n";
  }

 private:
  std::vector<node_id> indices_of(const score_derivative::element& e) const {
    const auto first = derivative_.p.roots.begin() + std::ptrdiff_t(e.indices);
    return {first, first + e.rank};
  }

  /// "sums[slot], index of the element".
  std::string place(const score_derivative::element& e) const {
    std::string out = concat_text("sums[", e.slot, "], element_index(tensors[", e.slot, "]");
    const std::vector<node_id> indices = indices_of(e);
    for (std::size_t k = 0; k < 3; ++k) out += ", " + (k < indices.size() ? name(derivative_.p, indices[k]) : std::string("0"));
    return out + ")";
  }

  // Does a node change within a head?
  static std::vector<char> moving(const program& p) {
    std::vector<char> moves(p.size(), 0);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const node& n = p.nodes()[i];
      moves[i] = n.code == op::operand || (n.code == op::symbol && n.imm >= index_t(symbol_id::q));
      for (node_id operand : n.operands)
        if (operand != no_node && moves[std::size_t(operand)]) moves[i] = 1;
    }
    return moves;
  }

  std::string name(const program& p, node_id id) const {
    const node& n = p[id];
    switch (n.code) {
      case op::constant: return literal(n);
      case op::symbol: return symbol_names[n.imm];
      case op::operand: return "dy";
      case op::argument: return n.kind == value_kind::real ? concat_text("real(reals[", n.imm, "])") : concat_text("indices[", n.imm, "]");
      default: return concat_text("v", id);
    }
  }

  /// A line for each node that the roots need.
  std::string body(const program& p, const std::vector<node_id>& roots) const {
    const std::vector<char> used = used_nodes(p, roots);
    std::string out;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const node& n = p.nodes()[i];
      if (!used[i]) continue;
      if (n.code == op::symbol && n.imm > index_t(symbol_id::score))
        raise("E-EMIT-OP", "score function: the symbol ", symbol_names[n.imm], " has no meaning in it; use score, b, h, q and kv");
      if (n.code == op::constant || n.code == op::symbol || n.code == op::operand || n.code == op::argument) continue;
      std::string x[3] = {"0", "0", "0"};
      for (int k = 0; k < 3 && n.operands[k] != no_node; ++k) x[k] = name(p, n.operands[k]);
      std::string value;
      if (n.code == op::lookup) {
        value = concat_text("element<real, ", name_of(types_[std::size_t(n.imm)]), ">(tensors[", n.imm, "], ", x[0], ", ", x[1], ", ", x[2], ")");
      } else if (n.code == op::gather) {  // a table of lower rank fills the last of three axes
        const int rank = n.operand_count();
        value = concat_text("entry(tables[", n.imm, "]");
        for (int k = 0; k < 3; ++k) value += ", " + (k < 3 - rank ? std::string("0") : x[k - (3 - rank)]);
        value += ")";
      } else {
        value = node_text(p, n, x);
      }
      out += concat_text("    const ", kind_text(n.kind), " v", i, " = ", value, ";\n");
    }
    return out;
  }

  static constexpr const char* pair_ = "index b, index h, index q, index kv, real score";
  const program& score_;
  std::span<const dtype> types_;
  bool in_double_;
  score_derivative derivative_;
};

}  // namespace detail

SAMITE_IMPL std::string score_text(const program& score, std::span<const dtype> types, bool in_double) { return detail::score_emitter(score, types, in_double).emit(); }

SAMITE_IMPL std::size_t score_arguments_bytes(const program& score, std::size_t tensors) {
  return std::max<std::size_t>(8, 16 * score.arguments().size() + 72 * tensors + 32 * score.tables().size());
}

SAMITE_IMPL std::vector<std::byte> pack_score_arguments(const program& score, std::span<const score_number_argument> numbers, std::span<const score_tensor_argument> tensors,
                                                        std::span<const std::shared_ptr<const table_contents>> contents, std::span<const std::uint64_t> pointers) {
  ensure(numbers.size() == score.arguments().size() && contents.size() == score.tables().size() && pointers.size() == contents.size(), "every number and table of a score function has a value");
  std::vector<std::int64_t> words;
  for (const score_number_argument& n : numbers) words.push_back(std::bit_cast<std::int64_t>(n.real));
  for (const score_number_argument& n : numbers) words.push_back(n.index);
  for (const score_tensor_argument& t : tensors) {
    words.push_back(std::bit_cast<std::int64_t>(t.data));
    for (std::size_t i = 0; i < 3; ++i) words.push_back(i < t.dims.size() ? t.dims[i] : 1);
    for (std::size_t i = 0; i < 3; ++i) words.push_back(i < t.dims.size() ? t.strides[i] : 0);
  }
  for (const score_tensor_argument& t : tensors) words.push_back(std::bit_cast<std::int64_t>(t.words)), words.push_back(std::bit_cast<std::int64_t>(t.direct));
  for (std::size_t i = 0; i < contents.size(); ++i) {
    words.push_back(std::bit_cast<std::int64_t>(pointers[i]));
    words.insert(words.end(), contents[i]->dims().begin(), contents[i]->dims().end());
  }
  std::vector<std::byte> bytes(score_arguments_bytes(score, tensors.size()));
  if (!words.empty()) std::memcpy(bytes.data(), words.data(), words.size() * 8);
  return bytes;
}

}  // namespace samite
