// samite/train/blocks_impl.hpp: anchors, blocks and metrics.
#pragma once
#include <algorithm>
#include <cmath>

#include <samite/train/blocks.hpp>

namespace samite {

namespace detail {

inline void check_row(const packed_row& row) {
  const std::size_t S = row.ids.size();
  if (row.documents.size() != S || row.loss_mask.size() != S || row.positions.size() != S)
    raise("E-DATA-ROW", "packed row: ", S, " ids, ", row.positions.size(), " positions, ", row.documents.size(), " document ids and ", row.loss_mask.size(), " mask entries; all must have one length");
}

inline void check_block_size(index_t block_size) {
  if (block_size < 1) raise("E-DATA-BLOCKS", "blocks of ", block_size, " slots; a block has at least the anchor's slot");
}

}  // namespace detail

SAMITE_IMPL std::vector<index_t> anchor_candidates(const packed_row& row, anchor_rule rule, index_t block_size) {
  detail::check_row(row);
  detail::check_block_size(block_size);
  const std::size_t S = row.ids.size();
  std::vector<index_t> found;
  for (std::size_t p = 0; p + 1 < S; ++p) {
    if (row.documents[p] < 0 || !row.loss_mask[p]) continue;
    if (rule == anchor_rule::canonical && row.loss_mask[p + 1] && row.documents[p + 1] == row.documents[p]) found.push_back(index_t(p));
    const std::size_t last = p + std::size_t(block_size) - 1;
    if (rule == anchor_rule::whole_block && last < S && row.documents[last] == row.documents[p]) found.push_back(index_t(p));
  }
  return found;
}

SAMITE_IMPL void choose_anchors(block_batch& batch, std::vector<index_t> candidates, index_t count, counted_random random) {
  if (count < 0) raise("E-DATA-BLOCKS", "choose_anchors: ", count, " anchors are asked for; expected 0 or more");
  const index_t taken = std::min(count, index_t(candidates.size()));
  for (index_t i = 0; i < taken; ++i)  // the first `taken` places of a Fisher-Yates shuffle
    std::swap(candidates[std::size_t(i)], candidates[std::size_t(i) + random.below(std::uint32_t(index_t(candidates.size()) - i))]);
  batch.anchors.assign(candidates.begin(), candidates.begin() + taken);
  std::sort(batch.anchors.begin(), batch.anchors.end());
  batch.keep.assign(std::size_t(taken), 1);
  batch.anchors.resize(std::size_t(count), 0), batch.keep.resize(std::size_t(count), 0);
}

SAMITE_IMPL double slot_decay(index_t k, const block_options& o) {
  if (!(o.gamma > 0)) return 1;
  return std::exp(-double(o.alignment == label_alignment::same_position ? k - 1 : k) / o.gamma);
}

SAMITE_IMPL void fill_blocks(block_batch& batch, const packed_row& row, const block_options& o) {
  const index_t N = index_t(batch.anchors.size()), S = row.length(), bs = o.block_size;
  detail::check_row(row);
  detail::check_block_size(bs);
  if (batch.keep.size() != batch.anchors.size()) raise("E-DATA-BLOCKS", "fill_blocks: ", N, " anchors but ", batch.keep.size(), " keep flags; each anchor has one");
  for (index_t n = 0; n < N; ++n)
    if (const index_t a = batch.anchors[std::size_t(n)]; a < 0 || (a >= S && (a > 0 || batch.keep[std::size_t(n)] != 0)))
      raise("E-DATA-BLOCKS", "fill_blocks: anchor ", n, " is ", a, " but the row has tokens 0 to ", S - 1, "; an unused slot has anchor 0 and keep 0");
  const bool shifted = o.alignment == label_alignment::shifted;
  batch.block_size = bs;
  const std::size_t slots = std::size_t(N * bs);
  batch.ids.assign(slots, std::int32_t(o.mask_token_id)), batch.positions.assign(slots, 0), batch.labels.assign(slots, 0);
  batch.teacher_rows.assign(slots, 0), batch.valid.assign(slots, 0), batch.weights.assign(slots, 0);
  for (index_t n = 0; n < N; ++n) {
    const index_t a = batch.anchors[std::size_t(n)];
    const bool kept = batch.keep[std::size_t(n)] != 0;
    if (kept || !o.mask_padded_anchor) batch.ids[std::size_t(n * bs)] = S > 0 ? row.ids[std::size_t(a)] : 0;
    for (index_t k = 0; k < bs; ++k) {
      const std::size_t at = std::size_t(n * bs + k);
      batch.positions[at] = (S > 0 ? row.positions[std::size_t(a)] : 0) + std::int32_t(k);
      const index_t target = a + k + (shifted ? 1 : 0);
      if (target >= S) continue;
      batch.labels[at] = row.ids[std::size_t(target)];
      batch.teacher_rows[at] = std::int32_t(std::max<index_t>(0, target - 1));
      const bool counts = kept && (shifted || k > 0) && row.loss_mask[std::size_t(target)] && row.documents[std::size_t(target)] == row.documents[std::size_t(a)];
      batch.valid[at] = counts ? 1.0f : 0.0f;
      batch.weights[at] = counts ? float(slot_decay(k, o)) : 0.0f;
    }
  }
}

SAMITE_IMPL void draft_metrics::add(std::span<const float> valid, std::span<const float> right, index_t block_size) {
  detail::check_block_size(block_size);
  if (valid.size() != right.size() || index_t(valid.size()) % block_size != 0 || (!counted.empty() && index_t(counted.size()) != block_size))
    raise("E-DATA-BLOCKS", "draft_metrics::add: ", valid.size(), " valid flags and ", right.size(), " results in blocks of ", block_size, counted.empty() ? "" : concat_text(" after blocks of ", counted.size()),
          "; both must be whole blocks of one size");
  correct.resize(std::size_t(block_size), 0), counted.resize(std::size_t(block_size), 0);
  for (std::size_t begin = 0; begin + std::size_t(block_size) <= valid.size(); begin += std::size_t(block_size)) {
    bool any = false, running = true;
    double run = 0;
    for (std::size_t k = 0; k < std::size_t(block_size); ++k) {
      if (valid[begin + k] == 0) continue;
      any = true;
      counted[k] += 1, correct[k] += right[begin + k];
      running = running && right[begin + k] != 0;
      run += running ? 1 : 0;
    }
    if (any) accepted += run + 1, blocks += 1;
  }
}

SAMITE_IMPL double marginal_acceptance(const draft_metrics& m) {
  double product = 1, sum = 0;
  for (std::size_t k = 0; k < m.counted.size(); ++k) {
    if (m.counted[k] == 0) continue;
    product *= m.correct[k] / m.counted[k];
    sum += product;
  }
  return sum;
}

}  // namespace samite
