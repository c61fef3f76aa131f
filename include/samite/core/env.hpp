// samite/core/env.hpp: environment variables, read in one place (docs/environment.md lists them).
#pragma once
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>

#include <samite/core/error.hpp>

namespace samite {

/// The variable's text, or nothing if it is unset or empty.
inline std::optional<std::string> env_text(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::string(text);
}

/// The variable as a whole number between `low` and `high`, or nothing if it is unset.
inline std::optional<long long> env_number(const char* name, long long low, long long high) {
  const auto text = env_text(name);
  if (!text) return std::nullopt;
  long long value = 0;
  const auto result = std::from_chars(text->data(), text->data() + text->size(), value);
  if (result.ec != std::errc() || result.ptr != text->data() + text->size() || value < low || value > high)
    raise("E-ENV-VALUE", "environment variable ", name, "=\"", *text, "\": expected a whole number from ", low, " to ", high);
  return value;
}

}  // namespace samite
