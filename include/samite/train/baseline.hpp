// samite/train/baseline.hpp: a Witten-Bell byte model: what any trained target must beat.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include <samite/core/error.hpp>

namespace samite {

/// Interpolated byte model of orders 0 to `order`:  P_k(c) = (n(ctx c) + d(ctx) P_{k-1}(c)) / (n(ctx) + d(ctx)), where n counts
/// and d is the number of different followers; order 0 falls back to 1/256.
///
/// errors  E-DATA-TEXT unless the order is 0 to 8
/// source  Witten and Bell 1991, IEEE Trans. Information Theory 37(4), method C
class byte_model {
 public:
  byte_model(std::span<const std::uint8_t> text, int order) : order_(order), contexts_(std::size_t(std::clamp(order, 0, 8)) + 1) {
    if (order < 0 || order > 8) raise("E-DATA-TEXT", "byte_model of order ", order, ": contexts of 0 to 8 bytes are served");
    for (std::size_t i = 0; i < text.size(); ++i)
      for (int k = 0; k <= order_ && std::size_t(k) <= i; ++k) {
        followers& f = contexts_[std::size_t(k)][key(text, i, k)];
        f.total += 1;
        std::uint32_t& count = f.count[text[i]];
        if (count++ == 0) f.distinct += 1;
      }
  }

  /// Mean -log2 P over a text; contexts reach back into the text itself.
  double bits_per_byte(std::span<const std::uint8_t> text) const {
    double bits = 0;
    for (std::size_t i = 0; i < text.size(); ++i) bits -= std::log2(probability(text, i));
    return text.empty() ? 0 : bits / double(text.size());
  }

 private:
  struct followers {
    double total = 0, distinct = 0;
    std::unordered_map<std::uint8_t, std::uint32_t> count;
  };

  static std::uint64_t key(std::span<const std::uint8_t> text, std::size_t i, int k) {
    std::uint64_t context = 0;
    for (int j = 1; j <= k; ++j) context = context << 8 | text[i - std::size_t(j)];
    return context;
  }

  double probability(std::span<const std::uint8_t> text, std::size_t i) const {
    double p = 1.0 / 256;
    for (int k = 0; k <= order_ && std::size_t(k) <= i; ++k) {
      const auto found = contexts_[std::size_t(k)].find(key(text, i, k));
      if (found == contexts_[std::size_t(k)].end()) break;
      const auto count = found->second.count.find(text[i]);
      p = ((count == found->second.count.end() ? 0.0 : double(count->second)) + found->second.distinct * p) / (found->second.total + found->second.distinct);
    }
    return p;
  }

  int order_;
  std::vector<std::unordered_map<std::uint64_t, followers>> contexts_;
};

}  // namespace samite
