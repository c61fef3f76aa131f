// samite/runtime/thread_pool.hpp: loops over a process-wide pool of threads.
#pragma once
#include <atomic>
#include <condition_variable>
#include <concepts>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#include <samite/core/dtype.hpp>
#include <samite/core/env.hpp>

namespace samite {

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
void parallel_for(index_t count, F&& f);

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

namespace detail {

struct parallel_job {
  void (*call)(void*, index_t);
  void* context;
  index_t count;
  std::atomic<index_t> next{0};
  int wanted_helpers = 0, helpers = 0;  // guarded by the pool's mutex
  std::mutex failure_mutex{};
  std::exception_ptr failure{};
  index_t failed_index = 0;

  void run() noexcept {
    for (index_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        call(context, i);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure || i < failed_index) failure = std::current_exception(), failed_index = i;
        next.store(count, std::memory_order_relaxed);
      }
    }
  }
};

inline thread_local bool inside_parallel_loop = false;
inline thread_local int thread_limit_here = 0;  // 0: none

class thread_pool {
 public:
  // Never destroyed: at exit its threads may still wait, and joining them from a static destructor can hang a host program.
  static thread_pool& instance() {
    static thread_pool* const pool = new thread_pool;
    return *pool;
  }

  void run(parallel_job& job, int threads) {
    {
      const std::lock_guard lock(mutex_);
      job.wanted_helpers = threads - 1;
      grow(threads - 1);
      jobs_.push_back(&job);
    }
    if (threads > 2)
      work_.notify_all();
    else
      work_.notify_one();
    job.run();
    std::unique_lock lock(mutex_);
    std::erase(jobs_, &job);  // nobody else joins; wait for those who did
    done_.wait(lock, [&] { return job.helpers == 0; });
  }

 private:
  void grow(int helpers) {
    try {
      for (; started_ < helpers; ++started_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      // The system refuses more threads: the loop runs with those there are, at least the caller's own.
    }
  }

  void serve() {
    inside_parallel_loop = true;
    std::unique_lock lock(mutex_);
    for (;;) {
      parallel_job* job = nullptr;
      work_.wait(lock, [&] { return (job = open_job()) != nullptr; });
      --job->wanted_helpers;
      ++job->helpers;
      lock.unlock();
      job->run();
      lock.lock();
      if (--job->helpers == 0) done_.notify_all();
    }
  }

  parallel_job* open_job() const {
    for (parallel_job* job : jobs_)
      if (job->wanted_helpers > 0 && job->next.load(std::memory_order_relaxed) < job->count) return job;
    return nullptr;
  }

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::vector<parallel_job*> jobs_;
  int started_ = 0;
};

}  // namespace detail

inline int thread_count() {
  if (detail::thread_limit_here != 0) return detail::thread_limit_here;
  static const int count = [] {
    const auto wanted = env_number("SAMITE_THREADS", 1, 1024);
    if (wanted) return int(*wanted);
    const unsigned cores = std::thread::hardware_concurrency();
    return cores == 0 ? 1 : int(cores < 1024 ? cores : 1024);
  }();
  return count;
}

inline thread_limit::thread_limit(int count) : previous_(detail::thread_limit_here) {
  if (count < 1 || count > 1024) raise("E-THREADS-COUNT", "thread_limit(", count, "): a loop runs on 1 to 1024 threads");
  detail::thread_limit_here = count;
}
inline thread_limit::~thread_limit() { detail::thread_limit_here = previous_; }

template <std::invocable<index_t> F>
void parallel_for(index_t count, F&& f) {
  if (count <= 0) return;
  const index_t threads = thread_count() < count ? thread_count() : count;
  if (threads == 1 || detail::inside_parallel_loop) {
    for (index_t i = 0; i < count; ++i) f(i);
    return;
  }
  using body = std::remove_reference_t<F>;
  detail::parallel_job job{.call = [](void* context, index_t i) { (*static_cast<body*>(context))(i); },
                           .context = const_cast<void*>(static_cast<const void*>(std::addressof(f))),
                           .count = count};
  detail::inside_parallel_loop = true;
  detail::thread_pool::instance().run(job, int(threads));
  detail::inside_parallel_loop = false;
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace samite
