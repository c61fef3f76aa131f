// samite/emit/predicate_impl.hpp: the text of masks.
#pragma once
#include <algorithm>
#include <bit>
#include <cstring>

#include <samite/emit/predicate.hpp>
#include <samite/ir/canonical.hpp>

namespace samite {

namespace detail {

// Tiles at the edge ask for rows and columns that don't exist: a lookup clamps its indices, and an empty table reads as 0.
inline constexpr const char* table_at_text = R"(__device__ __forceinline__ long long table_at(const int* values, const long long* dims, long long i, long long j, long long k) {
  if (dims[0] * dims[1] * dims[2] == 0) return 0;
  i = i < 0 ? 0 : i < dims[0] ? i : dims[0] - 1;
  j = j < 0 ? 0 : j < dims[1] ? j : dims[1] - 1;
  k = k < 0 ? 0 : k < dims[2] ? k : dims[2] - 1;
  return values[(i * dims[1] + j) * dims[2] + k];
}

)";

}  // namespace detail

namespace detail {

// The text of a mask in parts: what depends on the head alone, on the row, on the column, and on the pair.
class predicate_emitter {
 public:
  predicate_emitter(const program& p, const std::string& name) : p_(p), name_(name), used_(used_nodes(p, p.roots)), part_(p.size(), head), cost_(p.size(), 0), is_field_(p.size(), 0) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      const node& n = p.nodes()[i];
      if (!used_[i]) continue;
      if (n.kind == value_kind::real || n.code == op::operand || (n.code == op::symbol && n.imm > index_t(symbol_id::kv)))
        raise("E-EMIT-OP", "predicate_text(\"", name, "\"): the program reads ", n.code == op::symbol ? symbol_names[n.imm] : n.code == op::operand ? "a tensor" : "real numbers",
              ", but a mask is made of b, h, q, kv, tables and whole numbers");
      unsigned part = n.code != op::symbol ? head : n.imm == index_t(symbol_id::q) ? row : n.imm == index_t(symbol_id::kv) ? column : head;
      int cost = is_leaf(n) ? 0 : n.code == op::gather ? 12 : n.code == op::div || n.code == op::mod ? 6 : 1;
      for (int k = 0; k < n.operand_count(); ++k) part |= part_[at(n.operands[k])], cost += cost_[at(n.operands[k])];
      part_[i] = part, cost_[i] = std::min(cost, 1 << 20);
      for (int k = 0; k < n.operand_count(); ++k)
        if (part_[at(n.operands[k])] != part) ask_for(n.operands[k]);
    }
    if (part_[at(root())] != pair) ask_for(root());
  }

  std::string emit() {
    const std::size_t scalars = p_.arguments().size(), tables = p_.tables().size();
    std::string out = "struct mask_arguments {\n";
    if (scalars > 0) out += concat_text("  long long scalars[", scalars, "];\n");
    if (tables > 0) out += concat_text("  long long dims[", tables, "][3];\n  const int* tables[", tables, "];\n");
    if (scalars + tables == 0) out += "  long long unused;\n";
    out += "};\n\n";
    if (tables > 0) out += table_at_text;
    for (const unsigned part : {head, row, column}) out += part_text(part);
    const std::string rest = body(pair, {root()}) + "  return " + reference(pair, root()) + ";\n}\n\n";
    out += concat_text("__device__ __forceinline__ bool ", name_, "(", parameters(pair, rest), ") {\n", rest);
    return out + concat_text("__device__ __forceinline__ bool ", name_, "(long long b, long long h, long long q, long long kv, const mask_arguments& m) {\n  const ", name_, "_head head = ", name_,
                             "_of_head(b, h, m);\n  return ", name_, "(b, h, q, kv, head, ", name_, "_of_row(b, h, q, head, m), ", name_, "_of_column(b, h, kv, head, m), m);\n}\n");
  }

 private:
  enum parts : unsigned { head = 0, row = 1, column = 2, pair = 3 };
  static constexpr const char* part_names_[] = {"head", "row", "column", "pair"};
  // What is cheaper than carrying a value from where it was computed is computed again.
  static constexpr int least_cost_ = 3;

  static std::size_t at(node_id id) { return std::size_t(id); }
  static bool is_leaf(const node& n) { return n.code == op::constant || n.code == op::symbol || n.code == op::argument; }
  node_id root() const { return p_.roots.at(0); }

  // A node of one part that is read in another.
  void ask_for(node_id id) {
    const node& n = p_[id];
    if (is_leaf(n)) return;
    if (cost_[at(id)] >= least_cost_) {
      is_field_[at(id)] = 1;
      return;
    }
    for (int k = 0; k < n.operand_count(); ++k) ask_for(n.operands[k]);
  }

  bool is_local(unsigned part, node_id id) const { return part_[at(id)] == part || !is_field_[at(id)]; }

  std::string local(node_id id) const { return concat_text(p_[id].kind == value_kind::boolean ? "keep" : "x", id); }

  std::string reference(unsigned part, node_id id) const {
    const node& n = p_[id];
    if (n.code == op::constant) return literal(n);
    if (n.code == op::symbol) return symbol_names[n.imm];
    if (n.code == op::argument) return concat_text("m.scalars[", n.imm, "]");
    return is_local(part, id) ? local(id) : concat_text(part_names_[part_[at(id)]], ".", local(id));
  }

  static const char* type_of(const node& n) { return n.kind == value_kind::boolean ? "bool" : "long long"; }

  std::string line(unsigned part, node_id id) const {
    const node& n = p_[id];
    std::string value;
    if (n.code == op::gather) {
      const int rank = n.operand_count();
      value = concat_text("table_at(m.tables[", n.imm, "], m.dims[", n.imm, "]");
      for (int k = 0; k < 3; ++k) value += ", " + (k < 3 - rank ? std::string("0") : reference(part, n.operands[k - (3 - rank)]));
      value += ")";
    } else {
      std::string x[3];
      for (int k = 0; k < n.operand_count(); ++k) x[k] = reference(part, n.operands[k]);
      value = op_text(n.code, p_[n.operands[0]].kind != value_kind::real, x);
      if (value.front() == '(' && value.back() == ')') value = value.substr(1, value.size() - 2);  // one operator, one pair
    }
    return concat_text("  const ", type_of(n), " ", local(id), " = ", value, ";\n");
  }

  // The lines that these nodes need in one part.
  std::string body(unsigned part, const std::vector<node_id>& wanted) const {
    std::vector<char> needed(p_.size(), 0);
    for (node_id id : wanted) needed[at(id)] = 1;
    std::string out;
    std::vector<std::string> lines;
    for (std::size_t i = p_.size(); i-- > 0;) {
      const node& n = p_.nodes()[i];
      if (!needed[i] || is_leaf(n) || !is_local(part, node_id(i))) continue;
      for (int k = 0; k < n.operand_count(); ++k) needed[at(n.operands[k])] = 1;
      lines.push_back(line(part, node_id(i)));
    }
    for (auto next = lines.rbegin(); next != lines.rend(); ++next) out += *next;
    return out;
  }

  // The names of one part's parameters; those that its body does not mention stand in comments.
  std::string parameters(unsigned part, const std::string& body) const {
    const auto mentions = [&](const std::string& word) {
      const auto is_letter = [](char c) { return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'); };
      for (std::size_t i = body.find(word); i != std::string::npos; i = body.find(word, i + 1))
        if (!is_letter(body[i - 1]) && !is_letter(body[i + word.size()])) return true;
      return false;
    };
    std::string out;
    const auto add = [&](const std::string& type, const char* word, const char* between = ", ") { out += type + (mentions(word) ? concat_text(" ", word, between) : concat_text(" /*", word, "*/", between)); };
    add("long long", "b"), add("long long", "h");
    if ((part & row) != 0) add("long long", "q");
    if ((part & column) != 0) add("long long", "kv");
    for (const unsigned other : {head, row, column})
      if ((other & ~part) == 0 && other != part) add(concat_text("const ", name_, "_", part_names_[other], "&"), part_names_[other]);
    add("const mask_arguments&", "m", "");
    return out;
  }

  // A struct with the part's values, `each` of them mapped by a function, and the function that computes them.
  std::string part_text(unsigned part) const {
    const std::string type = concat_text(name_, "_", part_names_[part]);
    std::vector<node_id> fields;
    for (std::size_t i = 0; i < p_.size(); ++i)
      if (is_field_[i] && part_[i] == part) fields.push_back(node_id(i));
    std::string out = "struct " + type + " {\n", mapped, made;
    for (node_id id : fields) {
      out += concat_text("  ", type_of(p_[id]), " ", local(id), ";\n");
      mapped += concat_text(mapped.empty() ? "" : ", ", "f(", local(id), ")");
      made += concat_text(made.empty() ? "" : ", ", local(id));
    }
    if (part != head) out += concat_text("  template <class F> __device__ __forceinline__ ", type, " each(F ", fields.empty() ? "" : "f", ") const { return {", mapped, "}; }\n");
    out += "};\n";
    const std::string rest = body(part, fields) + "  return {" + made + "};\n}\n\n";
    return out + concat_text("__device__ __forceinline__ ", type, " ", name_, "_of_", part_names_[part], "(", parameters(part, rest), ") {\n", rest);
  }

  const program& p_;
  const std::string& name_;
  std::vector<char> used_;
  std::vector<unsigned> part_;
  std::vector<int> cost_;
  std::vector<char> is_field_;
};

}  // namespace detail

SAMITE_IMPL std::string predicate_text(const program& p, const std::string& name) { return detail::predicate_emitter(p, name).emit(); }

SAMITE_IMPL std::size_t mask_arguments_bytes(const program& p) {
  return std::max<std::size_t>(8, 8 * p.arguments().size() + 32 * p.tables().size());
}

SAMITE_IMPL std::vector<std::byte> pack_mask_arguments(const program& p, std::span<const std::shared_ptr<const table_contents>> contents,
                                                  std::span<const std::uint64_t> pointers) {
  ensure(contents.size() == p.tables().size() && pointers.size() == p.tables().size(), "every table of a mask has contents and an address");
  std::vector<std::int64_t> words;
  for (const auto& cell : p.arguments()) words.push_back(cell->index());
  for (const auto& table : contents) words.insert(words.end(), table->dims().begin(), table->dims().end());
  for (std::uint64_t pointer : pointers) words.push_back(std::bit_cast<std::int64_t>(pointer));
  std::vector<std::byte> bytes(mask_arguments_bytes(p));
  if (!words.empty()) std::memcpy(bytes.data(), words.data(), words.size() * 8);
  return bytes;
}

}  // namespace samite
