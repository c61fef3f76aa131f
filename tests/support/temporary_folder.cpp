// tests/support/temporary_folder.cpp: a folder of its own for a test.
#include "temporary_folder.hpp"

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>

namespace samite_tests {

temporary_folder::temporary_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "samite-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder can be made");
  path_ = name;
}

temporary_folder::~temporary_folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::size_t temporary_folder::entry_count() const {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) count += !entry.path().empty();
  return count;
}

}  // namespace samite_tests
