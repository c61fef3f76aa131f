// Faults that users of other libraries met when masks become kernels; the numbers are those of the cases.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include <samite/emit/attention.hpp>
#include <samite/emit/device_headers.hpp>
#include <samite/mask.hpp>

#include "support/jit_faults.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite::symbols;
using namespace samite_tests;
using mode = disk_cache::mode;

namespace {

kernel_source kernel_of(const any_mask& mask, const char* arch = "sm_90a") {
  const kernel_text text = emit_attention_bits(mask.program(), 128, 128);
  return {.label = text.name, .text = text.text, .arch = arch, .headers = headers_of(text.text)};
}

/// Pairs of masks that differ in one constant or one operator.
std::vector<any_mask> near_misses() {
  return {any_mask(q - kv < fixed(63)), any_mask(q - kv < fixed(64)), any_mask(q - kv <= fixed(64)), any_mask(q + kv < fixed(64)), any_mask(q - kv < fixed(64) && kv <= q),
          any_mask(q - kv < fixed(64) || kv <= q)};
}

}  // namespace

TEST_CASE("I5: 8 processes of 8 threads, cold on one folder with a damaged entry, get the kernel of their own mask; masks that differ in one constant or operator never share one") {
  const std::vector<any_mask> masks = near_misses();
  std::set<std::string> texts;
  for (const any_mask& mask : masks) texts.insert(kernel_of(mask).text);
  REQUIRE(texts.size() == masks.size());
  CHECK(kernel_of(any_mask(q - kv < 63)).text == kernel_of(any_mask(q - kv < 64)).text);  // a plain number is an argument of one kernel
  const temporary_folder folder;
  {
    disk_cache disk(folder / "c", mode::read_write);
    kernel_cache cache(disk, echo, one_build);
    cache.get(kernel_of(masks[0]));
    const std::string path = entry_path(disk, cache.key_of(kernel_of(masks[0])));
    std::FILE* const file = std::fopen(path.c_str(), "r+b");
    REQUIRE(file != nullptr);
    std::fseek(file, -1, SEEK_END), std::fputc('?', file), std::fclose(file);
  }
  std::vector<pid_t> children;
  for (int process = 0; process < 8; ++process)
    children.push_back(start_child([&] {
      disk_cache disk(folder / "c", mode::read_write);
      kernel_cache cache(disk, echo, one_build);
      std::atomic<int> wrong = 0;
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < 8; ++t)
        threads.emplace_back([&, t] {
          for (std::size_t i = 0; i < masks.size(); ++i) {
            const kernel_source wanted = kernel_of(masks[(i + t) % masks.size()]);
            wrong += cache.get(wanted)->cubin != echo(wanted).cubin;
          }
        });
      for (std::thread& thread : threads) thread.join();
      return int(wrong);
    }));
  ::kill(children.back(), SIGKILL);  // at whatever it does
  for (std::size_t i = 0; i + 1 < children.size(); ++i) CHECK(end_of_child(children[i]) == 0);
  end_of_child(children.back());
  CHECK(entries_of(folder / "c")[0] >= int(masks.size()) - 1);
}

TEST_CASE("I6: 4 threads that compile 12 new masks each, all at once, get every kernel without an error, each compiled once") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  std::atomic<int> ready = 0, errors = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      ++ready;
      while (ready < 4) std::this_thread::yield();
      for (int width = 1; width <= 12; ++width) {
        try {
          errors += cache.get(kernel_of(any_mask(kv <= q && (q - kv) % fixed(width) == 0)))->cubin.empty();
        } catch (const std::exception&) {
          ++errors;
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(errors == 0);
  CHECK(cache.counters().compiles == 12);
}
