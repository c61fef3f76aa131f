#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include <samite/jit/precompile.hpp>

#include "support/jit_faults.hpp"

using namespace samite;
using namespace samite_tests;
using mode = disk_cache::mode;
using std::chrono::milliseconds;

namespace {

std::vector<kernel_source> sources_of(int count) {
  std::vector<kernel_source> sources;
  for (int i = 0; i < count; ++i) sources.push_back(source_of(std::to_string(i)));
  return sources;
}

compiled_kernel slow_echo(const kernel_source& source) {
  std::this_thread::sleep_for(milliseconds(20));
  return echo(source);
}

}  // namespace

TEST_CASE("kernels compiled in the background are hits afterwards, and one that is needed meanwhile is compiled once") {
  disk_cache disk("", mode::off);
  kernel_cache cache(disk, slow_echo, one_build);
  precompilation all(cache, sources_of(10));
  CHECK(is_right(cache, "9"));  // before its turn
  all.wait();
  CHECK(all.count() == 10);
  CHECK(all.done() == 10);
  for (int i = 0; i < 10; ++i) CHECK(is_right(cache, std::to_string(i)));
  CHECK(cache.counters().compiles == 10);
}

TEST_CASE("a precompilation that takes long says how far it is, a short one says nothing") {
  disk_cache disk("", mode::off);
  warning_list lines;
  for (const int first_line_ms : {5'000, 10}) {
    kernel_cache cache(disk, slow_echo, one_build);
    precompilation all(cache, sources_of(8), {.first_line_ms = first_line_ms, .next_line_ms = 20, .say = lines.take()});
    all.wait();
    CHECK(lines.texts.empty() == (first_line_ms == 5'000));
  }
  CHECK(lines.texts.at(0).find("of 8 after 0 s; at \"k\"") != std::string::npos);
}

TEST_CASE("one kernel that does not compile is reported when waiting, and the others are compiled") {
  disk_cache disk("", mode::off);
  kernel_cache cache(disk, [](const kernel_source& source) {
    if (source.text == "1") raise("E-JIT-COMPILE", "compile of \"1\" failed");
    return echo(source);
  }, one_build);
  precompilation all(cache, sources_of(4));
  CHECK_THROWS_WITH_AS(all.wait(), doctest::Contains("E-JIT-COMPILE"), samite::error);
  CHECK(cache.counters().compiles == 4);
  CHECK(cache.counters().failures == 1);
}

TEST_CASE("a precompilation that is given up leaves the kernels that it has not begun") {
  disk_cache disk("", mode::off);
  kernel_cache cache(disk, slow_echo, one_build);
  { const precompilation all(cache, sources_of(1000)); }
  CHECK(cache.counters().compiles < 100);
  { precompilation none(cache, {}); none.wait(); }
}
