// samite/emit/score.hpp: a score function as a struct for the attention kernels, and the arguments it reads.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <samite/emit/kernel_text.hpp>
#include <samite/ir/table.hpp>

namespace samite {

/// Words of 8 bytes that one sum of a captured element's gradient takes (codegen/device/score.cuh).
inline constexpr index_t score_sum_words = 15;

/// A captured tensor where the kernel runs, and where its gradient is summed: `words` holds score_sum_words a element, all 0 before
/// the kernel; or `direct` one real a element. Forward kernels read neither.
struct score_tensor_argument {
  std::uint64_t data = 0;
  std::vector<index_t> dims, strides;  // one to three
  std::uint64_t words = 0, direct = 0;
};

/// A number as double and as index.
struct score_number_argument {
  double real;
  index_t index;
};

/// `using real` and struct `score_function`: value, adjoint and gradient of a pair, and what it captures.
///
/// types   of the captured tensors, by slot
/// errors  E-EMIT-OP if the program reads anything but score, b, h, q, kv, numbers, tables and tensors
std::string score_text(const program& score, std::span<const dtype> types, bool in_double);

/// Bytes of `score_function`.
std::size_t score_arguments_bytes(const program& score, std::size_t tensors);

/// The bytes of `score_function`.
///
/// contents, pointers  one entry for each table of the program, as in pack_mask_arguments
std::vector<std::byte> pack_score_arguments(const program& score, std::span<const score_number_argument> numbers, std::span<const score_tensor_argument> tensors,
                                            std::span<const std::shared_ptr<const table_contents>> contents, std::span<const std::uint64_t> pointers);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/emit/score_impl.hpp>
#endif
