// samite/train/baseline.hpp: a Witten-Bell byte model: what any trained target must beat.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

namespace samite {

/// Interpolated byte model of orders 0 to `order`:  P_k(c) = (n(ctx c) + d(ctx) P_{k-1}(c)) / (n(ctx) + d(ctx)), where n counts
/// and d is the number of different followers; order 0 falls back to 1/256.
///
/// errors  E-DATA-TEXT unless the order is 0 to 8
/// source  Witten and Bell 1991, IEEE Trans. Information Theory 37(4), method C
class byte_model {
 public:
  byte_model(std::span<const std::uint8_t> text, int order);

  /// Mean -log2 P over a text; contexts reach back into the text itself.
  double bits_per_byte(std::span<const std::uint8_t> text) const;

 private:
  struct counts;

  std::shared_ptr<const counts> counts_;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/train/baseline_impl.hpp>
#endif
