// samite/jit/file_calls.hpp: the system calls of the disk cache, in one place, so that a test can make any of them fail.
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace samite::detail {

/// Whether a file of this size may be written: beyond the limit (ulimit -f) a write is a signal that ends the process.
inline bool is_within_file_limit(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

/// Results and errno are those of the calls of the same names; names are relative to an open folder.
class file_calls {
 public:
  virtual ~file_calls() = default;
  virtual int open(int folder, const char* name, int flags, unsigned mode) { return ::openat(folder, name, flags, mode_t(mode)); }
  virtual ssize_t read(int file, void* to, std::size_t bytes) { return ::read(file, to, bytes); }
  virtual ssize_t write(int file, const void* from, std::size_t bytes) { return ::write(file, from, bytes); }
  virtual int sync(int file) { return ::fsync(file); }
  virtual int close(int file) { return ::close(file); }
  virtual int rename(int folder, const char* from, const char* to) { return ::renameat(folder, from, folder, to); }
  virtual int unlink(int folder, const char* name) { return ::unlinkat(folder, name, 0); }
  virtual int make_folder(int folder, const char* name, unsigned mode) { return ::mkdirat(folder, name, mode_t(mode)); }
  /// Takes the whole file's lock or fails with EWOULDBLOCK; never waits.
  virtual int lock(int file) { return ::flock(file, LOCK_EX | LOCK_NB); }
  /// Nanoseconds of the wall clock, which may jump.
  virtual std::int64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return std::int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  }

  static file_calls& system() {
    static file_calls& calls = *new file_calls;  // never destroyed: threads may compile while the process ends
    return calls;
  }
};

}  // namespace samite::detail
