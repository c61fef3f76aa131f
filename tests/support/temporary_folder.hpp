// tests/support/temporary_folder.hpp: a folder of its own for a test, removed at the end of the scope.
#pragma once
#include <string>

namespace samite_tests {

class temporary_folder {
 public:
  temporary_folder();
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder();
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Names of the entries, hidden ones included.
  std::size_t entry_count() const;

 private:
  std::string path_;
};

}  // namespace samite_tests
