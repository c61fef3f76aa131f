// samite/nn/attention_parts.hpp: attention over parts of the keys, and over keys that lie in pages.
#pragma once
#include <samite/nn/attention.hpp>

namespace samite {

/// Attention over two disjoint sets of keys, merged into attention over both: what split keys, a ring of devices or a cache and new
/// tokens need. Differentiable. A part that sees no key (out 0, lse -inf) changes no bit of the other; two of them stay (0, -inf).
/// With a sink, give it to one part alone.
///
/// a, b     out [B,H,Q,D] and lse [B,H,Q,1] of the same queries
/// returns  out in a.out's dtype, lse in a.lse's
/// source   Rabe and Staats 2021, arXiv:2112.05682, section 2
attention_result merge_attention(const attention_result& a, const attention_result& b);

/// The rows that a page table lists, one page after another: keys or values of a paged cache, ready for `attention`. Pages that no
/// table lists are not read. Slice the result to the tokens in use: what lies behind them in the last page is not for `attention`.
///
/// pages    [P, tokens of a page, G, D];  page_ids [B, N] i32 or i64
/// returns  [B, G, N * tokens of a page, D]
/// errors   E-ATTN-RANK; at the run E-RUN-INDEX for an id that is no page
/// cost     one copy of the listed pages
value paged_rows(const value& pages, const value& page_ids);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/nn/attention_parts_impl.hpp>
#endif
