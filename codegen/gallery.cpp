// Writes docs/masks.md: every mask of the zoo with its picture, its line, its formula, what tiles know of it, and its source.
//
// Run:     gallery > docs/masks.md     (a test compares the two)
#include <cstdio>

#include <samite/mask.hpp>
#include <samite/mask/grid.hpp>
#include <samite/mask/layouts.hpp>
#include <samite/mask/shared.hpp>
#include <samite/mask/transform.hpp>

namespace {

using namespace samite;
using namespace samite::symbols;

void entry(const char* title, const char* line, const any_mask& mask, const char* formula, const char* tiles, const char* source, index_t rows = 16, index_t keys = 16) {
  std::printf("## %s\n\n```cpp\n%s\n```\n\n```\n%s```\n\nKeeps: %s\n\nTiles: %s\n\n", title, line, draw(mask, rows, keys).c_str(), formula, tiles);
  if (source[0] != '\0') std::printf("Source: %s\n\n", source);
}

// The line in the document is the line that is drawn.
#define ENTRY(title, mask, ...) entry(title, #mask, any_mask(mask), __VA_ARGS__)

}  // namespace

int main() {
  const std::vector<index_t> ids = documents_of_lengths({5, 7, 4});
  const table_ref docs = table(ids), starts = table(document_starts(ids));
  const auto answers = table({-1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2});
  const auto spans = table({-1, -1, 0, 0, 0, 0, -1, -1, -1, 1, 1, 1, -1, -1, -1, -1});
  const auto globals = table({1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0});
  const auto blocks = table({1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1}, {4, 4});
  const auto prefix_ids = table({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2});
  const auto lengths = table({11}), q_lengths = table({9});
  const auto left = table({4});
  const auto positions_q = table({12, 13, 14, 15}), positions_kv = table({0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15});
  const auto nodes = table(subtree_ends({-1, 0, 1, 1, 0, 4, 4, 6}));
  const auto anchors = table({3, 7, 12}, {1, 3});
  const auto two_documents = table({0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 16});

  std::printf(
      "# Masks\n\nEvery mask here is a line of the language in `include/samite/mask/`; a new one is a line like these. `#` is a kept pair, `.` a hidden one; rows are\n"
      "queries, columns keys. *Exact* means that a tile is undecided only if it is kept in part. Tables are named as in the pictures: `docs` holds document ids\n"
      "`0 0 0 0 0 1 1 1 1 1 1 1 2 2 2 2`. This page is written by `codegen/gallery.cpp`; a test keeps it current.\n\n");

  ENTRY("Full", full(), "every pair.", "one full box.", "");
  ENTRY("Causal", causal(), "`kv <= q`: query 0 sees key 0 (top-left frame).", "exact: empty if the first key is behind the last query, full if the last key is not behind the first query.", "");
  ENTRY("Causal, bottom-right", causal_bottom_right(scalar(8), scalar(16)), "`kv <= q + K - Q`: the last query sees the last key.", "exact, as causal with an offset that is an argument.", "the frame of most attention libraries for decoding", 8, 16);
  ENTRY("Causal by position", causal_by_position(positions_q, positions_kv), "`positions_kv[kv] <= positions_q[q]`: caches, zigzag context parallelism.", "exact for positions that never fall; else sound.", "", 4, 12);
  ENTRY("Window", causal() && window(4), "`0 <= q - kv < width`: a token and the width - 1 before it.", "exact; both comparisons are one interval of q - kv.", "Beltagy et al. 2020, arXiv:2004.05150, section 3.1");
  ENTRY("Two-sided window", window(3, 2), "`-right <= q - kv <= left`: left + right + 1 keys.", "exact.", "Beltagy et al. 2020, arXiv:2004.05150, section 3.1");
  ENTRY("Attention sinks with a window", sink_window(2, 4), "`kv <= q` and (`kv < sinks` or `q - kv < width`).", "sound; a tile that only both parts together cover stays undecided.", "Xiao et al. 2023, arXiv:2309.17453");
  ENTRY("Neighbourhood", neighborhood(16, 5), "exactly `width` keys around the query, shifted inwards at the ends.", "exact.", "Hassani et al. 2022, arXiv:2204.07143");
  ENTRY("Neighbourhood in an image", neighborhood_2d({.height = 4, .width = 4, .window_height = 3, .window_width = 3}), "a window in each axis of a row-major image, each clamped by its own length.", "sound; patch-major token orders have far fewer undecided tiles.", "Hassani et al. 2022, arXiv:2204.07143");
  ENTRY("Prefix LM", prefix(5), "`kv < tokens` or `kv <= q`.", "exact.", "Raffel et al. 2020, arXiv:1910.10683, section 3.2.1");
  ENTRY("Global tokens and a band", global_window(2, 2), "`|q - kv| <= reach`, and the first tokens see and are seen by all.", "exact but for tiles that only both parts together cover.", "Beltagy et al. 2020, arXiv:2004.05150, section 3.1");
  ENTRY("Global tokens anywhere", global_window(globals, 2), "`|q - kv| <= reach` or `globals[q]` or `globals[kv]`.", "sound; a table of 0 and 1 knows which tiles hold a 1.", "Beltagy et al. 2020, arXiv:2004.05150, section 3.1");
  ENTRY("Documents", document(docs), "`docs[q] == docs[kv]`.", "exact for ids that never fall; ids in any order are told apart by their residues where they can be.", "packing");
  ENTRY("Documents, causal", document_causal(docs), "`docs[q] == docs[kv]` and `kv <= q`.", "exact for ids that never fall.", "packing");
  ENTRY("Documents with their own positions", per_document(causal() && q % 2 == kv % 2, docs, starts), "any mask, over positions inside each document.", "by the mask's parts.", "packing");
  ENTRY("Length", length(lengths), "`kv < lengths[b]`.", "exact.", "padding on the right");
  ENTRY("Left padding", left_padding(left), "`kv >= starts[b]`.", "exact.", "padding on the left");
  ENTRY("Jagged batches", jagged(q_lengths, lengths), "`q < q_lengths[b]` and `kv < kv_lengths[b]`.", "exact.", "batches of different lengths");
  ENTRY("Shared question", shared_question(4, answers), "`kv <= q` and (`kv < question` or the same answer).", "exact for answers that stand together.", "");
  ENTRY("Shared prefix", shared_prefix(docs, prefix_ids), "causal documents that also see the document they continue.", "sound.", "prefix sharing between sequences");
  ENTRY("Image spans", image_spans(spans), "`kv <= q` or both in one span.", "sound.", "Zhou et al. 2024, arXiv:2408.11039, section 3.2");
  ENTRY("Dilated", dilated(9, 3), "`0 <= q - kv < width` and `(q - kv) % step == 0`.", "exact: the residue is solved on the interval.", "Beltagy et al. 2020, arXiv:2004.05150, section 3.1");
  ENTRY("Strided", strided(4), "`kv <= q` and (`q - kv < step` or `(q - kv) % step == 0`).", "sound.", "Child et al. 2019, arXiv:1904.10509, section 4.3");
  ENTRY("Block-causal", block_causal(4), "`q / tokens >= kv / tokens`.", "exact.", "block diffusion, frame-causal video");
  ENTRY("Chunked causal", chunked_causal(4), "`q / tokens == kv / tokens` and `kv <= q`.", "exact.", "Llama 4");
  ENTRY("Block table", block_table(blocks, 4), "block (q / tokens, kv / tokens) where the table is not 0.", "sound.", "block-sparse attention");
  ENTRY("Block diffusion, training", block_diffusion(8, 2), "noised blocks see themselves and earlier clean blocks; clean blocks are block-causal.", "exact.", "Arriola et al. 2025, arXiv:2503.09573, section 3 and appendix B.6");
  ENTRY("Block diffusion, sampling", block_causal(2) && kv < 12, "the block being denoised sees itself and all before it.", "exact.", "Arriola et al. 2025, arXiv:2503.09573, section 3");
  ENTRY("DFlash training", dflash_mask({.context_length = 16, .block_size = 4, .anchors = anchors}), "a block sees the context before its anchor, and itself. Columns 16 and on are the blocks.", "exact for sorted anchors without a window.", "DFlash, arXiv:2602.06036; DFlash 2 and prefixes of variable length (D2SD, arXiv:2606.04446) use the same mask", 12, 28);
  ENTRY("DFlash training, window", dflash_mask({.context_length = 16, .block_size = 4, .anchors = anchors, .window = scalar(5)}), "as above, and `anchor + slot - kv < W`; with `.rule = window_rule::fixed_at_anchor` `anchor - kv <= W`, W keys before the anchor for each slot.", "exact within a block; tiles of several blocks are cut until they are decided.", "DFlash, arXiv:2602.06036", 12, 28);
  ENTRY("DFlash training, documents", dflash_mask({.context_length = 16, .block_size = 4, .anchors = anchors, .documents = two_documents}), "as above, and only the anchor's document.", "exact for sorted documents.", "DFlash, arXiv:2602.06036", 12, 28);
  ENTRY("Causal blocks (JetSpec)", dflash_mask({.context_length = 16, .block_size = 4, .anchors = anchors, .causal = true}), "as DFlash, and a slot sees only slots up to itself.", "exact for sorted anchors without a window.", "JetSpec, arXiv:2606.18394", 12, 28);
  ENTRY("Tree verification", tree(4, nodes), "the prefix, the node's ancestors and itself; nodes in depth-first order.", "exact: a node's descendants are an interval.", "speculative decoding with trees", 8, 12);
  ENTRY("Shifted", shifted(causal(), 2, 4), "`mask(q - rows, kv - columns)`.", "as the mask.", "");
  ENTRY("Transposed", transposed(causal()), "`mask(kv, q)`.", "as the mask.", "");
  ENTRY("Minus", minus(causal(), window(3)), "`mask && !hidden`.", "exact where both speak of one difference.", "");
  ENTRY("Restricted to a range", restricted(causal(), {4, 12}, {2, 9}), "the mask inside a range of queries and of keys.", "as the mask.", "");
  ENTRY("One of your own", causal() && ((q - kv) % 4 == 0 || q - kv < 2), "whatever you write.", "sound always; `report(mask, sizes)` says what stays undecided and why.", "");
  std::printf(
      "## What holds for every mask\n\n"
      "- A row that sees no key has output 0, LSE -infinity (with a sink: the sink) and gradients of exactly 0; a key that nobody sees has gradients of exactly 0.\n"
      "- A hidden key has weight 0, and 0 times a NaN or an infinity is a NaN. So what hidden rows hold reaches every tile that is visited. Fill padding with finite\n"
      "  numbers. Not read at all are tiles in which no pair is kept, rows past a length, and pages that are not listed. By the row that holds the NaN:\n"
      "  - a hidden row of V, forward: outputs of all queries of the tile that see any key are NaN; LSE is right. Backward: dQ of these queries is NaN, and dK of the\n"
      "    keys that they see (on some kernels of all keys of their tiles); dV is right.\n"
      "  - a hidden row of K, forward: hides itself, for its scores are replaced before the softmax: outputs and LSE are right. Backward: dQ of the queries of the\n"
      "    tile is NaN, for it sums 0 times the row; dK and dV are right.\n"
      "  - a row of Q or of the output's gradient: its own results are NaN, and gradients of keys in its tiles can be, hidden ones too.\n"
      "- PyTorch gives the same for V: with a NaN in row 40 of V, causal, 64 tokens, the outputs\n"
      "  of all 40 queries before it are NaN in scaled_dot_product_attention (math, efficient, flash, cuDNN) and in FlexAttention, eager and compiled\n"
      "  (torch 2.11, H200, 2026-11-30).\n"
      "- Undecided tiles are applied as bits, one a pair, computed once for a mask and shared by heads and layers. Tiles at the same distance from the diagonal\n"
      "  share their bits if the mask repeats along it (causal, windows, dilated, blocks that divide the tile); `report(mask, sizes)` counts the tiles that are stored.\n"
      "- Where the portable kernels evaluate a mask themselves, what depends on the head, the row or the column alone is computed once for each.\n");
  return std::fflush(stdout) == 0 ? 0 : 1;
}
