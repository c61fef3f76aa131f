// samite/run/cuda_attention.hpp: parameters of the attention kernels, and the tile lists and tables they read on the device.
#pragma once
#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <utility>
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
  std::int32_t first, last, full, bits;  // bits: the bit tile of the first, -1 if full
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

struct device_sm90_lists {
  device_address runs = 0, begin = 0;
  index_t batch_lists = 0, head_lists = 0;
  device_address bits = 0;
  index_t section = 1;
  device_address counter = 0;
};

struct device_sm90_attention {
  tensor_map Q, K, V;
  device_attention p;
  device_sm90_lists lists;
};

struct device_undecided_tile {
  std::int32_t b, h, query_tile, key_tile;
};

/// Tile lists of the masks used lately, by mask, numbers, table contents and lengths. Layers and steps share them.
class device_tile_maps {
 public:
  struct lists {
    device_tile_lists rows, columns;
  };
  /// Lists of tiles of `rows` by `keys` with bit tiles; `fresh` undecided tiles are still to be filled, in stream order, before their use.
  struct bit_lists {
    device_sm90_lists rows;
    device_address undecided = 0;
    index_t fresh = 0, runs = 0;
    bool fits = true;  // false: more bits than bit_limit; another kernel must evaluate the mask
  };
  static constexpr std::size_t bit_limit = std::size_t(1) << 28;

  lists get(const cuda_stream& stream, const std::shared_ptr<const program>& mask, step_snapshot& step, index_t B, index_t H, index_t Q, index_t K, bool with_columns) {
    auto [e, known] = find(stream, mask, step, {B, H, Q, K, tile, tile});
    if (known && (!with_columns || e->has_columns)) return e->value;
    key k = std::exchange(e->of, key{});  // matches nothing until it is complete
    tile_map map(mask ? any_mask(*mask) : any_mask(), {.B = B, .H = H, .Q = Q, .K = K, .tile_q = tile, .tile_k = tile});
    e->value.rows = place(stream, map, map.row_runs(), map.row_starts(), map.q_tiles(), e->row_memory);
    if (with_columns) {
      map.build_columns();
      e->value.columns = place(stream, map, map.column_runs(), map.column_starts(), map.k_tiles(), e->column_memory);
    }
    e->has_columns = with_columns;
    e->of = std::move(k);
    return e->value;
  }

  bit_lists get_bits(const cuda_stream& stream, const std::shared_ptr<const program>& mask, step_snapshot& step, index_t B, index_t H, index_t Q, index_t K, index_t rows, index_t keys) {
    auto [e, known] = find(stream, mask, step, {B, H, Q, K, rows, keys});
    const std::size_t bit_bytes = std::size_t(rows) * 16;  // two words of 32 bits for each of 2 * rows threads
    if (known) {
      e->bits.fresh = 0;
      return e->bits;
    }
    key k = std::exchange(e->of, key{});
    const tile_map map(mask ? any_mask(*mask) : any_mask(), {.B = B, .H = H, .Q = Q, .K = K, .tile_q = rows, .tile_k = keys});
    e->bits = {};
    e->bits.fits = std::size_t(map.counts().undecided) * bit_bytes <= bit_limit;
    if (e->bits.fits) {
      // Bit tiles in the order of the runs; the batch and head that a map is named by.
      std::vector<device_undecided_tile> undecided;
      undecided.reserve(std::size_t(map.counts().undecided));
      const std::span<const std::int32_t> starts = map.row_starts();
      for (index_t b = 0; b < (shares_batches(map) ? 1 : B); ++b)
        for (index_t h = 0; h < (shares_heads(map) ? 1 : H); ++h)
          for (index_t i = 0; i < map.q_tiles(); ++i)
            for (const tile_run& run : map.row(b, h, i))
              if (run.kind == tile_kind::undecided)
                for (std::int32_t j = run.first; j <= run.last; ++j) undecided.push_back({std::int32_t(b), std::int32_t(h), std::int32_t(i), j});
      const device_tile_lists lists = place(stream, map, map.row_runs(), starts, map.q_tiles(), e->row_memory);
      e->bits.rows = {lists.runs, lists.begin, lists.batch_lists, lists.head_lists, 0, 1, 0};
      e->bits.fresh = index_t(undecided.size()), e->bits.runs = index_t(map.row_runs().size());
      if (!undecided.empty()) {
        const std::size_t tile_bytes = (undecided.size() * sizeof(device_undecided_tile) + 255) / 256 * 256, bytes = tile_bytes + undecided.size() * bit_bytes;
        if (e->column_memory.bytes() < bytes) e->column_memory = cuda_buffer(stream.device(), bytes + bytes / 2);
        e->column_memory.upload(stream, undecided.data(), undecided.size() * sizeof(device_undecided_tile));
        e->bits.undecided = e->column_memory.address(), e->bits.rows.bits = e->column_memory.address() + tile_bytes;
      }
    }
    e->of = std::move(k);
    return e->bits;
  }

 private:
  static constexpr index_t tile = 64;  // attention_tile of the kernels
  static constexpr std::size_t capacity = 64;

  struct key {
    const program* mask = nullptr;
    std::array<index_t, 6> dims{};  // B, H, Q, K, and the tiles; all 0 matches nothing
    std::vector<index_t> numbers{};
    std::vector<std::shared_ptr<const table_contents>> tables{};
    friend bool operator==(const key&, const key&) = default;
  };
  struct entry {
    key of;
    std::shared_ptr<const program> mask;
    lists value;
    bit_lists bits;
    bool has_columns;
    cuda_buffer row_memory, column_memory;  // the latter holds bit tiles where there are any
  };

  static bool shares_batches(const tile_map& map) { return map.options().B <= 1 || map.map_of(1, 0) == 0; }
  static bool shares_heads(const tile_map& map) { return map.options().H <= 1 || map.map_of(0, 1) == 0; }

  /// The entry of these lists, put first, and whether it is complete. A new one takes the memory of the oldest, in stream order.
  std::pair<entry*, bool> find(const cuda_stream& stream, const std::shared_ptr<const program>& mask, step_snapshot& step, std::array<index_t, 6> dims) {
    key k{mask.get(), dims, {}, {}};
    if (mask) {
      for (const auto& cell : mask->arguments()) k.numbers.push_back(step.read(cell).index);
      for (const auto& table : mask->tables()) k.tables.push_back(step.read(table));
    }
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const entry& e) { return e.of == k; });
    const bool known = found != entries_.end();
    if (known) entries_.splice(entries_.begin(), entries_, found);
    else if (entries_.size() < capacity) entries_.push_front({{}, mask, {}, {}, false, cuda_buffer(stream.device(), 0), cuda_buffer(stream.device(), 0)});
    else entries_.splice(entries_.begin(), entries_, std::prev(entries_.end()));
    entry& e = entries_.front();
    e.of = std::move(k), e.mask = mask;
    if (!known) e.has_columns = false;
    return {&e, known};
  }

  static device_tile_lists place(const cuda_stream& stream, const tile_map& map, std::span<const tile_run> runs, std::span<const std::int32_t> starts, index_t per_map, cuda_buffer& memory) {
    return {upload(stream, runs, starts, memory), memory.address(), shares_batches(map) ? 0 : map.map_of(1, 0) * per_map, shares_heads(map) ? 0 : per_map};
  }

  // The starts, then the runs, in one block; returns the address of the runs.
  static device_address upload(const cuda_stream& stream, std::span<const tile_run> runs, std::span<const std::int32_t> starts, cuda_buffer& memory) {
    const std::size_t start_bytes = (starts.size() * sizeof(std::int64_t) + 255) / 256 * 256, bytes = start_bytes + runs.size() * sizeof(device_tile_run);
    std::vector<std::byte> host(bytes);
    auto* begin = reinterpret_cast<std::int64_t*>(host.data());
    for (std::size_t i = 0; i < starts.size(); ++i) begin[i] = starts[i];
    auto* out = reinterpret_cast<device_tile_run*>(host.data() + start_bytes);
    std::int32_t bits = 0;  // bit tiles are numbered in the order of the runs
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const bool full = runs[i].kind == tile_kind::full;
      out[i] = {runs[i].first, runs[i].last + 1, full, full ? -1 : bits};
      if (!full) bits += runs[i].last - runs[i].first + 1;
    }
    if (memory.bytes() < bytes) memory = cuda_buffer(stream.device(), bytes * 2);
    memory.upload(stream, host.data(), bytes);
    return memory.address() + start_bytes;
  }

  std::list<entry> entries_;  // latest use first
};

}  // namespace samite::detail
