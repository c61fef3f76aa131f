#include <doctest/doctest.h>

#include <samite/generated/device_sources.hpp>

#include "support/kernels.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite_tests;

TEST_CASE("headers_of: the sources that a text includes, directly or not, each once") {
  std::vector<std::string> names;
  for (const kernel_header& h : headers_of("#include \"attention_mma.cuh\"\n// #include \"nothing.cuh\"\n#include \"mma.cuh\"\n")) names.push_back(h.name);
  CHECK(names == std::vector<std::string>{"attention_mma.cuh", "attention_copies.cuh", "attention.cuh", "core.cuh", "integers.cuh", "score.cuh", "mma.cuh"});
}

TEST_CASE("every device source compiles alone for every served architecture") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  for (const detail::device_source& source : detail::device_sources)
    for (const char* arch : served_archs) {
      CAPTURE(arch);
      const kernel_text unit{std::string(source.name), concat_text("#include \"", source.name, "\"\n")};
      CHECK(spills_of(unit, arch) == "");
    }
}

TEST_CASE("sums and embeddings compile for every served architecture without a spill") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  const kernel_text sums{"sums",
                         "#include \"sum_to.cuh\"\nnamespace samite {\n"
                         "extern \"C\" __global__ void by_thread(const __grid_constant__ sum_parameters p) { sum_chunks_by_thread<bf16, float>(p); }\n"
                         "extern \"C\" __global__ void by_block(const __grid_constant__ sum_parameters p) { sum_chunks_by_block<f16, double>(p); }\n"
                         "extern \"C\" __global__ void partials(const __grid_constant__ sum_parameters p) { sum_partials_in_order<float, bf16>(p); }\n}\n"};
  const kernel_text rows{"rows",
                         "#include \"embedding.cuh\"\nnamespace samite {\n"
                         "extern \"C\" __global__ void forward(const __grid_constant__ embedding_parameters p) { embedding_rows<i64, u16>(p); }\n"
                         "extern \"C\" __global__ void gradient(const __grid_constant__ embedding_parameters p) { embedding_gradient_rows<i32, bf16, float>(p); }\n}\n"};
  for (const kernel_text& unit : {sums, rows})
    for (const char* arch : served_archs) CHECK(spills_of(unit, arch) == "");
}
