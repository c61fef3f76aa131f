// samite/emit/score_tile_use_impl.hpp: which score functions the sm_90a kernels take.
#pragma once
#include <samite/emit/score_tile_use.hpp>
#include <samite/ir/derivative.hpp>

namespace samite {

SAMITE_IMPL bool detail::reads_symbol(const program& p, const std::vector<node_id>& roots, symbol_id first, symbol_id last) {
  const std::vector<char> used = used_nodes(p, roots);
  for (std::size_t i = 0; i < p.size(); ++i)
    if (const node& n = p.nodes()[i]; used[i] != 0 && n.code == op::symbol && n.imm >= index_t(first) && n.imm <= index_t(last)) return true;
  return false;
}

SAMITE_IMPL bool serves_score_tiles(const program& score) {
  constexpr std::size_t most_nodes = 64;
  std::size_t nodes = 0;
  const std::vector<char> used = detail::used_nodes(score, score.roots);
  for (std::size_t i = 0; i < score.size(); ++i) {
    if (used[i] == 0) continue;
    const node& n = score.nodes()[i];
    if (n.code == op::sin || n.code == op::cos || (n.code == op::symbol && n.imm > index_t(symbol_id::score))) return false;
    ++nodes;
  }
  return nodes <= most_nodes;
}

SAMITE_IMPL bool serves_score_tile_gradients(const program& score) {
  if (!serves_score_tiles(score)) return false;
  const score_derivative d = differentiate_score(score);
  for (const score_derivative::element& e : d.elements) {
    const auto first = d.p.roots.begin() + std::ptrdiff_t(e.indices);
    if (detail::reads_symbol(d.p, {first, first + e.rank}, symbol_id::q, symbol_id::columns)) return false;
  }
  return true;
}

SAMITE_IMPL bool score_tiles_fill_registers(const program& score, bool approximates) {
  for (const node& n : score.nodes()) {
    if (n.code == op::tanh && !approximates) return true;
    const bool is_element = n.code == op::lookup || n.code == op::gather;
    if (is_element && detail::reads_symbol(score, {n.operands, n.operands + n.operand_count()}, symbol_id::q, symbol_id::columns)) return true;
  }
  return false;
}

}  // namespace samite
