// samite/run/cuda_attention_decode.hpp: launches of the attention kernels for few queries and many keys.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <unordered_map>
#include <vector>

#include <samite/emit/attention_decode.hpp>
#include <samite/run/cuda_attention.hpp>
#include <samite/run/cuda_attention_sm90.hpp>
#include <samite/run/cuda_work.hpp>
#include <samite/run/decode_parts.hpp>
#include <samite/run/device_tile_maps.hpp>

namespace samite::detail {

/// Mirror of decode_parameters in codegen/device/attention_decode.cuh.
struct device_decode {
  device_attention p;
  device_address runs = 0, parts = 0;
  index_t batch_lists = 0, head_lists = 0;
  std::int32_t splits = 1, chunk = 1, row_tiles = 1, rows = 0;
  device_address partials = 0;
};

/// Mirror of decode_sm90_parameters in codegen/device/attention_decode_sm90.cuh.
struct device_decode_sm90 {
  tensor_map K, V;
  device_decode d;
};

static_assert(sizeof(device_decode_sm90) <= 1024, "plan_kernels leaves so much of a launch's parameters");

class cuda_attention_decode {
 public:
  cuda_attention_decode(cuda_work& work, device_tile_maps& maps)
      : work_(work), maps_(maps), partials_(work.device, 0), least_keys_(attention_setting() == attention_kernels::decode ? 1 : decode_least_keys) {}

  /// Runs the forward pass if the node has a decode kernel and there are few queries and enough keys.
  ///
  /// mask_bytes, score_bytes  those of the kernels' structs
  bool forward(const launch& l, const device_attention& p, const std::shared_ptr<const program>& mask, std::vector<std::byte>& mask_bytes, std::vector<std::byte>& score_bytes) {
    if (p.queries > attention_decode_queries || p.keys < least_keys_) return false;
    const index_t rows = p.queries * (p.heads / p.key_heads), pairs = p.batch * p.key_heads;
    if (p.keys >= most || pairs * rows >= most) return false;
    const bool is_few = attention_decode_rows(rows) == 16;
    if ((!is_few || std::max(p.head_dim, p.value_dim) > decode_few_channels) && forward_on_sm90(l, p, mask, mask_bytes, rows, pairs)) return true;
    const kernel_role role = is_few ? kernel_role::attention_decode_few : kernel_role::attention_decode;
    if (!work_.has(l, role)) return false;
    const cuda_kernel& kernel = work_.kernel(l, role);
    const std::vector<unsigned>& residence = residence_of(kernel);
    const index_t block_rows = kernel.use->block_rows;
    const decode_grid grid{pairs, (rows + block_rows - 1) / block_rows, work_.device.sm_count(), index_t(residence.size()), std::min(rows, block_rows)};
    // Rows of many blocks are bound by products, which wgmma does faster once there are heads enough for every multiprocessor. Measured on an H200: tiles of
    // 64 keys take 0.9 us for a block of it, and 1.5 us for each 64 rows here, two blocks side by side.
    if (!is_few && work_.has(l, kernel_role::attention_sm90)) {
      const double processors = double(grid.multiprocessors), heads = double(p.batch * p.heads);
      if (0.9 * std::ceil(heads / processors) < 1.5 * double(pairs * grid.row_tiles) / processors) return false;
    }
    device_decode call;
    const index_t blocks = cut(call, p, mask, grid, block_rows);
    if (blocks >= most) return false;
    const std::size_t each = std::size_t((blocks + grid.multiprocessors - 1) / grid.multiprocessors);  // blocks a multiprocessor
    start(kernel, blocks, residence[std::min(each, residence.size()) - 1], {&call, mask_bytes.data(), score_bytes.data()});
    if (call.splits > 1) start(work_.kernel(l, is_few ? kernel_role::attention_decode_few_merge : kernel_role::attention_decode_merge), pairs * rows, 0, {&call});
    return true;
  }

 private:
  static constexpr index_t most = index_t(1) << 31, tile_keys = 64;

  /// The kernel for sm_90a, if the node has it and TMA can address the keys. It is the faster one for any number of heads: its products are wgmma.
  bool forward_on_sm90(const launch& l, const device_attention& p, const std::shared_ptr<const program>& mask, std::vector<std::byte>& mask_bytes, index_t rows, index_t pairs) {
    if (!work_.has(l, kernel_role::attention_decode_sm90)) return false;
    device_decode_sm90 call;
    if (!cuda_attention_sm90::encode(l, 7, call.K, l.inputs[1], tile_keys) || !cuda_attention_sm90::encode(l, 8, call.V, l.inputs[2], tile_keys)) return false;
    const cuda_kernel& kernel = work_.kernel(l, kernel_role::attention_decode_sm90);
    const index_t block_rows = rows <= 64 ? 64 : kernel.use->block_rows;
    const decode_grid grid{pairs, (rows + block_rows - 1) / block_rows, work_.device.sm_count(), 1, std::min(rows, block_rows), true};
    const index_t blocks = cut(call.d, p, mask, grid, block_rows);
    if (blocks >= most) return false;
    start(kernel, blocks, kernel.use->shared_bytes, {&call, mask_bytes.data()});
    if (call.d.splits > 1) start(work_.kernel(l, kernel_role::attention_decode_sm90_merge), pairs * rows, 0, {&call});
    return true;
  }

  /// Fills in the parts of the keys, and memory for what they give; the blocks.
  index_t cut(device_decode& call, const device_attention& p, const std::shared_ptr<const program>& mask, const decode_grid& grid, index_t block_rows) {
    call.p = p, call.row_tiles = std::int32_t(grid.row_tiles), call.rows = std::int32_t(block_rows);
    if (mask) {
      const device_tile_maps::part_lists lists = maps_.get_parts(work_.stream, mask, work_.step, p.batch, p.heads, p.queries, p.keys, p.key_heads, grid);
      call.runs = lists.runs, call.parts = lists.parts, call.batch_lists = lists.batch_lists, call.head_lists = lists.head_lists, call.splits = std::int32_t(lists.splits);
    } else {
      const index_t tiles = (p.keys + tile_keys - 1) / tile_keys, chunk = part_tiles({tiles}, grid);
      call.chunk = std::int32_t(chunk), call.splits = std::int32_t((tiles + chunk - 1) / chunk);
    }
    const index_t blocks = grid.pairs * call.splits * grid.row_tiles;
    if (call.splits > 1 && blocks < most) {
      const std::size_t bytes = std::size_t(blocks * block_rows) * std::size_t((p.value_dim + 63) / 64 * 64 + 2) * 4;
      if (partials_.bytes() < bytes) partials_ = cuda_buffer(work_.device, bytes + bytes / 2);
      call.partials = partials_.address();
    }
    return blocks;
  }

  /// Both kernels' blocks may be there before the kernel before has ended, and wait for it: the time between two kernels is saved.
  void start(const cuda_kernel& kernel, index_t blocks, unsigned shared_bytes, std::array<void*, 3> arguments) {
    launch_shape shape;
    shape.grid_x = unsigned(blocks), shape.block_x = kernel.use->threads, shape.shared_bytes = shared_bytes;
    shape.programmatic = work_.device.arch() >= 90 && cuda().launch_extended != nullptr;
    kernel.function->launch(work_.stream, shape, arguments.data());
  }

  /// Shared memory with which no more than 1, 2, .. blocks are on a multiprocessor, up to as many as can be. Blocks that come early would
  /// crowd on those multiprocessors that are free first.
  const std::vector<unsigned>& residence_of(const cuda_kernel& kernel) {
    std::vector<unsigned>& bytes = residence_[kernel.function];
    if (!bytes.empty()) return bytes;
    const auto fitting = [&](unsigned shared) { return std::max(1, kernel.function->blocks_per_sm(int(kernel.use->threads), shared)); };
    const unsigned limit = unsigned(std::max<std::size_t>(work_.device.shared_limit_bytes(), kernel.use->shared_bytes));
    kernel.function->allow_shared_bytes(limit);
    bytes.assign(std::size_t(fitting(kernel.use->shared_bytes)), kernel.use->shared_bytes);
    for (std::size_t i = bytes.size() - 1; i-- > 0;) {
      unsigned wanted = bytes[i + 1];
      while (wanted + 4096 <= limit && fitting(wanted) > int(i) + 1) wanted += 4096;
      bytes[i] = wanted;
    }
    return bytes;
  }

  cuda_work& work_;
  device_tile_maps& maps_;
  std::unordered_map<const cuda_function*, std::vector<unsigned>> residence_;
  cuda_buffer partials_;
  const index_t least_keys_;
};

}  // namespace samite::detail
