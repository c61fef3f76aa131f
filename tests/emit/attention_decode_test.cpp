#include <doctest/doctest.h>

#include <tuple>

#include <samite/emit/attention_decode.hpp>
#include <samite/mask.hpp>
#include <samite/score/bias.hpp>

#include "support/kernels.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite_tests;

TEST_CASE("a decode kernel's text names its mask, its packed rows, and whether its rows differ in what the mask sees") {
  using namespace symbols;
  const any_mask lengths(kv < scalar(7)), by_head(kv <= q + h);
  const kernel_text text = emit_attention_decode({bf16, 80, 96, &lengths.program()}, 16);
  CHECK(text.name == "attention_decode_bf16_d80_v96_r16");
  CHECK(text.text.find("attention_decode<bf16, 80, 96, 1, false>(p, mask, score)") != std::string::npos);
  CHECK(emit_attention_decode({f16, 64, 64, &by_head.program()}, 64).text.find("attention_decode<f16, 64, 64, 4, true>(p, mask, score)") != std::string::npos);
  CHECK(emit_attention_decode({f16, 64, 64, nullptr}, 64).text.find("every pair") != std::string::npos);
  const kernel_text on_sm90 = emit_attention_decode_sm90({bf16, 80, 200, &by_head.program()});
  CHECK(on_sm90.name == "attention_decode_sm90_bf16_d128_v256");
  CHECK(on_sm90.text.find("attention_decode_sm90<bf16, 128, 256, true>(p, mask)") != std::string::npos);
  CHECK(on_sm90.text.find("merge_decode<bf16, 256>(p.d)") != std::string::npos);
}

TEST_CASE("decode kernels are for 16-bit tensors and heads of at most 256 channels, and take 16 or 64 packed rows") {
  CHECK(serves_decode({bf16, 256, 64}));
  CHECK(!serves_decode({f32, 64, 64}));
  CHECK(!serves_decode({bf16, 64, 264}));
  CHECK(attention_decode_rows(16) == 16);
  CHECK(attention_decode_rows(17) == 64);
  const any_score capped(30.0 * tanh(symbols::score / 30.0));
  CHECK(serves_decode_sm90({bf16, 256, 64}));
  CHECK(!serves_decode_sm90({bf16, 64, 64, nullptr, capped.shared_program().get()}));
}

TEST_CASE("decode kernels compile for every served architecture without a spill, with the shared memory that their sources use") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  using namespace symbols;
  const std::vector<std::int32_t> ids(64, 0);
  const auto docs = table(ids);
  const any_mask mask(kv <= q && q - kv < 100 && docs[q] == docs[kv]), by_head(kv <= q + h);
  using kernel_case = std::tuple<dtype, index_t, index_t, index_t, const any_mask*>;
  const auto check = [](const attention_kernel_options& o, index_t rows, const char* arch) {
    CAPTURE(o.head_dim);
    CAPTURE(rows);
    CAPTURE(arch);
    const attention_launch launch = attention_decode_launch(o, rows);
    const detail::attention_padding pad(o);
    CHECK(launch.shared_bytes <= 101376);
    kernel_text kernel = emit_attention_decode(o, rows);
    kernel.text += concat_text("static_assert(samite::decode_shared_bytes<", pad.D, ", ", pad.Dv, ", ", rows / 16, "> == ", launch.shared_bytes, ");\n");
    CHECK(spills_of(kernel, arch) == "");
  };
  for (const char* arch : served_archs) {
    check({bf16, 128, 128, &mask.program()}, 16, arch);
    check({bf16, 256, 256, &mask.program()}, 64, arch);
  }
  for (const auto& [type, head, value, rows, m] : {kernel_case{f16, 64, 64, 64, nullptr}, {bf16, 256, 256, 16, &mask}, {bf16, 192, 128, 64, &by_head}, {bf16, 16, 80, 16, &by_head}, {bf16, 8, 256, 64, nullptr}})
    check({type, head, value, m != nullptr ? &m->program() : nullptr}, rows, "sm_80");
  // Products that ptxas would serialise count as spills.
  for (const auto& [head, value, m] : {std::tuple<index_t, index_t, const any_mask*>{128, 128, &mask}, {192, 256, &by_head}}) {
    const attention_kernel_options o{bf16, head, value, m != nullptr ? &m->program() : nullptr};
    kernel_text kernel = emit_attention_decode_sm90(o);
    kernel.text += concat_text("static_assert(samite::decode_sm90_shared_bytes<", head, ", ", value, "> == ", attention_decode_sm90_launch(o).shared_bytes, ");\n");
    CAPTURE(o.head_dim);
    CHECK(spills_of(kernel, "sm_90a") == "");
  }
  const any_score capped(30.0 * tanh(score / 30.0));
  check({bf16, 128, 128, &mask.program(), capped.shared_program().get()}, 64, "sm_90a");
}
