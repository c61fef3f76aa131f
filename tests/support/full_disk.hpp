// tests/support/full_disk.hpp: a disk that is full after some bytes of each file, until the end of the scope.
#pragma once
#include <sys/resource.h>

#include <csignal>
#include <cstddef>

namespace samite_tests {

class full_disk {
 public:
  /// bytes  of one file that go through before a write fails
  explicit full_disk(std::size_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  full_disk(const full_disk&) = delete;
  ~full_disk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  void (*handler_)(int);
};

}  // namespace samite_tests
