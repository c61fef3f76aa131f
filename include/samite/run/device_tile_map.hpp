// samite/run/device_tile_map.hpp: the tile lists and bit tiles of one mask, made on the device (codegen/device/tile_map.cuh).
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include <samite/emit/tile_map.hpp>
#include <samite/run/cuda_attention.hpp>

namespace samite::detail {

// Mirrors of codegen/device/tile_map.cuh.

struct device_map_counters {
  std::int32_t runs[2], undecided, done, groups[2][2][1024];
};

struct device_map_totals {
  std::int32_t runs[2] = {}, undecided = 0, overflow = 0, needed_runs[2] = {}, needed_undecided = 0, padding = 0;
  index_t batch_lists[2] = {}, head_lists[2] = {};
};

struct device_map_parameters {
  device_address block = 0;
  std::int32_t block_words = 0, most_tiles = 0, most_steps = 0, most_budget = 0;
  std::int32_t lists[2] = {}, run_limit[2] = {}, undecided_limit = 0, padding = 0;
  device_address pool[2] = {}, counts[2] = {}, runs[2] = {}, begin[2] = {};
  device_address undecided = 0, counters = 0, totals = 0;
};

/// What a map on the device is made for.
struct device_tile_map_options {
  index_t B = 1, H = 1, Q = 0, K = 0;   // at most
  index_t tile_q = 128, tile_k = 128;
  int budget = 96;                      // as in tile_options
  bool with_columns = true;             // lists of key tiles too
  bool with_bits = true;                // names the undecided tiles, and fills their bits
  index_t run_limit = 0;                // runs of all rows, and as many of all columns; 0: what the mask needs now and half as much again
  index_t undecided_limit = 0;          // undecided tiles; 0: likewise
};

/// The lists of samite::tile_map for one mask, bit for bit, made by kernels that a graph may capture: what the mask captures, its tables
/// and the lengths may change between replays.
///
/// `update` says what a run reads and stays outside captures; `run` starts the kernels. A map beyond a limit leaves every list empty and
/// says so in `totals`: the host learns of it when it reads them, and may then make a map with higher limits.
/// threads  one thread at a time
class device_tile_map {
 public:
  /// errors  E-MASK-DEVICE-MAP if the kernels can't serve the mask at these sizes; those of tile_map; E-JIT-*, E-CUDA-*
  device_tile_map(const cuda_device& device, std::shared_ptr<const program> mask, const device_tile_map_options& options);

  /// Writes the mask's numbers and tables as they are now, and the lengths, in stream order. What has not changed is not written again.
  ///
  /// errors  E-MASK-DEVICE-MAP beyond the capacity; E-MASK-TABLE-RANGE, E-MASK-OVERFLOW
  void update(const cuda_stream& stream, index_t Q, index_t K);
  void update(const cuda_stream& stream) { update(stream, options_.Q, options_.K); }

  /// Makes the lists, and the bits if there are any. Neither allocates nor waits.
  void run(const cuda_stream& stream) const;

  /// Lists for the sizes of the last update.
  device_tile_lists rows() const { return lists(0); }
  device_tile_lists columns() const { return lists(1); }
  device_sm90_lists sm90_rows() const { return {parameters_.runs[0], parameters_.begin[0], lists(0).batch_lists, lists(0).head_lists, bits_.address(), 1, 0, 0, 1, 0}; }
  device_address undecided() const { return parameters_.undecided; }
  device_address bits() const { return bits_.address(); }
  /// Where the kernels write struct device_map_totals.
  device_address totals_address() const { return parameters_.totals; }
  /// The totals of the last run. Waits for the stream.
  device_map_totals totals(const cuda_stream& stream) const;

  /// Device memory of lists, bit tiles and all else.
  std::size_t bytes() const;
  const device_tile_map_options& options() const { return options_; }

 private:
  struct table_copy {
    std::shared_ptr<const table_contents> contents;
    std::optional<cuda_buffer> memory;
    device_map_table described;
  };

  bool mentions(symbol_id id) const;
  device_tile_lists lists(int direction) const;
  device_map_sizes sizes_of(index_t Q, index_t K) const { return {options_.B, options_.H, Q, K, options_.tile_q, options_.tile_k, options_.budget}; }
  void copy_table(const cuda_stream& stream, table_copy& to, const std::shared_ptr<const table_contents>& contents);

  std::shared_ptr<const program> mask_;
  device_tile_map_options options_;
  std::array<bool, 2> tells_apart_;
  index_t Q_, K_;
  device_map_parameters parameters_;
  std::optional<cuda_buffer> memory_;  // lists and counters
  cuda_buffer block_, bits_;           // the block, then the bytes of struct keep_mask
  std::vector<table_copy> tables_;
  std::vector<std::uint64_t> written_;  // what the block holds
  std::size_t shared_bytes_ = 0;
  std::optional<cuda_function> classify_, pack_, fill_;
};

}  // namespace samite::detail

#ifndef SAMITE_SPLIT
#include <samite/run/device_tile_map_impl.hpp>
#endif
