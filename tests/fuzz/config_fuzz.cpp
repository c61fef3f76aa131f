// Arbitrary config.json texts of targets and drafters are refused with samite::error, or read; what was read is written and read
// back to the same text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <samite/model/config.hpp>

namespace {

template <class Read>
void check(const samite::json_value& json, Read read) {
  std::string once;
  try {
    once = samite::to_json_text(read(json, "fuzz"));
  } catch (const samite::error&) {
    return;
  }
  if (samite::to_json_text(read(samite::parse_json(once, "written"), "written")) != once) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  samite::json_value json;
  try {
    json = samite::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const samite::error&) {
    return 0;
  }
  check(json, samite::read_decoder_config);
  check(json, samite::read_drafter_config);
  return 0;
}
