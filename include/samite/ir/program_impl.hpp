// samite/ir/program_impl.hpp: how a program keeps every node once.
#pragma once
#include <samite/ir/program.hpp>

namespace samite {

SAMITE_IMPL std::uint64_t hash_of(const node& n) {
  std::uint64_t h = combine_hash(std::uint64_t(n.code) | (std::uint64_t(n.kind) << 8), std::uint64_t(n.imm));
  for (node_id operand : n.operands) h = combine_hash(h, std::uint64_t(std::uint32_t(operand)));
  return combine_hash(h, std::bit_cast<std::uint64_t>(n.real));
}

SAMITE_IMPL std::shared_ptr<scalar_cell> make_cell(index_t value) { return std::make_shared<scalar_cell>(value); }
SAMITE_IMPL std::shared_ptr<scalar_cell> make_cell(double value) { return std::make_shared<scalar_cell>(value); }

SAMITE_IMPL program::program() = default;
SAMITE_IMPL program::program(const program&) = default;
SAMITE_IMPL program::program(program&&) noexcept = default;
SAMITE_IMPL program& program::operator=(const program&) = default;
SAMITE_IMPL program& program::operator=(program&&) noexcept = default;
SAMITE_IMPL program::~program() = default;

namespace detail {
// Where to look for a node: as good as hash_of for a table in memory, and several times as quick.
inline std::size_t place_of(const node& n) {
  constexpr std::uint64_t odd = 0x9E3779B97F4A7C15u;
  std::uint64_t h = std::uint64_t(n.imm) ^ std::bit_cast<std::uint64_t>(n.real) ^ (std::uint64_t(n.code) << 56 | std::uint64_t(n.kind) << 48);
  for (node_id operand : n.operands) h = (h ^ (h >> 29) ^ std::uint32_t(operand)) * odd;
  return std::size_t(h >> 32 ^ h);
}
}  // namespace detail

SAMITE_IMPL node_id program::push(const node& n) {
  if (2 * (nodes_.size() + 1) > index_.size()) grow_index();
  const std::size_t mask = index_.size() - 1;
  std::size_t place = detail::place_of(n) & mask;
  for (; index_[place] != no_node; place = (place + 1) & mask)
    if (nodes_[std::size_t(index_[place])] == n) return index_[place];
  index_[place] = node_id(nodes_.size());
  nodes_.push_back(n);
  return index_[place];
}

SAMITE_IMPL void program::grow_index() {
  index_.assign(index_.empty() ? 32 : 2 * index_.size(), no_node);
  const std::size_t mask = index_.size() - 1;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    std::size_t place = detail::place_of(nodes_[i]) & mask;
    while (index_[place] != no_node) place = (place + 1) & mask;
    index_[place] = node_id(i);
  }
}

namespace detail {
/// Slot of an item, added if it is new. index: open addressing by address; empty while the list is short.
template <class T>
index_t slot_in(std::vector<std::shared_ptr<T>>& list, std::vector<std::int32_t>& index, const std::shared_ptr<T>& item) {
  const auto place_of = [&](const T* address) {
    std::size_t place = std::size_t(combine_hash(0, std::uint64_t(reinterpret_cast<std::uintptr_t>(address)))) & (index.size() - 1);
    while (index[place] >= 0 && list[std::size_t(index[place])].get() != address) place = (place + 1) & (index.size() - 1);
    return place;
  };
  if (list.size() < 16) {
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i] == item) return index_t(i);
  } else {
    if (2 * (list.size() + 1) > index.size()) {
      std::size_t places = 64;
      while (places < 4 * list.size()) places *= 2;
      index.assign(places, -1);
      for (std::size_t i = 0; i < list.size(); ++i) index[place_of(list[i].get())] = std::int32_t(i);
    }
    const std::size_t place = place_of(item.get());
    if (index[place] >= 0) return index_t(index[place]);
    index[place] = std::int32_t(list.size());
  }
  list.push_back(item);
  return index_t(list.size() - 1);
}
}  // namespace detail

SAMITE_IMPL index_t program::slot_of(const std::shared_ptr<scalar_cell>& cell) { return detail::slot_in(arguments_, argument_index_, cell); }
SAMITE_IMPL index_t program::slot_of(const std::shared_ptr<const index_table>& table) { return detail::slot_in(tables_, table_index_, table); }

SAMITE_IMPL std::uint64_t program::hash() const {
  std::uint64_t h = nodes_.size();
  for (const node& n : nodes_) h = combine_hash(h, hash_of(n));
  for (node_id root : roots) h = combine_hash(h, std::uint64_t(std::uint32_t(root)));
  return h;
}

namespace detail {

SAMITE_IMPL std::vector<char> used_nodes(const program& p, const std::vector<node_id>& roots) {
  std::vector<char> used(p.size(), 0);
  for (node_id root : roots) used[std::size_t(root)] = 1;
  for (std::size_t i = p.size(); i-- > 0;)
    if (used[i])
      for (node_id operand : p.nodes()[i].operands)
        if (operand != no_node) used[std::size_t(operand)] = 1;
  return used;
}

}  // namespace detail

}  // namespace samite
