// samite/ir/folding.hpp: how large numbers may grow while sums are folded, and sorting of the few terms of one.
#pragma once
#include <utility>
#include <vector>

#include <samite/core/dtype.hpp>

namespace samite::detail {

// Beyond this a factor or constant is left unfolded, so that no sum of a few of them leaves 64 bits.
inline constexpr index_t foldable = index_t(1) << 56;
constexpr bool is_foldable(__int128 value) { return -foldable <= value && value <= foldable; }

// For lists of a few entries; equal ones keep their order. Each use of std::sort would cost an including file far more.
template <class T, class Less>
void sort_few(std::vector<T>& list, Less less) {
  for (std::size_t i = 1; i < list.size(); ++i)
    for (std::size_t j = i; j > 0 && less(list[j], list[j - 1]); --j) std::swap(list[j], list[j - 1]);
}

}  // namespace samite::detail
