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

SAMITE_IMPL kernel_text emit_attention_decode(const attention_kernel_options& o, index_t rows) {
  const detail::attention_padding pad(o);
  const attention_launch kernel = attention_decode_launch(o, rows);
  bool by_head = false;
  if (o.mask != nullptr)
    for (const node& n : o.mask->nodes()) by_head = by_head || (n.code == op::symbol && n.imm == index_t(symbol_id::h));
  std::string out = detail::attention_head_text(o, "of few queries", "attention_decode.cuh");
  // Three blocks a multiprocessor where the registers of narrow heads allow it.
  out += concat_text("extern \"C\" __global__ void __launch_bounds__(128, ", rows == 16 && pad.largest <= 128 ? 3 : 2, ") ", kernel.name,
                     "(const __grid_constant__ decode_parameters p, const __grid_constant__ keep_mask mask,\n    const __grid_constant__ score_function score) {\n  attention_decode<",
                     name_of(o.type), ", ", pad.D, ", ", pad.Dv, ", ", rows / 16, by_head ? ", true" : ", false", ">(p, mask, score);\n}\n\n");
  out += concat_text("extern \"C\" __global__ void __launch_bounds__(128, 1) attention_decode_merge(const __grid_constant__ decode_parameters p) {\n  merge_decode<", name_of(o.type), ", ", pad.D, ", ", pad.Dv, ", ",
                     rows / 16, ">(p);\n}\n\n}  // namespace samite\n");
  return {kernel.name, out};
}

}  // namespace samite
