// samite/mask/block.hpp: masks that are constant over blocks of tokens, and the block-diffusion training mask.
#pragma once
#include <samite/expr/table.hpp>
#include <samite/mask/any_mask.hpp>

namespace samite {

namespace detail {
void check_block(const char* what, index_t tokens);
}  // namespace detail

/// Keeps the query's own block and all earlier ones: q / tokens >= kv / tokens.
///
/// tokens  a block's size, baked into the kernel; not the tile size
/// errors  E-MASK-BLOCK if tokens < 1
inline auto block_causal(index_t tokens) {
  using namespace symbols;
  detail::check_block("block_causal", tokens);
  return q / tokens >= kv / tokens;
}

/// Causal inside chunks of `tokens` tokens (Llama 4): q / tokens == kv / tokens and kv <= q.
///
/// errors  E-MASK-BLOCK if tokens < 1
inline auto chunked_causal(index_t tokens) {
  using namespace symbols;
  detail::check_block("chunked_causal", tokens);
  return q / tokens == kv / tokens && kv <= q;
}

/// Keeps block (q / tokens, kv / tokens) where blocks [QB,KB] holds anything but 0.
///
/// errors  E-MASK-BLOCK if tokens < 1; E-MASK-TABLE-RANK
inline auto block_table(table_ref blocks, index_t tokens) {
  using namespace symbols;
  detail::check_block("block_table", tokens);
  return blocks(q / tokens, kv / tokens) != 0;
}

/// The training mask of block diffusion (BD3-LM): 2 * length tokens, the noised half first.
///
/// A noised block sees itself and the clean blocks before it; a clean block sees the clean blocks up to its own.
/// length  tokens of one half: a number or a `scalar`, a run-time argument;  tokens: a block's size, baked
/// errors  E-MASK-BLOCK if tokens < 1 or length < 1
/// source  Arriola et al. 2025, arXiv:2503.09573, section 3 and appendix B.6
any_mask block_diffusion(scalar length, index_t tokens);

// Near misses: counts with fractions.
template <class T> requires detail::some_fraction<T> auto block_causal(T) { return detail::refuse_token_fraction<T>(); }
template <class T> requires detail::some_fraction<T> auto chunked_causal(T) { return detail::refuse_token_fraction<T>(); }
template <class T> requires detail::some_fraction<T> auto block_table(const table_ref&, T) { return detail::refuse_token_fraction<T>(); }
template <class T> requires detail::some_fraction<T> any_mask block_diffusion(const scalar&, T) { return detail::refuse_token_fraction<T>(); }

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/mask/block_impl.hpp>
#endif
