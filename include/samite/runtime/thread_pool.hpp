// samite/runtime/thread_pool.hpp: loops over a process-wide pool of threads.
#pragma once
#include <concepts>
#include <memory>
#include <type_traits>

#include <samite/core/dtype.hpp>

namespace samite {

namespace detail {
/// Calls call(context, 0) .. call(context, count - 1) on the pool.
void run_parallel(index_t count, void (*call)(void*, index_t), void* context);
}  // namespace detail

/// How many threads a loop started here uses: SAMITE_THREADS (1 to 1024), else the number of cores, or a `thread_limit`'s number.
int thread_count();

/// Sets the number of threads for loops that this thread starts, until the end of the scope. It may exceed the number of cores:
/// tests run one loop with 1 and 8 threads and compare.
///
/// errors   E-THREADS-COUNT outside 1 .. 1024
class thread_limit {
 public:
  explicit thread_limit(int count);
  ~thread_limit();
  thread_limit(const thread_limit&) = delete;
  thread_limit& operator=(const thread_limit&) = delete;

 private:
  int previous_;
};

/// Calls f(0) .. f(count - 1), each once, on several threads. Who runs which index and in which order is not fixed, so the result
/// must not depend on it: give each index its own output, and combine partial sums afterwards in index order.
///
/// errors   an exception in f ends the loop early and is thrown here (the one of the lowest index that threw)
/// threads  callable from any thread; returns when all is done; a call from inside f runs on the calling thread alone
/// cost     some 10 us to wake the pool: an index should be worth more than that
template <std::invocable<index_t> F>
void parallel_for(index_t count, F&& f) {
  using body = std::remove_reference_t<F>;
  detail::run_parallel(count, [](void* context, index_t i) { (*static_cast<body*>(context))(i); }, const_cast<void*>(static_cast<const void*>(std::addressof(f))));
}

/// Calls f(begin, end) for consecutive blocks of `block` items of 0 .. count. Blocks depend on count and block only, never on the
/// number of threads: sums kept per block give the same result on any machine.
template <std::invocable<index_t, index_t> F>
void parallel_blocks(index_t count, index_t block, F&& f) {
  ensure(block > 0, "parallel_blocks: a block holds at least one item");
  parallel_for(count / block + (count % block != 0), [&](index_t i) {
    const index_t begin = i * block;
    f(begin, count - begin < block ? count : begin + block);
  });
}

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/runtime/thread_pool_impl.hpp>
#endif
