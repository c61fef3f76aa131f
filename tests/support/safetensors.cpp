// tests/support/safetensors.cpp: integers out of the golden files.
#include "safetensors.hpp"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace samite_tests {

std::vector<std::int64_t> golden_integers(const std::string& file, const std::string& name) {
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
