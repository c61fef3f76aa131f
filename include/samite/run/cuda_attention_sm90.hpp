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
  /// has_score    whether there is a score function but the identity
  /// score_bytes  those of struct score_function; a kernel without one does not look at them
  bool forward(const launch& l, const device_attention& p, const std::shared_ptr<const program>& mask, std::vector<std::byte>& mask_bytes, bool has_score, std::vector<std::byte>& score_bytes) {
    if (!work_.has(l, kernel_role::attention_sm90) || !fits(p)) return false;
    const cuda_kernel& kernel = work_.kernel(l, kernel_role::attention_sm90);
    const index_t rows = kernel.use->block_rows, keys = kernel.use->block_keys;
    if (blocks_of(p.queries, rows / 8) * p.heads * p.batch >= most) return false;
    device_sm90_attention call;
    call.p = p;
    const tensor_view &K = l.inputs[1], &V = l.inputs[2];
    if (!encode(l, 0, call.Q, l.inputs[0], rows) || !encode(l, 1, call.K, K, keys) || !encode(l, 2, call.V, V, keys)) return false;
    const device_tile_maps::bit_lists found = lists_of(l, kernel_role::attention_bits, p, mask, mask_bytes, rows_by_queries(p, mask, rows, keys, has_score));
    if (!found.fits) return false;
    if (!encode(l, 3, call.Q, l.inputs[0], rows / found.pack, found.pack) || !encode(l, 4, call.narrow_K, K, narrow_columns) || !encode(l, 5, call.narrow_V, V, narrow_columns)) return false;
    call.boxes_out = 64 % found.pack == 0 && encode(l, 6, call.out, l.outputs[0], 64 / found.pack, found.pack);
    call.lists = found.lists;
    const index_t items = blocks_of(p.queries, rows / found.pack) * (p.heads / found.pack) * p.batch;
    call.lists.section = std::min(heads_in_cache(p.keys * channels(p) * 2) * (p.heads / p.key_heads), p.heads * p.batch) / found.pack;
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

  /// captures  whether gradients of elements that a score function reads are summed: each head then has tiles of its own
  gradient_plan plan_gradient(const launch& l, const device_attention& p, const std::shared_ptr<const program>& mask, std::vector<std::byte>& mask_bytes, bool has_score, bool captures) {
    gradient_plan plan;
    if (!work_.has(l, kernel_role::sm90_keys) || !fits(p)) return plan;
    const kernel_use& kernel = *work_.kernel(l, kernel_role::sm90_keys).use;
    const index_t queries = kernel.block_keys, keys = kernel.block_rows;
    plan.row_stride = (p.queries + row_padding - 1) / row_padding * row_padding;
    if (plan.row_stride / queries * p.heads * p.batch >= most || (p.keys + keys - 1) / keys * p.heads * p.batch >= most) return plan;
    const device_tile_maps::bit_lists by_keys = lists_of(l, kernel_role::sm90_key_bits, p, mask, mask_bytes, {.queries = queries, .keys = keys, .by_keys = true});
    if (!by_keys.fits) return plan;
    plan.key_lists = by_keys.lists;
    if (work_.has(l, kernel_role::sm90_finish)) {
      plan.sums_bytes = std::size_t(p.batch * p.heads * plan.row_stride) * std::size_t((p.head_dim + 63) / 64 * 64) * 4;
    } else {
      const kernel_use& other = *work_.kernel(l, kernel_role::sm90_queries).use;
      const device_tile_maps::bit_lists by_queries = lists_of(l, kernel_role::attention_bits, p, mask, mask_bytes, rows_by_queries(captures ? without_groups(p) : p, mask, other.block_rows, other.block_keys, has_score));
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
    if (!encode(l, 0, call.Q, l.inputs[0], queries) || !encode(l, 1, call.K, l.inputs[1], keys) || !encode(l, 2, call.V, l.inputs[2], keys) || !encode(l, 3, call.d_out, d_out, queries)) return false;
    const index_t rows = p.batch * p.heads * plan.row_stride, group = p.heads / p.key_heads, row_bytes = p.queries * channels(p) * 2;
    work_.start(work_.kernel(l, kernel_role::sm90_prepare), rows / row_padding, call);
    const bool fused = plan.sums_bytes != 0;
    if (fused) check_cuda(cuda().fill_bytes_async(address_of(sums), 0, plan.sums_bytes, work_.stream.handle()), "zeroing the sums of dQ");
    call.lists = plan.key_lists;
    // As many heads as the cache holds, but blocks for every multiprocessor: else the rest would wait for the section's longest list.
    const index_t cached = heads_in_cache(group * (row_bytes + (fused ? p.queries * p.head_dim * 4 : 0))), busy = blocks_of(work_.device.sm_count(), blocks_of(p.keys, keys));
    call.lists.section = std::min(std::max(cached, busy), p.key_heads * p.batch);
    start(kernel, key_blocks, call, score_bytes);
    if (work_.has(l, kernel_role::sm90_values)) start(work_.kernel(l, kernel_role::sm90_values), key_blocks, call, score_bytes);
    if (fused) {
      work_.start(work_.kernel(l, kernel_role::sm90_finish), rows / queries, call);
    } else {
      const cuda_kernel& other = work_.kernel(l, kernel_role::sm90_queries);
      const index_t tile = other.use->block_rows, step = other.use->block_keys;
      call.lists = plan.query_lists;
      const index_t pack = call.lists.pack, tokens = tile / pack;
      const bool encoded = encode(l, 4, call.Q, l.inputs[0], tokens, pack) && encode(l, 5, call.d_out, d_out, tokens, pack) && encode(l, 6, call.K, l.inputs[1], step) && encode(l, 7, call.V, l.inputs[2], step) &&
                           encode(l, 8, call.narrow_K, l.inputs[1], narrow_columns) && encode(l, 9, call.narrow_V, l.inputs[2], narrow_columns);
      ensure(encoded, "what boxes of one shape cut is cut by boxes of another");
      call.lists.section = std::min(heads_in_cache(p.keys * channels(p) * 2) * group, p.heads * p.batch) / pack;
      start(other, blocks_of(p.queries, tokens) * (p.heads / pack) * p.batch, call, score_bytes);
    }
    if (has_sink) {
      std::byte* d_sink = l.outputs.back().data;
      index_t stride = plan.row_stride;
      void* arguments[] = {&call.p, &d_sink, &stride};
      work_.start(work_.kernel(l, kernel_role::sm90_sink_gradient), p.heads, 1, arguments);
    }
    return true;
  }

  /// A TMA descriptor of a [B,H,rows,D] operand with boxes of 64 columns of `rows` rows; false if TMA can't address it. The node keeps it for as long as
  /// the operand stays the same.
  ///
  /// place  in the node's launches, below 10: its own for each operand and kind of box
  /// pack   not 0: with an axis more, [B,H / pack,rows,pack,D], whose boxes hold it whole
  static bool encode(const launch& l, std::size_t place, tensor_map& map, const tensor_view& v, index_t rows, index_t pack = 0) {
    encoded_boxes& known = cuda_work::node_of(l).boxes[place];
    if (!known.is_of(v, rows, pack)) {
      known = {v.data, v.dims, v.strides, rows, pack};
      known.served = encode_boxes(known.map, v, rows, pack);
    }
    map = known.map;
    return known.served;
  }

 private:
  static bool encode_boxes(tensor_map& map, const tensor_view& v, index_t rows, index_t pack) {
    if (cuda().encode_tensor_map == nullptr || v.strides[3] != 1) return false;
    struct axis {
      index_t length, stride;
      std::uint32_t box;
    };
    axis axes[5];
    int count = 0;
    axes[count++] = {v.dims[3], 1, 64};
    if (pack != 0) axes[count++] = {pack, v.strides[1], std::uint32_t(pack)};
    axes[count++] = {v.dims[2], v.strides[2], std::uint32_t(rows)};
    axes[count++] = {v.dims[1] / std::max<index_t>(1, pack), v.strides[1] * std::max<index_t>(1, pack), 1};
    axes[count++] = {v.dims[0], v.strides[0], 1};
    std::uint64_t dims[5], strides[5];
    std::uint32_t box[5], steps[5] = {1, 1, 1, 1, 1};
    for (int i = 0; i < count; ++i) {  // the stride of an axis of one element is never used, but must be a fitting number
      const std::uint64_t stride = axes[i].length > 1 ? std::uint64_t(axes[i].stride) * 2 : 256;
      if (i > 0 && (stride == 0 || stride % 16 != 0 || stride >= std::uint64_t(1) << 40)) return false;
      if (axes[i].length < 1 || axes[i].length > index_t(1) << 31) return false;
      dims[i] = std::uint64_t(axes[i].length), box[i] = axes[i].box;
      if (i > 0) strides[i - 1] = stride;
    }
    if (address_of(v.data) % 16 != 0) return false;
    constexpr int swizzle_128 = 3, promote_256 = 3;
    return cuda().encode_tensor_map(&map, v.type == dtype::bf16 ? 9 : 6, std::uint32_t(count), const_cast<std::byte*>(v.data), dims, strides, box, steps, 0, swizzle_128, promote_256, 0) == 0;
  }

  static constexpr index_t most = index_t(1) << 31, row_padding = 128;  // the latter is sm90_row_padding of the kernels

  template <class Call> void start(const cuda_kernel& kernel, index_t blocks, Call& call, std::vector<std::byte>& score_bytes) {
    void* arguments[] = {&call, score_bytes.data()};
    work_.start(kernel, blocks, 1, arguments);
  }

  static bool fits(const device_attention& p) { return p.keys > 0 && p.queries > 0 && std::max(p.queries, p.keys) < most; }
  static index_t channels(const device_attention& p) { return index_t(p.head_dim) + p.value_dim; }

  /// Heads, at least 1, whose bytes take 32 MB together, a large part of the L2.
  static index_t heads_in_cache(index_t head_bytes) { return std::max<index_t>(1, (index_t(32) << 20) / std::max<index_t>(1, head_bytes)); }

  static device_attention without_groups(device_attention p) {
    p.key_heads = p.heads;
    return p;
  }
  static index_t blocks_of(index_t length, index_t block) { return (length + block - 1) / block; }

  /// Lists for blocks of rows of queries.
  static device_tile_maps::bit_options rows_by_queries(const device_attention& p, const std::shared_ptr<const program>& mask, index_t rows, index_t keys, bool has_score) {
    device_tile_maps::bit_options o{.queries = rows, .keys = keys, .narrows = mask != nullptr && keys == 128 && !has_score};
    if (mask) o.most_pack = heads_to_pack(*mask, p.heads / p.key_heads, has_score);
    return o;
  }

  /// The lists of a mask, their bit tiles filled by the kernel of that role.
  device_tile_maps::bit_lists lists_of(const launch& l, kernel_role role, const device_attention& p, const std::shared_ptr<const program>& mask, std::vector<std::byte>& mask_bytes,
                                       const device_tile_maps::bit_options& options) {
    device_tile_maps::bit_lists found = maps_.get_bits(work_.stream, mask, work_.step, p.batch, p.heads, p.queries, p.keys, options);
    found.fits = found.fits && found.runs < most;
    if (found.fits && found.fresh > 0) {
      device_address undecided = found.undecided, bits = found.lists.bits, needs = found.lists.needs;
      index_t query_count = p.queries, key_count = p.keys;
      std::int32_t pack = std::int32_t(found.pack);
      void* arguments[] = {&undecided, &bits, &needs, &query_count, &key_count, &pack, mask_bytes.data()};
      work_.start(work_.kernel(l, role), found.fresh, 1, arguments);
    }
    return found;
  }

  cuda_work& work_;
  device_tile_maps& maps_;
  cuda_buffer counter_;  // of the persistent kernels' items; 0 between launches
};

}  // namespace samite::detail
