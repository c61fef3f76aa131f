// samite/core/env.hpp: environment variables, read in one place (docs/environment.md lists them).
#pragma once
#include <optional>
#include <string>

#include <samite/core/error.hpp>

namespace samite {

/// The variable's text, or nothing if it is unset or empty.
std::optional<std::string> env_text(const char* name);

/// The variable as a whole number between `low` and `high`, or nothing if it is unset.
std::optional<long long> env_number(const char* name, long long low, long long high);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/core/env_impl.hpp>
#endif
