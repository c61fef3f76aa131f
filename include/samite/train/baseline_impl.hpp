// samite/train/baseline_impl.hpp: counting contexts.
#pragma once
#include <cmath>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include <samite/core/error.hpp>
#include <samite/train/baseline.hpp>

namespace samite {

struct byte_model::counts {
  struct followers {
    double total = 0, distinct = 0;
    std::unordered_map<std::uint8_t, std::uint32_t> count;
  };
  std::vector<std::unordered_map<std::uint64_t, followers>> contexts;  // by order

  static std::uint64_t key(std::span<const std::uint8_t> text, std::size_t i, std::size_t order) {
    std::uint64_t context = 0;
    for (std::size_t j = 1; j <= order; ++j) context = context << 8 | text[i - j];
    return context;
  }

  double probability(std::span<const std::uint8_t> text, std::size_t i) const {
    double p = 1.0 / 256;
    for (std::size_t k = 0; k < contexts.size() && k <= i; ++k) {
      const auto found = contexts[k].find(key(text, i, k));
      if (found == contexts[k].end()) break;
      const followers& f = found->second;
      const auto count = f.count.find(text[i]);
      p = ((count == f.count.end() ? 0.0 : double(count->second)) + f.distinct * p) / (f.total + f.distinct);
    }
    return p;
  }
};

SAMITE_IMPL byte_model::byte_model(std::span<const std::uint8_t> text, int order) {
  if (order < 0 || order > 8) raise("E-DATA-TEXT", "byte_model of order ", order, ": contexts of 0 to 8 bytes are served; give such an order");
  counts made{std::vector<std::unordered_map<std::uint64_t, counts::followers>>(std::size_t(order) + 1)};
  for (std::size_t i = 0; i < text.size(); ++i)
    for (std::size_t k = 0; k < made.contexts.size() && k <= i; ++k) {
      counts::followers& f = made.contexts[k][counts::key(text, i, k)];
      f.total += 1;
      std::uint32_t& count = f.count[text[i]];
      if (count++ == 0) f.distinct += 1;
    }
  counts_ = std::make_shared<const counts>(std::move(made));
}

SAMITE_IMPL double byte_model::bits_per_byte(std::span<const std::uint8_t> text) const {
  double bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) bits -= std::log2(counts_->probability(text, i));
  return text.empty() ? 0 : bits / double(text.size());
}

}  // namespace samite
