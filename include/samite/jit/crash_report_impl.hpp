// samite/jit/crash_report_impl.hpp: lines of fixed length in memory that a signal handler, or a file, can show as they are.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include <samite/io/file.hpp>
#include <samite/jit/crash_report.hpp>
#include <samite/jit/file_calls.hpp>
#include <samite/runtime/nvtx.hpp>

namespace samite {
namespace detail {

/// 64 threads with 8 lines each. A line is text at every moment: spaces where nothing is written yet.
struct activity_lines {
  static constexpr int threads = 64, lines = 8, bytes = 160;
  static constexpr std::size_t total = std::size_t(threads) * lines * bytes;
};

inline std::atomic<char*>& activity_memory() {
  static char in_process[activity_lines::total];
  static std::atomic<char*> memory{in_process};
  return memory;
}

/// A thread's part of the lines, given back when it ends. A 65th thread at one time goes without.
class activity_place {
 public:
  activity_place() {
    for (int i = 0; i < activity_lines::threads; ++i)
      if (!taken(i).exchange(true)) {
        index_ = i;
        return;
      }
  }
  ~activity_place() {
    if (index_ >= 0) taken(index_) = false;
  }
  char* next_line() {
    if (index_ < 0) return nullptr;
    return activity_memory().load() + (std::size_t(index_) * activity_lines::lines + std::size_t(serial_++ % activity_lines::lines)) * activity_lines::bytes;
  }

 private:
  static std::atomic<bool>& taken(int i) {
    static std::atomic<bool> all[activity_lines::threads];
    return all[i];
  }
  int index_ = -1;
  unsigned serial_ = 0;
};

/// Lines are written by their thread and read by any, so each character is atomic; a line read in between is a mixture and no fault.
inline void put_char(char* at, char c) { std::atomic_ref<char>(*at).store(c, std::memory_order_relaxed); }
inline char char_at(char* at) { return std::atomic_ref<char>(*at).load(std::memory_order_relaxed); }

/// Appends to a line, up to its end; only what a signal handler may call.
inline void append_chars(char*& at, const char* end, std::string_view text) {
  for (const char c : text)
    if (at < end) put_char(at++, c < ' ' && c >= 0 ? ' ' : c);
}
inline void append_digits(char*& at, const char* end, long long value, int digits = 1) {
  char reversed[24];
  int count = 0;
  for (; value > 0 || count < digits; value /= 10) reversed[count++] = char('0' + value % 10);
  for (; count > 0; --count)
    if (at < end) put_char(at++, reversed[count - 1]);
}

inline void write_all(const char* text, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t done = ::write(STDERR_FILENO, text, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return;
    text += done, bytes -= std::size_t(done);
  }
}

/// Calls `use` for every line that is written, without its padding; those under way first.
template <class Use>
void for_each_activity(Use use) {
  char* const memory = activity_memory().load();
  char line[activity_lines::bytes];
  for (const char mark : {'>', ' '})
    for (std::size_t at = 0; at < activity_lines::total; at += activity_lines::bytes) {
      for (int i = 0; i < activity_lines::bytes; ++i) line[i] = char_at(memory + at + std::size_t(i));
      if (line[0] != mark || line[1] != ' ' || line[2] == ' ' || line[2] == '\0') continue;
      std::size_t bytes = activity_lines::bytes - 1;
      while (bytes > 0 && (line[bytes - 1] == ' ' || line[bytes - 1] == '\0')) --bytes;
      use(line, bytes);
    }
}

/// The thread that reports, or 0.
inline std::atomic<long>& crash_reporter() {
  static std::atomic<long> thread{0};
  return thread;
}

inline void write_crash(int signal) {
  char text[128], *at = text;
  const char* const end = text + sizeof text;
  append_chars(at, end, "samite: the process dies of signal ");
  append_digits(at, end, signal);
  const char* name = signal == SIGSEGV ? " (SIGSEGV: a wrong address)" : signal == SIGBUS ? " (SIGBUS: a file mapped and cut, or a wrong address)"
                   : signal == SIGFPE ? " (SIGFPE)" : signal == SIGILL ? " (SIGILL)" : " (SIGABRT)";
  append_chars(at, end, name);
  append_chars(at, end, "; last activities, '>' under way:");
  *at++ = '\n';
  write_all(text, std::size_t(at - text));
  for_each_activity([](const char* line, std::size_t bytes) {
    write_all(line, bytes);
    write_all("\n", 1);
  });
}

/// One thread reports; others that crash meanwhile would end the process before it is done.
inline void report_crash(int signal) {
  const long self = ::syscall(SYS_gettid);
  long reporter = 0;
  if (crash_reporter().compare_exchange_strong(reporter, self)) {
    write_crash(signal);
  } else if (reporter != self) {  // else the report itself crashed
    const timespec moment{0, 50'000'000};
    for (int i = 0; i < 100; ++i) ::nanosleep(&moment, nullptr);  // not for ever: the reporter may hang
  }
  struct sigaction as_before {};
  as_before.sa_handler = SIG_DFL;
  ::sigaction(signal, &as_before, nullptr);
  ::raise(signal);
}

}  // namespace detail

SAMITE_IMPL activity::activity(std::string_view phase, std::string_view subject) : line_(nullptr) {
  if (const detail::nvtx_api* api = detail::nvtx()) [[unlikely]] {
    char name[256], *end = name;
    detail::append_chars(end, name + sizeof name - 1, phase), detail::append_chars(end, name + sizeof name - 1, " "), detail::append_chars(end, name + sizeof name - 1, subject);
    *end = '\0', is_range_ = true;
    api->push(name);
  }
  static thread_local detail::activity_place place;
  line_ = place.next_line();
  if (line_ == nullptr) return;
  char *at = line_, *const end = line_ + detail::activity_lines::bytes - 1;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  detail::append_chars(at, end, "  ");  // not under way until it is whole
  detail::append_digits(at, end, now.tv_sec % 86400 / 3600, 2);
  detail::append_chars(at, end, ":");
  detail::append_digits(at, end, now.tv_sec % 3600 / 60, 2);
  detail::append_chars(at, end, ":");
  detail::append_digits(at, end, now.tv_sec % 60, 2);
  detail::append_chars(at, end, ".");
  detail::append_digits(at, end, now.tv_nsec / 1'000'000, 3);
  detail::append_chars(at, end, " thread ");
  static thread_local const long long thread = ::syscall(SYS_gettid);
  detail::append_digits(at, end, thread);
  detail::append_chars(at, end, " ");
  detail::append_chars(at, end, phase);
  detail::append_chars(at, end, " ");
  detail::append_chars(at, end, subject);
  while (at < end) detail::put_char(at++, ' ');
  detail::put_char(end, '\n');
  detail::put_char(line_, '>');
}

SAMITE_IMPL activity::~activity() {
  if (is_range_) [[unlikely]]
    detail::nvtx()->pop();
  // Nested deeper than the lines of a thread, the line may be another activity's by now; its mark is one character and no harm.
  if (line_ != nullptr) detail::put_char(line_, ' ');
}

SAMITE_IMPL std::string recent_activities() {
  std::string out;
  detail::for_each_activity([&](const char* line, std::size_t bytes) { out.append(line, bytes) += '\n'; });
  return out;
}

SAMITE_IMPL void install_crash_handler(const std::string& file) {
  if (!file.empty()) {
    struct stat found;
    if (::lstat(file.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) raise("E-FILE-WRITE", "making \"", file, "\": ", S_ISDIR(found.st_mode) ? "a folder" : "a link, a device or the like", " has this name; give a file's");
    if (const std::size_t slash = file.rfind('/'); slash != std::string::npos && slash > 0) make_folder(file.substr(0, slash));
    if (!detail::is_within_file_limit(detail::activity_lines::total)) raise("E-FILE-WRITE", "making \"", file, "\": its ", detail::activity_lines::total, " bytes are more than the limit of a file's size; raise it with ulimit -f");
    // A file of its own: one of that name may be mapped by a process that lives, or say where one died; it stays as <file>.before.
    const std::string fresh = concat_text(file, ".new-", ::getpid()), before = file + ".before";
    ::unlink(fresh.c_str());  // left by a killed process with our number
    const detail::descriptor open(::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (open.get() < 0) raise("E-FILE-WRITE", "making \"", file, "\": ", detail::errno_text(errno), "; choose a place that can be written");
    std::string blank(detail::activity_lines::total, ' ');
    for (std::size_t at = detail::activity_lines::bytes; at <= blank.size(); at += detail::activity_lines::bytes) blank[at - 1] = '\n';
    // Written and not only made longer: on a full disk a page that is mapped and has no room would be a signal at some later note.
    if (const ssize_t written = ::write(open.get(), blank.data(), blank.size()); written != ssize_t(blank.size())) {
      const int cause = written < 0 ? errno : ENOSPC;
      ::unlink(fresh.c_str());
      raise("E-FILE-WRITE", "writing \"", file, "\": ", detail::errno_text(cause), "; is the disk full?");
    }
    void* const mapped = ::mmap(nullptr, blank.size(), PROT_READ | PROT_WRITE, MAP_SHARED, open.get(), 0);
    if (mapped == MAP_FAILED || (::rename(file.c_str(), before.c_str()) != 0 && errno != ENOENT) || ::rename(fresh.c_str(), file.c_str()) != 0) {
      const int cause = errno;
      if (mapped != MAP_FAILED) ::munmap(mapped, blank.size());
      ::unlink(fresh.c_str());
      raise("E-FILE-WRITE", "mapping \"", file, "\", or moving what has that name to \"", before, "\": ", detail::errno_text(cause), "; choose a folder on a local disk");
    }
    detail::activity_memory() = static_cast<char*>(mapped);  // stays until the process ends, as threads may write into it
  }
  static char stack[64 * 1024];  // for the main thread's own overflow
  stack_t other{};
  other.ss_sp = stack, other.ss_size = sizeof stack;
  ::sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_handler = detail::report_crash;
  action.sa_flags = int(SA_NODEFER | SA_ONSTACK);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::sigaction(signal, &action, nullptr);
}

}  // namespace samite
