#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <samite/emit/attention.hpp>
#include <samite/emit/score_tile.hpp>
#include <samite/mask.hpp>
#include <samite/score/bias.hpp>
#include <samite/score/scale.hpp>

#include "support/kernels.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite_tests;

namespace {

any_mask sample_mask() {
  using namespace symbols;
  static const std::vector<std::int32_t> ids(64, 0);
  const auto docs = table(ids);
  return any_mask(kv <= q && q - kv < 100 && docs[q] == docs[kv]);
}

constexpr unsigned most_shared_bytes = 101376 - 256;  // of 99 KB, beside what kernels declare themselves

/// A unit that does not compile unless the device sources need the shared memory that the host asks for.
kernel_text size_check(const attention_kernel_options& o) {
  const detail::attention_padding pad(o);
  const std::string dims = concat_text(pad.D, ", ", pad.Dv);
  std::string text = concat_text("#include \"", pad.real ? "attention_real.cuh" : "attention_mma_gradient.cuh", "\"\nnamespace samite {\n");
  const auto equal = [&](const std::string& left, index_t right) { text += concat_text("static_assert(", left, " == ", right, ");\n"); };
  const auto forward = attention_forward_launch(o), queries = attention_query_gradient_launch(o), keys = attention_key_gradient_launch(o);
  if (pad.real) {
    const char* real = o.type == f64 ? "double" : "float";
    equal(concat_text("real_shared_bytes<", real, ", ", dims, ">"), keys.shared_bytes);
    equal(concat_text("real_warps * real_rows<", real, ">"), keys.block_rows);
    equal("real_threads", keys.threads);
    CHECK(forward.shared_bytes < keys.shared_bytes);
    CHECK(queries.shared_bytes == keys.shared_bytes);
  } else {
    const std::string shape = concat_text("forward_shape<", dims, ", ", o.score != nullptr ? "true" : "false", ">::");
    equal(shape + "shared_bytes", forward.shared_bytes);
    equal(shape + "rows", forward.block_rows);
    equal("query_gradient_shared_bytes<" + dims + ">", queries.shared_bytes);
    const auto by_keys = [&](const attention_launch& kernel, bool fused) {
      const std::string sizes = concat_text("key_gradient_shape<", dims, ", ", o.score != nullptr, ", ", fused, ">::");
      equal(sizes + "shared_bytes", kernel.shared_bytes);
      equal(sizes + "keys", kernel.block_rows);
      CHECK(kernel.shared_bytes <= most_shared_bytes);
    };
    by_keys(keys, false);
    if (fuses_gradient(o)) by_keys(attention_fused_gradient_launch(o), true);
    equal("mma_threads", forward.threads);
  }
  for (const attention_launch& kernel : {forward, queries}) CHECK(kernel.shared_bytes <= 101376);
  text += "extern \"C\" __global__ void size_check() {}\n}\n";
  return {"size_check", text};
}

}  // namespace

TEST_CASE("attention kernels ask for the shared memory that their sources use, and never more than every device has: 99 KB") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  for (dtype type : {bf16, f32, f64})
    for (const auto& [head, value] : {std::pair<index_t, index_t>{8, 8}, {64, 64}, {96, 80}, {100, 128}, {192, 128}, {256, 256}}) {
      const index_t channels = head;  // clang 14 can't capture a structured binding
      CAPTURE(channels);
      CHECK_NOTHROW(spills_of(size_check({type, head, value, nullptr}), "sm_80"));
    }
}

TEST_CASE("the attention text names its mask and one kernel for each pass") {
  const any_mask mask = sample_mask();
  const attention_kernel_options o{bf16, 80, 96, &mask.program()};
  const kernel_text forward = emit_attention_forward(o), gradient = emit_attention_gradient(o, false), fused = emit_attention_gradient(o, true);
  CHECK(forward.name == "attention_forward_bf16_d80_v96");
  CHECK(forward.text.find("attention_forward<bf16, 80, 96>(p, mask, score)") != std::string::npos);
  CHECK(forward.text.find("table 0[%") != std::string::npos);
  CHECK(gradient.text.find("attention_key_gradient<bf16, 80, 96>(p, mask, score)") != std::string::npos);
  CHECK(gradient.text.find("attention_query_gradient<bf16, 80, 96>(p, mask, score)") != std::string::npos);
  CHECK(gradient.text.find("attention_prepare") != std::string::npos);
  CHECK(fused.name == "attention_fused_gradient_bf16_d80_v96");
  CHECK(fused.text.find("attention_fused_gradient<bf16, 80, 96>(p, mask, score, sums)") != std::string::npos);
  CHECK(fused.text.find("finish_query_gradient<bf16, 80>(p, sums)") != std::string::npos);
  CHECK(fused.text.find("attention_query_gradient") == std::string::npos);
  CHECK(emit_attention_forward({f32, 64, 64, nullptr}).text.find("every pair") != std::string::npos);
}

TEST_CASE("attention kernels compile for every served architecture without a spill") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  const any_mask mask = sample_mask();
  for (const auto& [type, head] : {std::pair<dtype, index_t>{bf16, 64}, {f32, 64}}) {
    const attention_kernel_options o{type, head, head, &mask.program()};
    for (const char* arch : served_archs) {
      CAPTURE(arch);
      CHECK(spills_of(emit_attention_forward(o), arch) == "");
      CHECK(spills_of(emit_attention_gradient(o, fuses_gradient(o)), arch) == "");
    }
    if (fuses_gradient(o)) CHECK(spills_of(emit_attention_gradient(o, false), "sm_90") == "");
  }
  for (const char* arch : served_archs) {  // accumulators alone take 192 registers
    CAPTURE(arch);
    const bool spills = std::string_view(arch) == "sm_120";
    CHECK(spills_of(emit_attention_forward({f16, 128, 128, &mask.program()}), arch) == (spills ? "attention_forward_f16_d128: 16 bytes" : ""));
    const std::string name = arch, few = name == "sm_80" ? "8" : name == "sm_86" ? "20" : name == "sm_120" ? "4" : "";
    CHECK(spills_of(emit_attention_gradient({f16, 128, 128, &mask.program()}, true), arch) == (few.empty() ? "" : "attention_fused_gradient_f16_d128: " + few + " bytes"));
  }
}

TEST_CASE("the forward kernels for sm_90a compile without a spill, a serialised product or a mistaken size, and so do bit tiles for every architecture") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  const any_mask mask = sample_mask();
  for (const auto& [type, head, value] : {std::tuple<dtype, index_t, index_t>{bf16, 128, 128}, {f16, 64, 64}, {bf16, 256, 256}, {bf16, 192, 128}}) {
    const attention_kernel_options o{type, head, value, nullptr};
    const index_t channels = head;
    CAPTURE(channels);
    kernel_text kernel = emit_attention_sm90(o);
    const attention_launch launch = attention_sm90_launch(o);
    kernel.text += concat_text("static_assert(samite::sm90_shared_bytes<", head, ", ", value, "> == ", launch.shared_bytes, " && samite::sm90_shape<", head, ", ", value, ">::keys == ",
                               attention_sm90_keys(o), " && samite::sm90_shape<", head, ", ", value, ">::rows == ", launch.block_rows, " && samite::sm90_shape<", head, ", ", value, ">::threads == ", launch.threads, ");\n");
    CHECK(launch.shared_bytes <= 232448);
    CHECK(spills_of(kernel, "sm_90a") == "");
  }
  for (const char* arch : {"sm_80", "sm_90a"}) CHECK(spills_of(emit_attention_bits(mask.program(), 128, 128), arch) == "");
}

TEST_CASE("the gradient kernels for sm_90a compile without a spill, a serialised product or a mistaken size") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  const any_mask mask = sample_mask();
  for (const auto& [type, head, value] : {std::tuple<dtype, index_t, index_t>{bf16, 128, 128}, {f16, 64, 64}, {f16, 64, 128}, {bf16, 256, 256}, {bf16, 192, 128}}) {
    const attention_kernel_options o{type, head, value, nullptr};
    const index_t channels = head;
    CAPTURE(channels);
    for (const bool fused : {false, true}) {
      if (fused && !fuses_sm90_gradient(o)) continue;
      kernel_text kernel = emit_attention_sm90_gradient(o, fused);
      const std::string dims = concat_text("<", head, ", ", value);
      const attention_launch queries = attention_sm90_query_gradient_launch(o);
      CHECK(queries.shared_bytes <= 232448);
      kernel.text += concat_text("static_assert(samite::sm90_query_gradient_bytes", dims, "> == ", queries.shared_bytes, " && samite::sm90_gradient_shape", dims, ">::queries == ", attention_sm90_gradient_queries(o),
                                 " && samite::sm90_gradient_shape", dims, ">::key_step == ", attention_sm90_keys(o), ");\n");
      for (const sm90_gradient what : sm90_key_gradients(o, fused)) {
        const attention_launch keys = attention_sm90_key_gradient_launch(o, what);
        CHECK(keys.shared_bytes <= 232448);
        kernel.text += concat_text("static_assert(samite::sm90_key_gradient_shape", dims, ", samite::gradient_of(", int(what), ")>::shared_bytes == ", keys.shared_bytes, ");\n");
      }
      CHECK(spills_of(kernel, "sm_90a") == "");
    }
  }
  CHECK(spills_of(emit_attention_bits(mask.program(), 128, 64, true), "sm_90a") == "");
}

TEST_CASE("the kernels for sm_90a with score functions compile without a spill or a serialised product") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  graph g;
  const value slopes = g.input("slopes", f32, {8});
  const any_score capped(softcap(30.0)), learned(alibi(slopes));
  using kernel_case = std::tuple<dtype, index_t, index_t, const any_score*, bool>;
  for (const auto& [type, head, value, function, fused] : {kernel_case{bf16, 128, 128, &capped, true}, {f16, 64, 64, &capped, false}, {bf16, 256, 256, &learned, false}}) {
    const attention_kernel_options o{type, head, value, nullptr, function->shared_program().get(), std::vector<dtype>(function->tensors().size(), f32)};
    const index_t channels = head;
    CAPTURE(channels);
    const std::string scored = function->label();
    CAPTURE(scored);
    kernel_text kernel = emit_attention_sm90(o);
    const attention_launch launch = attention_sm90_launch(o);
    kernel.text += concat_text("static_assert(samite::sm90_shared_bytes<", head, ", ", value, ", samite::score_by_queries::fills_registers> == ", launch.shared_bytes, " && samite::sm90_shape<", head, ", ", value, ", samite::score_by_queries::fills_registers>::rows == ", launch.block_rows, ");\n");
    CHECK(spills_of(kernel, "sm_90a") == "");
    CHECK(fuses_sm90_gradient(o) == (head <= 128 && o.score_types.empty()));
    CHECK(spills_of(emit_attention_sm90_gradient(o, fused), "sm_90a") == "");
  }
}

TEST_CASE("what all pairs of a row share stands outside of a score function's value on sm_90a, and scales meet in one product") {
  using namespace symbols;
  graph g;
  const value slopes = g.input("slopes", f32, {8}), bias = g.input("bias", bf16, {8, 65});
  const any_score distance(alibi(slopes)), capped(softcap(30.0)), relative = relative_bias(bias, 32);
  const std::vector<dtype> types{f32};
  const std::string by_queries = score_tile_text(*distance.shared_program(), types, false, true, "score_by_queries");
  CHECK(by_queries.find("fabs") != std::string::npos);
  CHECK(by_queries.find("keeps_score = false") != std::string::npos);
  CHECK(by_queries.find("index_abs") == std::string::npos);  // the distance is a real from the tile on
  CHECK(by_queries.find("sums[0] += ") != std::string::npos);
  const std::string text = score_tile_text(*capped.shared_program(), {}, true, true, "score_by_keys"), value = text.substr(text.find("float value("), text.find("float adjoint(") - text.find("float value("));
  CHECK(std::count(value.begin(), value.end(), ';') == 7);  // a product, the tanh, the return; backward a tanh of two steps, and its product and sum
  CHECK(text.find("keeps_score = true") != std::string::npos);
  const auto is_bounded = [](const any_score& function, bool approximates) {
    return score_tile_text(*function.shared_program(), {}, false, approximates, "score_by_queries").find("bounded = true") != std::string::npos;
  };
  CHECK(is_bounded(capped, true));
  CHECK(!is_bounded(capped, false));
  for (const any_score& function : {any_score(alibi(8)), any_score(softcap(30.0) + real(q - kv)), any_score(softcap(30.0) + 1.0), any_score(score * tanh(score))}) CHECK(!is_bounded(function, true));
  CHECK(serves_score_tile_gradients(*distance.shared_program()));
  CHECK(serves_score_tiles(*relative.shared_program()));
  CHECK(!serves_score_tile_gradients(*relative.shared_program()));
  CHECK(!serves_score_tiles(*any_score(cos(score)).shared_program()));
}

TEST_CASE("attention kernels with score functions compile for every served architecture without a spill") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  using namespace symbols;
  graph g;
  const value slopes = g.input("slopes", f32, {8}), bias = g.input("bias", bf16, {8, 65});
  const any_score capped(30.0 * tanh((score + table(slopes)[h] * (kv - q)) / 30.0)), relative = relative_bias(bias, 32);
  using kernel_case = std::tuple<dtype, index_t, const char*, const any_score*>;
  for (const auto& [type, head, arch, function] : {kernel_case{bf16, 64, "sm_80", &capped}, {bf16, 128, "sm_90a", &relative}, {f32, 64, "sm_120", &relative}, {f64, 64, "sm_90a", &capped}}) {
    const attention_kernel_options o{type, head, head, nullptr, function->shared_program().get(), {function == &capped ? f32 : bf16}};
    const char* target = arch;
    CAPTURE(target);
    CHECK(spills_of(emit_attention_forward(o), target) == "");
    CHECK(spills_of(emit_attention_gradient(o, false), target) == "");
  }
}

TEST_CASE("a score function's text holds its value, its adjoint, and a sum for each element that pairs share") {
  using namespace symbols;
  graph g;
  const value slopes = g.input("slopes", f32, {8});
  const any_score s(score + table(slopes)[h] * (kv - q) + table(slopes)[q % 8]);
  const std::vector<dtype> types{f32};
  const std::string text = score_text(*s.shared_program(), types, false);
  CHECK(text.find("using real = float;") != std::string::npos);
  CHECK(text.find("static constexpr int held = 1;") != std::string::npos);
  CHECK(text.find("element<real, f32>(tensors[0], h, 0, 0)") != std::string::npos);
  CHECK(text.find("__noinline__ void scatter") != std::string::npos);
  CHECK(score_text(*any_score(score * 2.0).shared_program(), {}, true).find("scatter") == std::string::npos);
}

TEST_CASE("attention kernels for the widest heads compile without a spill") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  const any_mask mask = sample_mask();
  for (const auto& [type, head, arch] : {std::tuple<dtype, index_t, const char*>{f16, 256, "sm_80"}, {bf16, 128, "sm_90a"}, {f64, 256, "sm_90a"}}) {
    const attention_kernel_options o{type, head, head, &mask.program()};
    const char* target = arch;  // clang 14 can't capture a structured binding
    CAPTURE(target);
    CHECK(spills_of(emit_attention_forward(o), target) == "");
    CHECK(spills_of(emit_attention_gradient(o, false), target) == "");
  }
}
