// samite/train/blocks.hpp: anchors of a packed row and the blocks, labels and weights that follow from them.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <samite/core/dim.hpp>
#include <samite/core/random.hpp>

namespace samite {

/// A packed row of context tokens, all of length S.
struct packed_row {
  std::vector<std::int32_t> ids, positions, documents;  // positions restart at 0 in each document; document -1 is padding
  std::vector<std::uint8_t> loss_mask;                  // 1 where the token is supervised

  index_t length() const { return index_t(ids.size()); }
};

/// Which positions may be anchors. The public trainers differ; `canonical` asks only for one label that counts.
enum class anchor_rule : std::uint8_t {
  canonical,   // p and p+1 supervised and in one document
  whole_block  // p supervised and the whole block inside its document (NeMo Automodel)
};

/// Block slots of a drafter's training step: N anchor slots of `block_size` tokens each.
struct block_batch {
  index_t block_size = 0;
  std::vector<index_t> anchors, keep;                     // [N]; unused slots hold 0 and keep 0
  std::vector<std::int32_t> ids, positions;               // [N * bs] inputs: anchor token, then mask tokens
  std::vector<std::int32_t> labels, teacher_rows;         // [N * bs] token to predict; row whose target logits predict it
  std::vector<float> valid, weights;                      // [N * bs] 1 where the slot is trained; weight with the decay
};

enum class label_alignment : std::uint8_t {
  same_position,  // slot k predicts token a + k, k >= 1 (DFlash checkpoints)
  shifted         // slot k predicts token a + k + 1, k >= 0
};

struct block_options {
  index_t block_size = 16, mask_token_id = 0;
  double gamma = 7;  // exp(-(k-1)/gamma); 0 or less: all slots count the same
  label_alignment alignment = label_alignment::same_position;
  bool mask_padded_anchor = true;  // false: a padded slot starts with the row's first token
};

/// Positions that may be anchors, ascending. errors: E-DATA-ROW if the row's parts differ in length, E-DATA-BLOCKS
std::vector<index_t> anchor_candidates(const packed_row& row, anchor_rule rule, index_t block_size);

/// `count` anchors without replacement, sorted; slots beyond the candidates are unused (keep 0).
///
/// The choice depends on (seed, epoch, sample) alone.  source: dflash training recipe, sorted so that tiles stay few
/// errors  E-DATA-BLOCKS for a negative count
void choose_anchors(block_batch& batch, std::vector<index_t> candidates, index_t count, counted_random random);

/// exp(-(k-1)/gamma) by slot (shifted: exp(-k/gamma)).  source  DFlash, arXiv:2602.06036, equation 4
double slot_decay(index_t k, const block_options& o);

/// Fills inputs, labels, teacher rows and weights from the anchors.
///
/// errors  E-DATA-ROW; E-DATA-BLOCKS for a block size below 1, keep flags that are not one an anchor, or an anchor outside the row
void fill_blocks(block_batch& batch, const packed_row& row, const block_options& o);

/// Correct and counted proposals, by slot and by block, added up over batches.
struct draft_metrics {
  std::vector<double> correct, counted;  // [bs]
  double accepted = 0, blocks = 0;       // leading correct slots plus the bonus token; blocks with any valid slot

  /// right[i] is 1 where slot i of the batch was predicted.  An invalid slot neither ends a run nor counts.
  ///
  /// errors  E-DATA-BLOCKS unless both hold whole blocks of one size, the same from batch to batch
  void add(std::span<const float> valid, std::span<const float> right, index_t block_size);
  double acceptance_length() const { return blocks == 0 ? 0 : accepted / blocks; }
  /// Share of a slot's proposals that were right; 0 for a slot that was never counted.
  double accuracy(index_t slot) const { return slot < 0 || slot >= index_t(counted.size()) || counted[std::size_t(slot)] == 0 ? 0 : correct[std::size_t(slot)] / counted[std::size_t(slot)]; }
};

/// Sum over k of the product of marginal accuracies up to k, as one public trainer reports it. It assumes independent slots
/// and counts no bonus token; `draft_metrics::acceptance_length` is the measured quantity.
double marginal_acceptance(const draft_metrics& m);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/train/blocks_impl.hpp>
#endif
