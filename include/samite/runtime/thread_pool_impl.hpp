// samite/runtime/thread_pool_impl.hpp: the pool behind runtime/thread_pool.hpp.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <samite/core/env.hpp>
#include <samite/runtime/crash_stack.hpp>
#include <samite/runtime/thread_pool.hpp>

namespace samite {

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
    const crash_stack stack;
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

SAMITE_IMPL int thread_count() {
  if (detail::thread_limit_here != 0) return detail::thread_limit_here;
  static const int count = [] {
    const auto wanted = env_number("SAMITE_THREADS", 1, 1024);
    if (wanted) return int(*wanted);
    const unsigned cores = std::thread::hardware_concurrency();
    return cores == 0 ? 1 : int(cores < 1024 ? cores : 1024);
  }();
  return count;
}

SAMITE_IMPL thread_limit::thread_limit(int count) : previous_(detail::thread_limit_here) {
  if (count < 1 || count > 1024) raise("E-THREADS-COUNT", "thread_limit(", count, "): a loop runs on 1 to 1024 threads");
  detail::thread_limit_here = count;
}
SAMITE_IMPL thread_limit::~thread_limit() { detail::thread_limit_here = previous_; }

SAMITE_IMPL void detail::run_parallel(index_t count, void (*call)(void*, index_t), void* context) {
  if (count <= 0) return;
  const index_t threads = thread_count() < count ? thread_count() : count;
  if (threads == 1 || inside_parallel_loop) {
    for (index_t i = 0; i < count; ++i) call(context, i);
    return;
  }
  parallel_job job{.call = call, .context = context, .count = count};
  inside_parallel_loop = true;
  thread_pool::instance().run(job, int(threads));
  inside_parallel_loop = false;
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace samite
