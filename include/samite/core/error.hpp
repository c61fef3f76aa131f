// samite/core/error.hpp: the one exception type and how it is raised.
#pragma once
#include <charconv>
#include <concepts>
#include <stdexcept>
#include <string>
#include <string_view>

#include <samite/core/config.hpp>

namespace samite {

/// Wrong input, a missing file, a refused environment: what the caller can mend. `what()` says the operation, what was
/// found, what was expected and how to mend it, and ends with the stable code that docs/errors.md explains.
class error : public std::runtime_error {
 public:
  error(std::string code, const std::string& message)
      : std::runtime_error("samite: " + message + " [" + code + "]"), code_(std::move(code)) {}

  /// The stable code, e.g. "E-MASK-WINDOW".
  const std::string& code() const noexcept { return code_; }

  /// The exit status a program should end with (docs/errors.md): by the family in the code.
  int exit_status() const noexcept;

 private:
  std::string code_;
};

namespace detail {

inline void append_text(std::string& out, std::string_view text) { out += text; }
inline void append_text(std::string& out, const char* text) { out += text; }
inline void append_text(std::string& out, const std::string& text) { out += text; }
inline void append_text(std::string& out, bool value) { out += value ? "true" : "false"; }
inline void append_text(std::string& out, char value) { out += value; }

template <class Number>
  requires(std::integral<Number> || std::floating_point<Number>)
void append_text(std::string& out, Number value) {
  char digits[64];  // to_chars and not printf: the user's locale must not change a number's spelling
  const auto end = std::to_chars(digits, digits + sizeof digits, value);
  out.append(digits, end.ptr);
}

/// Appends a range in brackets: [2,8,512,96].
template <class Range>
  requires requires(const Range& r) {
    r.begin();
    r.end();
  } && (!std::convertible_to<Range, std::string_view>)
void append_text(std::string& out, const Range& values) {
  out += '[';
  bool first = true;
  for (const auto& value : values) {
    if (!first) out += ',';
    first = false;
    append_text(out, value);
  }
  out += ']';
}

}  // namespace detail

/// Joins texts, numbers and ranges of numbers into one string, independent of the locale.
template <class... Parts>
std::string concat_text(const Parts&... parts) {
  std::string out;
  (detail::append_text(out, parts), ...);
  return out;
}

/// Throws `error` with the joined parts as its message.
template <class... Parts>
[[noreturn]] void raise(const char* code, const Parts&... parts) {
  throw error(code, concat_text(parts...));
}

/// A promise inside the library. A failure is a bug in samite, not in the caller's input.
inline void ensure(bool holds, const char* invariant) {
  if (!holds) throw error("E-INTERNAL", std::string("broken promise inside the library: ") + invariant + "; please report it");
}

/// Exit statuses of programs (docs/errors.md).
namespace exit_status {
inline constexpr int done = 0, internal = 1, usage = 2, bad_file = 3, environment = 4, memory = 5, diverged = 6, peer = 7,
                     storage = 8, preempted = 75;
}

inline int error::exit_status() const noexcept {
  struct family {
    std::string_view prefix;
    int status;
  };
  // The longest match comes first where one prefix begins another.
  static constexpr family families[] = {
      {"E-INTERNAL", exit_status::internal},     {"E-FILE-WRITE", exit_status::storage},
      {"E-STORAGE", exit_status::storage},       {"E-FILE", exit_status::bad_file},
      {"E-MODEL", exit_status::bad_file},        {"E-DATA", exit_status::bad_file},
      {"E-SAFETENSORS", exit_status::bad_file},  {"E-CHECKPOINT", exit_status::bad_file},
      {"E-JSON", exit_status::bad_file},         {"E-CUDA-MEMORY", exit_status::memory},
      {"E-MEMORY", exit_status::memory},         {"E-CUDA", exit_status::environment},
      {"E-GPU", exit_status::environment},       {"E-JIT", exit_status::environment},
      {"E-ENV", exit_status::environment},       {"E-CUBLAS", exit_status::environment},
      {"E-BLAS-OPEN", exit_status::environment}, {"E-DIVERGED", exit_status::diverged},
      {"E-PEER", exit_status::peer},
  };
  for (const family& f : families)
    if (std::string_view(code_).starts_with(f.prefix)) return f.status;
  return samite::exit_status::usage;
}

}  // namespace samite
