// samite/nn/attention_parts_impl.hpp: merging partial attention, and reading pages.
#pragma once
#include <samite/expr/tensor.hpp>
#include <samite/nn/attention_parts.hpp>

namespace samite {

SAMITE_IMPL attention_result merge_attention(const attention_result& a, const attention_result& b) {
  // The larger LSE keeps exp() in range; 0 stands for it where neither part has a key: exp(-inf) then gives two weights of 0.
  constexpr double least = -3e38;
  const auto top = max(a.lse, b.lse);
  const value shift = let(stop_gradient(select(top > least, top, 0.0)), {.type = a.lse.type()});
  const value left = let(exp(a.lse - shift), {.type = a.lse.type()}), right = let(exp(b.lse - shift), {.type = a.lse.type()});
  const value lse = let(shift + log(left + right), {.type = a.lse.type()});
  const value out = let(select(left + right > 0.0, (a.out * left + b.out * right) / select(left + right > 0.0, left + right, 1.0), 0.0), {.type = a.out.type()});
  return {out, lse};
}

SAMITE_IMPL value paged_rows(const value& pages, const value& page_ids) {
  if (pages.rank() != 4 || page_ids.rank() != 2)
    raise("E-ATTN-RANK", "paged_rows: pages are ", to_text(pages.dims()), " and page ids ", to_text(page_ids.dims()), "; expected pages [P, tokens, G, D] and ids [B, N]");
  const dim &P = pages.extent(0), &tokens = pages.extent(1), &G = pages.extent(2), &D = pages.extent(3);
  if (!tokens.is_constant() || !G.is_constant() || !D.is_constant())
    raise("E-ATTN-RANK", "paged_rows: pages are ", to_text(pages.dims()), "; a page's tokens, heads and head size must be numbers");
  const index_t page = tokens.constant() * G.constant() * D.constant();
  const value rows = embedding(reshape(pages, {P, page}), page_ids);
  return transpose(reshape(rows, {page_ids.extent(0), page_ids.extent(1) * tokens.constant(), G, D}), {0, 2, 1, 3});
}

}  // namespace samite
