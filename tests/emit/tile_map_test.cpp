#include <doctest/doctest.h>

#include <bit>
#include <cstddef>

#include <samite/emit/tile_map.hpp>
#include <samite/ir/bounds.hpp>
#include <samite/mask.hpp>

#include "support/kernels.hpp"
#include "support/random_programs.hpp"
#include "support/skip.hpp"

// The device source itself, compiled as ordinary C++.
#define __device__
static inline long long __mul64hi(long long a, long long b) { return static_cast<long long>((static_cast<__int128>(a) * b) >> 64); }
namespace on_device {
#include "../../codegen/device/box_judge.cuh"
}
#undef __device__

using namespace samite;
using namespace samite_tests;
namespace device = on_device::samite;

namespace {

/// One mask as the kernels see it, with the tables where the host has them.
class device_judge {
 public:
  device_judge(const program& mask, const device_map_sizes& sizes) : steps_(detail::steps_of(mask, 0)) {
    std::vector<device_map_table> tables;
    const auto address = [](const auto* at) { return std::bit_cast<std::uint64_t>(at); };
    for (const auto& t : steps_.tables) tables.push_back(describe_table(*t, address(t->values().data()), address(t->pyramid().data()), address(t->sorted_rows().data())));
    block_ = pack_device_map(steps_, tables, sizes, {true, true});
    CHECK(index_t(block_.size()) == count_device_map(steps_).words);
    slots_.resize(3 * std::size_t(count_device_map(steps_).steps));
  }

  verdict judge(const index_box& box) { return verdict(device::judge(program_of(), slots(), box_of(box))); }

  /// The search of search_tile, one box after another, without its early look at single pairs.
  verdict judge_finely(const index_box& tile, int budget) {
    const verdict found = judge(tile);
    if (found != verdict::undecided) return found;
    std::vector<device::map_box> queue{box_of(tile)};  // the tile, then what it is cut into
    bool kept = false, hidden = false;
    if (budget <= 5) return verdict::undecided;
    for (std::size_t i = 0; i < queue.size(); ++i) {
      const device::map_box box = queue[i];
      const auto next = device::judge(program_of(), slots(), box);
      kept = kept || next == device::keeps_all, hidden = hidden || next == device::keeps_none;
      if (next != device::is_undecided) continue;
      const device::map_cut place = device::cut_of(program_of(), box.of[2], box.of[3]);
      if (place.axis == 0) return verdict::undecided;
      queue.push_back(place.part(box, false)), queue.push_back(place.part(box, true));
      if (queue.size() - 1 > std::size_t(budget) - 4) return verdict::undecided;
    }
    return kept && hidden ? verdict::undecided : kept ? verdict::full : verdict::empty;
  }

 private:
  device::map_program program_of() const { return device::map_program(block_.data()); }
  device::map_slots slots() { return {slots_.data(), 1}; }
  static device::map_box box_of(const index_box& x) { return {{{x.b.low, x.b.high}, {x.h.low, x.h.high}, {x.q.low, x.q.high}, {x.kv.low, x.kv.high}}}; }

  detail::bound_steps steps_;
  std::vector<std::uint64_t> block_;
  std::vector<long long> slots_;
};

}  // namespace

TEST_CASE("the device judges every box of random masks as the host does") {
  const std::uint64_t seed = 9;
  MESSAGE("seed ", seed);
  int wrong = 0, wrong_finely = 0, decided = 0, resolved = 0;
  for (std::uint32_t sample = 0; sample < 400; ++sample) {
    random_programs make(seed, sample);
    const program mask = make.predicate(4);
    box_judge host(mask);
    device_judge there(mask, {});
    for (int i = 0; i < 25; ++i) {
      const auto range = [&](index_t most) {
        const index_t low = make.below(most), high = low + (make.below(3) == 0 ? 0 : make.below(most));
        return interval{low, high};
      };
      const index_box box{interval::point(make.below(3)), range(3), range(60), range(90)};
      const verdict found = host.judge(box), fine = host.judge_finely(box, 96);
      wrong += found != there.judge(box), wrong_finely += fine != there.judge_finely(box, 96);
      decided += found != verdict::undecided, resolved += found != fine;
    }
  }
  CHECK(wrong == 0);
  CHECK(wrong_finely == 0);
  CHECK(decided > 1000);
  CHECK(resolved > 20);  // the search had something to find
}

TEST_CASE("the device's search stops at the same budget as the host's") {
  using namespace symbols;
  const auto anchors = table({0, 50, 3, 90, 100, 20, 60, 7});
  const any_mask mask = kv < 100 && kv >= anchors[q / 8] && kv - anchors[q / 8] < 5;
  box_judge host(mask.program());
  device_judge there(mask.program(), {});
  int decided = 0;
  for (int budget = 0; budget < 60; ++budget)
    for (index_t first = 0; first < 128; first += 16) {
      const index_box tile{interval::point(0), interval::point(0), {0, 63}, {first, first + 15}};
      const verdict fine = host.judge_finely(tile, budget);
      CHECK(fine == there.judge_finely(tile, budget));
      decided += fine != verdict::undecided;
    }
  CHECK(decided > 60);
}

TEST_CASE("what the host writes for the device has the layout of the device source") {
  CHECK(sizeof(device_map_table) == sizeof(device::map_table));
  CHECK(offsetof(device_map_table, whole) == offsetof(device::map_table, whole));
  CHECK(sizeof(table_range) == sizeof(device::map_cell));
  CHECK(sizeof(detail::device_map_header) == sizeof(device::map_header));
  CHECK(offsetof(detail::device_map_header, grain_count) == offsetof(device::map_header, grain_count));
  CHECK(sizeof(detail::device_map_step) == sizeof(device::map_step));
  CHECK(int(detail::device_step_code::opaque) == int(device::step_code::opaque));
  CHECK(int(detail::device_step_code::gather) == int(device::step_code::gather));
  CHECK(interval::lowest == device::lowest_bound);
  CHECK(interval::highest == device::highest_bound);
}

TEST_CASE("a mask that needs more shared memory than a block has is not served on the device") {
  using namespace symbols;
  const any_mask small = causal();
  CHECK(serves_device_map(detail::steps_of(small.program(), 0), {.Q = 1 << 20, .K = 1 << 20}, 99 * 1024));
  CHECK_FALSE(serves_device_map(detail::steps_of(small.program(), 0), {.Q = 1 << 24, .K = 1 << 24}, 99 * 1024));
  any_mask large = causal();
  for (index_t i = 1; i < 100; ++i) large = large && (q * i + kv) % (i + 7) != 0;
  CHECK_FALSE(serves_device_map(detail::steps_of(large.program(), 0), {.Q = 1024, .K = 1024}, 227 * 1024));
}

TEST_CASE("the kernels of tile maps compile without a spill") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  const any_mask mask = causal() && window(100) && document(table({0, 0, 1, 1}));
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const char* target = arch;
    CAPTURE(target);
    CHECK(spills_of(emit_tile_map(), arch) == "");
    CHECK(spills_of(emit_tile_map_bits(mask.program(), 128, 128), arch) == "");
  }
}

TEST_CASE("the text of bit tiles names the mask and computes rows and columns apart") {
  const any_mask mask = causal() && document(table({0, 0, 1, 1}));
  const std::string text = emit_tile_map_bits(mask.program(), 192, 128).text;
  CHECK(text.find("fill_map_bits<192, 128>(p, mask, bits)") != std::string::npos);
  CHECK(text.find("keep_pair_of_column(b, h, kv, head, arguments)") != std::string::npos);
}
