#include <dlfcn.h>
#include <doctest/doctest.h>

#include <samite/jit/crash_report.hpp>
#include <samite/runtime/nvtx.hpp>

#include "support/jit_faults.hpp"

using namespace samite;
using namespace samite_tests;

TEST_CASE("helper: opens ranges over the library in NVTX's place" * doctest::skip()) {
  void* const library = ::dlopen(SAMITE_STUB_NVTX, RTLD_NOW);
  REQUIRE(library != nullptr);
  {
    const nvtx_range outer("a launch");
    const activity inner("compile", "some kernel");
  }
  CHECK(std::string(static_cast<const char*>(::dlsym(library, "stub_nvtx_ranges"))) == "a launch(compile some kernel())");
}

TEST_CASE("with SAMITE_NVTX=1 launches and activities are ranges, nested as they are") {
  CHECK(run_alone("helper: opens ranges*", "SAMITE_NVTX=1").first == 0);
}

TEST_CASE("without SAMITE_NVTX no library is opened and nothing is said") {
  CHECK(detail::nvtx() == nullptr);
  const nvtx_range nothing("a launch");
}

TEST_CASE("helper: asks for ranges" * doctest::skip()) { const nvtx_range range("a launch"); }

TEST_CASE("helper: notes an activity" * doctest::skip()) { const activity note("load", "a file"); }

TEST_CASE("SAMITE_NVTX=1 without a library is one line, and the program goes on; other values are E-ENV-VALUE") {
  const auto without = run_alone("helper: asks for ranges*", "LD_LIBRARY_PATH= SAMITE_NVTX=1");
  CHECK(without.first == 0);
  const bool is_there = ::dlopen("libnvToolsExt.so.1", RTLD_NOW) != nullptr || ::dlopen("libnvtx3interop.so.1", RTLD_NOW) != nullptr;
  if (!is_there) CHECK(without.second.find("there are no ranges") != std::string::npos);
  CHECK(run_alone("helper: asks for ranges*", "SAMITE_NVTX=yes").second.find("E-ENV-VALUE") != std::string::npos);
  const auto noted = run_alone("helper: notes an activity", "SAMITE_NVTX=2");  // raised, and not the end of the process
  CHECK(noted.first == 1);
  CHECK(noted.second.find("E-ENV-VALUE") != std::string::npos);
}
