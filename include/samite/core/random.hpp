// samite/core/random.hpp: counted randomness. The same key and counter give the same number on any machine, in any order.
#pragma once
#include <array>
#include <cstdint>

#include <samite/core/config.hpp>

namespace samite {

/// Philox 4x32 with ten rounds: four 32-bit words from a 128-bit counter and a 64-bit key.
///
/// source  Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3
struct philox {
  std::uint32_t key0, key1;

  std::array<std::uint32_t, 4> operator()(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3) const {
    std::uint32_t k0 = key0, k1 = key1;
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t(0xD2511F53u) * c0, p1 = std::uint64_t(0xCD9E8D57u) * c2;
      const std::uint32_t n0 = std::uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = std::uint32_t(p0 >> 32) ^ c3 ^ k1;
      c1 = std::uint32_t(p1), c3 = std::uint32_t(p0), c0 = n0, c2 = n2;
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
  }
};

/// A stream of uniform numbers for one purpose: (seed, purpose) is the key; (epoch, sample) and a running count the counter.
/// There is no state to save: the stream is rebuilt from its four numbers.
class counted_random {
 public:
  counted_random(std::uint64_t seed, std::uint32_t purpose, std::uint32_t epoch = 0, std::uint32_t sample = 0)
      : generator_{std::uint32_t(seed) ^ (purpose * 0x9E3779B9u), std::uint32_t(seed >> 32) ^ purpose}, epoch_(epoch), sample_(sample) {}

  std::uint32_t bits() {
    if (used_ == 4) words_ = generator_(block_++, 0, sample_, epoch_), used_ = 0;
    return words_[used_++];
  }
  /// Uniform in [0, 1), a multiple of 2^-53.
  double uniform() {
    const std::uint64_t high = bits(), low = bits();
    return double(((high << 32) | low) >> 11) * 0x1p-53;
  }
  /// Uniform in 0 .. bound-1, without bias (Lemire 2019 with rejection).
  std::uint32_t below(std::uint32_t bound) {
    std::uint64_t product = std::uint64_t(bits()) * bound;
    if (std::uint32_t(product) < bound) {
      const std::uint32_t threshold = std::uint32_t(-bound) % bound;
      while (std::uint32_t(product) < threshold) product = std::uint64_t(bits()) * bound;
    }
    return std::uint32_t(product >> 32);
  }
  /// Standard normal by Box and Muller.
  double normal();

 private:
  philox generator_;
  std::uint32_t epoch_, sample_, block_ = 0;
  std::size_t used_ = 4;
  std::array<std::uint32_t, 4> words_{};
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/core/random_impl.hpp>
#endif
