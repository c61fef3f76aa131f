// samite/mask/layouts_impl.hpp: the bodies behind mask/layouts.hpp.
#pragma once
#include <algorithm>
#include <limits>

#include <samite/mask/layouts.hpp>

namespace samite {

namespace detail {

// Checks everything before it allocates, since lengths may come from a damaged file.
inline std::vector<index_t> ids_of_lengths(const char* call, const std::vector<index_t>& lengths, index_t padded_to) {
  constexpr index_t most = std::numeric_limits<std::int32_t>::max();
  index_t tokens = 0;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    if (lengths[d] < 0) raise("E-MASK-LENGTHS", call, ": document ", d, " has ", lengths[d], " tokens; a length is 0 or more");
    if (lengths[d] > most - tokens)
      raise("E-MASK-LENGTHS", call, ": document ", d, " has ", lengths[d], " tokens behind ", tokens, " others, but a row holds at most ", most, " tokens, since positions in tables are 32 bits; split the row");
    tokens += lengths[d];
  }
  if (padded_to < 0 || padded_to > most) raise("E-MASK-LENGTHS", call, ": padded_to is ", padded_to, "; it must be from 0 (none) to ", most, " tokens");
  if (padded_to != 0 && tokens > padded_to) raise("E-MASK-LENGTHS", call, ": the lengths ", lengths, " add up to ", tokens, " tokens, more than padded_to = ", padded_to);
  std::vector<index_t> ids;
  ids.reserve(std::size_t(std::max(tokens, padded_to)));
  for (std::size_t d = 0; d < lengths.size(); ++d) ids.insert(ids.end(), std::size_t(lengths[d]), index_t(d));
  if (padded_to != 0) ids.resize(std::size_t(padded_to), -1);
  return ids;
}

}  // namespace detail

SAMITE_IMPL std::vector<index_t> documents_of_lengths(const std::vector<index_t>& lengths, index_t padded_to) {
  return detail::ids_of_lengths("documents_of_lengths", lengths, padded_to);
}

SAMITE_IMPL std::vector<index_t> documents_of_cumulative(const std::vector<index_t>& cu_seqlens, index_t padded_to) {
  if (cu_seqlens.empty() || cu_seqlens[0] != 0)
    raise("E-MASK-LENGTHS", "documents_of_cumulative: cumulative lengths begin with 0, but these are ", cu_seqlens);
  std::vector<index_t> lengths;
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] < cu_seqlens[i - 1])
      raise("E-MASK-LENGTHS", "documents_of_cumulative: entry ", i, " is ", cu_seqlens[i], ", less than the one before, ", cu_seqlens[i - 1], "; cumulative lengths never fall");
    lengths.push_back(cu_seqlens[i] - cu_seqlens[i - 1]);
  }
  return detail::ids_of_lengths("documents_of_cumulative", lengths, padded_to);
}

SAMITE_IMPL std::vector<index_t> documents_of_positions(const std::vector<index_t>& positions) {
  std::vector<index_t> ids;
  for (std::size_t i = 0; i < positions.size(); ++i)
    ids.push_back(i == 0 ? 0 : ids.back() + (positions[i] <= positions[i - 1] || positions[i] - 1 != positions[i - 1] ? 1 : 0));
  return ids;
}

namespace detail {

inline std::vector<index_t> starts_of_ids(const char* call, const std::vector<index_t>& ids) {
  std::vector<index_t> starts, seen;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0 && ids[i] == ids[i - 1]) {
      starts.push_back(starts.back());
      continue;
    }
    starts.push_back(index_t(i));
    seen.push_back(ids[i]);
  }
  std::sort(seen.begin(), seen.end());
  for (std::size_t i = 1; i < seen.size(); ++i)
    if (seen[i] == seen[i - 1])
      raise("E-MASK-LENGTHS", call, ": the tokens of document ", seen[i], " don't stand together; sort the tokens by document, or use document(ids), which takes any order");
  return starts;
}

}  // namespace detail

SAMITE_IMPL std::vector<index_t> document_starts(const std::vector<index_t>& ids) { return detail::starts_of_ids("document_starts", ids); }

SAMITE_IMPL std::vector<index_t> document_ends(const std::vector<index_t>& ids) {
  detail::starts_of_ids("document_ends", ids);
  std::vector<index_t> ends(ids.size());
  for (std::size_t i = ids.size(); i-- > 0;) ends[i] = i + 1 < ids.size() && ids[i] == ids[i + 1] ? ends[i + 1] : index_t(i) + 1;
  return ends;
}

SAMITE_IMPL any_mask dense_mask(const std::vector<std::uint8_t>& keep, index_t B, index_t H, index_t Q, index_t K) {
  using namespace symbols;
  constexpr index_t most = index_t(1) << 40;  // as a table's
  if (B < 1 || H < 1 || Q < 0 || K < 0 || H > most / B)
    raise("E-MASK-TABLE-SHAPE", "dense_mask: extents B ", B, ", H ", H, ", Q ", Q, ", K ", K, "; B and H must be at least 1 and their product at most 2^40, Q and K at least 0");
  const table_ref values = table(keep, {B * H, Q, K});
  if (B == 1 && H == 1) return any_mask(values(0 * q, q, kv) != 0, "dense");
  if (B == 1) return any_mask(values(h, q, kv) != 0, "dense");
  if (H == 1) return any_mask(values(b, q, kv) != 0, "dense");
  return any_mask(values(b * fixed(H) + h, q, kv) != 0, "dense");
}

}  // namespace samite
