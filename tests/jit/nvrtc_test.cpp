#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <samite/io/file.hpp>
#include <samite/jit/nvrtc.hpp>
#include <samite/jit/nvrtc_impl.hpp>

#include "support/skip.hpp"

using namespace samite;

#define NEEDS_NVRTC SKIP_IF(!nvrtc_available(), nvrtc_missing_reason())

namespace {
const char* const doubling = "extern \"C\" __global__ void twice(float* x) { x[threadIdx.x] *= 2.5f; }\n";
}

TEST_CASE("a kernel compiles to an ELF cubin for the arch asked for, without a GPU") {
  NEEDS_NVRTC;
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const compiled_kernel kernel = compile_kernel({.label = "twice", .text = doubling, .arch = arch});
    CHECK(kernel.cubin.substr(0, 4) == "\x7f" "ELF");
    CHECK(kernel.cubin.find("twice") != std::string::npos);
    CHECK(kernel.log.find("warning") == std::string::npos);
  }
  CHECK_FALSE(nvrtc_build().empty());
}

TEST_CASE("headers in memory are found by their full name, and a file of the working folder is not") {
  NEEDS_NVRTC;
  const kernel_source source{.label = "with header",
                             .text = "#include <samite/device/factor.cuh>\nextern \"C\" __global__ void k(float* x) { *x = factor; }\n",
                             .arch = "sm_90",
                             .headers = {{"samite/device/factor.cuh", "#pragma once\n#define factor 3.f\n"}}};
  CHECK_FALSE(compile_kernel(source).cubin.empty());
  write_file("stray_header.cuh", "#define factor 4.f\n");
  kernel_source stray{.label = "stray", .text = "#include \"stray_header.cuh\"\nextern \"C\" __global__ void k(float* x) { *x = factor; }\n", .arch = "sm_90"};
  CHECK_THROWS_WITH_AS(compile_kernel(stray), doctest::Contains("E-JIT-COMPILE"), samite::error);
  ::unlink("stray_header.cuh");
}

TEST_CASE("a text that does not compile is E-JIT-COMPILE with the label, the line at fault and the kept source") {
  NEEDS_NVRTC;
  try {
    compile_kernel({.label = "attn_fwd.causal_d128", .text = "extern \"C\" __global__ void k(int* x) {\n  *x = kept;\n}\n", .arch = "sm_90a"});
    FAIL("it compiled");
  } catch (const samite::error& e) {
    const std::string text = e.what();
    CHECK(e.code() == "E-JIT-COMPILE");
    CHECK(e.exit_status() == 4);
    CHECK(text.find("compile of \"attn_fwd.causal_d128\" for sm_90a failed") != std::string::npos);
    CHECK(text.find("attn_fwd.causal_d128.cu(2): error: identifier \"kept\" is undefined") != std::string::npos);
    CHECK(text.find("the source was") != std::string::npos);
  }
}

TEST_CASE("sources of one label that did not compile are kept apart") {
  NEEDS_NVRTC;
  const auto kept = [](const char* text) {
    try {
      compile_kernel({.label = "same", .text = text, .arch = "sm_90a"});
    } catch (const samite::error& e) {
      const std::string said = e.what(), before = "was kept at ";
      const std::size_t found = said.find(before);
      return found == std::string::npos ? std::string() : said.substr(found + before.size(), said.find(' ', found + before.size()) - found - before.size());
    }
    return std::string();
  };
  const std::string one = kept("one wrong text"), two = kept("another wrong text");
  if (!one.empty()) CHECK(one != two);  // there may be no folder to keep them in
}

TEST_CASE("what the assembler refuses is said too, and errors past the sixth are counted") {
  NEEDS_NVRTC;
  const std::string large = "extern \"C\" __global__ void k(int* x) { __shared__ int s[100000]; s[threadIdx.x] = 1; __syncthreads(); x[0] = s[5]; }\n";
  CHECK_THROWS_WITH_AS(compile_kernel({.label = "large", .text = large, .arch = "sm_90a"}), doctest::Contains("too much shared data"), samite::error);
  CHECK_THROWS_WITH_AS(compile_kernel({.label = "large", .text = large, .arch = "sm_90a"}), doctest::Contains("the source was"), samite::error);
  std::string wrong = "extern \"C\" __global__ void k(int* x) {\n";
  for (int i = 0; i < 9; ++i) wrong += "  x[0] = missing_" + std::to_string(i) + ";\n";
  CHECK_THROWS_WITH_AS(compile_kernel({.label = "wrong", .text = wrong + "}\n", .arch = "sm_90a"}), doctest::Contains("more lines with errors"), samite::error);
}

TEST_CASE("an unknown option or arch is E-JIT-COMPILE, a virtual arch too since it makes no cubin") {
  NEEDS_NVRTC;
  CHECK_THROWS_WITH_AS(compile_kernel({.label = "k", .text = doubling, .arch = "sm_1"}), doctest::Contains("E-JIT-COMPILE"), samite::error);
  CHECK_THROWS_WITH_AS(compile_kernel({.label = "k", .text = doubling, .arch = "compute_90"}), doctest::Contains("E-JIT-COMPILE"), samite::error);
  CHECK_THROWS_WITH_AS(compile_kernel({.label = "k", .text = doubling, .arch = "sm_90", .options = {"-no-such-option"}}),
                       doctest::Contains("E-JIT-COMPILE"), samite::error);
}

TEST_CASE("the log of a compile with -v holds registers and spills; the cubin is the same every time") {
  NEEDS_NVRTC;
  const kernel_source source{.label = "k", .text = "namespace { __device__ int hidden = 3; }\nextern \"C\" __global__ void k(int* x) { *x = ++hidden; }\n",
                             .arch = "sm_90", .options = {"--ptxas-options=-v"}};
  const compiled_kernel once = compile_kernel(source);
  CHECK(once.log.find("registers") != std::string::npos);
  CHECK(compile_kernel(source).cubin == once.cubin);
}

TEST_CASE("an NVRTC that can't be opened is E-JIT-NVRTC, naming the path and the variable") {
  CHECK_THROWS_WITH_AS(detail::require_nvrtc(detail::open_nvrtc("/nonexistent/libnvrtc.so")), doctest::Contains("/nonexistent/libnvrtc.so"),
                       samite::error);
  CHECK_THROWS_WITH_AS(detail::require_nvrtc(detail::open_nvrtc("libm.so.6")), doctest::Contains("SAMITE_NVRTC_PATH"), samite::error);
  CHECK_THROWS_WITH_AS(detail::require_nvrtc(detail::open_nvrtc("libm.so.6")), doctest::Contains("E-JIT-NVRTC"), samite::error);
}

TEST_CASE("a child forked during a compile is told E-JIT-FORK and does not hang; one forked before may compile") {
  const auto status_of_child = [] {
    const pid_t child = fork();
    if (child == 0) {
      int status = 0;
      try {
        const detail::nvrtc_activity activity;
      } catch (const samite::error& e) {
        status = e.code() == "E-JIT-FORK" ? 1 : 2;
      }
      _exit(status);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  { const detail::nvrtc_activity earlier; }
  CHECK(status_of_child() == 0);
  const detail::nvrtc_activity during;
  CHECK(status_of_child() == 1);
}
