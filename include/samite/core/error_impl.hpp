// samite/core/error_impl.hpp: messages of errors and the spelling of numbers.
#pragma once
#include <charconv>

#include <samite/core/error.hpp>

namespace samite {

SAMITE_IMPL error::error(std::string code, const std::string& message)
    : std::runtime_error("samite: " + message + " [" + code + "]"), code_(std::move(code)) {}

SAMITE_IMPL int error::exit_status() const noexcept {
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
      {"E-CUBLAS", exit_status::environment},    {"E-BLAS-OPEN", exit_status::environment},
      {"E-DIVERGED", exit_status::diverged},     {"E-PEER", exit_status::peer},
      {"E-PREEMPTED", exit_status::preempted},
  };
  for (const family& f : families)
    if (std::string_view(code_).starts_with(f.prefix)) return f.status;
  return samite::exit_status::usage;
}

namespace detail {

template <class Number>
void append_number(std::string& out, Number value) {
  char digits[64];  // to_chars and not printf: the user's locale must not change a number's spelling
  const auto end = std::to_chars(digits, digits + sizeof digits, value);
  out.append(digits, end.ptr);
}

SAMITE_IMPL void append_text(std::string& out, long long value) { append_number(out, value); }
SAMITE_IMPL void append_text(std::string& out, unsigned long long value) { append_number(out, value); }
SAMITE_IMPL void append_text(std::string& out, float value) { append_number(out, value); }
SAMITE_IMPL void append_text(std::string& out, double value) { append_number(out, value); }
SAMITE_IMPL void append_text(std::string& out, long double value) { append_number(out, value); }

SAMITE_IMPL std::string joined_text(std::initializer_list<text_part> parts) {
  std::string out;
  for (const text_part& part : parts) part.append_to(out);
  return out;
}

SAMITE_IMPL void raise_text(const char* code, std::initializer_list<text_part> parts) { throw error(code, joined_text(parts)); }

SAMITE_IMPL void report_broken(const char* invariant) {
  raise_text("E-INTERNAL", {"broken promise inside the library: ", invariant, "; please report it"});
}

}  // namespace detail
}  // namespace samite
