// tests/support/jit_faults.hpp: what the kernel cache's fault tests share: a stand-in for NVRTC, file calls that fail, and processes.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <samite/jit/compiler.hpp>
#include <samite/jit/file_calls.hpp>

#include "temporary_folder.hpp"

namespace samite_tests {

/// The "cubin" is the arch and the text.
inline samite::compiled_kernel echo(const samite::kernel_source& source) { return {.cubin = source.arch + source.text, .log = "log"}; }
inline std::string one_build() { return "13.0 1"; }
inline samite::kernel_source source_of(std::string text, std::string arch = "sm_90a") {
  return {.label = "k", .text = std::move(text), .arch = std::move(arch)};
}

/// Whether a cache over `disk` gives the right kernel for `text`.
inline bool is_right(samite::kernel_cache& cache, const std::string& text) { return cache.get(source_of(text))->cubin == "sm_90a" + text; }

/// A temporary folder in memory, where there is such a place: for tests of thousands of files.
struct memory_folder {
  memory_folder() {
    if (!is_there) return;
    setenv("TMPDIR", "/dev/shm", 1);
    folder.emplace();
    unsetenv("TMPDIR");
  }
  const temporary_folder& operator*() {
    if (!folder) folder.emplace();
    return *folder;
  }
  const bool is_there = std::getenv("TMPDIR") == nullptr && ::access("/dev/shm", W_OK | X_OK) == 0;
  std::optional<temporary_folder> folder;
};

enum class file_step { open, read, write, sync, close, rename, unlink, make_folder, lock };

/// The system's calls, each of which may fail: `fault` gets the step and how many calls there were before, and gives an errno, or 0 to
/// let the call through.
struct faulty_calls : samite::detail::file_calls {
  std::function<int(file_step, int)> fault = [](file_step, int) { return 0; };
  std::atomic<int> calls{0};
  std::size_t write_limit = std::size_t(-1);  // bytes that one write takes
  std::int64_t clock_shift_s = 0;

  bool fails(file_step step) {
    const int cause = fault(step, calls++);
    if (cause != 0) errno = cause;
    return cause != 0;
  }
  int open(int folder, const char* name, int flags, unsigned mode) override { return fails(file_step::open) ? -1 : file_calls::open(folder, name, flags, mode); }
  ssize_t read(int file, void* to, std::size_t bytes) override { return fails(file_step::read) ? -1 : file_calls::read(file, to, bytes); }
  ssize_t write(int file, const void* from, std::size_t bytes) override {
    return fails(file_step::write) ? -1 : file_calls::write(file, from, bytes < write_limit ? bytes : write_limit);
  }
  int sync(int) override { return fails(file_step::sync) ? -1 : 0; }  // tests don't wait for a disk
  int close(int file) override {
    const int result = file_calls::close(file);
    return fails(file_step::close) ? -1 : result;
  }
  int rename(int folder, const char* from, const char* to) override { return fails(file_step::rename) ? -1 : file_calls::rename(folder, from, to); }
  int unlink(int folder, const char* name) override { return fails(file_step::unlink) ? -1 : file_calls::unlink(folder, name); }
  int make_folder(int folder, const char* name, unsigned mode) override {
    return fails(file_step::make_folder) ? -1 : file_calls::make_folder(folder, name, mode);
  }
  int lock(int file) override { return fails(file_step::lock) ? -1 : file_calls::lock(file); }
  std::int64_t now_ns() override { return file_calls::now_ns() + clock_shift_s * 1'000'000'000; }
};

/// Collects a cache's warnings.
struct warning_list {
  std::function<void(const std::string&)> take() {
    return [this](const std::string& text) {
      const std::lock_guard lock(mutex);
      texts.push_back(text);
    };
  }
  std::mutex mutex;
  std::vector<std::string> texts;
};

/// Starts a process that ends with the status that `work` gives; 99 if it throws.
template <class Work>
pid_t start_child(Work&& work) {
  std::fflush(nullptr);  // or the child prints it again
  const pid_t child = fork();
  if (child != 0) return child;
  int status = 99;
  try {
    status = work();
  } catch (...) {
  }
  _exit(status);
}

/// The exit status, or minus the signal.
inline int end_of_child(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

template <class Work>
int status_of_child(Work&& work) {
  return end_of_child(start_child(std::forward<Work>(work)));
}

/// A process that makes something and forks a child; both then wait until they are killed.
class waiting_family {
 public:
  /// make  what it returns lives as long as the parent
  template <class Make>
  explicit waiting_family(Make&& make) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    parent_ = start_child([&] {
      [[maybe_unused]] const auto made = make();
      start_child([&] {
        const pid_t self = ::getpid();
        if (::write(ends[1], &self, sizeof self) != ssize_t(sizeof self)) return 1;
        for (;;) ::pause();
      });
      for (;;) ::pause();
      return 0;
    });
    ::close(ends[1]);
    if (::read(ends[0], &child_, sizeof child_) != ssize_t(sizeof child_)) child_ = 0;
    ::close(ends[0]);
  }
  ~waiting_family() {
    for (const pid_t left : {parent_, child_})
      if (left > 0) ::kill(left, SIGKILL);
    if (parent_ > 0) end_of_child(parent_);
  }
  waiting_family(const waiting_family&) = delete;
  waiting_family& operator=(const waiting_family&) = delete;

  /// The child's number once it waits; 0 if it could not be made.
  pid_t child() const { return child_; }
  /// As end_of_child.
  int kill_parent() {
    ::kill(parent_, SIGKILL);
    return end_of_child(std::exchange(parent_, 0));
  }

 private:
  pid_t parent_ = 0, child_ = 0;
};

/// Runs a test case of this program in a process of its own: its status, and what it said.
inline std::pair<int, std::string> run_alone(const std::string& title, const std::string& variables) {
  char self[4096];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self);
  if (length <= 0) return {-1, "this program can't be found"};
  const std::string command = variables + " SAMITE_TEST_REPORT= '" + std::string(self, std::size_t(length)) + "' --no-skip --test-case='" + title + "' 2>&1";
  std::FILE* const out = ::popen(command.c_str(), "r");
  std::string text;
  for (int c; (c = std::fgetc(out)) != EOF;) text += char(c);
  const int status = ::pclose(out);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

/// Good and bad entries of a cache folder, read as its owner would.
inline std::array<int, 2> entries_of(const std::string& folder) {
  std::array<int, 2> count{};
  samite::disk_cache disk(folder, samite::disk_cache::mode::read_only);
  disk.for_each([&](const samite::disk_cache::entry& e) { ++count[e.fault.empty() ? 0 : 1]; });
  return count;
}

inline std::string entry_path(const samite::disk_cache& disk, const std::string& key) {
  const std::string hash = samite::detail::hash_key(key);
  return disk.folder() + "/" + hash.substr(0, 2) + "/" + hash.substr(2) + ".kernel";
}

}  // namespace samite_tests
