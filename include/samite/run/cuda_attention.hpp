// samite/run/cuda_attention.hpp: parameters of the attention kernels, and the tile lists and tables they read on the device.
#pragma once
#include <list>
#include <map>
#include <vector>

#include <samite/ir/table.hpp>
#include <samite/mask/tile_map.hpp>
#include <samite/run/backend.hpp>
#include <samite/runtime/cuda_driver.hpp>

namespace samite::detail {

// Mirrors of codegen/device/attention.cuh.

struct device_attention_tensor {
  const void* data = nullptr;
  index_t batch_stride = 0, head_stride = 0, row_stride = 0, column_stride = 0;
  std::int32_t vectors = 0, padding = 0;

  device_attention_tensor() = default;
  explicit device_attention_tensor(const tensor_view& v)
      : data(v.data), batch_stride(v.strides[0]), head_stride(v.strides[1]), row_stride(v.strides[2]), column_stride(v.strides[3]) {
    const index_t unit = index_t(16 / size_of(v.type));
    const auto steps = [&](int axis) { return v.dims[std::size_t(axis)] <= 1 || v.strides[std::size_t(axis)] % unit == 0; };
    vectors = v.strides[3] == 1 && v.dims[3] % unit == 0 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && steps(0) && steps(1) && steps(2);
  }
};

struct device_tile_run {
  std::int32_t first, last, full, padding = 0;
};

struct device_tile_lists {
  device_address runs = 0, begin = 0;
  index_t batch_lists = 0, head_lists = 0;
};

struct device_attention {
  device_attention_tensor Q, K, V, out, d_out, dQ, dK, dV;
  const void* lse = nullptr;
  const void* d_lse = nullptr;
  void* row_lse = nullptr;
  void* row_delta = nullptr;
  const void* sink = nullptr;
  index_t batch = 0, heads = 0, key_heads = 0, queries = 0, keys = 0;
  std::int32_t head_dim = 0, value_dim = 0;
  double scale = 1;
  device_tile_lists lists;
};

/// Captured numbers and tables as they were when the step began: read at their first use in it.
class step_snapshot {
 public:
  struct number {
    double real;
    index_t index;
  };

  void clear() { numbers_.clear(), tables_.clear(); }
  number read(const std::shared_ptr<scalar_cell>& cell) {
    const auto [found, fresh] = numbers_.try_emplace(cell.get());
    if (fresh) found->second = cell->kind() == value_kind::real ? number{cell->real(), index_t(cell->real())} : number{double(cell->index()), cell->index()};
    return found->second;
  }
  const std::shared_ptr<const table_contents>& read(const std::shared_ptr<const index_table>& table) {
    auto& held = tables_[table.get()];
    if (!held) held = table->contents();
    return held;
  }

 private:
  std::map<const scalar_cell*, number> numbers_;
  std::map<const index_table*, std::shared_ptr<const table_contents>> tables_;
};

/// Device copies of tables' values; a new version is copied over the old one, in stream order.
class device_tables {
 public:
  device_address get(const cuda_stream& stream, const std::shared_ptr<const index_table>& table, const std::shared_ptr<const table_contents>& contents) {
    auto found = copies_.find(table.get());
    const std::size_t bytes = contents->values().size() * sizeof(std::int32_t);
    if (found == copies_.end() || found->second.memory.bytes() < bytes) {
      const std::size_t reserved = std::max(bytes, std::size_t(table->capacity()) * sizeof(std::int32_t));
      if (found != copies_.end()) copies_.erase(found);
      found = copies_.emplace(table.get(), copy{table, nullptr, cuda_buffer(stream.device(), reserved)}).first;
    }
    copy& here = found->second;
    if (here.contents != contents) {
      here.memory.upload(stream, contents->values().data(), bytes);
      here.contents = contents;
    }
    return here.memory.address();
  }

 private:
  struct copy {
    std::shared_ptr<const index_table> owner;  // keeps the key unique
    std::shared_ptr<const table_contents> contents;
    cuda_buffer memory;
  };
  std::map<const index_table*, copy> copies_;
};

/// Tile lists of the masks used lately, by mask, numbers, table contents and lengths. Layers and steps share them.
class device_tile_maps {
 public:
  struct lists {
    device_tile_lists rows, columns;
  };

  lists get(const cuda_stream& stream, const std::shared_ptr<const program>& mask, step_snapshot& step, index_t B, index_t H, index_t Q, index_t K, bool with_columns) {
    key k{mask.get(), {B, H, Q, K}, {}};
    for (const auto& cell : mask->arguments()) k.numbers.push_back(step.read(cell).index);
    for (const auto& table : mask->tables()) k.tables.push_back(step.read(table));
    auto found = std::find_if(entries_.begin(), entries_.end(), [&](const entry& e) { return e.of == k; });
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
      if (!with_columns || found->has_columns) return found->value;
    } else if (entries_.size() < capacity) {
      entries_.push_front({k, mask, {}, false, cuda_buffer(stream.device(), 0), cuda_buffer(stream.device(), 0)});
    } else {  // the oldest entry's memory is used again, in stream order
      entries_.splice(entries_.begin(), entries_, std::prev(entries_.end()));
      entries_.front().of = k, entries_.front().mask = mask, entries_.front().has_columns = false;
    }
    entry& e = entries_.front();
    e.of.numbers.clear(), e.of.dims[0] = -1;  // matches nothing until it is complete
    tile_map map(any_mask(*mask), {.B = B, .H = H, .Q = Q, .K = K, .tile_q = tile, .tile_k = tile});
    bool by_batch = false, by_head = false;
    for (const node& n : mask->nodes())
      if (n.code == op::symbol) by_batch = by_batch || n.imm == index_t(symbol_id::b), by_head = by_head || n.imm == index_t(symbol_id::h);
    const bool batches = map.maps() > 1 && by_batch && B > 1, heads = map.maps() > 1 && by_head && H > 1;
    const auto place = [&](std::span<const tile_run> runs, std::span<const std::int32_t> starts, index_t per_map, cuda_buffer& memory) {
      return device_tile_lists{upload(stream, runs, starts, memory), memory.address(), batches ? (heads ? H : 1) * per_map : 0, heads ? per_map : 0};
    };
    e.value.rows = place(map.row_runs(), map.row_starts(), map.q_tiles(), e.row_memory);
    if (with_columns) {
      map.build_columns();
      e.value.columns = place(map.column_runs(), map.column_starts(), map.k_tiles(), e.column_memory);
    }
    e.has_columns = with_columns;
    e.of = std::move(k);
    return e.value;
  }

 private:
  static constexpr index_t tile = 64;  // attention_tile of the kernels
  static constexpr std::size_t capacity = 64;

  struct key {
    const program* mask;
    std::array<index_t, 4> dims;
    std::vector<index_t> numbers;
    std::vector<std::shared_ptr<const table_contents>> tables{};
    friend bool operator==(const key&, const key&) = default;
  };
  struct entry {
    key of;
    std::shared_ptr<const program> mask;
    lists value;
    bool has_columns;
    cuda_buffer row_memory, column_memory;
  };

  // The starts, then the runs, in one block; returns the address of the runs.
  static device_address upload(const cuda_stream& stream, std::span<const tile_run> runs, std::span<const std::int32_t> starts, cuda_buffer& memory) {
    const std::size_t start_bytes = (starts.size() * sizeof(std::int64_t) + 255) / 256 * 256, bytes = start_bytes + runs.size() * sizeof(device_tile_run);
    std::vector<std::byte> host(bytes);
    auto* begin = reinterpret_cast<std::int64_t*>(host.data());
    for (std::size_t i = 0; i < starts.size(); ++i) begin[i] = starts[i];
    auto* out = reinterpret_cast<device_tile_run*>(host.data() + start_bytes);
    for (std::size_t i = 0; i < runs.size(); ++i) out[i] = {runs[i].first, runs[i].last + 1, runs[i].kind == tile_kind::full, 0};
    if (memory.bytes() < bytes) memory = cuda_buffer(stream.device(), bytes * 2);
    memory.upload(stream, host.data(), bytes);
    return memory.address() + start_bytes;
  }

  std::list<entry> entries_;  // latest use first
};

}  // namespace samite::detail
