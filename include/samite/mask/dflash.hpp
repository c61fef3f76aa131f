// samite/mask/dflash.hpp: the training mask of DFlash drafters.
#pragma once
#include <optional>

#include <samite/expr/table.hpp>
#include <samite/mask/any_mask.hpp>

namespace samite {

/// What a row of a padded slot (keep = 0) sees: its own block, or nothing at all.
enum class padded_slots : std::uint8_t { own_block, hidden };
/// How far back the context window reaches: from each slot's own position, or from the anchor's for the whole block.
enum class window_rule : std::uint8_t { per_slot, fixed_at_anchor };

/// Inputs of `dflash_mask`. Tables have one row per batch, [B,N] and [B,S], or none, [N] and [S].
struct dflash_mask_options {
  scalar context_length = 0;               ///< S, tokens of context before the block keys; a run-time argument
  index_t block_size = 16;                 ///< tokens of a block; baked into the kernel
  std::optional<table_ref> anchors = std::nullopt;  ///< position of each block's anchor, from 0 to S - 1
  std::optional<table_ref> keep = std::nullopt;  ///< 0 for padded slots; without it every slot counts
  std::optional<table_ref> documents = std::nullopt;  ///< ids of the packed context, -1 = padding; without it a row is one document
  std::optional<scalar> window = std::nullopt;  ///< W tokens; without it the whole context is visible; a run-time argument
  bool causal = false;                     ///< inside the block: a slot sees only slots up to itself
  padded_slots padded = padded_slots::own_block;
  samite::window_rule rule = samite::window_rule::per_slot;
  std::optional<scalar> block_count = std::nullopt;  ///< blocks in use where Q is padded beyond them: rows behind them see nothing
  bool sorted_anchors = false;             ///< promises that the anchors of kept slots never fall along a row; checked when the mask is made
};

/// The training mask of DFlash: N blocks of drafted tokens over a context and the blocks themselves.
///
/// Row q = n * block_size + o is slot o of block n. Columns 0 .. S-1 are the context, S + q the blocks. With A the anchor of block n:
///
///   context:  kv < S and kv < A, in the anchor's document (not padding), and A + o - kv < W
///   block:    kv >= S and (kv - S) / block_size == n, and with causal blocks (kv - S) % block_size <= o
///
/// With `rule = fixed_at_anchor` the window's part is A - kv <= W: W keys before the anchor for every slot of the block, one more than slot 0 sees
/// per slot. Columns behind the blocks are hidden; that K is S + N * block_size is not checked.
/// The anchor's own context column is hidden: its target feature does not exist yet when the block is drafted. A padded slot
/// sees its own block or nothing. Sort anchors upwards: neighbouring rows then share a long prefix and far fewer tiles are partial.
/// returns  a mask for Q = N * block_size rows and K = S + N * block_size columns, the same for every head
/// errors   E-MASK-DFLASH (shapes, sizes, missing, out-of-range or, where promised, unsorted anchors); E-MASK-TABLE-RANGE at the run after an update
/// cost     about (mean anchor + block_size) keys a row; new anchors, S and W cost a new tile map, no new kernel
any_mask dflash_mask(const dflash_mask_options& options);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/mask/dflash_impl.hpp>
#endif
