#include <doctest/doctest.h>

#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include <samite/runtime/thread_pool.hpp>

using namespace samite;

TEST_CASE("parallel_for calls every index once, with any number of threads") {
  for (int threads : {1, 2, 3, 8}) {
    const thread_limit limit(threads);
    CHECK(thread_count() == threads);
    for (index_t count : {0, 1, 2, 7, 1000}) {
      std::vector<int> calls(std::size_t(count), 0);
      parallel_for(count, [&](index_t i) { ++calls[std::size_t(i)]; });
      CHECK(calls == std::vector<int>(std::size_t(count), 1));
    }
  }
}

TEST_CASE("parallel_blocks cuts 10 items in blocks of 4 the same way for any number of threads") {
  for (int threads : {1, 4}) {
    const thread_limit limit(threads);
    std::vector<std::pair<index_t, index_t>> blocks(3);
    parallel_blocks(10, 4, [&](index_t begin, index_t end) { blocks[std::size_t(begin / 4)] = {begin, end}; });
    CHECK(blocks == std::vector<std::pair<index_t, index_t>>{{0, 4}, {4, 8}, {8, 10}});
  }
}

TEST_CASE("parallel_for throws the exception of the lowest failing index in the caller, and works again afterwards") {
  const thread_limit limit(4);
  CHECK_THROWS_WITH_AS(parallel_for(100, [](index_t i) { if (i == 0) throw std::runtime_error("index 0"); }), "index 0",
                       std::runtime_error);
  std::atomic<int> calls = 0;
  parallel_for(100, [&](index_t) { ++calls; });
  CHECK(calls == 100);
}

TEST_CASE("a parallel_for inside a parallel_for runs on the calling thread") {
  const thread_limit limit(4);
  std::atomic<int> elsewhere = 0, calls = 0;
  parallel_for(8, [&](index_t) {
    const auto here = std::this_thread::get_id();
    parallel_for(8, [&](index_t) {
      ++calls;
      if (std::this_thread::get_id() != here) ++elsewhere;
    });
  });
  CHECK(calls == 64);
  CHECK(elsewhere == 0);
}

TEST_CASE("several threads may start loops at once") {
  std::atomic<index_t> total = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      const thread_limit limit(3);
      for (int repeat = 0; repeat < 200; ++repeat) parallel_for(5, [&](index_t i) { total += i; });
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(total == 4 * 200 * 10);
}

TEST_CASE("thread_limit refuses counts outside 1 .. 1024 and gives the old count back") {
  const int before = thread_count();
  CHECK_THROWS_WITH_AS(thread_limit(0), doctest::Contains("E-THREADS-COUNT"), samite::error);
  CHECK_THROWS_AS(thread_limit(1025), samite::error);
  { const thread_limit limit(before + 1); }
  CHECK(thread_count() == before);
}
