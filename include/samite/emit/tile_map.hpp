// samite/emit/tile_map.hpp: what the kernels of codegen/device/tile_map.cuh read: a mask's steps for one run, and the kernels' text.
//
// A mask is no kernel there: its steps follow from the numbers that it captures (constraints on one form merge, and how they do depends
// on their values), so they are data, made by the host for each run and read by the same two kernels for every mask.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <samite/emit/kernel_text.hpp>
#include <samite/ir/box_steps.hpp>

namespace samite {

/// Sizes of a map on the device, as its run has them.
struct device_map_sizes {
  index_t B = 1, H = 1, Q = 0, K = 0, tile_q = 128, tile_k = 128;
  int budget = 96;
};

/// A table where the kernels run.
struct device_map_table {
  std::uint64_t values = 0, pyramid = 0, sorted = 0;  // addresses: int32 values, table_range cells, one byte a row
  std::array<index_t, 3> dims{};
  index_t leaves = 0;
  table_range whole;
};

namespace detail {

// Mirrors of codegen/device/box_judge.cuh; tests/emit/tile_map_test.cpp compares them.

enum class device_step_code : std::int32_t {
  symbol, constant, sum, quotient, remainder, multiply, minimum, maximum, absolute, addition, difference, negation, left_shift, right_shift, anything, gather, select,
  leaf, all, any, choice, known, opaque
};

struct device_map_step {
  device_step_code code = device_step_code::opaque;
  std::int32_t a = -1, b = -1, c = -1, first = 0, count = 0, shift = -1, padding = 0;
  index_t imm = 0;
};

struct device_map_header {
  index_t queries = 0, keys = 0, last_batch = 0, last_head = 0;
  std::int32_t batches = 1, heads = 1;
  std::int32_t tiles[2] = {}, tile[2] = {};
  std::int32_t budget = 0, steps = 0, tables = 0, words = 0;
  std::int32_t thresholds[2] = {}, threshold_count[2] = {}, grains[2] = {}, grain_count[2] = {};
};

inline std::int32_t map_tiles(index_t length, index_t tile) { return std::int32_t((length + tile - 1) / tile); }

}  // namespace detail

/// The description of one table, its copies at these addresses.
device_map_table describe_table(const table_contents& contents, std::uint64_t values, std::uint64_t pyramid, std::uint64_t sorted);

/// Whether the kernels can run the mask at such sizes: its steps and the longest list fit their shared memory.
///
/// shared_limit  bytes that a block of the device may have
bool serves_device_map(const detail::bound_steps& steps, const device_map_sizes& sizes, std::size_t shared_limit);

/// Steps that the mask has now, and the words of the block that describes them.
struct device_map_counts {
  std::int32_t steps = 0, words = 0;
};
device_map_counts count_device_map(const detail::bound_steps& steps);

/// The block that the kernels read: struct map_header, the tables, the steps and their words, in words of 8 bytes.
///
/// tables       one for each table of the mask's program
/// tells_apart  whether the mask mentions b, and h
std::vector<std::uint64_t> pack_device_map(const detail::bound_steps& steps, const std::vector<device_map_table>& tables, const device_map_sizes& sizes, std::array<bool, 2> tells_apart);

/// Dynamic shared memory of classify_tiles.
std::size_t device_map_shared_bytes(index_t block_words, index_t most_steps, index_t most_tiles, index_t most_budget);

/// The kernels tile_map_classify and tile_map_pack, the same for every mask: a block of 128 threads for each list.
kernel_text emit_tile_map();

/// The kernel tile_map_bits of one mask, which fills the bit tiles: any number of blocks of 2 * rows threads.
///
/// errors  E-EMIT-OP if the mask is not made of integers
kernel_text emit_tile_map_bits(const program& mask, index_t rows, index_t keys);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/emit/tile_map_impl.hpp>
#endif
