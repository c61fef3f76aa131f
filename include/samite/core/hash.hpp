// samite/core/hash.hpp: 64-bit mixing for structural hashes held in memory (files use xxHash, see jit/cache.hpp).
#pragma once
#include <cstdint>
#include <string_view>

namespace samite {

/// The finaliser of splitmix64: every input bit reaches every output bit (Steele et al. 2014).
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t combine_hash(std::uint64_t seed, std::uint64_t value) { return mix_bits(seed ^ mix_bits(value)); }

constexpr std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0) {
  for (char c : text) seed = combine_hash(seed, static_cast<unsigned char>(c));
  return combine_hash(seed, text.size());
}

}  // namespace samite
