// tests/support/safetensors.hpp: integers out of the golden files; no more than the mask tests need.
#pragma once
#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace samite_tests {

/// Values of the I64 or U8 tensor `name` of a file under tests/golden. Tests run from the repository's root.
inline std::vector<std::int64_t> golden_integers(const std::string& file, const std::string& name) {
  std::ifstream in("tests/golden/" + file, std::ios::binary);
  if (!in) throw std::runtime_error("tests/golden/" + file + " is missing; run the tests from the repository's root");
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const auto entry = nlohmann::json::parse(bytes.substr(8, header)).at(name);
  const std::size_t from = 8 + header + entry.at("data_offsets")[0].get<std::size_t>(), to = 8 + header + entry.at("data_offsets")[1].get<std::size_t>();
  std::vector<std::int64_t> values;
  if (entry.at("dtype") == "I64") {
    values.resize((to - from) / 8);
    std::memcpy(values.data(), bytes.data() + from, to - from);
  } else {
    for (std::size_t i = from; i < to; ++i) values.push_back(static_cast<unsigned char>(bytes[i]));
  }
  return values;
}

}  // namespace samite_tests
