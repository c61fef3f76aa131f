// tests/support/raised.hpp: whether a call refuses its input with the code and the words it should.
#pragma once
#include <initializer_list>
#include <string>

#include <samite/core/error.hpp>

namespace samite_tests {

/// Empty if `call` raises `code` with all `parts` in its message; else what happened instead.
template <class F>
std::string unlike(const std::string& code, std::initializer_list<const char*> parts, F&& call) {
  try {
    call();
  } catch (const samite::error& e) {
    const std::string text = e.what();
    if (e.code() != code) return "raised another code: " + text;
    if (!text.ends_with(" [" + code + "]")) return "the code does not end the message: " + text;
    for (const char* part : parts)
      if (text.find(part) == std::string::npos) return "\"" + std::string(part) + "\" is not in: " + text;
    return {};
  }
  return "nothing was raised where " + code + " is expected";
}

}  // namespace samite_tests
