// samite/run/cuda_attention_sm90.hpp: launches of the attention kernels for sm_90a.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include <samite/run/cuda_attention.hpp>
#include <samite/run/cuda_work.hpp>
#include <samite/run/device_tile_maps.hpp>

namespace samite::detail {

class cuda_attention_sm90 {
 public:
  cuda_attention_sm90(cuda_work& work, device_tile_maps& maps) : work_(work), maps_(maps), counter_(work.device, 0) {}

  /// Runs the forward pass if the node has a kernel for sm_90a and the sizes and strides suit it.
  ///
  /// mask_bytes   those of struct keep_mask
  /// score_bytes  those of struct score_function; a kernel without one does not look at them
  bool forward(const launch& l, const device_attention& p, const std::shared_ptr<const program>& mask, std::vector<std::byte>& mask_bytes, std::vector<std::byte>& score_bytes) {
    if (!work_.has(l, kernel_role::attention_sm90) || !fits(p)) return false;
    const cuda_kernel& kernel = work_.kernel(l, kernel_role::attention_sm90);
    const index_t rows = kernel.use->block_rows, keys = kernel.use->block_keys, items = (p.queries + rows - 1) / rows * p.heads * p.batch;
    if (items >= most) return false;
    device_sm90_attention call;
    call.p = p;
    if (!encode(call.Q, l.inputs[0], rows) || !encode(call.K, l.inputs[1], keys) || !encode(call.V, l.inputs[2], keys)) return false;
    const device_tile_maps::bit_lists found = lists_of(l, kernel_role::attention_bits, p, mask, mask_bytes, rows, keys);
    if (!found.fits) return false;
    call.lists = found.lists;
    call.lists.section = std::min(heads_in_cache(p.keys * channels(p) * 2) * (p.heads / p.key_heads), p.heads * p.batch);
    if (counter_.bytes() == 0) {
      counter_ = cuda_buffer(work_.device, 8);
      counter_.fill_zero(work_.stream);
    }
    call.lists.counter = counter_.address();
    start(kernel, std::min<index_t>(items, work_.device.sm_count()), call, score_bytes);
    return true;
  }

  /// How a gradient is computed, and the scratch memory that it needs.
  struct gradient_plan {
    bool serves = false;
    index_t row_stride = 0;      // rows a head of row_lse and row_delta
    std::size_t sums_bytes = 0;  // of dQ's sums in fp32, fused only
    device_sm90_lists key_lists, query_lists;
  };

  gradient_plan plan_gradient(const launch& l, const device_attention& p, const std::shared_ptr<const program>& mask, std::vector<std::byte>& mask_bytes) {
    gradient_plan plan;
    if (!work_.has(l, kernel_role::sm90_keys) || !fits(p)) return plan;
    const kernel_use& kernel = *work_.kernel(l, kernel_role::sm90_keys).use;
    const index_t queries = kernel.block_keys, keys = kernel.block_rows;
    plan.row_stride = (p.queries + row_padding - 1) / row_padding * row_padding;
    if (plan.row_stride / queries * p.heads * p.batch >= most || (p.keys + keys - 1) / keys * p.heads * p.batch >= most) return plan;
    const device_tile_maps::bit_lists by_keys = lists_of(l, kernel_role::sm90_key_bits, p, mask, mask_bytes, queries, keys);
    if (!by_keys.fits) return plan;
    plan.key_lists = by_keys.lists;
    if (work_.has(l, kernel_role::sm90_finish)) {
      plan.sums_bytes = std::size_t(p.batch * p.heads * plan.row_stride) * std::size_t((p.head_dim + 63) / 64 * 64) * 4;
    } else {
      const kernel_use& other = *work_.kernel(l, kernel_role::sm90_queries).use;
      const device_tile_maps::bit_lists by_queries = lists_of(l, kernel_role::attention_bits, p, mask, mask_bytes, other.block_rows, other.block_keys);
      if (!by_queries.fits) return plan;
      plan.query_lists = by_queries.lists;
    }
    plan.serves = true;
    return plan;
  }

  /// Runs a gradient that plan_gradient serves, if the tensors' strides allow it.
  ///
  /// d_out        in the type of Q
  /// score_bytes  as in forward
  /// sums         memory of plan.sums_bytes; p.row_lse and p.row_delta have plan.row_stride rows a head
  bool backward(const gradient_plan& plan, const launch& l, const device_attention& p, bool has_sink, const tensor_view& d_out, std::byte* sums, std::vector<std::byte>& score_bytes) {
    const cuda_kernel& kernel = work_.kernel(l, kernel_role::sm90_keys);
    const index_t queries = kernel.use->block_keys, keys = kernel.use->block_rows, key_blocks = (p.keys + keys - 1) / keys * p.key_heads * p.batch;
    device_sm90_gradient call;
    call.p = p, call.row_stride = plan.row_stride, call.dQ_sums = sums;
    if (!encode(call.Q, l.inputs[0], queries) || !encode(call.K, l.inputs[1], keys) || !encode(call.V, l.inputs[2], keys) || !encode(call.d_out, d_out, queries)) return false;
    const index_t rows = p.batch * p.heads * plan.row_stride, group = p.heads / p.key_heads, row_bytes = p.queries * channels(p) * 2;
    work_.start(work_.kernel(l, kernel_role::sm90_prepare), rows / row_padding, call);
    const bool fused = plan.sums_bytes != 0;
    if (fused) check_cuda(cuda().fill_bytes_async(address_of(sums), 0, plan.sums_bytes, work_.stream.handle()), "zeroing the sums of dQ");
    call.lists = plan.key_lists;
    call.lists.section = std::min(heads_in_cache(group * (row_bytes + (fused ? p.queries * p.head_dim * 4 : 0))), p.key_heads * p.batch);
    start(kernel, key_blocks, call, score_bytes);
    if (work_.has(l, kernel_role::sm90_values)) start(work_.kernel(l, kernel_role::sm90_values), key_blocks, call, score_bytes);
    if (fused) {
      work_.start(work_.kernel(l, kernel_role::sm90_finish), rows / queries, call);
    } else {
      const cuda_kernel& other = work_.kernel(l, kernel_role::sm90_queries);
      const index_t tile = other.use->block_rows, step = other.use->block_keys;
      const bool encoded = encode(call.Q, l.inputs[0], tile) && encode(call.d_out, d_out, tile) && encode(call.K, l.inputs[1], step) && encode(call.V, l.inputs[2], step);
      ensure(encoded, "what boxes of one height cut is cut by boxes of another");
      call.lists = plan.query_lists;
      call.lists.section = std::min(heads_in_cache(p.keys * channels(p) * 2) * group, p.heads * p.batch);
      start(other, plan.row_stride / tile * p.heads * p.batch, call, score_bytes);
    }
    if (has_sink) {
      std::byte* d_sink = l.outputs.back().data;
      index_t stride = plan.row_stride;
      void* arguments[] = {&call.p, &d_sink, &stride};
      work_.start(work_.kernel(l, kernel_role::sm90_sink_gradient), p.heads, 1, arguments);
    }
    return true;
  }

  /// A TMA descriptor of a [B,H,rows,D] operand with boxes of 64 columns of `rows` rows; false if TMA can't address it.
  static bool encode(tensor_map& map, const tensor_view& v, index_t rows) {
    if (cuda().encode_tensor_map == nullptr || v.strides[3] != 1) return false;
    std::uint64_t dims[4] = {std::uint64_t(v.dims[3]), std::uint64_t(v.dims[2]), std::uint64_t(v.dims[1]), std::uint64_t(v.dims[0])}, strides[3];
    for (int i = 0; i < 3; ++i) {  // the stride of an axis of one element is never used, but must be a fitting number
      strides[i] = v.dims[std::size_t(2 - i)] > 1 ? std::uint64_t(v.strides[std::size_t(2 - i)]) * 2 : 256;
      if (strides[i] == 0 || strides[i] % 16 != 0 || strides[i] >= std::uint64_t(1) << 40) return false;
    }
    for (const std::uint64_t d : dims)
      if (d < 1 || d > std::uint64_t(1) << 31) return false;
    if (address_of(v.data) % 16 != 0) return false;
    const std::uint32_t box[4] = {64, std::uint32_t(rows), 1, 1}, steps[4] = {1, 1, 1, 1};
    constexpr int swizzle_128 = 3, promote_256 = 3;
    return cuda().encode_tensor_map(&map, v.type == dtype::bf16 ? 9 : 6, 4, const_cast<std::byte*>(v.data), dims, strides, box, steps, 0, swizzle_128, promote_256, 0) == 0;
  }

 private:
  static constexpr index_t most = index_t(1) << 31, row_padding = 128;  // the latter is sm90_row_padding of the kernels

  template <class Call> void start(const cuda_kernel& kernel, index_t blocks, Call& call, std::vector<std::byte>& score_bytes) {
    void* arguments[] = {&call, score_bytes.data()};
    work_.start(kernel, blocks, 1, arguments);
  }

  static bool fits(const device_attention& p) { return p.keys > 0 && p.queries > 0 && std::max(p.queries, p.keys) < most; }
  static index_t channels(const device_attention& p) { return index_t(p.head_dim) + p.value_dim; }

  /// Heads, at least 1, whose bytes take 32 MB together, a large part of the L2.
  static index_t heads_in_cache(index_t head_bytes) { return std::max<index_t>(1, (index_t(32) << 20) / std::max<index_t>(1, head_bytes)); }

  /// The lists of a mask for tiles of queries by keys, their bit tiles filled by the kernel of that role.
  device_tile_maps::bit_lists lists_of(const launch& l, kernel_role role, const device_attention& p, const std::shared_ptr<const program>& mask, std::vector<std::byte>& mask_bytes,
                                       index_t queries, index_t keys) {
    device_tile_maps::bit_lists found = maps_.get_bits(work_.stream, mask, work_.step, p.batch, p.heads, p.queries, p.keys, queries, keys, role == kernel_role::sm90_key_bits);
    found.fits = found.fits && found.runs < most;
    if (found.fits && found.fresh > 0) {
      device_address undecided = found.undecided, bits = found.lists.bits;
      index_t query_count = p.queries, key_count = p.keys;
      void* arguments[] = {&undecided, &bits, &query_count, &key_count, mask_bytes.data()};
      work_.start(work_.kernel(l, role), found.fresh, 1, arguments);
    }
    return found;
  }

  cuda_work& work_;
  device_tile_maps& maps_;
  cuda_buffer counter_;  // of the persistent kernels' items; 0 between launches
};

}  // namespace samite::detail
