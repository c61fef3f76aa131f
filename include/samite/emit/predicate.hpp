// samite/emit/predicate.hpp: a mask as text that compiles for the device and for the host, and the arguments it reads.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <samite/emit/kernel_text.hpp>
#include <samite/ir/table.hpp>

namespace samite {

/// Helpers that emitted predicates call. Not needed where codegen/device/core.cuh is included: it has the same names, except
/// for table_at, which `predicate_text` brings itself.
inline constexpr const char* predicate_prelude = R"(// Quotients round towards minus infinity; divisors are positive.
__device__ __forceinline__ long long floor_div(long long a, long long b) {
  const long long quotient = a / b;
  return quotient - (a % b < 0 ? 1 : 0);
}
__device__ __forceinline__ long long floor_mod(long long a, long long b) {
  const long long rest = a % b;
  return rest < 0 ? rest + b : rest;
}
__device__ __forceinline__ long long index_abs(long long a) { return a < 0 ? -a : a; }
__device__ __forceinline__ long long index_min(long long a, long long b) { return b < a ? b : a; }
__device__ __forceinline__ long long index_max(long long a, long long b) { return a < b ? b : a; }
)";

/// Struct `mask_arguments` and a function `bool name(b, h, q, kv, m)` that is true where the pair is kept.
///
/// The text has four parts, so that a kernel computes once what pairs share: `name_of_head(b, h, m)`, `name_of_row(b, h, q, head, m)` and
/// `name_of_column(b, h, kv, head, m)` return structs with what depends on the head, the row or the column alone and costs more than one
/// or two operations; `name(b, h, q, kv, head, row, column, m)` does the rest. `row.each(f)` and `column.each(f)` map every value.
/// All arithmetic has 64 bits. The same text compiles as CUDA and, with __device__ and __forceinline__ defined away, as C++.
/// errors  E-EMIT-OP if the program holds real numbers, tensors or symbols other than b, h, q and kv
std::string predicate_text(const program& p, const std::string& name);

/// Bytes of `mask_arguments`: the scalars, then three dimensions for each table, then a pointer for each table, 8 bytes each.
std::size_t mask_arguments_bytes(const program& p);

/// The bytes of `mask_arguments` with the arguments as they are now.
///
/// contents, pointers  one entry for each table of the program, in its order: a snapshot and the address of its values where
///                     the text will run. A snapshot is kept by the caller until the run ends
std::vector<std::byte> pack_mask_arguments(const program& p, std::span<const std::shared_ptr<const table_contents>> contents,
                                                  std::span<const std::uint64_t> pointers);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/emit/predicate_impl.hpp>
#endif
