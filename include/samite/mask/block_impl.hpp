// samite/mask/block_impl.hpp: block masks.
#pragma once
#include <samite/mask/block.hpp>

namespace samite {

namespace detail {

SAMITE_IMPL void check_block(const char* what, index_t tokens) {
  if (tokens < 1) raise("E-MASK-BLOCK", what, "(", tokens, "): the block size is a token count and must be >= 1");
}

}  // namespace detail

SAMITE_IMPL any_mask block_diffusion(scalar length, index_t tokens) {
  using namespace symbols;
  detail::check_block("block_diffusion", tokens);
  if (length.value() < 1) raise("E-MASK-BLOCK", "block_diffusion(length=", length.value(), "): a half has at least one token");
  const auto q_clean = q >= length;
  const auto kv_clean = kv >= length;
  const auto q_block = (q - select(q_clean, length, 0)) / tokens;
  const auto kv_block = (kv - select(kv_clean, length, 0)) / tokens;
  const auto own = !q_clean && !kv_clean && q_block == kv_block;
  const auto earlier = !q_clean && kv_clean && q_block > kv_block;
  const auto clean = q_clean && kv_clean && q_block >= kv_block;
  return any_mask(own || earlier || clean, "block_diffusion");
}

}  // namespace samite
