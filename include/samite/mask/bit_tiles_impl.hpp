// samite/mask/bit_tiles_impl.hpp: finding equal bit tiles without looking at bits.
#pragma once
#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>

#include <samite/ir/interval.hpp>
#include <samite/mask/bit_tiles.hpp>

namespace samite {

// How much each node grows when q and kv grow by the step; nothing where that is not the same everywhere.
SAMITE_IMPL bool repeats_along_diagonal(const program& mask, index_t step) {
  using growth = std::optional<index_t>;
  constexpr index_t most = index_t(1) << 40;  // beyond it, products could wrap
  std::vector<growth> grows(mask.size());
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const node& n = mask.nodes()[i];
    const auto of = [&](int k) -> growth { return n.operands[k] == no_node ? growth(0) : grows[std::size_t(n.operands[k])]; };
    const auto constant = [&](int k) -> growth { return mask[n.operands[k]].code == op::constant ? growth(mask[n.operands[k]].imm) : growth(); };
    const growth a = of(0), b = of(1), c = of(2);
    growth& grown = grows[i];
    switch (n.code) {
      case op::symbol: grown = n.imm == index_t(symbol_id::q) || n.imm == index_t(symbol_id::kv) ? step : 0; break;
      case op::add: case op::sub:
        if (a && b) grown = n.code == op::add ? *a + *b : *a - *b;
        break;
      case op::neg:
        if (a) grown = -*a;
        break;
      case op::mul: {
        if (a == 0 && b == 0) grown = 0;
        else if (const growth factor = constant(0); factor && b && std::abs(*factor) < most && std::abs(*b) < most) grown = *factor * *b;
        else if (const growth other = constant(1); other && a && std::abs(*other) < most && std::abs(*a) < most) grown = *other * *a;
        break;
      }
      case op::shift_left:
        if (const growth places = constant(1); places && *places < 20 && a && std::abs(*a) < most) grown = *a * (index_t(1) << *places);
        break;
      case op::div:
        if (const growth divisor = constant(1); divisor && *divisor > 0 && a && *a % *divisor == 0) grown = *a / *divisor;
        break;
      case op::mod:
        if (const growth divisor = constant(1); divisor && *divisor > 0 && a && *a % *divisor == 0) grown = 0;
        break;
      case op::min: case op::max:
        if (a && a == b) grown = a;
        break;
      case op::less: case op::less_equal: case op::equal:
        if (a && a == b) grown = 0;
        break;
      case op::select:
        if (a == 0 && b && b == c) grown = b;
        break;
      default:
        if (a == 0 && b == 0 && c == 0) grown = 0;  // leaves, and what reads nothing that grows
        break;
    }
    if (grown && std::abs(*grown) >= most) grown.reset();
  }
  return !mask.roots.empty() && grows[std::size_t(mask.roots[0])] == 0;
}

SAMITE_IMPL bit_tiles number_bit_tiles(const any_mask& mask, const tile_map& map) {
  const tile_options& o = map.options();
  if (map.counts().undecided > std::numeric_limits<std::int32_t>::max())
    raise("E-MASK-TILE", "number_bit_tiles: ", map.counts().undecided, " undecided tiles are more than 2^31 - 1; use larger tiles or fewer batches a map");
  bit_tiles out;
  std::vector<bit_tiles::tile> all;
  all.reserve(std::size_t(map.counts().undecided));
  for (index_t b = 0; b < (mask.uses(symbol_id::b) ? o.B : 1); ++b)
    for (index_t h = 0; h < (mask.uses(symbol_id::h) ? o.H : 1); ++h)
      for (index_t i = 0; i < map.q_tiles(); ++i)
        for (const tile_run& run : map.row(b, h, i))
          for (std::int32_t j = run.first; run.kind == tile_kind::undecided && j <= run.last; ++j) all.push_back({std::int32_t(b), std::int32_t(h), std::int32_t(i), j});
  out.numbers.resize(all.size());
  const auto one_each = [&] {
    std::iota(out.numbers.begin(), out.numbers.end(), 0);
    out.distinct = std::move(all);
  };
  constexpr index_t most_tile = index_t(1) << 20;
  if (o.tile_q > most_tile || o.tile_k > most_tile || !repeats_along_diagonal(mask.program(), std::lcm(o.tile_q, o.tile_k))) {
    one_each();
    return out;
  }
  // Order: the map; tiles that the last key cuts behind the others; the place between the grids of rows and of keys; the distance in tiles of keys,
  // which falls from one key tile to the next; whole rows of tiles before the one that the last query cuts, whose bits end with it.
  const auto place = [&](const bit_tiles::tile& t) {
    const index_t distance = t.query_tile * o.tile_q - t.key_tile * o.tile_k;
    const bool is_cut = (t.key_tile + 1) * o.tile_k > o.K;
    return std::tuple(t.b, t.h, is_cut, floor_mod(distance, o.tile_k), -floor_div(distance, o.tile_k));
  };
  std::vector<std::int32_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) { return place(all[std::size_t(x)]) < place(all[std::size_t(y)]); });
  for (std::size_t k = 0; k < order.size(); ++k) {
    const bit_tiles::tile& t = all[std::size_t(order[k])];
    if (k == 0 || place(t) != place(all[std::size_t(order[k - 1])])) out.distinct.push_back(t);  // rows rise, so that one that is cut comes last
    out.numbers[std::size_t(order[k])] = std::int32_t(out.distinct.size()) - 1;
  }
  if (out.distinct.size() == all.size()) one_each();
  return out;
}

}  // namespace samite
