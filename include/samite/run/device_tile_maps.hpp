// samite/run/device_tile_maps.hpp: tile lists that the attention kernels read on the device.
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <utility>
#include <vector>

#include <samite/mask/bit_tiles.hpp>
#include <samite/run/attention_packing.hpp>
#include <samite/run/cuda_attention.hpp>
#include <samite/run/decode_parts.hpp>

namespace samite::detail {

/// Lists as the kernels read them.
struct lists_of_runs {
  std::vector<std::int64_t> begin;
  std::vector<device_tile_run> runs;
};

/// numbers  of the undecided tiles' bits, in the order of the runs; null: 0, 1, 2, ... A run ends where the next tile's bits don't follow
/// marks    narrow tiles come first in their lists; a run's undecided tiles have the same half
inline lists_of_runs lists_with_bits(std::span<const tile_run> runs, std::span<const std::int32_t> starts, const std::vector<std::int32_t>* numbers,
                                     const tile_marks& marks = {}) {
  lists_of_runs out;
  out.begin.reserve(starts.size()), out.runs.reserve(runs.size());
  std::int32_t bits = 0;
  for (std::size_t list = 0; list < starts.size(); ++list) {
    out.begin.push_back(std::int64_t(out.runs.size()));
    if (list + 1 == starts.size()) break;
    const std::int32_t part = marks.narrow.empty() ? -1 : marks.narrow[list], narrow_tile = part < 0 ? -1 : part / marks.parts;
    std::int32_t end = -1;  // of an undecided run that may go on
    for (const tile_run& run : runs.subspan(std::size_t(starts[list]), std::size_t(starts[list + 1] - starts[list]))) {
      if (run.kind == tile_kind::full) {
        out.runs.push_back({run.first, run.last + 1, 1, -1});
        continue;
      }
      for (std::int32_t t = run.first; t <= run.last; ++t, ++bits) {
        const std::int32_t number = numbers != nullptr ? (*numbers)[std::size_t(bits)] : bits;
        if (t == narrow_tile) {
          out.runs.insert(out.runs.begin() + out.begin.back(), {t, t + 1, -1 - part % marks.parts, number});
          continue;
        }
        const std::int32_t half = marks.halves.empty() ? 0 : marks.halves[std::size_t(bits)];
        const bool follows = t > run.first && end == t && number == out.runs.back().bits + (t - out.runs.back().first) && half == out.runs.back().full;
        if (follows) out.runs.back().last = t + 1;
        else out.runs.push_back({t, t + 1, half, number});
        end = t + 1;
      }
    }
  }
  return out;
}

/// From the order of a map's undecided tiles by rows to that by columns.
inline void sort_by_keys(const tile_map& map, std::vector<std::int32_t>& numbers) {
  struct place {
    index_t map;
    std::int32_t key_tile, number;
  };
  std::vector<place> places;  // by map, query tile, key tile
  places.reserve(numbers.size());
  const std::span<const std::int32_t> starts = map.row_starts();
  for (std::size_t list = 0; list + 1 < starts.size(); ++list)
    for (const tile_run& run : map.row_runs().subspan(std::size_t(starts[list]), std::size_t(starts[list + 1] - starts[list])))
      for (std::int32_t j = run.first; run.kind == tile_kind::undecided && j <= run.last; ++j) places.push_back({index_t(list) / map.q_tiles(), j, numbers[places.size()]});
  std::stable_sort(places.begin(), places.end(), [](const place& a, const place& b) { return a.map != b.map ? a.map < b.map : a.key_tile < b.key_tile; });
  for (std::size_t i = 0; i < places.size(); ++i) numbers[i] = places[i].number;
}

/// Tile lists of the masks used lately, by mask, numbers, table contents and lengths. Layers and steps share them.
class device_tile_maps {
 public:
  struct lists {
    device_tile_lists rows, columns;
  };
  /// Lists with bit tiles; `fresh` undecided tiles are still to be filled, in stream order, before their use.
  struct bit_lists {
    device_sm90_lists lists;
    device_address undecided = 0;
    index_t fresh = 0, runs = 0, pack = 1;  // pack: query heads that share a tile; lists.head_lists is from one such group to the next
    bool fits = true;  // false: more bits than bit_limit; another kernel must evaluate the mask
  };
  static constexpr std::size_t bit_limit = std::size_t(1) << 28;
  /// What lists with bit tiles are for.
  struct bit_options {
    index_t queries = 128, keys = 128;  // of a tile
    bool by_keys = false;               // a list a key tile, not a query tile
    index_t most_pack = 1;              // as packed_tiles of heads; 1 by keys
    bool narrows = false;               // whether a list may begin with a narrow tile
  };
  static constexpr index_t tile = 64;  // attention_tile of the kernels
  /// Parts of a decode step, where the kernel reads them.
  struct part_lists {
    device_address runs = 0, parts = 0;
    index_t batch_lists = 0, head_lists = 0, splits = 1;
  };

  /// Lists of tiles of `queries` by `keys`.
  lists get(const cuda_stream& stream, const std::shared_ptr<const program>& mask, step_snapshot& step, index_t B, index_t H, index_t Q, index_t K, bool with_columns,
            index_t queries = tile, index_t keys = tile) {
    auto [e, known] = find(stream, mask, step, {B, H, Q, K, queries, keys, 0});
    if (known && (!with_columns || e->has_columns)) return e->value;
    key k = std::exchange(e->of, key{});  // matches nothing until it is complete
    tile_map map(mask ? any_mask(*mask) : any_mask(), {.B = B, .H = H, .Q = Q, .K = K, .tile_q = queries, .tile_k = keys});
    e->value.rows = place(stream, map, lists_with_bits(map.row_runs(), map.row_starts(), nullptr), map.q_tiles(), e->row_memory);
    if (with_columns) {
      map.build_columns();
      e->value.columns = place(stream, map, lists_with_bits(map.column_runs(), map.column_starts(), nullptr), map.k_tiles(), e->column_memory);
    }
    e->has_columns = with_columns;
    e->of = std::move(k);
    return e->value;
  }

  /// Lists of tiles with their bits, as the kernels for sm_90a walk them.
  bit_lists get_bits(const cuda_stream& stream, const std::shared_ptr<const program>& mask, step_snapshot& step, index_t B, index_t H, index_t Q, index_t K, const bit_options& options) {
    const bool by_keys = options.by_keys;
    auto [e, known] = find(stream, mask, step, {B, H, Q, K, options.queries, options.keys, by_keys ? 2 : 4 * options.most_pack + (options.narrows ? 1 : 0)});
    const std::size_t bit_bytes = std::size_t(by_keys ? options.keys : options.queries) * 16;  // two words of 32 bits for each of twice as many threads
    if (known) {
      e->bits.fresh = 0;
      return e->bits;
    }
    key k = std::exchange(e->of, key{});
    const any_mask lowered = mask ? any_mask(*mask) : any_mask();
    const tile_options sizes{.B = B, .H = H, .Q = Q, .K = K, .tile_q = options.queries, .tile_k = options.keys};
    packed_tiles tiles = by_keys ? packed_tiles::by_keys(lowered, sizes) : packed_tiles::by_queries(lowered, sizes, options.most_pack, options.narrows);
    bit_tiles stored = number_bit_tiles(lowered, tiles.map);
    const auto fits = [&] { return stored.distinct.size() * bit_bytes <= bit_limit; };
    if (!fits() && tiles.pack > 1) {  // tiles of more tokens have fewer bits
      tiles = packed_tiles::by_queries(lowered, sizes, 1, options.narrows);
      stored = number_bit_tiles(lowered, tiles.map);
    }
    const tile_map& map = tiles.map;
    e->bits = {};
    e->bits.pack = tiles.pack, e->bits.fits = fits();
    if (e->bits.fits) {
      if (by_keys) sort_by_keys(map, stored.numbers);
      const std::span<const tile_run> runs = by_keys ? map.column_runs() : map.row_runs();
      const std::span<const std::int32_t> starts = by_keys ? map.column_starts() : map.row_starts();
      const index_t per_map = by_keys ? map.k_tiles() : map.q_tiles();
      const device_tile_lists lists = place(stream, map, lists_with_bits(runs, starts, &stored.numbers, tiles.marks), per_map, e->row_memory);
      e->bits.lists = {lists.runs, lists.begin, lists.batch_lists, lists.head_lists * tiles.pack, 0, 1, 0, 0, tiles.pack, 0};
      e->bits.fresh = index_t(stored.distinct.size()), e->bits.runs = index_t(runs.size() + stored.numbers.size());  // as many at most
      // The order of the lists, the tiles whose bits are to be filled, what warpgroups need of them, their bits.
      static_assert(sizeof(bit_tiles::tile) == sizeof(device_undecided_tile));
      const std::vector<std::int32_t> order = longest_first(runs, starts, std::size_t(per_map), !by_keys);
      const auto rounded = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
      const std::size_t order_bytes = order.size() * sizeof(std::int32_t), listed = stored.distinct.size() * sizeof(device_undecided_tile);
      const std::size_t needs_at = rounded(order_bytes) + rounded(listed), bits_at = needs_at + (by_keys ? 0 : rounded(stored.distinct.size() * 4)), bytes = bits_at + stored.distinct.size() * bit_bytes;
      if (e->column_memory.bytes() < bytes) e->column_memory = cuda_buffer(stream.device(), bytes + bytes / 2);
      if (order_bytes != 0) e->column_memory.upload(stream, order.data(), order_bytes);
      if (listed != 0) e->column_memory.upload(stream, stored.distinct.data(), listed, rounded(order_bytes));
      e->bits.lists.order = e->column_memory.address();
      e->bits.undecided = e->bits.lists.order + rounded(order_bytes), e->bits.lists.bits = e->bits.lists.order + bits_at;
      if (!by_keys) e->bits.lists.needs = e->bits.lists.order + needs_at;
    }
    e->of = std::move(k);
    return e->bits;
  }

  /// The tiles of at most 64 queries, cut into parts, one a block.
  part_lists get_parts(const cuda_stream& stream, const std::shared_ptr<const program>& mask, step_snapshot& step, index_t B, index_t H, index_t Q, index_t K, index_t key_heads,
                       const decode_grid& grid) {
    auto [e, known] = find(stream, mask, step, {B, H, Q, K, key_heads, (grid.multiprocessors * 2 + index_t(grid.is_alone)) * 64 + grid.resident, 3});
    if (known) return e->parts;
    key k = std::exchange(e->of, key{});
    const decode_parts cut = cut_parts(tile_map(any_mask(*mask), {.B = B, .H = H, .Q = Q, .K = K, .tile_q = tile, .tile_k = tile}), H / key_heads, grid);
    const std::size_t part_bytes = (cut.parts.size() * sizeof(std::int32_t) + 255) / 256 * 256, bytes = part_bytes + cut.runs.size() * sizeof(device_decode_run);
    std::vector<std::byte> packed(bytes);  // one copy to the device, not two
    std::memcpy(packed.data(), cut.parts.data(), cut.parts.size() * sizeof(std::int32_t));
    std::memcpy(packed.data() + part_bytes, cut.runs.data(), cut.runs.size() * sizeof(device_decode_run));
    if (e->row_memory.bytes() < bytes) e->row_memory = cuda_buffer(stream.device(), bytes * 2);
    e->row_memory.upload(stream, packed.data(), bytes);
    e->parts = {e->row_memory.address() + part_bytes, e->row_memory.address(), cut.batch_lists, cut.head_lists, cut.splits};
    e->of = std::move(k);
    return e->parts;
  }

 private:
  static constexpr std::size_t capacity = 64;

  struct key {
    const program* mask = nullptr;
    std::array<index_t, 7> dims{};  // B, H, Q, K, the tiles (of parts: key heads and what the device runs at once), and which lists; all 0 matches nothing
    std::vector<index_t> numbers{};
    std::vector<std::shared_ptr<const table_contents>> tables{};
    friend bool operator==(const key&, const key&) = default;
  };
  struct entry {
    key of;
    std::shared_ptr<const program> mask;
    lists value;
    bit_lists bits;
    part_lists parts;
    bool has_columns;
    cuda_buffer row_memory, column_memory;  // of lists with bits: the lists; their order, and the bits
  };

  /// For each map its lists by their length, the longest first; of equal ones the last first, or the first.
  static std::vector<std::int32_t> longest_first(std::span<const tile_run> runs, std::span<const std::int32_t> starts, std::size_t per_map, bool last_first) {
    std::vector<index_t> lengths(starts.size() - 1, 0);
    for (std::size_t list = 0; list < lengths.size(); ++list)
      for (std::int32_t r = starts[list]; r < starts[list + 1]; ++r) lengths[list] += runs[std::size_t(r)].last - runs[std::size_t(r)].first + 1;
    std::vector<std::int32_t> order(lengths.size());
    for (std::size_t first = 0; first < lengths.size(); first += per_map) {
      const auto begin = order.begin() + std::ptrdiff_t(first), end = begin + std::ptrdiff_t(per_map);
      for (std::size_t i = 0; i < per_map; ++i) begin[std::ptrdiff_t(i)] = std::int32_t(last_first ? per_map - 1 - i : i);
      std::stable_sort(begin, end, [&](std::int32_t a, std::int32_t b) { return lengths[first + std::size_t(a)] > lengths[first + std::size_t(b)]; });
    }
    return order;
  }

  /// The entry of these lists, put first, and whether it is complete. A new one takes the memory of the oldest, in stream order.
  std::pair<entry*, bool> find(const cuda_stream& stream, const std::shared_ptr<const program>& mask, step_snapshot& step, std::array<index_t, 7> dims) {
    key k{mask.get(), dims, {}, {}};
    if (mask) {
      for (const auto& cell : mask->arguments()) k.numbers.push_back(step.read(cell).index);
      for (const auto& table : mask->tables()) k.tables.push_back(step.read(table));
    }
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const entry& e) { return e.of == k; });
    const bool known = found != entries_.end();
    if (known) entries_.splice(entries_.begin(), entries_, found);
    else if (entries_.size() < capacity) entries_.push_front({{}, mask, {}, {}, {}, false, cuda_buffer(stream.device(), 0), cuda_buffer(stream.device(), 0)});
    else entries_.splice(entries_.begin(), entries_, std::prev(entries_.end()));
    entry& e = entries_.front();
    e.of = std::move(k), e.mask = mask;
    if (!known) e.has_columns = false;
    return {&e, known};
  }

  static device_tile_lists place(const cuda_stream& stream, const tile_map& map, const lists_of_runs& lists, index_t per_map, cuda_buffer& memory) {
    return {upload(stream, lists, memory), memory.address(), shares_batches(map) ? 0 : map.map_of(1, 0) * per_map, shares_heads(map) ? 0 : per_map};
  }

  // The starts, then the runs, in one block; returns the address of the runs.
  static device_address upload(const cuda_stream& stream, const lists_of_runs& lists, cuda_buffer& memory) {
    const auto& [begin, out] = lists;
    const std::size_t start_bytes = (begin.size() * sizeof(std::int64_t) + 255) / 256 * 256, bytes = start_bytes + out.size() * sizeof(device_tile_run);
    if (memory.bytes() < bytes) memory = cuda_buffer(stream.device(), bytes * 2);
    memory.upload(stream, begin.data(), begin.size() * sizeof(std::int64_t));
    memory.upload(stream, out.data(), out.size() * sizeof(device_tile_run), start_bytes);
    return memory.address() + start_bytes;
  }

  std::list<entry> entries_;  // latest use first
};

}  // namespace samite::detail
