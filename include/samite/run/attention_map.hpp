// samite/run/attention_map.hpp: what attention on the CPU needs of a mask: its tiles, and the bits of the undecided ones.
#pragma once
#include <algorithm>
#include <atomic>
#include <map>

#include <samite/ir/tile_bits.hpp>
#include <samite/mask/bit_tiles.hpp>
#include <samite/run/backend.hpp>
#include <samite/runtime/thread_pool.hpp>

namespace samite::detail {

inline constexpr index_t attention_tile = 64;
inline constexpr index_t attention_group = 4;  // tiles of one step

struct attention_counts {
  std::atomic<index_t> computed{0}, listed{0};
};
inline attention_counts& attention_count() {
  static attention_counts counts;
  return counts;
}
inline cpu_counters attention_totals() { return {attention_count().computed.load(), attention_count().listed.load()}; }

/// What one mask needs at one size: its tiles, and one bit a pair of the undecided ones, computed once and shared by all
/// heads, layers and passes that see the same map.
class attention_map {
 public:
  attention_map(const any_mask& mask, const tile_options& options) : tiles(mask, options), pairs_(mask.program()) {
    find_undecided();
    bit_tiles stored = number_bit_tiles(mask, tiles);
    // Beyond 256 MiB of bits, tiles are evaluated when they are met.
    if (stored.distinct.size() * words_per_tile > std::size_t(1) << 25) return;
    numbers_ = std::move(stored.numbers);
    bits_.resize(stored.distinct.size() * words_per_tile);
    constexpr index_t at_once = 8;
    parallel_for((index_t(stored.distinct.size()) + at_once - 1) / at_once, [&](index_t part) {
      tile_bits pairs = pairs_;
      for (std::size_t t = std::size_t(part * at_once), end = std::min(stored.distinct.size(), std::size_t((part + 1) * at_once)); t < end; ++t) {
        const bit_tiles::tile& tile = stored.distinct[t];
        evaluate(pairs, {tile.b, tile.h}, tile.query_tile, tile.key_tile, bits_.data() + t * words_per_tile);
      }
    });
  }

  tile_map tiles;

  /// Bit c of word r is set if row r of the tile sees its column c. `scratch` holds the words if they are not kept.
  const std::uint64_t* keep(index_t b, index_t h, index_t q_tile, index_t k_tile, std::vector<std::uint64_t>& scratch) const {
    const std::size_t list = std::size_t(tiles.map_of(b, h) * tiles.q_tiles() + q_tile);
    if (!bits_.empty()) {
      const auto first = columns_.begin() + std::ptrdiff_t(starts_[list]), last = columns_.begin() + std::ptrdiff_t(starts_[list + 1]);
      const auto tile = std::lower_bound(first, last, std::int32_t(k_tile)) - columns_.begin();
      return bits_.data() + std::size_t(numbers_[std::size_t(tile)]) * words_per_tile;
    }
    scratch.resize(words_per_tile);
    tile_bits pairs = pairs_;
    evaluate(pairs, {b, h}, q_tile, k_tile, scratch.data());
    return scratch.data();
  }

 private:
  static constexpr std::size_t words_per_tile = std::size_t(attention_tile);
  struct batch_head {
    index_t b, h;
  };

  void find_undecided() {
    const tile_options& o = tiles.options();
    owner_.assign(std::size_t(tiles.maps()), {-1, -1});
    for (index_t b = 0; b < o.B; ++b)
      for (index_t h = 0; h < o.H; ++h)
        if (batch_head& owner = owner_[std::size_t(tiles.map_of(b, h))]; owner.b < 0) owner = {b, h};
    for (const batch_head& owner : owner_)
      for (index_t i = 0; i < tiles.q_tiles(); ++i) {
        starts_.push_back(columns_.size());
        for (const tile_run& run : tiles.row(owner.b, owner.h, i))
          if (run.kind == tile_kind::undecided)
            for (std::int32_t j = run.first; j <= run.last; ++j) columns_.push_back(j);
      }
    starts_.push_back(columns_.size());
  }

  void evaluate(tile_bits& pairs, batch_head at, index_t q_tile, index_t k_tile, std::uint64_t* words) const {
    const tile_options& o = tiles.options();
    const auto span = [](index_t tile, index_t length) { return interval{tile * attention_tile, std::min((tile + 1) * attention_tile, length) - 1}; };
    pairs.evaluate({interval::point(at.b), interval::point(at.h), span(q_tile, o.Q), span(k_tile, o.K)}, words);
  }

  tile_bits pairs_;
  std::vector<batch_head> owner_;      // a batch and head that each map serves
  std::vector<std::size_t> starts_;    // undecided tiles of list m * q_tiles + i are [starts[..], starts[.. + 1])
  std::vector<std::int32_t> columns_;  // their key tiles
  std::vector<std::int32_t> numbers_;  // where their bits are; equal tiles have the same
  std::vector<std::uint64_t> bits_;
};

/// Tile maps of the current step: layers that share a mask share its map.
class attention_maps {
 public:
  void clear() { maps_.clear(); }

  attention_map& get(const std::shared_ptr<const program>& mask, index_t B, index_t H, index_t Q, index_t K) {
    const key k{mask.get(), B, H, Q, K};
    auto found = maps_.find(k);
    if (found != maps_.end()) return found->second;
    const any_mask lowered = mask ? any_mask(*mask) : any_mask();
    return maps_.try_emplace(k, lowered, tile_options{.B = B, .H = H, .Q = Q, .K = K, .tile_q = attention_tile, .tile_k = attention_tile}).first->second;
  }

 private:
  struct key {
    const program* mask;
    index_t B, H, Q, K;
    friend auto operator<=>(const key&, const key&) = default;
  };
  std::map<key, attention_map> maps_;
};

}  // namespace samite::detail
