// samite/run/cuda_attention_nodes.hpp: attention and its gradient on a GPU.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <samite/emit/attention.hpp>
#include <samite/run/cuda_attention.hpp>
#include <samite/run/cuda_attention_decode.hpp>
#include <samite/run/cuda_attention_sm90.hpp>
#include <samite/run/cuda_row_nodes.hpp>
#include <samite/run/cuda_work.hpp>
#include <samite/run/device_tile_maps.hpp>
#include <samite/run/score_ranges.hpp>

namespace samite::detail {

class cuda_attention_nodes {
 public:
  /// errors  E-ENV-VALUE
  cuda_attention_nodes(cuda_work& work, cuda_row_nodes& rows) : work_(work), rows_(rows), sm90_(work, maps_), decode_(work, maps_) { attention_is_portable(), attention_is_deterministic(); }

  void forward(const launch& l, const attention_node& a) {
    device_attention p = attention_parameters(l, a.scale);
    if (p.batch == 0 || p.queries == 0) return;
    p.out = device_attention_tensor(l.outputs[0]);
    p.lse = l.outputs[1].data;
    const std::span<const tensor_view> tensors = l.inputs.subspan(3, std::size_t(a.tensors));
    std::vector<std::byte>&mask = mask_parameters(l, a.mask), &score = score_parameters(l, a, tensors, p);
    place_sink(l, a, p, work_.scratch(std::size_t(p.heads) * 8));
    if (decode_.forward(l, p, a.mask, mask, score) || (work_.node_of(l).score_is_narrow && sm90_.forward(l, p, a.mask, mask, a.score != nullptr, score))) return;
    const cuda_kernel& kernel = work_.kernel(l, kernel_role::attention);
    if (a.mask && p.keys > 0)
      p.lists = maps_.get(work_.stream, a.mask, work_.step, p.batch, p.heads, p.queries, p.keys, false, rows_of_lists(kernel)).rows;
    start_attention(kernel, p, mask, score, p.queries, p.heads);
  }

  void backward(const launch& l, const attention_gradient_node& a) {
    device_attention p = attention_parameters(l, a.scale);
    if (p.batch == 0) {
      for (const tensor_view& v : l.outputs) work_.clear(v);
      return;
    }
    const dtype type = l.inputs[0].type, sums = sums_of(l);
    p.dQ = device_attention_tensor(l.outputs[0]), p.dK = device_attention_tensor(l.outputs[1]), p.dV = device_attention_tensor(l.outputs[2]);
    const index_t rows = p.batch * p.heads * p.queries;
    if (rows == 0 || (p.keys == 0 && !a.has_sink)) {  // nothing meets anything
      for (const tensor_view& v : l.outputs) work_.clear(v);
      return;
    }
    const std::span<const tensor_view> tensors = l.inputs.subspan(a.has_lse_gradient ? 7 : 6, std::size_t(a.tensors)), tensor_gradients = l.outputs.subspan(3, std::size_t(a.tensors));
    const cuda_attention_sm90::gradient_plan plan = sm90_.plan_gradient(l, p, a.mask, mask_parameters(l, a.mask), a.score != nullptr, a.tensors > 0);
    // Scratch: row_lse, row_delta, copies of what arrives in another dtype, and the sums of the score tensors' gradients and of dQ.
    std::size_t scratch_bytes = 0;
    const auto place = [&](std::size_t bytes) { return std::exchange(scratch_bytes, scratch_bytes + (bytes + 255) / 256 * 256); };
    const bool cast_d_out = l.inputs[5].type != type, has_d_lse = a.has_lse_gradient, cast_d_lse = has_d_lse && l.inputs[6].type != sums;
    const std::size_t row_bytes = std::size_t(rows) * size_of(sums), padded_bytes = std::size_t(p.batch * p.heads * std::max(p.queries, plan.row_stride)) * size_of(sums);
    const bool fused = work_.has(l, kernel_role::attention_finish);
    const index_t channels = (p.head_dim + 15) / 16 * 16;  // as the fused kernel pads them
    const std::size_t sums_bytes = fused ? std::size_t(p.batch * p.heads * ((p.queries + 63) / 64 * 64) * channels) * 4 : 0;
    const std::size_t lse_at = place(padded_bytes), delta_at = place(padded_bytes), query_sums_at = place(std::max(plan.sums_bytes, sums_bytes));
    const std::size_t d_out_at = place(cast_d_out ? std::size_t(l.inputs[5].size()) * size_of(type) : 0), d_lse_at = place(cast_d_lse ? row_bytes : 0), sink_at = place(std::size_t(p.heads) * 8);
    constexpr std::size_t most_words = std::size_t(1) << 28;  // bytes a tensor; see ADR 7
    std::vector<std::size_t> words_at;
    const auto words_bytes = [&](const tensor_view& v) { return std::size_t(v.size()) * score_sum_words * 8; };
    for (const tensor_view& v : tensor_gradients) words_at.push_back(words_bytes(v) <= most_words ? place(words_bytes(v)) : std::size_t(-1));
    std::byte* memory = work_.scratch(scratch_bytes);
    p.row_lse = memory + lse_at, p.row_delta = memory + delta_at;
    tensor_view converted;
    if (cast_d_out) {
      converted = dense_view(memory + d_out_at, type, l.inputs[5].dims);
      rows_.convert(l, kernel_role::convert, l.inputs[5], converted);
    }
    const tensor_view& d_out = cast_d_out ? converted : l.inputs[5];
    p.d_out = device_attention_tensor(d_out);
    place_sink(l, a, p, memory + sink_at);
    std::vector<element_sums> element_places;
    for (std::size_t i = 0; i < words_at.size(); ++i) {
      const tensor_view& v = tensor_gradients[i];
      if (words_at[i] == std::size_t(-1)) element_places.push_back({nullptr, v.data}), work_.clear(v);
      else element_places.push_back({memory + words_at[i], nullptr}), work_.clear(dense_view(memory + words_at[i], dtype::u8, {index_t(words_bytes(v))}));
    }
    p.out = device_attention_tensor(l.inputs[3]);
    p.lse = l.inputs[4].data;
    if (cast_d_lse) {
      const tensor_view d_lse = dense_view(memory + d_lse_at, sums, l.inputs[6].dims);
      rows_.convert(l, kernel_role::convert_lse, l.inputs[6], d_lse);
      p.d_lse = d_lse.data;
    } else if (has_d_lse) {
      p.d_lse = l.inputs[6].data;
    }
    std::vector<std::byte>&mask = mask_parameters(l, a.mask), &score = score_parameters(l, a, tensors, p, element_places);
    const auto finish_elements = [&](kernel_role role) {
      for (std::size_t i = 0; i < words_at.size(); ++i) {
        if (element_places[i].words == nullptr) continue;
        std::byte *words = element_places[i].words, *out = tensor_gradients[i].data;
        index_t elements = tensor_gradients[i].size();
        void* arguments[] = {&words, &out, &elements};
        if (elements > 0) work_.start(work_.kernel(l, role), work_.stride_blocks((elements + 255) / 256), 1, arguments);
      }
    };
    if (plan.serves && work_.node_of(l).score_is_narrow && sm90_.backward(plan, l, p, a.has_sink, d_out, memory + query_sums_at, score)) {
      finish_elements(kernel_role::sm90_sums);
      return;
    }
    work_.start(work_.kernel(l, kernel_role::attention_prepare), work_.stride_blocks((rows + 7) / 8), p);
    const cuda_kernel& keys = work_.kernel(l, kernel_role::attention_key_gradient);
    const auto lists = [&](bool by_keys, index_t key_rows) {
      return maps_.get(work_.stream, a.mask, work_.step, p.batch, p.heads, p.queries, p.keys, by_keys, device_tile_maps::tile, key_rows);
    };
    device_tile_maps::lists found;
    if (a.mask && p.keys > 0) found = lists(true, rows_of_lists(keys));
    p.lists = found.columns;
    std::byte* query_sums = memory + query_sums_at;
    if (fused) {
      check_cuda(cuda().fill_bytes_async(address_of(query_sums), 0, sums_bytes, work_.stream.handle()), "zeroing the sums of dQ");
      start_attention(keys, p, mask, score, p.keys, p.key_heads, query_sums);
      void* arguments[] = {&p, &query_sums};
      work_.start(work_.kernel(l, kernel_role::attention_finish), work_.stride_blocks(index_t(sums_bytes / 64 + 255) / 256), 1, arguments);
    } else {
      start_attention(keys, p, mask, score, p.keys, p.key_heads);
      if (a.mask && p.keys > 0 && rows_of_lists(keys) != device_tile_maps::tile) found = lists(false, device_tile_maps::tile);
      p.lists = found.rows;
      start_attention(work_.kernel(l, kernel_role::attention_query_gradient), p, mask, score, p.queries, p.heads);
    }
    finish_elements(kernel_role::attention_sums);
    if (a.has_sink) {
      std::byte* d_sink = l.outputs.back().data;
      void* arguments[] = {&p, &d_sink, &p.queries};
      work_.start(work_.kernel(l, kernel_role::attention_sink_gradient), p.heads, 1, arguments);
    }
  }

 private:
  device_attention attention_parameters(const launch& l, double scale) {
    device_attention p;
    const tensor_view &Q = l.inputs[0], &K = l.inputs[1], &V = l.inputs[2];
    p.Q = device_attention_tensor(Q), p.K = device_attention_tensor(K), p.V = device_attention_tensor(V);
    p.batch = Q.dims[0], p.heads = Q.dims[1], p.key_heads = K.dims[1], p.queries = Q.dims[2], p.keys = K.dims[2];
    p.head_dim = std::int32_t(Q.dims[3]), p.value_dim = std::int32_t(V.dims[3]), p.scale = scale;
    if (std::max(Q.dims[3], V.dims[3]) > attention_head_limit)
      raise("E-ATTN-HEAD-DIM", "attention \"", l.node.label, "\": heads of ", Q.dims[3], " (q, k) and ", V.dims[3], " (v) channels; the GPU kernels serve at most ",
            attention_head_limit, "; use more heads of fewer channels, or device::cpu()");
    return p;
  }

  /// The tables that a mask or score function reads, as they were when the step began, and their copies on the device.
  struct captured_tables {
    std::vector<std::shared_ptr<const table_contents>> contents;
    std::vector<std::uint64_t> addresses;
  };
  captured_tables tables_of(const program& p) {
    captured_tables found;
    for (const auto& table : p.tables()) {
      found.contents.push_back(work_.step.read(table));
      found.addresses.push_back(tables_.get(work_.stream, table, found.contents.back()));
    }
    return found;
  }
  /// Whether what was packed before still says it all. The copies on the device are brought up to date in any case: another node may
  /// have used other contents of the same table.
  bool is_packed(captured_values& known, const program& p) {
    for (const auto& table : p.tables()) tables_.get(work_.stream, table, work_.step.read(table));
    return !known.update(p, work_.step);
  }

  /// The bytes of struct keep_mask.
  std::vector<std::byte>& mask_parameters(const launch& l, const std::shared_ptr<const program>& mask) {
    cuda_node& node = work_.node_of(l);
    if (mask ? is_packed(node.mask_values, *mask) : !node.mask_bytes.empty()) return node.mask_bytes;
    node.mask_values.forget();  // until all of it is done
    node.mask_bytes = mask ? packed_mask(l, *mask) : std::vector<std::byte>(8);
    if (mask) node.mask_values.update(*mask, work_.step);
    return node.mask_bytes;
  }
  std::vector<std::byte> packed_mask(const launch& l, const program& mask) {
    const std::size_t bytes = mask_arguments_bytes(mask);
    if (bytes + sizeof(device_attention) + 16 > kernel_parameter_limit)
      raise("E-EMIT-PARAMETERS", "attention \"", l.node.label, "\": the mask's ", mask.arguments().size(), " numbers and ", mask.tables().size(), " tables need ", bytes,
            " bytes of parameters and a launch takes ", kernel_parameter_limit, "; put numbers that change together into one table");
    const captured_tables tables = tables_of(mask);
    std::vector<std::byte> packed = pack_mask_arguments(mask, tables.contents, tables.addresses);
    for (std::size_t i = 0; i < mask.arguments().size(); ++i) {  // numbers too are those of the step's start
      const index_t number = work_.step.read(mask.arguments()[i]).index;
      std::memcpy(packed.data() + 8 * i, &number, 8);
    }
    return packed;
  }

  /// The bytes of struct score_function; with where the gradients of its tensors are summed, if they are.
  std::vector<std::byte>& score_parameters(const launch& l, const attention_terms& a, std::span<const tensor_view> tensors, const device_attention& p,
                                           const std::vector<element_sums>& sums = {}) {
    cuda_node& node = work_.node_of(l);
    if (!a.score) {
      if (node.score_bytes.empty()) node.score_bytes.resize(8);
      return node.score_bytes;
    }
    if (is_packed(node.score_values, *a.score) && node.score_views == l.views && node.score_sums == sums) return node.score_bytes;
    node.score_values.forget();
    // The indices are judged anew whenever a view, a length or what the function captures is another.
    const index_box box = index_box::whole(p.batch, p.heads, std::max<index_t>(1, p.queries), std::max<index_t>(1, p.keys));
    if (p.queries > 0 && p.keys > 0) check_score_ranges(*a.score, {tensors.begin(), tensors.end()}, box);
    node.score_bytes = packed_score(l, a, tensors, sums);
    node.score_is_narrow = is_narrow_score(*a.score, {tensors.begin(), tensors.end()}, box) && sizeof(device_sm90_gradient) + node.score_bytes.size() <= kernel_parameter_limit;
    node.score_values.update(*a.score, work_.step);
    node.score_views = l.views, node.score_sums = sums;
    return node.score_bytes;
  }
  std::vector<std::byte> packed_score(const launch& l, const attention_terms& a, std::span<const tensor_view> tensors, const std::vector<element_sums>& sums) {
    const std::size_t bytes = score_arguments_bytes(*a.score, tensors.size()) + (a.mask ? mask_arguments_bytes(*a.mask) : 8);
    if (bytes + sizeof(device_attention) + 32 > kernel_parameter_limit)
      raise("E-EMIT-PARAMETERS", "attention \"", l.node.label, "\": what its mask and its score function capture needs ", bytes, " bytes of parameters and a launch takes ",
            kernel_parameter_limit, "; put numbers that change together into one table or tensor");
    std::vector<score_number_argument> numbers;
    for (const auto& cell : a.score->arguments()) {
      const step_snapshot::number n = work_.step.read(cell);
      numbers.push_back({n.real, n.index});
    }
    std::vector<score_tensor_argument> elements;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const tensor_view& v = tensors[i];
      elements.push_back({address_of(v.data), v.dims, v.strides, 0, 0});
      if (!sums.empty()) elements.back().words = address_of(sums[i].words), elements.back().direct = address_of(sums[i].direct);
    }
    const captured_tables tables = tables_of(*a.score);
    return pack_score_arguments(*a.score, numbers, elements, tables.contents, tables.addresses);
  }

  /// Rows of the tiles that the portable kernels' lists are of.
  static index_t rows_of_lists(const cuda_kernel& kernel) { return std::max<index_t>(64, kernel.use->block_rows); }

  void start_attention(const cuda_kernel& kernel, device_attention& p, std::vector<std::byte>& mask, std::vector<std::byte>& score, index_t rows, index_t heads, std::byte* sums = nullptr) {
    // Rows are padded to whole tiles of at least 64 rows, so that a block's tile is a whole fraction of one.
    const index_t tile = rows_of_lists(kernel), blocks = (rows + tile - 1) / tile * (tile / kernel.use->block_rows) * heads * p.batch;
    if (blocks == 0) return;
    void* arguments[] = {&p, mask.data(), score.data(), &sums};  // the last one of the fused gradient alone
    work_.start(kernel, blocks, 1, arguments);
  }

  static dtype sums_of(const launch& l) { return l.inputs[0].type == dtype::f64 ? dtype::f64 : dtype::f32; }

  /// The sink's logits as the kernels read them; `memory` takes them if they come otherwise.
  void place_sink(const launch& l, const attention_terms& a, device_attention& p, std::byte* memory) {
    if (!a.has_sink) return;
    const tensor_view& sink = l.inputs.back();
    p.sink = sink.data;
    if (sink.type == sums_of(l) && (sink.strides[0] == 1 || sink.dims[0] == 1)) return;
    rows_.convert(l, kernel_role::convert_sink, sink, dense_view(memory, sums_of(l), sink.dims));
    p.sink = memory;
  }

  cuda_work& work_;
  cuda_row_nodes& rows_;
  device_tables tables_;
  device_tile_maps maps_;
  cuda_attention_sm90 sm90_;
  cuda_attention_decode decode_;
};

}  // namespace samite::detail
