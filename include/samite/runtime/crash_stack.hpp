// samite/runtime/crash_stack.hpp: a second stack for a thread, on which it can still say that its own has overflowed.
#pragma once
#include <csignal>
#include <cstddef>
#include <memory>

namespace samite::detail {

/// First in a thread: signal handlers that ask for it (install_crash_handler's) run on this stack until the scope ends. A stack that the
/// thread has already, e.g. a sanitizer's, is left to it.
class crash_stack {
 public:
  crash_stack() {
    stack_t now{};
    if (::sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;
    memory_.reset(new char[bytes]);  // pages that nobody touches cost nothing
    now = {};
    now.ss_sp = memory_.get(), now.ss_size = bytes;
    if (::sigaltstack(&now, nullptr) != 0) memory_.reset();
  }
  ~crash_stack() {
    if (memory_ == nullptr) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    ::sigaltstack(&none, nullptr);
  }
  crash_stack(const crash_stack&) = delete;
  crash_stack& operator=(const crash_stack&) = delete;

 private:
  static constexpr std::size_t bytes = 64 * 1024;
  std::unique_ptr<char[]> memory_;
};

}  // namespace samite::detail
