// samite/jit/crash_report.hpp: what each thread was doing when a process died, also when it was killed without a word.
#pragma once
#include <string>
#include <string_view>

namespace samite {

/// From now on a process that dies of a signal (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) first says which, and the last activities of
/// each thread, on standard error; then it dies of that signal as before. Call it once, first in main. Of threads that crash at once one
/// says so, and the others wait for it. A stack that overflows is reported on the main thread and on samite's own; any other needs a
/// second stack (sigaltstack), or dies without a word.
///
/// file   if given, the activities are lines of this file at every moment, so that they outlive SIGKILL and the kernel's memory killer;
///        its folder is made, and a file of that name stays as <file>.before
/// errors E-FILE-WRITE if the file can't be made, or something that is no regular file has its name
void install_crash_handler(const std::string& file = "");

/// What this thread does in this scope, e.g. activity note("compile", label). Scopes may nest; the last eight of each thread are kept.
/// With SAMITE_NVTX=1 it is a range in NVIDIA's profilers too.
///
/// errors E-ENV-VALUE if SAMITE_NVTX is neither 0 nor 1
/// cost   about 0.1 us: for compiles, loads, tunings and steps, not for every launch
class activity {
 public:
  activity(std::string_view phase, std::string_view subject);
  activity(const activity&) = delete;
  activity& operator=(const activity&) = delete;
  ~activity();

 private:
  char* line_;
  bool is_range_ = false;
};

/// The activities of all threads, a line each, those under way first marked with '>'.
std::string recent_activities();

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/jit/crash_report_impl.hpp>
#endif
