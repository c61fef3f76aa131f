#include <doctest/doctest.h>

#include <bit>
#include <set>
#include <string>

#include <samite/core/hash.hpp>

using namespace samite;

TEST_CASE("mix_bits is the published finaliser and changes half of the bits for each bit of its input") {
  static_assert(mix_bits(0) == 0xe220a8397b1dcdafu, "first output of splitmix64 with seed 0");
  static_assert(mix_bits(0x9e3779b97f4a7c15u) == 0x6e789e6aa1b965f4u, "its second output");
  for (int bit = 0; bit < 64; ++bit) {
    int changed = 0;
    for (std::uint64_t x = 0; x < 100; ++x) changed += std::popcount(mix_bits(x) ^ mix_bits(x ^ (std::uint64_t(1) << bit)));
    CHECK(changed > 100 * 28);
    CHECK(changed < 100 * 36);
  }
}

TEST_CASE("hashes depend on order, length and every byte") {
  CHECK(combine_hash(1, 2) != combine_hash(2, 1));
  std::set<std::uint64_t> seen;
  const std::string texts[] = {"", std::string(1, '\0'), std::string(2, '\0'), "ab", "ba", "a", "b", "\xff", "abc"};
  for (const std::string& text : texts) seen.insert(hash_text(text));
  CHECK(seen.size() == std::size(texts));
  CHECK(hash_text("ab", 1) != hash_text("ab"));
  static_assert(hash_text("same") == hash_text("same"));
}
