// samite/train/progress.hpp: a live line for people and JSON lines for programs.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include <samite/core/dtype.hpp>
#include <samite/io/json.hpp>

namespace samite {

/// Step, loss, rate and time left on one line that is rewritten in a terminal; elsewhere a plain line now and then, which begins with the
/// run's id if there is one, so that a log tells whose line it is.
class progress_line {
 public:
  progress_line(std::string what, index_t steps, index_t first_step = 0, std::string run_id = "");
  ~progress_line() { finish(); }
  progress_line(const progress_line&) = delete;

  /// True when a line is due, so that the caller reads the loss only then.
  bool due(index_t step) const;

  /// Shows a step, counted from 1; tokens is the number of tokens of one step.
  void show(index_t step, double loss, double tokens);
  void finish();

 private:
  std::string what_, run_id_;
  index_t steps_, first_;
  bool live_, open_ = false;
  double start_, shown_;  // seconds on a clock that never goes back
};

/// Appends one JSON object a line. A line that can't be written whole is taken back, so that the file holds whole lines even on
/// a full disk or after a kill.
///
/// errors  E-FILE-WRITE
class metrics_log {
 public:
  /// An empty path writes nothing.
  explicit metrics_log(const std::string& path);
  ~metrics_log();
  metrics_log(const metrics_log&) = delete;

  void write(std::vector<json_value::member> members);

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/train/progress_impl.hpp>
#endif
