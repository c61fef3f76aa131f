// Arbitrary text is refused with samite::error, or read; what was read is written and read back to the same text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <samite/io/json.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string once;
  try {
    once = samite::to_json(samite::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz"));
  } catch (const samite::error&) {
    return 0;
  }
  if (samite::to_json(samite::parse_json(once, "fuzz")) != once) std::abort();
  return 0;
}
