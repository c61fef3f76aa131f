// samite/mask/report_impl.hpp: the bodies behind mask/report.hpp.
#pragma once
#include <samite/ir/bounds.hpp>
#include <samite/ir/derivative.hpp>
#include <samite/ir/ops.hpp>
#include <samite/mask/bit_tiles.hpp>
#include <samite/mask/count_kept.hpp>
#include <samite/mask/report.hpp>

namespace samite {

namespace detail {

struct infix_form {
  const char* sign;
  int strength;  // binds tighter than smaller ones
};

inline infix_form infix_of(op code) {
  switch (code) {
    case op::logical_or: return {" || ", 1};
    case op::logical_and: return {" && ", 2};
    case op::equal: return {" == ", 3};
    case op::less: return {" < ", 4};
    case op::less_equal: return {" <= ", 4};
    case op::shift_left: return {" << ", 5};
    case op::shift_right: return {" >> ", 5};
    case op::add: return {" + ", 6};
    case op::sub: return {" - ", 6};
    case op::mul: return {" * ", 7};
    case op::div: return {" / ", 7};
    case op::mod: return {" % ", 7};
    default: return {nullptr, 9};
  }
}

inline std::string infix_in(const program& p, node_id id, int outer) {
  const node& n = p[id];
  const auto operand = [&](int i, int strength = 0) { return infix_in(p, n.operands[i], strength); };
  switch (n.code) {
    case op::symbol: return symbol_names[n.imm];
    case op::constant: return n.kind == value_kind::boolean ? (n.imm != 0 ? "true" : "false") : n.kind == value_kind::real ? concat_text(n.real) : concat_text(n.imm);
    case op::argument: return concat_text("a", n.imm);
    case op::operand: return concat_text("x", n.imm);
    case op::gather: case op::lookup: {
      std::string text = concat_text(n.code == op::gather ? "t" : "x", n.imm, n.operands[1] == no_node ? "[" : "(");
      for (int i = 0; i < 3 && n.operands[i] != no_node; ++i) text += (i > 0 ? ", " : "") + operand(i);
      return text + (n.operands[1] == no_node ? "]" : ")");
    }
    case op::logical_not: return "!" + operand(0, 9);
    case op::neg: return "-" + operand(0, 8);
    default: break;
  }
  const infix_form form = infix_of(n.code);
  std::string text;
  const bool compares = n.code == op::equal || n.code == op::less || n.code == op::less_equal;
  if (compares && (p[n.operands[0]].code == op::constant || p[n.operands[0]].code == op::argument)) {  // people write the number last
    const char* sign = n.code == op::equal ? " == " : n.code == op::less ? " > " : " >= ";
    text = operand(1, form.strength) + sign + operand(0, form.strength + 1);
    return form.strength < outer ? "(" + text + ")" : text;
  }
  if (form.sign != nullptr) {
    text = operand(0, form.strength) + form.sign + operand(1, form.strength + 1);
    return form.strength < outer ? "(" + text + ")" : text;
  }
  text = visit_op(n.code, [](auto rule) -> const char* { return decltype(rule)::name; });
  text += "(";
  for (int i = 0; i < 3 && n.operands[i] != no_node; ++i) text += (i > 0 ? ", " : "") + operand(i);
  return text + ")";
}

inline void collect_clauses(const program& p, node_id id, std::vector<node_id>& clauses) {
  if (p[id].code != op::logical_and) return clauses.push_back(id);
  collect_clauses(p, p[id].operands[0], clauses);
  collect_clauses(p, p[id].operands[1], clauses);
}

inline std::string hint_of(const mask_report& r) {
  const double all = double(r.tiles.empty + r.tiles.full + r.tiles.undecided), listed = double(r.tiles.full + r.tiles.undecided);
  if (all == 0) return {};
  if (r.kept == 0) return "the mask keeps no pair: every row is empty, with output 0";
  if (r.tiles.undecided > r.tiles.full && listed > 4 * double(r.kept) / double(r.pairs) * all)
    return "most tiles are kept in small part: kernels visit many more pairs than the mask keeps. Bring tokens that see one another together: sort anchors and documents, put "
           "grids in patch order, or permute by residue where a modulus hides keys";
  if (listed > 0.95 * all && r.density() < 0.5) return "hardly a tile is empty although the mask hides most pairs: another order of the tokens may gather what is kept";
  return {};
}

}  // namespace detail

SAMITE_IMPL std::string infix_text(const program& p, node_id id) { return detail::infix_in(p, id, 0); }

SAMITE_IMPL mask_report report(const any_mask& mask, const tile_options& sizes, index_t head_dim) {
  const index_t pairs = detail::checked_pairs("report", sizes);
  constexpr index_t most_channels = index_t(1) << 20;
  if (head_dim < 1 || head_dim > most_channels) raise("E-MASK-TILE", "report: head_dim is ", head_dim, "; the channels of a head must be from 1 to ", most_channels);
  tile_map map(mask, sizes);
  map.build_columns();
  mask_report r;
  r.label = mask.label(), r.sizes = sizes, r.maps = map.maps(), r.bytes = map.bytes();
  const index_t shared = sizes.B * sizes.H / map.maps();
  r.pairs = pairs;
  r.kept = count_kept(mask, sizes);
  r.tiles = {map.counts().empty * shared, map.counts().full * shared, map.counts().undecided * shared};
  // Of a map of more tiles than can be numbered, none is known to be equal.
  constexpr index_t most_numbered = index_t(1) << 26;
  r.bit_tiles = map.counts().undecided <= most_numbered ? index_t(number_bit_tiles(mask, map).distinct.size()) : map.counts().undecided;
  const __int128 bit_bytes = __int128(r.bit_tiles) * ((__int128(sizes.tile_q) * sizes.tile_k + 7) / 8);
  if (bit_bytes > index_t(1) << 62)
    raise("E-MASK-TILE", "report: ", map.counts().undecided, " undecided tiles of ", sizes.tile_q, " x ", sizes.tile_k, " have more than 2^62 bytes of bits; use smaller tiles");
  r.bit_bytes = std::size_t(bit_bytes);
  r.forward_flops = 4.0 * double(head_dim) * double(r.kept), r.backward_flops = 10.0 * double(head_dim) * double(r.kept);
  std::vector<node_id> clauses;
  detail::collect_clauses(mask.program(), mask.program().roots[0], clauses);
  for (node_id clause : clauses) {
    std::vector<index_t> slots;
    const program alone = prune(mask.program(), {clause}, slots);
    clause_report c{infix_text(mask.program(), clause), 0, -1, -1};
    box_judge judge(alone);
    const index_t batches = mask.uses(symbol_id::b) ? sizes.B : 1, heads = mask.uses(symbol_id::h) ? sizes.H : 1;
    for (index_t b = 0; b < batches; ++b)
      for (index_t h = 0; h < heads; ++h)
        for (index_t i = 0; i < map.q_tiles(); ++i)
          for (const tile_run& run : map.row(b, h, i)) {
            if (run.kind == tile_kind::full) continue;
            for (index_t j = run.first; j <= run.last; ++j) {
              const index_t q = i * sizes.tile_q, kv = j * sizes.tile_k;
              const index_box box{interval::point(b), interval::point(h), {q, std::min(q + sizes.tile_q, sizes.Q) - 1}, {kv, std::min(kv + sizes.tile_k, sizes.K) - 1}};
              if (judge.judge_finely(box, sizes.budget) != verdict::undecided) continue;
              if (c.undecided_tiles++ == 0) c.first_q = q, c.first_kv = kv;
            }
          }
    r.clauses.push_back(std::move(c));
  }
  r.hint = detail::hint_of(r);
  return r;
}

SAMITE_IMPL std::string to_text(const mask_report& r) {
  const auto percent = [](double part, double whole) {
    const auto tenths = index_t(whole == 0 ? 0 : 1000 * part / whole + 0.5);
    return concat_text(tenths / 10, ".", tenths % 10, " %");
  };
  const auto digits = [](double number) { return number < 0x1p63 ? concat_text(index_t(number)) : concat_text(number); };
  const double all = double(r.tiles.empty + r.tiles.full + r.tiles.undecided);
  std::string text = concat_text(r.label, ": B ", r.sizes.B, ", H ", r.sizes.H, ", Q ", r.sizes.Q, ", K ", r.sizes.K, "\n  pairs      ", r.kept, " of ", r.pairs, " kept (",
                                 percent(double(r.kept), double(r.pairs)), ")\n  tiles      ", r.sizes.tile_q, " x ", r.sizes.tile_k, ": ", r.tiles.empty, " empty (", percent(double(r.tiles.empty), all),
                                 "), ", r.tiles.full, " full, ", r.tiles.undecided, " undecided\n  FLOPs      ", digits(r.forward_flops), " forward, ", digits(r.backward_flops),
                                 " backward\n  memory     ", r.bytes, " bytes of runs in ", r.maps, r.maps == 1 ? " map" : " maps", ", ", r.bit_bytes, " bytes of bits in ", r.bit_tiles, r.bit_tiles == 1 ? " tile\n" : " tiles\n");
  for (const clause_report& c : r.clauses) {
    text += concat_text("  clause     ", c.text, ": ");
    text += c.undecided_tiles == 0 ? std::string("decided in every listed tile\n") : concat_text("undecided in ", c.undecided_tiles, " tiles, first at q ", c.first_q, ", kv ", c.first_kv, "\n");
  }
  if (!r.hint.empty()) text += "  hint       " + r.hint + "\n";
  return text;
}

}  // namespace samite
