// tests/support/kernels.cpp: what the assembler says of registers.
#include "kernels.hpp"

namespace samite_tests {

std::string spills_of(const samite::kernel_text& kernel, const std::string& arch) {
  const samite::kernel_source source{kernel.name, kernel.text, arch, {"--ptxas-options=-v", "-no-cache"}, samite::headers_of(kernel.text)};
  const std::string log = samite::compile_kernel(source).log;
  std::string spills;
  std::string name;
  for (std::size_t at = 0; at < log.size();) {
    std::size_t end = log.find('\n', at);
    if (end == std::string::npos) end = log.size();
    const std::string line = log.substr(at, end - at);
    at = end + 1;
    if (line.find("(C75") != std::string::npos) spills += line + "\n";  // the assembler serialises products, or ignores register counts
    if (const std::size_t entry = line.find("entry function '"); entry != std::string::npos) {
      name = line.substr(entry + 16, line.find('\'', entry + 16) - entry - 16);
    } else if (const std::size_t stores = line.find(" bytes spill stores"); stores != std::string::npos) {
      const std::size_t begin = line.find_last_of(' ', stores - 1) + 1;
      const std::string bytes = line.substr(begin, stores - begin);
      if (bytes != "0") spills += (spills.empty() ? "" : ", ") + name + ": " + bytes + " bytes";
    }
  }
  return spills;
}

}  // namespace samite_tests
