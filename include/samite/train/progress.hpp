// samite/train/progress.hpp: a live line for people and JSON lines for programs.
#pragma once
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include <samite/core/dtype.hpp>
#include <samite/io/file.hpp>
#include <samite/io/json.hpp>

namespace samite {

/// Step, loss, rate and time left on one line that is rewritten in a terminal; elsewhere a plain line now and then.
class progress_line {
 public:
  progress_line(std::string what, index_t steps, index_t first_step = 0)
      : what_(std::move(what)), steps_(steps), first_(first_step), live_(isatty(STDOUT_FILENO) != 0), start_(clock::now()), shown_(start_ - std::chrono::hours(1)) {}
  ~progress_line() { finish(); }
  progress_line(const progress_line&) = delete;

  /// True when a line is due, so that the caller reads the loss only then.
  bool due(index_t step) const { return step == steps_ || clock::now() - shown_ > std::chrono::milliseconds(live_ ? 250 : 5000); }

  /// Shows a step, counted from 1; tokens is the number of tokens of one step.
  void show(index_t step, double loss, double tokens) {
    shown_ = clock::now();
    const double seconds = std::chrono::duration<double>(shown_ - start_).count();
    const double done = double(step - first_), rate = seconds > 0 ? done / seconds : 0;
    char text[200];
    std::snprintf(text, sizeof text, "%s step %lld/%lld  loss %.4f  %.0f tok/s  ETA %.0f s", what_.c_str(), static_cast<long long>(step), static_cast<long long>(steps_),
                  loss, rate * tokens, rate > 0 ? double(steps_ - step) / rate : 0.0);
    if (live_) std::printf("\r\x1b[K%s", text);
    else std::printf("%s\n", text);
    std::fflush(stdout);
    open_ = live_;
  }
  void finish() {
    if (open_) std::printf("\n");
    open_ = false;
  }

 private:
  using clock = std::chrono::steady_clock;
  std::string what_;
  index_t steps_, first_;
  bool live_, open_ = false;
  clock::time_point start_, shown_;
};

/// Appends one JSON object a line. Each line is written in one call, so that a killed run leaves whole lines.
class metrics_log {
 public:
  explicit metrics_log(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_ = std::fopen(path.c_str(), "ab");
    if (file_ == nullptr) raise("E-FILE-WRITE", "opening metrics file \"", path, "\": ", detail::errno_text(errno));
    std::setvbuf(file_, nullptr, _IONBF, 0);
  }
  ~metrics_log() {
    if (file_ != nullptr) std::fclose(file_);
  }
  metrics_log(const metrics_log&) = delete;

  void write(std::vector<json_value::member> members) {
    if (file_ == nullptr) return;
    const std::string line = to_json(json_value::object(std::move(members))) + "\n";
    if (std::fwrite(line.data(), 1, line.size(), file_) != line.size()) raise("E-FILE-WRITE", "writing metrics file \"", path_, "\": ", detail::errno_text(errno));
  }

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace samite
