// samite/mask/dflash_impl.hpp: checks and parts of the DFlash training mask.
#pragma once
#include <samite/mask/dflash.hpp>

namespace samite {

namespace detail {

inline void check_dflash(const dflash_mask_options& o) {
  if (o.block_size < 1) raise("E-MASK-DFLASH", "dflash_mask: block_size is ", o.block_size, "; a block has at least one token");
  if (!o.anchors) raise("E-MASK-DFLASH", "dflash_mask: .anchors is missing; give table(positions, {B, N})");
  if (o.anchors->dims().back() < 1) raise("E-MASK-DFLASH", "dflash_mask: .anchors has dimensions ", o.anchors->dims(), " and so no block; a row has at least one");
  if (o.block_count && (o.block_count->value() < 1 || o.block_count->value() > o.anchors->dims().back()))
    raise("E-MASK-DFLASH", "dflash_mask: block_count is ", o.block_count->value(), ", but .anchors ", o.anchors->dims(), " has ", o.anchors->dims().back(), " blocks a row; from 1 to all of them are in use");
  if (o.context_length.value() < 0) raise("E-MASK-DFLASH", "dflash_mask: context_length is ", o.context_length.value(), "; it must be >= 0 tokens");
  if (o.window && o.window->value() < 1)
    raise("E-MASK-DFLASH", "dflash_mask: window is ", o.window->value(), "; it must be >= 1 tokens, leave it out for full attention");
  const auto check_rank = [](const char* name, const std::optional<table_ref>& t) {
    if (t && t->rank() > 2) raise("E-MASK-DFLASH", "dflash_mask: .", name, " has rank ", t->rank(), " ", t->dims(), "; expected one or two dimensions");
  };
  check_rank("anchors", o.anchors), check_rank("keep", o.keep), check_rank("documents", o.documents);
  if (o.keep && o.keep->dims() != o.anchors->dims())
    raise("E-MASK-DFLASH", "dflash_mask: .anchors has dimensions ", o.anchors->dims(), " but .keep has ", o.keep->dims(),
          "; both have one entry per slot");
  if (o.documents && o.documents->rank() == 2 && o.anchors->rank() == 2 && o.documents->dims()[0] != o.anchors->dims()[0])
    raise("E-MASK-DFLASH", "dflash_mask: .documents has ", o.documents->dims()[0], " rows but .anchors has ", o.anchors->dims()[0],
          "; both have one row per batch");
  if (o.documents && o.documents->dims().back() < o.context_length.value())
    raise("E-MASK-DFLASH", "dflash_mask: .documents covers ", o.documents->dims().back(), " tokens of a context of ", o.context_length.value());
  const auto anchors = o.anchors->contents();
  const auto keep = o.keep ? o.keep->contents() : nullptr;
  index_t before = -1;  // the anchor of the kept slot before, in the same row
  for (std::size_t i = 0; i < anchors->values().size(); ++i) {
    const index_t anchor = anchors->values()[i];
    if (index_t(i) % anchors->length() == 0) before = -1;
    if (keep && keep->values()[i] == 0) continue;
    if (o.sorted_anchors && anchor < before)
      raise("E-MASK-DFLASH", "dflash_mask: the anchor of slot ", index_t(i) % anchors->length(), " in row ", index_t(i) / anchors->length(), " is ", anchor, ", below the one before it, ", before,
            ", but .sorted_anchors promises that anchors never fall; sort each row, or leave the promise out");
    before = anchor;
    if (anchor >= 0 && anchor < o.context_length.value()) continue;
    raise("E-MASK-DFLASH", "dflash_mask: the anchor of slot ", index_t(i) % anchors->length(), " in row ", index_t(i) / anchors->length(), " is ", anchor,
          ", but the context has positions 0 to ", o.context_length.value() - 1, "; mark unused slots with keep = 0");
  }
}

// The slot's anchor; 0, before which no context lies, for a padded slot.
struct anchor_expr : index_tag {
  dflash_mask_options o;
  explicit anchor_expr(dflash_mask_options options) : o(std::move(options)) {}
  node_id lower(program& p) const { return with_slot([&](auto n) { return lower_at(p, n); }); }

  // The slot's number, held inside the tables if Q is padded beyond them.
  template <class F>
  node_id with_slot(F f) const {
    const auto n = symbols::q / o.block_size;
    return o.block_count ? f(min(n, *o.block_count - fixed(1))) : f(n);
  }

 private:
  template <class N>
  node_id lower_at(program& p, N n) const {
    const auto anchor = per_batch(*o.anchors, n);
    return o.keep ? select(per_batch(*o.keep, n) != 0, anchor, 0).lower(p) : anchor.lower(p);
  }
};

struct kept_slot_expr : predicate_tag {
  anchor_expr anchor;
  explicit kept_slot_expr(anchor_expr a) : anchor(std::move(a)) {}
  node_id lower(program& p) const {
    return anchor.with_slot([&](auto n) { return (per_batch(*anchor.o.keep, n) != 0).lower(p); });
  }
};

}  // namespace detail

SAMITE_IMPL any_mask dflash_mask(const dflash_mask_options& options) {
  using namespace symbols;
  detail::check_dflash(options);
  const index_t bs = options.block_size;
  const scalar S = options.context_length;
  const detail::anchor_expr A(options);
  const auto n = q / bs;
  const auto o = q % bs;

  any_mask context = kv < S && kv < A;
  if (options.documents) {
    const table_ref docs = *options.documents;
    const auto doc_of_key = per_batch(docs, clamp(kv, 0, S - fixed(1)));
    const auto doc_of_anchor = per_batch(docs, clamp(A, 0, S - fixed(1)));
    context = context && doc_of_key == doc_of_anchor && doc_of_anchor != fixed(-1);
  }
  if (options.window) {
    const scalar W = *options.window;
    if (options.rule == window_rule::per_slot) context = context && A + o - kv < W;
    else context = context && A - kv <= W;
  }
  any_mask block = kv >= S && (kv - S) / bs == n;
  if (options.causal) block = block && (kv - S) % bs <= o;

  any_mask visible = context || block;
  if (options.keep && options.padded == padded_slots::hidden) visible = visible && detail::kept_slot_expr(A);
  if (options.block_count) visible = visible && q / bs < *options.block_count;
  return visible.labelled("dflash");
}

}  // namespace samite
