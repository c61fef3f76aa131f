// tests/support/skip.hpp: a test that cannot run here says why; run.sh counts and prints it.
#pragma once
#include <cstdio>
#include <map>
#include <string>

namespace samite_tests {

inline std::string& current_title() {
  static std::string title;
  return title;
}

/// Title and reason of every skipped test case.
inline std::map<std::string, std::string>& skipped_cases() {
  static std::map<std::string, std::string> cases;
  return cases;
}

inline void record_skip(const std::string& reason) {
  skipped_cases()[current_title()] = reason;
  std::printf("[skip] %s: %s\n", current_title().c_str(), reason.c_str());
}

}  // namespace samite_tests

/// Ends the test case, counted as skipped, if `condition` holds.
#define SKIP_IF(condition, reason)      \
  do {                                  \
    if (condition) {                    \
      samite_tests::record_skip(reason); \
      return;                           \
    }                                   \
  } while (false)
