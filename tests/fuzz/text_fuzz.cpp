// Arbitrary bytes become valid UTF-8 without control characters for a terminal, and valid text stays as it is.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <samite/train/data.hpp>

namespace {

std::string shown(const std::string& text) {
  std::vector<std::int32_t> tokens;
  for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return samite::printable(tokens);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string once = shown({reinterpret_cast<const char*>(data), size});
  for (char c : once)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) std::abort();
  if (shown(once) != once) std::abort();
  // Ids of the vocabulary that are no bytes, and numbers that are no ids at all.
  const std::vector<std::int32_t> ids(reinterpret_cast<const std::int8_t*>(data), reinterpret_cast<const std::int8_t*>(data) + size);
  samite::printable(ids);
  return 0;
}
