// samite/core/env_impl.hpp: reading environment variables.
#pragma once
#include <charconv>
#include <cstdlib>

#include <samite/core/env.hpp>

namespace samite {

SAMITE_IMPL std::optional<std::string> env_text(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::string(text);
}

SAMITE_IMPL std::optional<long long> env_number(const char* name, long long low, long long high) {
  const auto text = env_text(name);
  if (!text) return std::nullopt;
  long long value = 0;
  const auto result = std::from_chars(text->data(), text->data() + text->size(), value);
  if (result.ec != std::errc() || result.ptr != text->data() + text->size() || value < low || value > high)
    raise("E-ENV-VALUE", "environment variable ", name, "=\"", *text, "\": expected a whole number from ", low, " to ", high);
  return value;
}

}  // namespace samite
