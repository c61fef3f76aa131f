// samite/jit/run_status_impl.hpp: the files behind jit/run_status.hpp.
#pragma once
#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include <samite/jit/run_status.hpp>

namespace samite {
namespace detail {

inline std::string utc_time() {
  const time_t now = ::time(nullptr);
  tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return std::string(text, ::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts));
}

/// The rest of the line that begins with `name` and a space.
inline std::string field_of(const std::string& text, const std::string& name) {
  const std::size_t found = ("\n" + text).find("\n" + name + " ");
  if (found == std::string::npos) return "";
  const std::size_t begin = found + name.size() + 1;
  std::string field = text.substr(begin, text.find('\n', begin) - begin);
  for (char& c : field)
    if ((c >= 0 && c < ' ') || c == '\x7f') c = '?';  // a foreign file may hold a terminal's commands
  return field;
}

inline std::int64_t number_of(const std::string& text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// Small, and renamed into place: a reader sees the old one or the new one. Not flushed to the disk, since it says nothing after a power loss.
inline bool replace_file(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  const descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  return file.get() >= 0 && ::write(file.get(), text.data(), text.size()) == ssize_t(text.size()) && ::rename(temporary.c_str(), path.c_str()) == 0;
}

}  // namespace detail

SAMITE_IMPL run_status::run_status(std::string folder, std::string id) : folder_(std::move(folder)), id_(std::move(id)) {
  if (id_.empty()) id_ = concat_text(detail::utc_time(), "-", ::getpid());
  for (char& c : id_)
    if ((c >= 0 && c < ' ') || c == '\x7f') c = '?';  // the heartbeat has a line for it
  make_folder(folder_);
  lock_ = detail::descriptor(::open((folder_ + "/alive").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (lock_.get() < 0) raise("E-FILE-WRITE", "making \"", folder_, "/alive\": ", detail::errno_text(errno), "; choose a place that can be written");
  lock_note_.emplace(lock_.get());
  // Whoever asks holds the lock for a moment too.
  bool is_held = true;
  for (int attempt = 0; attempt < 50 && is_held; ++attempt) {
    if (attempt > 0) ::usleep(2000);
    is_held = ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  }
  if (is_held)
    raise("E-FILE-WRITE", "\"", folder_, "\": another run is alive there (", read_run_status(folder_).text(), "); give this one a folder of its own");
  remove_file(folder_ + "/exit_status");
  phase_ = "start";
  if (!write_heartbeat(0))
    raise("E-FILE-WRITE", "writing \"", folder_, "/heartbeat\": ", detail::errno_text(errno), "; choose a place that can be written");
  name_run(id_);
}

SAMITE_IMPL bool run_status::write_heartbeat(std::int64_t step) const {
  return detail::replace_file(folder_ + "/heartbeat", concat_text("run ", id_, "\nprocess ", ::getpid(), "\nphase ", phase_, "\nstep ", step, "\ntime ", detail::utc_time(), "\n"));
}

SAMITE_IMPL void run_status::beat(std::string_view phase, std::int64_t step) {
  const auto now = std::chrono::steady_clock::now();
  if (phase == phase_ && now - written_ < std::chrono::seconds(1)) return;
  phase_ = phase, written_ = now;
  (void)write_heartbeat(step);
}

SAMITE_IMPL void run_status::finish(int exit_status) { (void)detail::replace_file(folder_ + "/exit_status", concat_text(exit_status, "\n")); }

SAMITE_IMPL run_report read_run_status(const std::string& folder) {
  run_report report;
  const detail::descriptor lock(::open((folder + "/alive").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (lock.get() < 0) return report;
  const bool is_alive = ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  const auto text_of = [&](const char* name) {
    try {
      return read_file(folder + name, 4096);
    } catch (const error&) {
      return std::string();
    }
  };
  const std::string beat = text_of("/heartbeat"), status = text_of("/exit_status");
  report.id = detail::field_of(beat, "run"), report.phase = detail::field_of(beat, "phase"), report.time = detail::field_of(beat, "time");
  report.step = detail::number_of(detail::field_of(beat, "step")), report.process = detail::number_of(detail::field_of(beat, "process"));
  const auto number = std::from_chars(status.data(), status.data() + status.size(), report.exit_status);
  const bool has_ended = number.ec == std::errc() && std::string_view(number.ptr, std::size_t(status.data() + status.size() - number.ptr)) == "\n";  // else it is none of ours
  if (!has_ended) report.exit_status = 0;
  report.now = has_ended ? run_report::state::ended : is_alive ? run_report::state::running : run_report::state::died;
  return report;
}

SAMITE_IMPL std::string run_report::text() const {
  if (now == state::absent) return "no run";
  const std::string where = concat_text("run ", id, ", process ", process, ": phase ", phase, ", step ", step, ", seen ", time);
  if (now == state::running) return where + ", alive";
  if (now == state::ended) return concat_text(where, ", ended with status ", exit_status);
  return where + ", died there";
}

}  // namespace samite
