// samite/mask/layouts.hpp: how batches describe their sequences, turned into the tables that masks read.
#pragma once
#include <vector>

#include <samite/mask/any_mask.hpp>

namespace samite {

/// The document of each token, 0, 1, 2, ..., from the documents' lengths. A length of 0 takes a number and no token.
///
/// padded_to  appends tokens with the id -1 up to this count; 0 for none
/// errors     E-MASK-LENGTHS if a length is negative, or they add up to more than padded_to or than 2^31 - 1 (positions in tables are 32 bits)
std::vector<index_t> documents_of_lengths(const std::vector<index_t>& lengths, index_t padded_to = 0);

/// The same from cumulative lengths 0, n0, n0 + n1, ... (cu_seqlens).
///
/// errors  E-MASK-LENGTHS if they don't begin at 0, fall somewhere, or end beyond padded_to or 2^31 - 1
std::vector<index_t> documents_of_cumulative(const std::vector<index_t>& cu_seqlens, index_t padded_to = 0);

/// The same from position ids, which start anew at each document: a token that is not one after its neighbour starts one.
std::vector<index_t> documents_of_positions(const std::vector<index_t>& positions);

/// For each token the index at which its document begins; tokens of one document stand together.
///
/// errors  E-MASK-LENGTHS if a document's tokens don't stand together
std::vector<index_t> document_starts(const std::vector<index_t>& ids);

/// For each token one past the last token of its document.
///
/// errors  E-MASK-LENGTHS if a document's tokens don't stand together
std::vector<index_t> document_ends(const std::vector<index_t>& ids);

/// A mask given as booleans [B,H,Q,K]; an extent of 1 for B or H serves all of them. Nothing is known about its tiles but its
/// values: prefer an expression.
///
/// errors  E-MASK-TABLE-SHAPE if the values are not B * H * Q * K; E-MASK-TABLE-RANGE at the run if Q or K is larger
/// cost    4 bytes a pair
any_mask dense_mask(const std::vector<std::uint8_t>& keep, index_t B, index_t H, index_t Q, index_t K);
/// The same from integers of another type or bools; what is not 0 is kept.
template <std::integral T>
any_mask dense_mask(const std::vector<T>& keep, index_t B, index_t H, index_t Q, index_t K) {
  std::vector<std::uint8_t> bytes;
  for (const auto x : keep) bytes.push_back(x != 0 ? 1 : 0);
  return dense_mask(bytes, B, H, Q, K);
}
/// A sentence for tensors, arrays and lists of reals.
template <class T>
any_mask dense_mask(const T&, index_t, index_t, index_t, index_t) {
  static_assert(detail::never<T>, "dense_mask(x, B, H, Q, K): x is no std::vector of integers or bools. A tensor's values are copied, e.g. "
                                  "`std::vector<std::uint8_t>(t.data<std::uint8_t>(), t.data<std::uint8_t>() + t.elements())`. [E-MASK-OPERAND]");
  return any_mask();
}

/// Batches of different lengths: query q of batch b exists below q_lengths[b], its keys below kv_lengths[b]. tables [B]
inline auto jagged(table_ref q_lengths, table_ref kv_lengths) {
  using namespace symbols;
  return q < q_lengths[b] && kv < kv_lengths[b];
}

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/mask/layouts_impl.hpp>
#endif
