// samite/emit/attention_decode.hpp: the CUDA text of the attention kernels for few queries and many keys.
#pragma once
#include <samite/emit/attention.hpp>

namespace samite {

/// Most queries of a sequence that these kernels are for.
inline constexpr index_t attention_decode_queries = 64;

/// Channels up to which 16 packed rows have a kernel of their own on sm_90a too: several of its blocks share a multiprocessor, which suits sequences of
/// different lengths. Wide heads leave it too few registers.
inline constexpr index_t decode_few_channels = 128;

/// Packed rows, queries times the query heads of a key head, of a block: 16 or 64, whichever holds them in the fewest blocks.
index_t attention_decode_rows(index_t packed_rows);

/// Whether the kernels serve such an attention: 16-bit tensors, heads of at most 256 channels.
bool serves_decode(const attention_kernel_options& o);

/// The kernel whose blocks take `rows` packed rows (codegen/device/attention_decode.cuh).
attention_launch attention_decode_launch(const attention_kernel_options& o, index_t rows);

/// Whether attention_decode_sm90 serves such an attention on sm_90a, any number of packed rows: as above, without a score function.
bool serves_decode_sm90(const attention_kernel_options& o);

/// That kernel (codegen/device/attention_decode_sm90.cuh). Its blocks take block_rows packed rows, or 64 where a launch says so.
attention_launch attention_decode_sm90_launch(const attention_kernel_options& o);
kernel_text emit_attention_decode_sm90(const attention_kernel_options& o);

/// A unit with the kernel of attention_decode_launch, and attention_decode_merge, which runs behind it where a pair's keys are cut into parts: a block of 128 threads a row of out.
///
/// errors  E-EMIT-OP if the mask is not made of integers, or the score function of what a pair has
kernel_text emit_attention_decode(const attention_kernel_options& o, index_t rows);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/emit/attention_decode_impl.hpp>
#endif
