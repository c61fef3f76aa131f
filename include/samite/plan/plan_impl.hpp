// samite/plan/plan_impl.hpp: placing intermediates and printing plans.
#pragma once
#include <algorithm>

#include <samite/ir/verify.hpp>
#include <samite/plan/plan.hpp>

namespace samite {

SAMITE_IMPL std::string device::name() const { return type == kind::cpu ? "cpu" : concat_text("cuda:", index); }

namespace detail {

/// Arena slots start at multiples of this, so that vector loads and TMA are aligned whatever the dtype.
inline constexpr std::size_t arena_alignment = 256;

inline constexpr std::size_t most_bytes = std::size_t(1) << 62;

inline std::size_t capacity_bytes(const value_info& info) {
  __int128 total = __int128(size_of(info.type));
  for (const dim& d : info.dims) {
    total *= d.capacity();
    if (total > __int128(most_bytes)) raise("E-SHAPE-OVERFLOW", "a value of shape ", to_text(info.dims), " needs more than 2^62 bytes at capacity; lower a capacity");
  }
  return (std::size_t(total) + arena_alignment - 1) / arena_alignment * arena_alignment;
}

SAMITE_IMPL bool is_source(const graph_node& n) {
  return n.as<input_node>() || n.as<parameter_node>() || n.as<state_node>() || n.as<constant_node>();
}
SAMITE_IMPL bool writes_state(const graph_node& n) { return n.as<assign_node>() || n.as<append_node>(); }

}  // namespace detail

SAMITE_IMPL void plan::refuse_empty() { raise("E-RUN-PLAN", "the plan, or the executor that holds it, is empty: made by no make_plan, or moved from; make one, or use the one it was moved to"); }

SAMITE_IMPL const storage& plan::storage_of(value_ref ref) const { return storage_.at(root(ref)); }

SAMITE_IMPL value_ref plan::root(value_ref ref) const {
  for (;;) {
    const graph_node& n = graph_->node(ref.node);
    if (!n.is_view()) return ref;
    ref = n.inputs[0];
  }
}

SAMITE_IMPL void plan::find_live_nodes() {
  const std::vector<graph_node>& nodes = graph_->nodes();
  live_.assign(nodes.size(), false);
  for (const auto& [name, ref] : graph_->outputs()) live_[std::size_t(ref.node)] = true;
  for (std::size_t i = nodes.size(); i-- > 0;) {
    if (detail::writes_state(nodes[i])) live_[i] = true;
    if (!live_[i]) continue;
    for (const value_ref& in : nodes[i].inputs) live_[std::size_t(in.node)] = true;
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!live_[i] || detail::is_source(nodes[i])) continue;
    if (!nodes[i].is_view() || detail::writes_state(nodes[i])) steps_.push_back(int(i));
  }
}

// First fit into the gaps that items alive at the same time leave.
SAMITE_IMPL std::size_t plan::pack(std::vector<lifetime>& items) {
  std::size_t top = 0;
  std::vector<const lifetime*> placed;
  for (lifetime& item : items) {
    std::vector<const lifetime*> rivals;
    for (const lifetime* other : placed)
      if (other->first <= item.last && item.first <= other->last) rivals.push_back(other);
    std::sort(rivals.begin(), rivals.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
    std::size_t at = 0;
    for (const lifetime* other : rivals) {
      if (at + item.bytes <= other->offset) break;
      at = std::max(at, other->offset + other->bytes);
    }
    if (at + item.bytes > detail::most_bytes)  // at is at most that, so that the sum is exact
      raise("E-SHAPE-OVERFLOW", "the plan's intermediates need more than 2^62 bytes at capacity; lower a capacity");
    item.offset = at;
    top = std::max(top, at + item.bytes);
    placed.push_back(&item);
  }
  return top;
}

SAMITE_IMPL void plan::place_intermediates() {
  const std::vector<graph_node>& nodes = graph_->nodes();
  std::map<value_ref, lifetime> alive;
  const auto use = [&](value_ref ref, std::size_t step) {
    const auto found = alive.find(root(ref));
    if (found != alive.end()) found->second.last = std::max(found->second.last, step);
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!live_[i] || nodes[i].is_view()) continue;
    const bool constant = nodes[i].as<constant_node>() != nullptr;
    if (detail::is_source(nodes[i])) storage_[{int(i), 0}] = {constant ? storage::place::constant : storage::place::external, 0, int(i)};
  }
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const graph_node& n = nodes[std::size_t(steps_[s])];
    for (const value_ref& in : n.inputs) use(in, s);
    if (n.is_view()) continue;
    for (std::size_t o = 0; o < n.outputs.size(); ++o) alive[{steps_[s], int(o)}] = {{steps_[s], int(o)}, detail::capacity_bytes(n.outputs[o]), s, s, 0};
  }
  for (const auto& [name, ref] : graph_->outputs()) use(ref, steps_.size());

  std::vector<lifetime> items;
  for (const auto& [ref, life] : alive) items.push_back(life);
  std::vector<std::size_t> total(steps_.size() + 1, 0);
  for (const lifetime& life : items)
    for (std::size_t s = life.first; s <= life.last && s < total.size(); ++s) total[s] += life.bytes;
  live_bytes_ = total.empty() ? 0 : *std::max_element(total.begin(), total.end());

  // No one order of placing is best for all graphs; three cheap ones are tried and the tightest is kept.
  using order = bool (*)(const lifetime&, const lifetime&);
  static constexpr order orders[] = {
      [](const lifetime& a, const lifetime& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.ref < b.ref; },
      [](const lifetime& a, const lifetime& b) { return a.last - a.first != b.last - b.first ? a.last - a.first > b.last - b.first : a.ref < b.ref; },
      [](const lifetime& a, const lifetime& b) { return a.first != b.first ? a.first < b.first : a.ref < b.ref; },
  };
  std::vector<lifetime> best;
  for (order by : orders) {
    std::vector<lifetime> attempt = items;
    std::sort(attempt.begin(), attempt.end(), by);
    const std::size_t bytes = pack(attempt);
    if (best.empty() || bytes < arena_bytes_) arena_bytes_ = bytes, best = std::move(attempt);
  }
  for (const lifetime& life : best) storage_[life.ref] = {storage::place::arena, life.offset, -1};
}

SAMITE_IMPL std::string plan::explain() const {
  std::string out = concat_text("plan for ", device_.name(), ": ", steps_.size(), " steps, arena ", arena_bytes_, " bytes (live at once ", live_bytes_, ")\n");
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    out += concat_text(s, ": ");
    detail::append_node_text(out, *graph_, std::size_t(steps_[s]));
    const graph_node& n = graph_->node(steps_[s]);
    for (std::size_t o = 0; o < n.outputs.size(); ++o) {
      const storage& at = storage_of({steps_[s], int(o)});
      if (at.where == storage::place::arena)
        out += concat_text("     output ", o, ": arena + ", at.offset, ", ", detail::capacity_bytes(n.outputs[o]), " bytes at capacity\n");
      else
        out += concat_text("     output ", o, ": written into \"", graph_->node(at.node).label, "\"\n");
    }
    if (const auto* f = n.as<fused_node>()) out += concat_text("     row kernel of ", f->fn->size(), " scalar nodes over ", to_text(f->domain), "\n");
  }
  return out;
}

SAMITE_IMPL plan make_plan(const graph& g, device target) {
  verify(g);
  plan p;
  p.graph_ = g.snapshot();
  p.device_ = target;
  p.find_live_nodes();
  p.place_intermediates();
  return p;
}

}  // namespace samite
