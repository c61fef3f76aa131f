// examples/status.hpp: how every example ends: errors as one line on stderr, the exit status of docs/errors.md.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <samite/core/error.hpp>
#include <samite/jit/crash_report.hpp>
#include <samite/jit/run_status.hpp>

namespace example {

/// The run of this program, if it is one that can be asked from outside (ask_run).
inline std::optional<samite::run_status>& watched_run() {
  static std::optional<samite::run_status> run;
  return run;
}

/// From now on `folder` says where this program is and, at its end, its exit status. A job inside a larger one changes nothing.
///
/// errors  E-FILE-WRITE if it can't be written, or another run is alive there
inline void watch_run(const std::string& folder) {
  if (!watched_run()) watched_run().emplace(folder);
}
/// Where the run is: load, compile, step, save, decode.
inline void beat(std::string_view phase, std::int64_t step = 0) {
  if (watched_run()) watched_run()->beat(phase, step);
}
inline std::string run_id() { return watched_run() ? watched_run()->id() : std::string(); }
/// Beside the results in `output`, not among them.
inline std::string status_folder(std::string output) {
  while (output.size() > 1 && output.ends_with('/')) output.pop_back();
  return output + ".status";
}
/// The line on stderr that says why a program ends, with the id of a run that is watched.
inline void say_why(std::string_view message) {
  const std::string id = run_id();
  std::fprintf(stderr, "%s%.*s\n", id.empty() ? "" : ("[" + id + "] ").c_str(), int(message.size()), message.data());
}

/// A new folder of this user alone, e.g. /tmp/NAME-a1b2c3; who makes it removes it.
inline std::string make_temporary_folder(const std::string& name) {
  std::error_code failed;
  std::string path = (std::filesystem::temp_directory_path(failed) / (name + "-XXXXXX")).string();
  if (failed || ::mkdtemp(path.data()) == nullptr) samite::raise("E-FILE-WRITE", "making a temporary folder \"", path, "\" failed; set TMPDIR to a folder of yours");
  return path;
}

template <class Work>
int status_of(Work work);

/// Runs `work`, turns errors into one line on stderr, and gives the exit status of docs/errors.md.
template <class Work>
int end_with_status(Work work) {
  const int status = status_of(work);
  if (watched_run()) watched_run()->finish(status);
  return status;
}

template <class Work>
int status_of(Work work) {
  try {
    samite::install_crash_handler();  // a signal is not the end of the story: it says what each thread was doing
    work();
    std::cout.flush();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) || !std::cout) samite::raise("E-FILE-WRITE", "writing to the standard output failed; is the disk full?");
    return samite::exit_status::done;
  } catch (const samite::error& e) {
    say_why(e.what());
    return e.exit_status();
  } catch (const std::bad_alloc&) {
    say_why("samite: out of host memory; use a smaller model or batch [E-MEMORY-HOST]");
    return samite::exit_status::memory;
  } catch (const std::exception& e) {
    say_why(samite::concat_text("samite: ", e.what(), " [E-INTERNAL]"));
    return samite::exit_status::internal;
  }
}

/// A program without flags: --help says what it does, any other argument is refused.
template <class Work>
int run_program(const char* help, int argc, char** argv, Work work) {
  return end_with_status([&] {
    for (int i = 1; i < argc; ++i) {
      const std::string_view given = argv[i];
      if (given != "--help" && given != "-h") samite::raise("E-ARG", "\"", given, "\": this program takes no arguments; leave it out, or run with --help");
    }
    if (argc > 1) std::printf("%s\n", help);
    else work();
  });
}

}  // namespace example
