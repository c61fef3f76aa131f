// samite/emit/attention_decode_impl.hpp: attention kernels for few queries as text.
#pragma once
#include <algorithm>

#include <samite/emit/attention_decode.hpp>

namespace samite {

SAMITE_IMPL index_t attention_decode_rows(index_t packed_rows) { return packed_rows <= 16 ? 16 : 64; }

SAMITE_IMPL bool serves_decode(const attention_kernel_options& o) {
  return (o.type == dtype::bf16 || o.type == dtype::f16) && std::max(o.head_dim, o.value_dim) <= attention_head_limit;
}

// The sizes are those of attention_decode.cuh; tests/emit/attention_decode_test.cpp has the compiler compare them.
SAMITE_IMPL attention_launch attention_decode_launch(const attention_kernel_options& o, index_t rows) {
  const detail::attention_padding pad(o);
  const index_t keys = rows == 16 || pad.largest <= 128 ? 64 : pad.largest <= 192 ? 32 : 16, piece = keys * (pad.largest + 8) * 2;
  const index_t bytes = std::min<index_t>(8, (pad.largest > 128 ? 101376 : 71680) / piece) * piece;
  return {concat_text("attention_decode_", detail::attention_suffix(o), "_r", rows), 128, unsigned(bytes), rows};
}

namespace detail {

/// Whether the packed rows of a warp, which are of several heads, differ in what the mask sees.
inline bool reads_head(const program* mask) {
  return mask != nullptr && std::any_of(mask->nodes().begin(), mask->nodes().end(), [](const node& n) { return n.code == op::symbol && n.imm == index_t(symbol_id::h); });
}

/// The kernel attention_decode_merge, and the end of its unit.
inline std::string merge_text(const attention_kernel_options& o, const char* parameter, index_t Dv, const char* argument) {
  return concat_text("extern \"C\" __global__ void __launch_bounds__(128, 1) attention_decode_merge(const __grid_constant__ ", parameter, ") {\n  merge_decode<", name_of(o.type), ", ", Dv, ">(", argument,
                     ");\n}\n\n}  // namespace samite\n");
}

}  // namespace detail

SAMITE_IMPL kernel_text emit_attention_decode(const attention_kernel_options& o, index_t rows) {
  const detail::attention_padding pad(o);
  const attention_launch kernel = attention_decode_launch(o, rows);
  std::string out = detail::attention_head_text(o, "of few queries", "attention_decode.cuh");
  // Three blocks a multiprocessor where the registers of narrow heads allow it.
  out += concat_text("extern \"C\" __global__ void __launch_bounds__(128, ", rows == 16 && pad.largest <= 128 ? 3 : 2, ") ", kernel.name,
                     "(const __grid_constant__ decode_parameters p, const __grid_constant__ keep_mask mask,\n    const __grid_constant__ score_function score) {\n  attention_decode<",
                     name_of(o.type), ", ", pad.D, ", ", pad.Dv, ", ", rows / 16, detail::reads_head(o.mask) ? ", true" : ", false", ">(p, mask, score);\n}\n\n");
  return {kernel.name, out + detail::merge_text(o, "decode_parameters p", pad.Dv, "p")};
}

namespace detail {

inline index_t padded_decode_sm90(index_t channels) { return std::max<index_t>(1, (channels + 63) / 64) * 64; }

}  // namespace detail

SAMITE_IMPL bool serves_decode_sm90(const attention_kernel_options& o) { return serves_decode(o) && o.score == nullptr; }

// The sizes are those of attention_decode_sm90.cuh; tests/emit/attention_decode_test.cpp has the compiler compare them.
SAMITE_IMPL attention_launch attention_decode_sm90_launch(const attention_kernel_options& o) {
  const index_t D = detail::padded_decode_sm90(o.head_dim), Dv = detail::padded_decode_sm90(o.value_dim), stage = 64 * (D + Dv) * 2, barriers = 40 * 8;
  const auto bytes = [&](index_t rows) { return rows * D * 2 + std::min<index_t>(8, (232448 - 1024 - barriers - rows * D * 2) / stage) * stage; };
  return {concat_text("attention_decode_sm90_", name_of(o.type), "_d", D, Dv == D ? "" : concat_text("_v", Dv)), std::max(D, Dv) > 128 ? 384u : 288u, unsigned(1024 + barriers + std::max(bytes(64), bytes(128))), 128};
}

SAMITE_IMPL kernel_text emit_attention_decode_sm90(const attention_kernel_options& o) {
  const attention_launch kernel = attention_decode_sm90_launch(o);
  const index_t D = detail::padded_decode_sm90(o.head_dim), Dv = detail::padded_decode_sm90(o.value_dim);
  std::string out = detail::attention_head_text(o, "of few queries on sm_90a", "attention_decode_sm90.cuh");
  out += concat_text("extern \"C\" __global__ void __launch_bounds__(", kernel.threads, ", 1) ", kernel.name,
                     "(const __grid_constant__ decode_sm90_parameters p, const __grid_constant__ keep_mask mask) {\n  attention_decode_sm90<", name_of(o.type), ", ", D, ", ", Dv,
                     detail::reads_head(o.mask) ? ", true" : ", false", ">(p, mask);\n}\n\n");
  return {kernel.name, out + detail::merge_text(o, "decode_sm90_parameters p", Dv, "p.d")};
}

}  // namespace samite
