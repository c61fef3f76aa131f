// Feeds arbitrary headers and lengths to the safetensors rules. Only samite::error may come out.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <samite/io/json.hpp>
#include <samite/io/safetensors.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The first byte is the buffer's length, the rest the header.
  if (size == 0) return 0;
  std::map<std::string, std::string> metadata;
  try {
    const auto entries = samite::detail::parse_safetensors_header({reinterpret_cast<const char*>(data) + 1, size - 1}, data[0], "fuzz", metadata);
    std::uint64_t bytes = 0;
    for (const samite::safetensors_entry& entry : entries) {
      if (entry.begin != bytes || entry.end < entry.begin) std::abort();
      bytes = entry.end;
      if (entry.type && samite::checked_count(entry.dims, samite::size_of(*entry.type)) * samite::index_t(samite::size_of(*entry.type)) !=
                            samite::index_t(entry.end - entry.begin))
        std::abort();
    }
    if (bytes != data[0]) std::abort();
  } catch (const samite::error&) {
  }
  return 0;
}
