#include <doctest/doctest.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include <samite/emit/predicate.hpp>
#include <samite/ir/evaluate.hpp>
#include <samite/mask.hpp>

#include "support/masks.hpp"
#include "support/random_programs.hpp"
#include "support/skip.hpp"

// The golden files are the emitted text itself, compiled here as ordinary C++.
#define __device__
#define __forceinline__ inline
namespace emitted {
#include "golden/mask_prelude.inl"
namespace causal {
#include "golden/mask_causal.inl"
}
namespace packed {
#include "golden/mask_packed.inl"
}
namespace dflash {
#include "golden/mask_dflash.inl"
}
namespace everything {
#include "golden/mask_everything.inl"
}
}  // namespace emitted
#undef __device__
#undef __forceinline__

using namespace samite;
using namespace samite::symbols;

namespace {

const std::string folder = "tests/emit/golden/";

std::string read(const std::string& name) {
  std::ifstream in(folder + name, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// SAMITE_GOLDEN=update rewrites the files; the change is then reviewed as text.
void check_golden(const std::string& name, const std::string& text) {
  const char* mode = std::getenv("SAMITE_GOLDEN");
  if (mode != nullptr && std::string(mode) == "update") std::ofstream(folder + name, std::ios::binary) << text;
  CHECK(read(name) == text);
}

any_mask causal_mask() { return causal(); }
any_mask packed_mask() {
  return causal() && window(6) && document(table({0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, -1}), -1);
}
any_mask dflash_example() {
  return dflash_mask({.context_length = 16, .block_size = 4, .anchors = table({3, 6, 11, 0}, {1, 4}), .keep = table({1, 1, 1, 0}, {1, 4}),
                      .documents = table({0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, -1, -1}, {1, 16}), .window = 5, .causal = true});
}
any_mask everything_mask() {
  const auto t = table({1, 5, 2, 4, 3, 3, 0, 9}, {2, 2, 2});
  return select((q + 3) % 5 < abs(kv - q), min(q / 3, kv) - max(kv >> 1, h) < t(b, q % 2, kv % 2), !(q * 3 == (kv << 1) + b) || -q > kv - 9);
}

template <class Arguments>
Arguments packed_arguments(const any_mask& mask) {
  std::vector<std::shared_ptr<const table_contents>> contents;
  std::vector<std::uint64_t> pointers;
  for (const auto& table : mask.program().tables()) {
    contents.push_back(table->contents());
    pointers.push_back(std::bit_cast<std::uint64_t>(contents.back()->values().data()));
  }
  const std::vector<std::byte> bytes = pack_mask_arguments(mask.program(), contents, pointers);
  REQUIRE(bytes.size() == sizeof(Arguments));
  Arguments out;
  std::memcpy(&out, bytes.data(), bytes.size());
  return out;
}

template <class Arguments, class F>
void check_text(const any_mask& mask, index_t B, index_t H, index_t Q, index_t K, F emitted) {
  const auto arguments = packed_arguments<Arguments>(mask);
  evaluator value(mask.program());
  int wrong = 0;
  for (index_t bi = 0; bi < B; ++bi)
    for (index_t hi = 0; hi < H; ++hi)
      for (index_t qi = 0; qi < Q; ++qi)
        for (index_t ki = 0; ki < K; ++ki) wrong += emitted(bi, hi, qi, ki, arguments) != (value(bi, hi, qi, ki) != 0);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("the emitted text of known masks stands in golden files") {
  check_golden("mask_prelude.inl", predicate_prelude);
  check_golden("mask_causal.inl", predicate_text(causal_mask().program(), "keep"));
  check_golden("mask_packed.inl", predicate_text(packed_mask().program(), "keep"));
  check_golden("mask_dflash.inl", predicate_text(dflash_example().program(), "keep"));
  check_golden("mask_everything.inl", predicate_text(everything_mask().program(), "keep"));
}

TEST_CASE("the emitted text, compiled for the host, keeps the pairs that the evaluator keeps") {
  check_text<emitted::causal::mask_arguments>(causal_mask(), 1, 1, 20, 20, [](auto... x) { return emitted::causal::keep(x...); });
  check_text<emitted::packed::mask_arguments>(packed_mask(), 1, 1, 16, 16, [](auto... x) { return emitted::packed::keep(x...); });
  check_text<emitted::dflash::mask_arguments>(dflash_example(), 1, 1, 16, 32, [](auto... x) { return emitted::dflash::keep(x...); });
  check_text<emitted::everything::mask_arguments>(everything_mask(), 2, 3, 20, 20, [](auto... x) { return emitted::everything::keep(x...); });
}

TEST_CASE("a lookup beyond its table is clamped in the emitted text, as rows and columns of edge tiles need it") {
  const any_mask mask = packed_mask();  // keeps the table that the arguments point into
  const auto arguments = packed_arguments<emitted::packed::mask_arguments>(mask);
  CHECK_FALSE(emitted::packed::keep(0, 0, 500, 500, arguments));  // the last id is padding
  CHECK(emitted::packed::table_at(arguments.tables[0], arguments.dims[0], 0, 0, -3) == 0);
}

TEST_CASE("programs that are not masks are refused") {
  program p;
  p.roots.push_back(build(p, op::less, build_symbol(p, symbol_id::score), build_constant(p, 0.5)));
  CHECK_THROWS_WITH_AS(predicate_text(p, "keep"), doctest::Contains("E-EMIT-OP"), error);
}

TEST_CASE("the emitted text compiles as CUDA") {
  const std::string nvcc = std::system("command -v nvcc >/dev/null 2>&1") == 0 ? "nvcc"
                           : std::ifstream("/usr/local/cuda/bin/nvcc") ? "/usr/local/cuda/bin/nvcc" : "";
  SKIP_IF(nvcc.empty(), "no nvcc was found");
  const char* temporary = std::getenv("TMPDIR");
  const std::string base = concat_text(temporary != nullptr ? temporary : "/tmp", "/samite_predicate_", mix_bits(std::uint64_t(std::rand()) ^ std::bit_cast<std::uint64_t>(&nvcc)));
  std::ofstream(base + ".cu") << predicate_prelude << predicate_text(dflash_example().program(), "keep")
                              << "__global__ void kernel(bool* out, mask_arguments m) { out[threadIdx.x] = keep(0, 0, threadIdx.x, blockIdx.x, m); }\n";
  const int status = std::system(concat_text(nvcc, " -arch=sm_90 -cubin -o ", base, ".cubin ", base, ".cu >", base, ".log 2>&1").c_str());
  std::ifstream log(base + ".log");
  std::stringstream said;
  said << log.rdbuf();
  INFO(said.str());
  CHECK(status == 0);
  for (const char* suffix : {".cu", ".cubin", ".log"}) std::remove((base + suffix).c_str());
}
