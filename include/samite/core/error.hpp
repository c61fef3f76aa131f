// samite/core/error.hpp: the one exception type and how it is raised.
#pragma once
#include <concepts>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include <samite/core/config.hpp>

namespace samite {

/// Wrong input, a missing file, a refused environment: what the caller can mend. `what()` says the operation, what was
/// found, what was expected and how to mend it, and ends with the stable code that docs/errors.md explains.
class error : public std::runtime_error {
 public:
  error(std::string code, const std::string& message);

  /// The stable code, e.g. "E-MASK-WINDOW".
  const std::string& code() const noexcept { return code_; }

  /// The exit status a program should end with (docs/errors.md): by the family in the code.
  int exit_status() const noexcept;

 private:
  std::string code_;
};

namespace detail {

// Numbers are spelled the same in every locale.
void append_text(std::string& out, long long value);
void append_text(std::string& out, unsigned long long value);
void append_text(std::string& out, float value);
void append_text(std::string& out, double value);
void append_text(std::string& out, long double value);
inline void append_text(std::string& out, std::string_view text) { out += text; }
inline void append_text(std::string& out, const char* text) { out += text; }
inline void append_text(std::string& out, const std::string& text) { out += text; }
inline void append_text(std::string& out, bool value) { out += value ? "true" : "false"; }
inline void append_text(std::string& out, char value) { out += value; }

template <std::integral Number>
void append_text(std::string& out, Number value) {
  if constexpr (std::unsigned_integral<Number>) append_text(out, static_cast<unsigned long long>(value));
  else append_text(out, static_cast<long long>(value));
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

/// One part of a message, which it refers to and does not hold. Messages have up to twenty parts of any types: the type ends
/// here, so that not every combination of them is another function.
class text_part {
 public:
  text_part(const char* text) : what_(text), append_(append_chars) {}
  template <class T>
    requires(!std::convertible_to<const T&, const char*>)
  text_part(const T& value) : what_(&value), append_(append_value<T>) {}

  void append_to(std::string& out) const { append_(out, what_); }

 private:
  static void append_chars(std::string& out, const void* text) { out += static_cast<const char*>(text); }
  template <class T>
  static void append_value(std::string& out, const void* value) { append_text(out, *static_cast<const T*>(value)); }

  const void* what_;
  void (*append_)(std::string&, const void*);
};

std::string joined_text(std::initializer_list<text_part> parts);
[[noreturn]] void raise_text(const char* code, std::initializer_list<text_part> parts);
[[noreturn]] void report_broken(const char* invariant);

}  // namespace detail

/// Joins texts, numbers and ranges of numbers into one string, independent of the locale.
template <class... Parts>
std::string concat_text(const Parts&... parts) {
  return detail::joined_text({detail::text_part(parts)...});
}

/// Throws `error` with the joined parts as its message.
template <class... Parts>
[[noreturn]] void raise(const char* code, const Parts&... parts) {
  detail::raise_text(code, {detail::text_part(parts)...});
}

/// A promise inside the library. A failure is a bug in samite, not in the caller's input.
inline void ensure(bool holds, const char* invariant) {
  if (!holds) detail::report_broken(invariant);
}

/// Exit statuses of programs (docs/errors.md).
namespace exit_status {
inline constexpr int done = 0, internal = 1, usage = 2, bad_file = 3, environment = 4, memory = 5, diverged = 6, peer = 7,
                     storage = 8, preempted = 75;
}

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/core/error_impl.hpp>
#endif
