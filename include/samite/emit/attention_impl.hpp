// samite/emit/attention_impl.hpp: attention kernels as text.
#pragma once
#include <algorithm>
#include <string_view>

#include <samite/emit/attention.hpp>
#include <samite/emit/score_tile.hpp>

namespace samite {

namespace detail {

SAMITE_IMPL std::string attention_suffix(const attention_kernel_options& o) {
  const attention_padding pad(o);
  return concat_text(name_of(o.type), "_d", pad.D, pad.Dv == pad.D ? "" : concat_text("_v", pad.Dv));
}

SAMITE_IMPL std::string mask_text(const program* mask) {
  if (mask == nullptr)
    return R"(struct keep_mask {
  index unused;
  struct part {
    template <class F> __device__ part each(F) const { return {}; }
  };
  __device__ part head(index, index) const { return {}; }
  __device__ part row(index, index, index, part) const { return {}; }
  __device__ part column(index, index, index, part) const { return {}; }
  __device__ bool keep(index, index, index, index, part, part, part) const { return true; }
};

)";
  return predicate_text(*mask, "keep_pair") + R"(
struct keep_mask {
  mask_arguments arguments;
  __device__ keep_pair_head head(index b, index h) const { return keep_pair_of_head(b, h, arguments); }
  __device__ keep_pair_row row(index b, index h, index q, const keep_pair_head& head) const { return keep_pair_of_row(b, h, q, head, arguments); }
  __device__ keep_pair_column column(index b, index h, index kv, const keep_pair_head& head) const { return keep_pair_of_column(b, h, kv, head, arguments); }
  __device__ bool keep(index b, index h, index q, index kv, const keep_pair_head& head, const keep_pair_row& row, const keep_pair_column& column) const {
    return keep_pair(b, h, q, kv, head, row, column, arguments);
  }
};

)";
}

SAMITE_IMPL std::string pair_comment(const program& p) {
  return program_comment(p, used_nodes(p, p.roots), [](const node&) { return std::string("operand"); });
}

SAMITE_IMPL std::string attention_head_text(const attention_kernel_options& o, const char* what, const char* source) {
  const attention_padding pad(o);
  std::string out = concat_text("// attention ", what, ": ", name_of(o.type), ", head dims ", pad.D, " (Q, K) and ", pad.Dv, " (V) after padding; mask:\n");
  if (o.mask == nullptr) out += "//   every pair\n";
  else out += pair_comment(*o.mask);
  if (o.mask != nullptr) out += concat_text("//   keep = %", o.mask->roots[0], "\n");
  if (o.score != nullptr) {
    out += "// score function:\n" + pair_comment(*o.score);
    out += concat_text("//   score = %", o.score->roots[0], "\n");
  }
  out += concat_text("#include \"", source, "\"\n\nnamespace samite {\n\n");
  out += mask_text(o.mask);
  return out + (o.score != nullptr ? score_text(*o.score, o.score_types, o.type == dtype::f64) : std::string("using score_function = no_score;\n\n"));
}

inline const char* element_of(const attention_kernel_options& o) { return o.type == dtype::f32 ? "float" : o.type == dtype::f64 ? "double" : name_of(o.type); }

inline std::string attention_entry(const attention_kernel_options& o, const attention_launch& kernel, const char* function) {
  const attention_padding pad(o);
  const int blocks = pad.real ? 1 : 2;  // a multiprocessor
  const bool fused = function == std::string_view("attention_fused_gradient");
  return concat_text("extern \"C\" __global__ void __launch_bounds__(", kernel.threads, ", ", blocks, ") ", kernel.name,
                     "(const __grid_constant__ attention_parameters p, const __grid_constant__ keep_mask mask,\n    const __grid_constant__ score_function score", fused ? ", float* sums" : "", ") {\n  ", function, pad.real ? "_real" : "", "<", element_of(o), ", ", pad.D,
                     ", ", pad.Dv, ">(p, mask, score", fused ? ", sums" : "", ");\n}\n\n");
}

// The sizes below are those of attention_mma.cuh, attention_mma_gradient.cuh and attention_real.cuh; tests/emit/attention_test.cpp has the compiler compare them.

enum class attention_pass { forward, queries, keys, fused };

inline attention_launch attention_launch_of(const attention_kernel_options& o, const char* name, attention_pass pass) {
  const attention_padding pad(o);
  attention_launch kernel{name + attention_suffix(o), 0, 0, 0};
  if (pad.real) {
    const index_t rows = o.type == dtype::f32 ? 32 : 8, bytes = index_t(size_of(o.type));
    kernel.threads = 256, kernel.block_rows = rows;
    kernel.shared_bytes = unsigned((rows * (pad.D + (pass == attention_pass::forward ? 0 : pad.Dv)) + 32 * (std::max(pad.D, pad.Dv) + 1)) * bytes);
    return kernel;
  }
  const index_t row_bytes = 2 * (pad.D + 8), value_bytes = 2 * (pad.Dv + 8), both = row_bytes + value_bytes;
  const bool is_scored = o.score != nullptr, narrow = pad.largest <= 64, wide = pad.largest > 128;
  kernel.threads = 128;
  if (pass == attention_pass::forward) {
    kernel.block_rows = wide || is_scored ? 64 : 128;
    kernel.shared_bytes = unsigned(kernel.block_rows * row_bytes + 64 * ((wide ? 1 : 2) * row_bytes + value_bytes));
  } else if (pass == attention_pass::queries) {
    kernel.block_rows = 64;
    kernel.shared_bytes = unsigned((64 + (pad.largest > 192 ? 16 : pad.largest > 96 ? 32 : 64)) * both);
  } else {
    const bool fused = pass == attention_pass::fused, shares = fused && !narrow;
    const index_t keys = wide ? 32 : narrow && !is_scored ? 128 : 64, queries = narrow || shares ? 64 : 32, stages = pad.largest > 192 || shares ? 1 : 2;
    kernel.block_rows = keys;
    kernel.shared_bytes = unsigned(stages * queries * 8 + (keys + stages * queries) * both + (shares ? 2 * queries * (keys + 8) * 2 : fused ? keys * (queries + 8) * 2 : 0));
  }
  return kernel;
}

}  // namespace detail

SAMITE_IMPL attention_launch attention_forward_launch(const attention_kernel_options& o) { return detail::attention_launch_of(o, "attention_forward_", detail::attention_pass::forward); }

SAMITE_IMPL attention_launch attention_query_gradient_launch(const attention_kernel_options& o) {
  return detail::attention_launch_of(o, "attention_query_gradient_", detail::attention_pass::queries);
}

SAMITE_IMPL attention_launch attention_key_gradient_launch(const attention_kernel_options& o) { return detail::attention_launch_of(o, "attention_key_gradient_", detail::attention_pass::keys); }

SAMITE_IMPL attention_launch attention_fused_gradient_launch(const attention_kernel_options& o) {
  return detail::attention_launch_of(o, "attention_fused_gradient_", detail::attention_pass::fused);
}

SAMITE_IMPL bool fuses_gradient(const attention_kernel_options& o) {
  const detail::attention_padding pad(o);
  return !pad.real && pad.largest <= 128 && o.score == nullptr;
}

namespace detail {

inline index_t padded_sm90(index_t channels) { return std::max<index_t>(1, (channels + 63) / 64) * 64; }

inline std::string sm90_suffix(const attention_kernel_options& o) {
  const index_t D = padded_sm90(o.head_dim), Dv = padded_sm90(o.value_dim);
  return concat_text(name_of(o.type), "_d", D, Dv == D ? "" : concat_text("_v", Dv));
}

}  // namespace detail

SAMITE_IMPL bool serves_sm90(const attention_kernel_options& o) {
  return (o.type == dtype::bf16 || o.type == dtype::f16) && std::max(o.head_dim, o.value_dim) <= attention_head_limit && (o.score == nullptr || serves_score_tiles(*o.score));
}

SAMITE_IMPL bool serves_sm90_gradient(const attention_kernel_options& o) { return serves_sm90(o) && (o.score == nullptr || serves_score_tile_gradients(*o.score)); }

namespace detail {

/// A unit's first lines: what it is, its sources, and the score function on accumulators, their rows queries and, in a gradient, keys.
inline std::string sm90_head_text(const attention_kernel_options& o, const char* what, std::initializer_list<const char*> sources, bool by_queries, bool by_keys) {
  std::string out = concat_text("// attention ", what, " on sm_90a: ", name_of(o.type), ", any mask\n");
  if (o.score != nullptr) out += "// score function:\n" + pair_comment(*o.score) + concat_text("//   score = %", o.score->roots[0], "\n");
  for (const char* source : sources) out += concat_text("#include \"", source, "\"\n");
  out += "\nnamespace samite {\n\n";
  if (o.score == nullptr) return out;
  out += score_text(*o.score, o.score_types, false);
  if (by_queries) out += score_tile_text(*o.score, o.score_types, false, o.type == dtype::bf16, "score_by_queries");
  if (by_keys) out += score_tile_text(*o.score, o.score_types, true, o.type == dtype::bf16, "score_by_keys");
  return out;
}

inline std::string sm90_entry(const attention_kernel_options& o, const char* bounds, const std::string& name, const char* parameters, const char* score, const std::string& call) {
  const bool scored = o.score != nullptr && score != nullptr;
  return concat_text("extern \"C\" __global__ void __launch_bounds__(", bounds, ") ", name, "(const __grid_constant__ ", parameters, " p", scored ? concat_text(", const __grid_constant__ ", score, " score") : std::string(),
                     ") {\n  ", call, scored ? "(p, score);\n}\n\n" : "(p);\n}\n\n");
}

}  // namespace detail

SAMITE_IMPL index_t attention_sm90_keys(const attention_kernel_options& o) { return std::max(o.head_dim, o.value_dim) > 128 ? 64 : 128; }

// The sizes are those of attention_sm90.cuh; tests/emit/attention_test.cpp has the compiler compare them.
SAMITE_IMPL attention_launch attention_sm90_launch(const attention_kernel_options& o) {
  const index_t D = detail::padded_sm90(o.head_dim), Dv = detail::padded_sm90(o.value_dim), keys = attention_sm90_keys(o);
  const bool is_full = o.score != nullptr && score_tiles_fill_registers(*o.score, o.type == dtype::bf16);
  const index_t widest = std::max(D, Dv), rows = widest > 64 || is_full ? 128 : 192, buffers = widest > 128 ? 1 : 2;
  const index_t bytes = 1024 + buffers * rows * widest * 2 + 2 * keys * (D + Dv) * 2 + 256 + 2 * (32 + 16 * 16);
  return {"attention_forward_sm90_" + detail::sm90_suffix(o), unsigned(128 + 2 * rows), unsigned(bytes), rows};
}

SAMITE_IMPL kernel_text emit_attention_sm90(const attention_kernel_options& o) {
  const attention_launch kernel = attention_sm90_launch(o);
  const std::string call = concat_text("attention_forward_sm90<", name_of(o.type), ", ", detail::padded_sm90(o.head_dim), ", ", detail::padded_sm90(o.value_dim), ">");
  return {kernel.name, detail::sm90_head_text(o, "forward", {"attention_sm90.cuh"}, true, false) +
                           detail::sm90_entry(o, concat_text(kernel.threads, ", 1").c_str(), kernel.name, "sm90_parameters", "score_by_queries", call) + "}  // namespace samite\n"};
}

SAMITE_IMPL bool fuses_sm90_gradient(const attention_kernel_options& o) {
  // Sums of captured elements' gradients are those of the kernel whose blocks have one query head.
  return serves_sm90_gradient(o) && o.score_types.empty() && std::max(o.head_dim, o.value_dim) <= 128 && detail::padded_sm90(o.head_dim) == detail::padded_sm90(o.value_dim);
}

SAMITE_IMPL std::vector<sm90_gradient> sm90_key_gradients(const attention_kernel_options& o, bool fused) {
  if (fused) return {sm90_gradient::all};
  if (std::max(o.head_dim, o.value_dim) > 128) return {sm90_gradient::keys, sm90_gradient::values};
  return {sm90_gradient::keys_and_values};
}

SAMITE_IMPL index_t attention_sm90_gradient_queries(const attention_kernel_options& o) { return std::max(o.head_dim, o.value_dim) > 64 ? 64 : 128; }

// The sizes are those of attention_sm90_gradient.cuh; tests/emit/attention_test.cpp has the compiler compare them.
SAMITE_IMPL attention_launch attention_sm90_key_gradient_launch(const attention_kernel_options& o, sm90_gradient what) {
  constexpr const char* names[] = {"attention_key_value_gradient_sm90_", "attention_fused_gradient_sm90_", "attention_key_gradient_sm90_", "attention_value_gradient_sm90_"};
  const index_t D = detail::padded_sm90(o.head_dim), Dv = detail::padded_sm90(o.value_dim), queries = attention_sm90_gradient_queries(o);
  const bool gives_keys = what != sm90_gradient::values;
  const index_t key_rows = 128 * ((gives_keys || D > Dv ? D : Dv) + (gives_keys ? Dv : 0)) * 2, query_rows = queries * (2 * D + (what == sm90_gradient::keys ? 1 : 2) * Dv) * 2;
  const index_t bytes = 1024 + key_rows + query_rows + (what == sm90_gradient::all ? 2 * queries * 128 * 2 : 0) + 16 * queries + 160;
  return {names[int(what)] + detail::sm90_suffix(o), 384, unsigned(bytes), 128};
}

SAMITE_IMPL attention_launch attention_sm90_query_gradient_launch(const attention_kernel_options& o) {
  const index_t D = detail::padded_sm90(o.head_dim), Dv = detail::padded_sm90(o.value_dim), keys = attention_sm90_keys(o);
  const index_t bytes = 1024 + 128 * (D + Dv) * 2 + keys * (2 * D + (keys == 64 ? 1 : 2) * Dv) * 2 + 128;
  return {"attention_query_gradient_sm90_" + detail::sm90_suffix(o), 384, unsigned(bytes), 128};
}

SAMITE_IMPL kernel_text emit_attention_sm90_gradient(const attention_kernel_options& o, bool fused) {
  constexpr const char* whats[] = {"keys_and_values", "all", "keys", "values"};
  const std::string type = name_of(o.type), D = concat_text(detail::padded_sm90(o.head_dim)), dims = concat_text(D, ", ", detail::padded_sm90(o.value_dim));
  std::string out = fused ? detail::sm90_head_text(o, "gradient", {"attention_sm90_keys.cuh"}, false, true)
                          : detail::sm90_head_text(o, "gradient", {"attention_sm90_keys.cuh", "attention_sm90_queries.cuh"}, true, true);
  const auto entry = [&](const std::string& name, const char* bounds, const char* score, const std::string& call) { out += detail::sm90_entry(o, bounds, name, "sm90_gradient_parameters", score, call); };
  entry("attention_prepare_sm90", "256", nullptr, concat_text("prepare_gradient_sm90<", type, ", ", detail::padded_sm90(o.value_dim), ">"));
  const std::vector<sm90_gradient> kernels = sm90_key_gradients(o, fused);
  for (const sm90_gradient what : kernels)
    entry(attention_sm90_key_gradient_launch(o, what).name, "384, 1", "score_by_keys", concat_text("key_gradient_sm90<", type, ", ", dims, ", gradient_of::", whats[int(what)], ">"));
  if (fused) entry("attention_finish_sm90", "256", nullptr, concat_text("finish_query_gradient_sm90<", type, ", ", D, ">"));
  else entry(attention_sm90_query_gradient_launch(o).name, "384, 1", "score_by_queries", concat_text("query_gradient_sm90<", type, ", ", dims, ">"));
  out += "extern \"C\" __global__ void __launch_bounds__(256) attention_sink_gradient(const __grid_constant__ attention_parameters p, void* d_sink, index stride) {\n"
         "  sink_gradient<float>(p, d_sink, log2_e, stride);\n}\n\n";
  if (!o.score_types.empty()) out += "extern \"C\" __global__ void __launch_bounds__(256) attention_sums(const i64* words, void* out, index elements) {\n  finish_sums(words, static_cast<float*>(out), elements);\n}\n\n";
  return {attention_sm90_key_gradient_launch(o, kernels[0]).name, out + "}  // namespace samite\n"};
}

SAMITE_IMPL kernel_text emit_attention_bits(const program& mask, index_t rows, index_t columns, bool transposed) {
  std::string out = "// bit tiles of a mask:\n" + detail::pair_comment(mask);
  out += concat_text("//   keep = %", mask.roots[0], "\n#include \"attention_bits.cuh\"\n\nnamespace samite {\n\n", detail::mask_text(&mask));
  out += concat_text("extern \"C\" __global__ void __launch_bounds__(", 2 * rows, ") attention_bits(const undecided_tile* tiles, uint2* bits, u32* needs, index queries, index keys, int pack,\n"
                     "    const __grid_constant__ keep_mask mask) {\n  fill_bits<", rows, ", ", columns, transposed ? ", true>" : ", false>", "(tiles, bits, needs, queries, keys, pack, mask);\n}\n\n");
  return {"attention_bits", out + "}  // namespace samite\n"};
}

SAMITE_IMPL kernel_text emit_attention_forward(const attention_kernel_options& o) {
  const attention_launch kernel = attention_forward_launch(o);
  return {kernel.name, detail::attention_head_text(o, "forward", detail::attention_padding(o).real ? "attention_real.cuh" : "attention_mma.cuh") + detail::attention_entry(o, kernel, "attention_forward") + "}  // namespace samite\n"};
}

SAMITE_IMPL kernel_text emit_attention_gradient(const attention_kernel_options& o, bool fused) {
  const attention_launch queries = attention_query_gradient_launch(o), keys = fused ? attention_fused_gradient_launch(o) : attention_key_gradient_launch(o);
  const detail::attention_padding pad(o);
  const char* element = detail::element_of(o);
  std::string out = detail::attention_head_text(o, "gradient", pad.real ? "attention_real.cuh" : "attention_mma_gradient.cuh");
  out += detail::attention_entry(o, keys, fused ? "attention_fused_gradient" : "attention_key_gradient");
  if (!fused) out += detail::attention_entry(o, queries, "attention_query_gradient");
  const std::string unit = pad.real ? concat_text(element, "(1)") : std::string("log2_e");
  const char* real = o.type == dtype::f64 ? "double" : "float";
  const auto helper = [&](const char* name, const char* parameters, const std::string& call) {
    out += concat_text("extern \"C\" __global__ void __launch_bounds__(256) ", name, "(", parameters, ") {\n  ", call, ";\n}\n\n");
  };
  helper("attention_prepare", "const __grid_constant__ attention_parameters p", concat_text("prepare_gradient<", element, ">(p, ", unit, ")"));
  if (fused) helper("attention_finish", "const __grid_constant__ attention_parameters p, const float* sums", concat_text("finish_query_gradient<", element, ", ", pad.D, ">(p, sums)"));
  helper("attention_sink_gradient", "const __grid_constant__ attention_parameters p, void* d_sink, index stride", concat_text("sink_gradient<", real, ">(p, d_sink, ", unit, ", stride)"));
  if (!o.score_types.empty()) helper("attention_sums", "const i64* words, void* out, index elements", concat_text("finish_sums(words, static_cast<", real, "*>(out), elements)"));
  return {fused ? keys.name : queries.name, out + "}  // namespace samite\n"};
}

}  // namespace samite
