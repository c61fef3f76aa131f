// Arbitrary bytes as an entry of the kernel cache: a miss, or exactly the entry that would have been written for this key.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include <samite/jit/cache.hpp>
#ifdef SAMITE_SPLIT
#include <samite/jit/cache_impl.hpp>
#endif

namespace {

void check(std::string_view bytes, std::string_view key) {
  const auto kernel = samite::detail::decode_entry(bytes, key);
  if (kernel && samite::detail::encode_entry(key, *kernel) != bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // The first byte is the key's length; the key is cut from the place where an entry would hold it.
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  samite::detail::cache_entry_header header;
  const std::size_t begin = sizeof header < bytes.size() ? sizeof header : bytes.size();
  const std::string key = bytes.substr(begin, data[0]);
  check(bytes, key), check(bytes, "another key");
  // No mutation finds a checksum, so it is put right to reach what comes behind it.
  if (bytes.size() < sizeof header) return 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  samite::detail::set_checksum(header, std::string_view(bytes).substr(sizeof header));
  std::memcpy(bytes.data(), &header, sizeof header);
  check(bytes, key), check(bytes, "another key");
  return 0;
}
