// samite/jit/run_status.hpp: whether a detached run lives, where it is, and how it ended, as files in a folder.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <samite/core/say.hpp>
#include <samite/io/file.hpp>
#include <samite/jit/lock_files.hpp>

namespace samite {

/// A run that can be asked from outside. Holds `folder`/alive locked while it lives, so that a number given to another process deceives
/// nobody, and children that it forks don't hold it on; writes `folder`/heartbeat (run id, process, step, phase, time) and, at the end, `folder`/exit_status. While it lives, the
/// library's lines on standard error bear the id.
///
/// errors   E-FILE-WRITE if the folder can't be written at the start, or another run holds it; later failures are ignored: a run must
///          not end because nobody can watch it
/// threads  one thread at a time
class run_status {
 public:
  /// The id of a run is the time of its start and its process, or what is given.
  explicit run_status(std::string folder, std::string id = "");
  ~run_status() { name_run(""); }
  run_status(const run_status&) = delete;
  run_status& operator=(const run_status&) = delete;

  const std::string& id() const { return id_; }
  /// Where the run is: written at once if the phase is another, else at most once a second.
  void beat(std::string_view phase, std::int64_t step);
  /// The last word; without it the run counts as died.
  void finish(int exit_status);
  /// A line for a log, with the run's id before it.
  std::string line(std::string_view text) const { return concat_text("[", id_, "] ", text); }

 private:
  bool write_heartbeat(std::int64_t step) const;

  std::string folder_, id_, phase_;
  detail::descriptor lock_;
  std::optional<detail::lock_files::note> lock_note_;
  std::chrono::steady_clock::time_point written_{};
};

/// What the files of a run say.
struct run_report {
  enum class state { absent, running, ended, died };
  state now = state::absent;
  std::string id, phase, time;  // time: of the last heartbeat, UTC
  std::int64_t step = 0, process = 0;
  int exit_status = 0;  // if it ended
  std::string text() const;
};

/// Reads a run's folder. Raises nothing for a folder that is not there: it is `absent`.
run_report read_run_status(const std::string& folder);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/jit/run_status_impl.hpp>
#endif
