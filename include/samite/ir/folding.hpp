// samite/ir/folding.hpp: how large numbers may grow while sums are folded, and sorting of the few terms of one.
#pragma once
#include <utility>
#include <vector>

#include <samite/core/dtype.hpp>

namespace samite::detail {

// Beyond this a factor or constant is left unfolded, so that no sum of a few of them leaves 64 bits.
inline constexpr index_t foldable = index_t(1) << 56;
constexpr bool is_foldable(__int128 value) { return -foldable <= value && value <= foldable; }

// For lists of a few entries, or nearly sorted ones; equal ones keep their order. Each use of std::sort would cost an
// including file far more. Comparisons are the costly part, so that each place is searched by halves.
template <class T, class Less>
void sort_few(std::vector<T>& list, Less less) {
  for (std::size_t i = 1; i < list.size(); ++i) {
    if (!less(list[i], list[i - 1])) continue;
    std::size_t low = 0, high = i - 1;  // the first entry that comes after list[i]
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (less(list[i], list[middle])) high = middle;
      else low = middle + 1;
    }
    T moved = std::move(list[i]);
    for (std::size_t j = i; j > low; --j) list[j] = std::move(list[j - 1]);
    list[low] = std::move(moved);
  }
}

}  // namespace samite::detail
