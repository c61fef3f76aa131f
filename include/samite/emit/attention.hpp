// samite/emit/attention.hpp: the CUDA text of attention kernels: a device source, the mask as a struct, named instantiations.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include <samite/emit/predicate.hpp>
#include <samite/emit/score.hpp>

namespace samite {

/// What an attention kernel is made for. Lengths, heads, strides and scale are run-time arguments.
struct attention_kernel_options {
  dtype type = dtype::bf16;
  index_t head_dim = 64, value_dim = 64;  // at most attention_head_limit
  const program* mask = nullptr;          // null keeps every pair
  const program* score = nullptr;         // null is the identity
  std::vector<dtype> score_types{};       // of the tensors that the score function reads
};

inline constexpr index_t attention_head_limit = 256;

/// Threads a block, rows a block and dynamic shared memory of one attention kernel.
struct attention_launch {
  std::string name;
  unsigned threads = 0, shared_bytes = 0;
  index_t block_rows = 0;  // query rows; key rows for the key gradient
};

namespace detail {

/// Head dims as the kernels see them, padded with zeros.
struct attention_padding {
  bool real;  // f32 and f64: ordinary arithmetic
  index_t D, Dv;
  index_t largest;  // of both

  explicit attention_padding(const attention_kernel_options& o) : real(o.type == dtype::f32 || o.type == dtype::f64) {
    const index_t widest_dim = std::max(o.head_dim, o.value_dim), step = real || widest_dim > 128 ? 32 : 16;
    const auto pad = [&](index_t d) { return std::max<index_t>(1, (d + step - 1) / step) * step; };
    D = pad(o.head_dim), Dv = pad(o.value_dim);
    largest = std::max(D, Dv);
  }
};

/// struct keep_mask, what the kernels call: head, row and column compute what pairs share, keep(b, h, q, kv, head, row, column) the
/// rest. It holds the bytes of `pack_mask_arguments`; 8 without a mask.
std::string mask_text(const program* mask);
/// The dtype and the head dims as they stand in kernels' names.
std::string attention_suffix(const attention_kernel_options& o);
/// A unit's first lines: what it is, its mask and score function, the device source, and their structs; the namespace stays open.
std::string attention_head_text(const attention_kernel_options& o, const char* what, const char* source);

/// The nodes of a mask or score function, which read no row of a tensor, as comments.
std::string pair_comment(const program& p);

}  // namespace detail

attention_launch attention_forward_launch(const attention_kernel_options& o);
attention_launch attention_query_gradient_launch(const attention_kernel_options& o);
attention_launch attention_key_gradient_launch(const attention_kernel_options& o);
/// One kernel for dK, dV and additions to an fp32 dQ, which is zeros before: [B, H, queries in tiles of 64, D after padding].
attention_launch attention_fused_gradient_launch(const attention_kernel_options& o);

/// Whether that kernel serves: 16-bit tensors, heads of at most 128 channels, no score function.
bool fuses_gradient(const attention_kernel_options& o);

/// A unit with the kernel of attention_forward_launch.
///
/// errors  E-EMIT-OP if the mask is not made of integers, or the score function of what a pair has
kernel_text emit_attention_forward(const attention_kernel_options& o);

/// A unit with attention_prepare, which runs first, the kernels of the two gradient launches, attention_sink_gradient, and with a score
/// function that reads tensors attention_sums, which runs last, once for each of them. `fused`: the kernel of the fused launch instead of the two, and
/// attention_finish, which turns the sums into dQ.
kernel_text emit_attention_gradient(const attention_kernel_options& o, bool fused);

/// Whether attention_forward_sm90 serves such an attention on sm_90a: 16-bit tensors, heads of at most 256 channels, a score function that
/// serves_score_tiles serves; and whether the gradient does.
bool serves_sm90(const attention_kernel_options& o);
bool serves_sm90_gradient(const attention_kernel_options& o);

/// The forward kernel for sm_90a (codegen/device/attention_sm90.cuh). It does not depend on the mask; block_rows is its query tile. A score function
/// is its second parameter.
attention_launch attention_sm90_launch(const attention_kernel_options& o);
/// Keys of its tiles.
index_t attention_sm90_keys(const attention_kernel_options& o);
kernel_text emit_attention_sm90(const attention_kernel_options& o);

/// What a kernel of the gradient on sm_90a computes: dK and dV, these and its part of dQ (fused), one of them alone.
enum class sm90_gradient { keys_and_values, all, keys, values };

/// Whether the fused form of the gradient serves, where serves_sm90_gradient says so: head dims of at most 128, equal after padding to multiples of 64.
bool fuses_sm90_gradient(const attention_kernel_options& o);

/// What a gradient launches for dK and dV: one kernel, or for head dims above 128 two.
std::vector<sm90_gradient> sm90_key_gradients(const attention_kernel_options& o, bool fused);

/// A kernel for dK, dV (block_rows: its key tile), and the dQ kernel (block_rows: its query tile).
attention_launch attention_sm90_key_gradient_launch(const attention_kernel_options& o, sm90_gradient what);
attention_launch attention_sm90_query_gradient_launch(const attention_kernel_options& o);
/// Queries of the tiles of the former; keys of those of the latter are attention_sm90_keys, as in the forward pass.
index_t attention_sm90_gradient_queries(const attention_kernel_options& o);

/// A unit with attention_prepare_sm90, which runs first, the kernels for dK and dV, and attention_sink_gradient; with the dQ kernel, or, fused,
/// with attention_finish_sm90, which turns the sums into dQ (codegen/device/attention_sm90_gradient.cuh). It does not depend on the mask. With a score function that reads tensors it
/// has attention_sums too, as emit_attention_gradient.
kernel_text emit_attention_sm90_gradient(const attention_kernel_options& o, bool fused);

/// The kernel attention_bits, which fills the bit tiles of a mask: one block of 2 * rows threads each.
///
/// rows, columns  of the accumulators of a tile: queries and keys, as attention_sm90_launch and attention_sm90_keys say; `transposed`: keys and queries
/// errors  E-EMIT-OP if the mask is not made of integers
kernel_text emit_attention_bits(const program& mask, index_t rows, index_t columns, bool transposed = false);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/emit/attention_impl.hpp>
#endif
