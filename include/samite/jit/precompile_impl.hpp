// samite/jit/precompile_impl.hpp: the threads behind jit/precompile.hpp.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include <samite/core/say.hpp>
#include <samite/jit/precompile.hpp>
#include <samite/runtime/crash_stack.hpp>

namespace samite {

struct precompilation::state {
  kernel_cache& cache;
  const std::vector<kernel_source> sources;
  const precompile_options options;
  std::vector<std::exception_ptr> failures;
  std::mutex mutex;  // guards what follows; never held during a compile
  std::condition_variable changed;
  std::size_t next = 0, done = 0;
  std::vector<std::thread> threads;

  void compile_all() {
    const detail::crash_stack stack;
    std::unique_lock lock(mutex);
    while (next < sources.size()) {
      const std::size_t i = next++;
      lock.unlock();
      std::exception_ptr failure;
      try {
        cache.get(sources[i]);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failures[i] = failure;
      ++done;
      changed.notify_all();
    }
  }

  void report() {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex);
    // Ends when all are done, or when those not begun were given up.
    const auto is_over = [&] { return done == sources.size() || (next > sources.size()); };
    for (int pause_ms = options.first_line_ms; !changed.wait_for(lock, std::chrono::milliseconds(pause_ms), is_over); pause_ms = options.next_line_ms) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start).count();
      const std::string text = concat_text("compiling kernels: ", done, " of ", sources.size(), " after ", seconds, " s; at \"",
                                           sources[std::clamp<std::size_t>(next, 1, sources.size()) - 1].label, "\"");
      if (options.say) options.say(text);
      else say(text);
    }
  }
};

SAMITE_IMPL precompilation::precompilation(kernel_cache& cache, std::vector<kernel_source> sources, precompile_options options)
    : state_(new state{cache, std::move(sources), std::move(options), {}, {}, {}, 0, 0, {}}) {
  state& s = *state_;
  if (s.sources.empty()) return;
  s.failures.resize(s.sources.size());
  const unsigned wanted = s.options.threads > 0 ? unsigned(s.options.threads) : std::clamp(std::thread::hardware_concurrency() / 4, 2u, 4u);
  const std::size_t workers = std::min(std::size_t(wanted), s.sources.size());
  for (std::size_t i = 0; i < workers; ++i) s.threads.emplace_back([&s] { s.compile_all(); });
  s.threads.emplace_back([&s] { s.report(); });
}

SAMITE_IMPL precompilation::~precompilation() {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->done < state_->sources.size()) state_->next = state_->sources.size() + 1;
  }
  state_->changed.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

SAMITE_IMPL int precompilation::count() const { return int(state_->sources.size()); }

SAMITE_IMPL int precompilation::done() const {
  const std::lock_guard lock(state_->mutex);
  return int(state_->done);
}

SAMITE_IMPL void precompilation::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done == state_->sources.size(); });
  for (const std::exception_ptr& failure : state_->failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace samite
