#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <samite/io/file.hpp>
#include <samite/jit/compiler.hpp>

#include "support/skip.hpp"
#include "support/temporary_folder.hpp"

using namespace samite;
using samite_tests::temporary_folder;
using mode = disk_cache::mode;

namespace {

// Stands in for NVRTC where the subject is the cache: the "cubin" is the text and the arch.
compiled_kernel echo(const kernel_source& source) { return {.cubin = source.arch + source.text, .log = "log"}; }
std::string build_a() { return "13.0 1"; }
std::string build_b() { return "13.0 2"; }

kernel_source source_of(std::string text, std::string arch = "sm_90a") { return {.label = "k", .text = std::move(text), .arch = std::move(arch)}; }

}  // namespace

TEST_CASE("the first call compiles, the second hits, and another process finds it on disk") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  kernel_cache cache(disk, echo, build_a);
  CHECK(cache.get(source_of("a"))->cubin == "sm_90aa");
  CHECK(cache.get(source_of("a"))->log == "log");
  CHECK(cache.counters().compiles == 1);
  CHECK(cache.counters().hits == 1);
  kernel_cache next(disk, echo, build_a);
  CHECK(next.get(source_of("a"))->cubin == "sm_90aa");
  CHECK(next.counters().compiles == 0);
  CHECK(next.counters().disk_hits == 1);
}

TEST_CASE("text, arch with its suffix, options, headers and the NVRTC build each make another key; the label does not") {
  const temporary_folder folder;
  disk_cache disk("", mode::off);
  const kernel_cache a(disk, echo, build_a), b(disk, echo, build_b);
  std::set<std::string> keys;
  const kernel_source base = source_of("x", "sm_90");
  keys.insert(a.key_of(base));
  keys.insert(b.key_of(base));
  keys.insert(a.key_of(source_of("y", "sm_90")));
  keys.insert(a.key_of(source_of("x", "sm_90a")));
  kernel_source changed = base;
  changed.options = {"-a", "b"};
  keys.insert(a.key_of(changed));
  changed.options = {"-ab"};
  keys.insert(a.key_of(changed));
  changed = base;
  changed.headers = {{"h", "1"}};
  keys.insert(a.key_of(changed));
  changed.headers = {{"h", "2"}};
  keys.insert(a.key_of(changed));
  changed.headers = {{"h1", ""}};
  keys.insert(a.key_of(changed));
  CHECK(keys.size() == 9);
  changed = base;
  changed.label = "other";
  CHECK(a.key_of(changed) == a.key_of(base));
  // Unless it is part of the code, as the text's file name.
  for (const auto& [text, option] : {std::pair<const char*, const char*>{"x = __FILE__;", "-a"}, {"assert(x);", "-a"}, {"x", "-lineinfo"}}) {
    kernel_source one = source_of(text), two = one;
    one.options = two.options = {option}, two.label = "other";
    CHECK(a.key_of(one) != a.key_of(two));
  }
  changed = source_of("static_assert(true);");
  kernel_source renamed = changed;
  renamed.label = "other";
  CHECK(a.key_of(changed) == a.key_of(renamed));
  for (const auto& [header, is_shown] : {std::pair<const char*, bool>{"#define CHECK(x) \\\n  report(__FILE__)\n", true}, {"inline const char* here() { return __FILE__; }\n", false}}) {
    changed = renamed = source_of("CHECK(1);"), renamed.label = "other";
    changed.headers = renamed.headers = {{"h", header}};
    CHECK((a.key_of(changed) != a.key_of(renamed)) == is_shown);
  }
}

TEST_CASE("16 threads that ask for one new kernel share one compile, with 16 kernels they make 16") {
  disk_cache disk("", mode::off);
  for (const bool same : {true, false}) {
    kernel_cache cache(disk, echo, build_a);
    std::atomic<int> wrong = 0, ready = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 16; ++i)
      threads.emplace_back([&, i] {
        ++ready;
        while (ready < 16) std::this_thread::yield();
        const std::string text = same ? "k" : std::to_string(i);
        if (cache.get(source_of(text))->cubin != "sm_90a" + text) ++wrong;
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(cache.counters().compiles == (same ? 1 : 16));
    CHECK(cache.counters().hits == (same ? 15 : 0));
  }
}

TEST_CASE("a failed compile is not remembered, neither in the process nor on disk: the next call tries again") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  int calls = 0;
  std::string code = "E-JIT-COMPILE";
  kernel_cache cache(disk, [&](const kernel_source&) -> compiled_kernel { ++calls; throw error(code, "no"); }, build_a);
  for (int i = 0; i < 3; ++i) CHECK_THROWS_WITH_AS(cache.get(source_of("bad")), doctest::Contains("E-JIT-COMPILE"), samite::error);
  CHECK(calls == 3);
  code = "E-MEMORY-HOST";
  for (int i = 0; i < 3; ++i) CHECK_THROWS_AS(cache.get(source_of("large")), samite::error);
  CHECK(calls == 6);
  CHECK(cache.counters().failures == 6);
  disk.for_each([](const disk_cache::entry&) { FAIL("a failure was stored"); });
}

TEST_CASE("a damaged entry is compiled anew and replaced") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  kernel_cache first(disk, echo, build_a);
  first.get(source_of("a"));
  const std::string hash = detail::hash_key(first.key_of(source_of("a")));
  const std::string path = disk.folder() + "/" + hash.substr(0, 2) + "/" + hash.substr(2) + ".kernel";
  std::string bytes = read_file(path);
  bytes.back() = char(bytes.back() ^ 1);
  write_file(path, bytes);
  kernel_cache second(disk, echo, build_a), third(disk, echo, build_a);
  CHECK(second.get(source_of("a"))->cubin == "sm_90aa");
  CHECK(second.counters().compiles == 1);
  third.get(source_of("a"));
  CHECK(third.counters().disk_hits == 1);
}

TEST_CASE("with NVRTC: two archs make two cubins, kept on disk, found without a compile") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  kernel_cache cold(disk), warm(disk);
  const std::string text = "extern \"C\" __global__ void k(float* x) { *x = 1.5f; }\n";
  const auto a = cold.get(source_of(text, "sm_90")), b = cold.get(source_of(text, "sm_90a"));
  CHECK(cold.counters().compiles == 2);
  CHECK(warm.get(source_of(text, "sm_90"))->cubin == a->cubin);
  CHECK(warm.get(source_of(text, "sm_90a"))->cubin == b->cubin);
  CHECK(warm.counters().compiles == 0);
}

TEST_CASE("explain() and the history say where a kernel came from, what it takes on the device, and where its source is kept") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write, {.keeps_sources = true});
  const auto with_log = [](const kernel_source& source) {
    return compiled_kernel{.cubin = source.text, .log = "ptxas info    : Compiling entry function 'scale' for 'sm_90a'\n"
                                                        "ptxas info    : Function properties for scale\n"
                                                        "    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
                                                        "ptxas info    : Used 42 registers, used 1 barriers, 1024 bytes smem, 352 bytes cmem[0]\n"};
  };
  kernel_cache cache(disk, with_log, build_a), next(disk, with_log, build_a);
  const kernel_source source = source_of("void scale();");
  CHECK(cache.explain(source).find("not compiled in this process") != std::string::npos);
  cache.get(source), next.get(source);
  const std::string explained = cache.explain(source);
  for (const char* part : {"kernel \"k\" for sm_90a", "NVRTC 13.0 1", "compiled in ", "first asked for by \"k\"",
                           "scale: 42 registers, 1024 bytes of shared memory, 16 bytes of stack, spills 8 bytes stored and 12 loaded"})
    CHECK(explained.find(part) != std::string::npos);
  CHECK(next.explain(source).find("found in " + disk.folder()) != std::string::npos);
  REQUIRE(cache.history().size() == 1);
  const kernel_record record = cache.history()[0];
  CHECK(record.label == "k");
  CHECK(record.hash == cache.prepare(source).hash());
  CHECK(record.ms >= record.compile_ms);
  CHECK(record.cubin_bytes == 13);
  CHECK(record.source_path == disk.folder() + "/sources/" + record.hash + ".cu");
  CHECK(read_file(record.source_path) == "void scale();");
  CHECK(explained.find(record.source_path) != std::string::npos);
  CHECK(next.history()[0].origin == kernel_origin::disk);
  CHECK(next.compile_ms() == 0);
}

TEST_CASE("headers are read from a folder by their paths below it, in one order; a folder that is not there is E-FILE-OPEN") {
  const temporary_folder folder;
  make_folder(folder / "a/b");
  write_file(folder / "z.cuh", "1");
  write_file(folder / "a/b/c.cuh", "2");
  const auto headers = read_kernel_headers(folder.path());
  REQUIRE(headers.size() == 2);
  CHECK(headers[0].name == "a/b/c.cuh");
  CHECK(headers[0].text == "2");
  CHECK(headers[1].name == "z.cuh");
  CHECK_THROWS_WITH_AS(read_kernel_headers(folder / "none"), doctest::Contains("E-FILE-OPEN"), samite::error);
}
