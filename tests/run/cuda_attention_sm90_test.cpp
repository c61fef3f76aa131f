// What the kernels for sm_90a are given, on a driver without a device: lists, bit tiles, launches.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/run/device_tile_maps.hpp>
#include <samite/run/executor.hpp>
#include <samite/run/plan_kernels.hpp>

#include "support/gpu.hpp"
#include "support/jit_faults.hpp"
#include "support/masks.hpp"

using namespace samite;
using namespace samite::symbols;
using namespace samite_tests;

namespace {

template <class T>
const T* host(device_address address) { return reinterpret_cast<const T*>(address); }  // the stub's memory is the host's

struct sizes {
  index_t B, H, Q, K, tile_q, tile_k;
};

/// Reads the lists as a kernel does and compares each with what the mask says of every pair. Empty if they are right.
std::string compare_lists(const any_mask& mask, const detail::device_tile_maps::bit_lists& found, sizes s, bool by_keys) {
  s.tile_q /= found.pack;
  const auto keeps = [&](index_t b, index_t h, index_t q, index_t kv) { return naive_value(mask.program(), mask.program().roots[0], {b, h, q, kv}) != 0; };
  const auto pairs_of = [&](index_t b, index_t h, index_t i, index_t j) {
    std::vector<bool> kept;
    for (index_t q = i * s.tile_q; q < (i + 1) * s.tile_q; ++q)
      for (index_t kv = j * s.tile_k; kv < (j + 1) * s.tile_k; ++kv) kept.push_back(q < s.Q && kv < s.K && keeps(b, h, q, kv));
    return kept;
  };
  const auto inside = [&](index_t i, index_t j, std::size_t p) { return i * s.tile_q + index_t(p) / s.tile_k < s.Q && j * s.tile_k + index_t(p) % s.tile_k < s.K; };
  std::map<std::array<index_t, 4>, std::vector<bool>> known;
  const auto pairs = [&](index_t b, index_t h, index_t i, index_t j) -> const std::vector<bool>& {
    const auto [at, fresh] = known.try_emplace({b, h, i, j});
    if (fresh) at->second = pairs_of(b, h, i, j);
    return at->second;
  };
  const index_t lists = by_keys ? (s.K + s.tile_k - 1) / s.tile_k : (s.Q + s.tile_q - 1) / s.tile_q, others = by_keys ? (s.Q + s.tile_q - 1) / s.tile_q : (s.K + s.tile_k - 1) / s.tile_k;
  const auto* begin = host<std::int64_t>(found.lists.begin);
  const auto* runs = host<detail::device_tile_run>(found.lists.runs);
  const auto* undecided = host<detail::device_undecided_tile>(found.undecided);
  for (index_t b = 0; b < s.B; ++b)
    for (index_t h = 0; h < s.H; ++h) {
      std::vector<index_t> lengths, order;
      for (index_t list = 0; list < lists; ++list) {
        const index_t at = b * found.lists.batch_lists + h / found.pack * found.lists.head_lists + list;
        std::vector<int> kinds(std::size_t(others), 0);  // 0 empty, 1 full, 2 undecided
        index_t last = -1;
        for (std::int64_t r = begin[at]; r < begin[at + 1]; ++r)
          for (std::int32_t t = runs[r].first; t < runs[r].last; ++t) {
            const bool is_full = runs[r].full == 1, is_narrow = !by_keys && runs[r].full < 0;
            if (kinds[std::size_t(t)] != 0 || t >= others || (!is_narrow && t <= last)) return concat_text("tile ", t, " follows ", last);
            if (is_narrow && (r != begin[at] || runs[r].last != t + 1)) return concat_text("tile ", t, " is narrow and not the first");
            if (!is_narrow) last = t;
            kinds[std::size_t(t)] = is_full ? 1 : 2;
            if ((runs[r].bits < 0) != is_full) return "bits and kind of a run don't go together";
            if (is_full) continue;
            const detail::device_undecided_tile& stored = undecided[runs[r].bits + (t - runs[r].first)];
            const index_t i = by_keys ? t : list, j = by_keys ? list : t;
            const std::vector<bool>&theirs = pairs(stored.b, stored.h, stored.query_tile, stored.key_tile), &ours = pairs(b, h, i, j);
            if (runs[r].full < 0) {  // the only columns, or keys, with kept pairs
              const index_t width = by_keys ? s.tile_k / 2 : detail::narrow_columns, only = (-1 - runs[r].full) * width;
              for (std::size_t p = 0; p < ours.size(); ++p)
                if (ours[p] && (index_t(p) % s.tile_k < only || index_t(p) % s.tile_k >= only + width)) return concat_text("tile ", i, ", ", j, " keeps pairs beside columns ", only, " to ", only + width - 1);
            }
            bool equal = true;  // past the end the kernels don't look at bits
            for (std::size_t p = 0; p < ours.size(); ++p) equal = equal && (theirs[p] == ours[p] || !inside(i, j, p));
            if (!equal)
              return concat_text("tile ", i, ", ", j, " of b ", b, ", h ", h, " has the bits of tile ", stored.query_tile, ", ", stored.key_tile);
          }
        for (index_t t = 0; t < others; ++t) {
          const std::vector<bool>& kept = pairs(b, h, by_keys ? t : list, by_keys ? list : t);
          const bool any = std::find(kept.begin(), kept.end(), true) != kept.end();
          if (any && kinds[std::size_t(t)] == 0) return concat_text("tile ", t, " of list ", list, " keeps pairs and is not listed");
          if (kinds[std::size_t(t)] != 1) continue;
          const index_t i = by_keys ? t : list, j = by_keys ? list : t;
          for (std::size_t p = 0; p < kept.size(); ++p)
            if (!kept[p] && inside(i, j, p)) return concat_text("tile ", t, " of list ", list, " is not full");
        }
        lengths.push_back(others - std::count(kinds.begin(), kinds.end(), 0));
        order.push_back(host<std::int32_t>(found.lists.order)[at]);
      }
      std::vector<index_t> sorted = order, all(order.size());
      std::sort(sorted.begin(), sorted.end()), std::iota(all.begin(), all.end(), 0);
      if (sorted != all) return "the order leaves a list out";
      for (std::size_t i = 1; i < order.size(); ++i)
        if (lengths[std::size_t(order[i - 1])] < lengths[std::size_t(order[i])]) return "a longer list comes later";
    }
  return "";
}

/// All gradients of causal attention with a sink.
plan gradient_plan(index_t D, device on) {
  graph g;
  const value Q = g.input("Q", bf16, {1, 4, 300, D}), K = g.input("K", bf16, {1, 2, 300, D}), V = g.input("V", bf16, {1, 2, 300, D}), sink = g.input("sink", f32, {4});
  const attention_result a = attention(Q, K, V, {.mask = causal(), .sink = sink});
  const auto d = gradient(total(cast(a.out, f32)), {Q, K, V, sink});
  const char* names[] = {"dQ", "dK", "dV", "d_sink"};
  for (std::size_t i = 0; i < 4; ++i) g.output(names[i], d[i]);
  return make_plan(g, on);
}

std::vector<std::string> launches_of(const char* log) {
  std::vector<std::string> names;
  for (const char* line = log; *line != 0; line = std::strchr(line, '\n') + 1) names.emplace_back(line, std::size_t(std::strchr(line, ' ') - line));
  return names;
}

}  // namespace

TEST_CASE("helper: compares the lists of many masks on the driver without a device" * doctest::skip()) {
  REQUIRE(::dlopen(SAMITE_STUB_CUDA, RTLD_NOW) != nullptr);
  const cuda_device device = cuda_device::open(1);
  const cuda_stream stream(device);
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 500; ++i) ids.push_back(i / 90);
  const table_ref documents = table(ids), anchors = table(std::vector<index_t>{3, 40, 41, 90, 150, 151});
  const std::vector<any_mask> masks{any_mask(), any_mask(causal()), any_mask(causal() && window(50)), any_mask(kv <= q && documents[q] == documents[kv]), any_mask((q * 7 + kv * 3 + h) % 5 != 0),
                                    any_mask(kv < 30 * (b + 1) && q % 9 != 4), any_mask(q == 299), dflash_mask({.context_length = 170, .block_size = 16, .anchors = anchors})};
  int packed_lists = 0;
  for (const any_mask& mask : masks) {
    INFO("mask ", mask.label());
    detail::device_tile_maps maps;
    for (const auto& [tile_q, tile_k] : {std::pair<index_t, index_t>{64, 128}, {128, 64}, {192, 128}})
      for (const bool by_keys : {false, true}) {
        const sizes s{2, 2, 96, 266, tile_q, tile_k};
        const sizes wide{1, 2, 300, 300, tile_q, tile_k};
        for (const sizes& at : {s, &mask == &masks.back() ? s : wide}) {
          detail::step_snapshot step;
          const auto found = maps.get_bits(stream, mask.shared_program(), step, at.B, at.H, at.Q, at.K, {.queries = at.tile_q, .keys = at.tile_k, .by_keys = by_keys});
          CHECK(compare_lists(mask, found, at, by_keys) == "");
          if (!by_keys && tile_k == 128) {
            const auto packed = maps.get_bits(stream, mask.shared_program(), step, at.B, at.H, at.Q, at.K, {.queries = at.tile_q, .keys = at.tile_k, .most_pack = detail::heads_to_pack(mask.program(), 2, false), .narrows = true});
            CHECK(compare_lists(mask, packed, at, false) == "");
            packed_lists += packed.pack == 2;
          }
          const auto again = maps.get_bits(stream, mask.shared_program(), step, at.B, at.H, at.Q, at.K, {.queries = at.tile_q, .keys = at.tile_k, .by_keys = by_keys});
          CHECK(again.fresh == 0);
          CHECK(again.lists.runs == found.lists.runs);
        }
      }
  }
  CHECK(packed_lists > 8);
}

TEST_CASE("lists by queries and by keys hold every kept pair, equal bits stand for equal tiles, and the longest list comes first") {
  const auto ended = run_alone("helper: compares the lists of many masks*", "");
  const std::string& said = ended.second;
  CAPTURE(said);
  CHECK(ended.first == 0);
}

TEST_CASE("helper: starts gradients of attention on the driver without a device" * doctest::skip()) {
  void* const driver = ::dlopen(SAMITE_STUB_CUDA, RTLD_NOW);
  REQUIRE(driver != nullptr);
  const char* const log = static_cast<const char*>(::dlsym(driver, "stub_log"));
  const auto started = [&](index_t D) {
    executor run(gradient_plan(D, device::cuda(1)));
    for (const auto& [name, type, dims] : {std::tuple<const char*, dtype, extents>{"Q", bf16, {1, 4, 300, D}}, {"K", bf16, {1, 2, 300, D}}, {"V", bf16, {1, 2, 300, D}}, {"sink", f32, {4}}})
      run.bind(name, run.device_backend().make_tensor(type, dims));
    const std::size_t before = std::strlen(log);
    run.step();
    std::string names;
    for (const std::string& name : launches_of(log + before))
      if (name.starts_with("attention")) names += name + " ";
    return names;
  };
  const std::string forward64 = "attention_bits attention_forward_sm90_bf16_d64 ";
  CHECK(started(64) == forward64 + "attention_bits attention_prepare_sm90 attention_fused_gradient_sm90_bf16_d64 attention_finish_sm90 attention_sink_gradient ");
  CHECK(started(256) == "attention_bits attention_forward_sm90_bf16_d256 attention_bits attention_prepare_sm90 attention_key_gradient_sm90_bf16_d256 attention_value_gradient_sm90_bf16_d256 "
                        "attention_query_gradient_sm90_bf16_d256 attention_sink_gradient ");
  {
    const set_variable portable("SAMITE_ATTENTION", "portable");
    CHECK(started(64) == "attention_forward_bf16_d64 attention_prepare attention_fused_gradient_bf16_d64 attention_finish attention_sink_gradient ");
    CHECK(started(256) == "attention_forward_bf16_d256 attention_prepare attention_key_gradient_bf16_d256 attention_query_gradient_bf16_d256 attention_sink_gradient ");
  }
  const set_variable repeat("SAMITE_DETERMINISTIC", "1");
  CHECK(started(64) == forward64 + "attention_bits attention_bits attention_prepare_sm90 attention_key_value_gradient_sm90_bf16_d64 attention_query_gradient_sm90_bf16_d64 attention_sink_gradient ");
  const set_variable portable("SAMITE_ATTENTION", "portable");
  CHECK(started(64) == "attention_forward_bf16_d64 attention_prepare attention_key_gradient_bf16_d64 attention_query_gradient_bf16_d64 attention_sink_gradient ");
  CHECK(kernel_cache::instance().counters().compiles == 0);
}

TEST_CASE("a gradient on sm_90a, and on the portable kernels, starts the fused kernels, those that repeat every bit where SAMITE_DETERMINISTIC asks for it, and two for wide heads") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", disk_cache::mode::read_write);
  kernel_cache filler(disk, echo, one_build);
  const auto fill = [&](index_t D) {
    for (const kernel_source& source : kernels_of(gradient_plan(D, device::cpu()), "sm_90a")) filler.get(source);
  };
  fill(64), fill(256);
  {
    const set_variable repeat("SAMITE_DETERMINISTIC", "1");
    fill(64);
  }
  const auto ended = run_alone("helper: starts gradients of attention*", "SAMITE_NVRTC_PATH=/nowhere SAMITE_CACHE_DIR=" + (folder / "c"));
  const std::string& said = ended.second;
  CAPTURE(said);
  CHECK(ended.first == 0);
}
