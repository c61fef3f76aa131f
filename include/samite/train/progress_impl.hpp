// samite/train/progress_impl.hpp: terminal, clock and file behind train/progress.hpp.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>

#include <samite/io/file.hpp>
#include <samite/train/progress.hpp>

namespace samite {
namespace detail {

inline double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace detail

SAMITE_IMPL progress_line::progress_line(std::string what, index_t steps, index_t first_step, std::string run_id)
    : what_(std::move(what)), run_id_(std::move(run_id)), steps_(steps), first_(first_step), live_(::isatty(STDOUT_FILENO) != 0), start_(detail::steady_seconds()), shown_(start_ - 3600) {}

SAMITE_IMPL bool progress_line::due(index_t step) const { return step == steps_ || detail::steady_seconds() - shown_ > (live_ ? 0.25 : 5); }

SAMITE_IMPL void progress_line::show(index_t step, double loss, double tokens) {
  shown_ = detail::steady_seconds();
  const double seconds = shown_ - start_;
  const double done = double(step - first_), rate = seconds > 0 ? done / seconds : 0;
  char text[200];
  std::snprintf(text, sizeof text, "%s step %lld/%lld  loss %.4f  %.0f tok/s  ETA %.0f s", what_.c_str(), static_cast<long long>(step), static_cast<long long>(steps_), loss,
                rate * tokens, rate > 0 ? double(steps_ - step) / rate : 0.0);
  if (live_) std::printf("\r\x1b[K%s", text);
  else std::printf("%s%s%s%s\n", run_id_.empty() ? "" : "[", run_id_.c_str(), run_id_.empty() ? "" : "] ", text);
  std::fflush(stdout);
  open_ = live_;
}

SAMITE_IMPL void progress_line::finish() {
  if (open_) std::printf("\n");
  open_ = false;
}

SAMITE_IMPL metrics_log::metrics_log(const std::string& path) : path_(path) {
  if (path.empty()) return;
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) raise("E-FILE-WRITE", "opening metrics file \"", path, "\": ", detail::errno_text(errno), "; choose a place that can be written");
}

SAMITE_IMPL metrics_log::~metrics_log() {
  if (file_ >= 0) ::close(file_);
}

SAMITE_IMPL void metrics_log::write(std::vector<json_value::member> members) {
  if (file_ < 0) return;
  const std::string line = to_json(json_value::object(std::move(members))) + "\n";
  const off_t whole = ::lseek(file_, 0, SEEK_END);  // where this line begins, unless another process writes too
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t wrote = ::write(file_, line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote > 0) {
      done += std::size_t(wrote);
      continue;
    }
    const int cause = wrote < 0 ? errno : ENOSPC;
    if (done > 0 && whole >= 0 && ::ftruncate(file_, whole) != 0) {
      // The half line stays: nothing better can be done on a medium that can't be cut.
    }
    raise("E-FILE-WRITE", "writing metrics file \"", path_, "\": ", detail::errno_text(cause), "; the lines before stand; make room and resume");
  }
}

}  // namespace samite
