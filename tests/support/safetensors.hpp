// tests/support/safetensors.hpp: integers out of the golden files; no more than the mask tests need.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace samite_tests {

/// Values of the I64 or U8 tensor `name` of a file under tests/golden. Tests run from the repository's root.
std::vector<std::int64_t> golden_integers(const std::string& file, const std::string& name);

}  // namespace samite_tests
