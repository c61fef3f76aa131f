#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include <samite/generated/device_sources.hpp>

#include "support/skip.hpp"

using namespace samite;

TEST_CASE("the embedded device sources are those of codegen/device; the embed target renews them") {
  const std::filesystem::path folder = "codegen/device";
  SKIP_IF(!std::filesystem::is_directory(folder), "the repository's codegen/device is not below the working directory");
  std::set<std::string> files, embedded;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".cuh") files.insert(entry.path().filename().string());
  for (const detail::device_source& source : detail::device_sources) {
    embedded.insert(std::string(source.name));
    std::ifstream file(folder / source.name);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    INFO(source.name);
    CHECK(text == source.text);
  }
  CHECK(files == embedded);
}
