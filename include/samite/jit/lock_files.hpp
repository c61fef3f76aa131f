// samite/jit/lock_files.hpp: files that are locked for this process alone, and not for the children that it forks.
#pragma once
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace samite::detail {

/// The open files that bear locks. A lock of flock lives as long as any process has the file open, so a child forked by a process that
/// then dies would hold it on; in a child the files' numbers therefore become those of /dev/null.
class lock_files {
 public:
  /// Before the file is locked. With more than there is room for, children keep the file.
  static void add(int file) {
    if (file < 0) return;
    static const int installed = pthread_atfork(nullptr, nullptr, give_up);
    (void)installed;
    for (std::atomic<int>& place : places()) {
      int empty = 0;
      if (place.compare_exchange_strong(empty, file + 1)) return;
    }
  }
  /// Before the file is closed.
  static void remove(int file) {
    if (file < 0) return;
    for (std::atomic<int>& place : places()) {
      int expected = file + 1;
      if (place.compare_exchange_strong(expected, 0)) return;
    }
  }

  /// One of them for a scope.
  class note {
   public:
    explicit note(int file) : file_(file) { add(file); }
    ~note() { remove(file_); }
    note(const note&) = delete;
    note& operator=(const note&) = delete;

   private:
    int file_;
  };

 private:
  static std::array<std::atomic<int>, 256>& places() {
    static std::array<std::atomic<int>, 256> all{};
    return all;
  }
  static void give_up() {
    int nothing = -1;
    for (std::atomic<int>& place : places()) {
      const int file = place.exchange(0) - 1;
      if (file < 0) continue;
      // Not closed: whoever has the number would close another file that got it.
      if (nothing < 0) nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      if (nothing < 0 || ::dup3(nothing, file, O_CLOEXEC) < 0) ::close(file);
    }
    if (nothing >= 0) ::close(nothing);
  }
};

}  // namespace samite::detail
