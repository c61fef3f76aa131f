// How key tiles are cut into parts, and which kernel few queries take, on a driver without a device.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/run/decode_parts.hpp>
#include <samite/run/executor.hpp>
#include <samite/run/plan_kernels.hpp>

#include "support/gpu.hpp"
#include "support/jit_faults.hpp"
#include "support/masks.hpp"
#include "support/raised.hpp"

using namespace samite;
using namespace samite::symbols;
using namespace samite_tests;
using detail::decode_grid;
using detail::part_tiles;

namespace {

/// Reads parts as the kernel does and compares them with what the mask says of every pair. Empty if they are right.
std::string compare_parts(const any_mask& mask, index_t B, index_t key_heads, index_t group, index_t Q, index_t K, const decode_grid& grid) {
  const index_t H = key_heads * group;
  const auto keeps = [&](index_t b, index_t h, index_t q, index_t kv) { return naive_value(mask.program(), mask.program().roots[0], {b, h, q, kv}) != 0; };
  const detail::decode_parts cut = cut_parts(tile_map(mask, {.B = B, .H = H, .Q = Q, .K = K, .tile_q = 64, .tile_k = 64}), group, grid);
  for (index_t b = 0; b < B; ++b)
    for (index_t g = 0; g < key_heads; ++g) {
      const index_t list = b * cut.batch_lists + g * cut.head_lists, parts = cut.parts[std::size_t(list)];
      std::vector<int> kinds(std::size_t((K + 63) / 64), 0);  // 0 empty, 1 undecided, 2 full
      std::int32_t last = -1;
      index_t longest = 0, shortest = K;
      for (index_t part = 0; part < cut.splits; ++part) {
        index_t tiles = 0;
        detail::device_decode_run run = cut.runs[std::size_t(list * cut.splits + part)];
        while (run.first < run.last) {
          if (run.first <= last) return concat_text("tile ", run.first, " follows ", last);
          for (std::int32_t t = run.first; t < run.last; ++t) kinds[std::size_t(t)] = run.full ? 2 : 1;
          tiles += run.last - run.first, last = run.last - 1;
          if (run.next == 0) break;
          run = cut.runs[std::size_t(run.next)];
        }
        if ((tiles == 0) != (part >= parts) && !(part == 0 && parts == 1)) return concat_text("part ", part, " of ", parts, " has ", tiles, " tiles");
        longest = std::max(longest, tiles);
        if (part + 1 < parts) shortest = std::min(shortest, tiles);
      }
      if (parts > 1 && shortest != longest) return "all parts but the last have equally many tiles";
      for (index_t t = 0; t < index_t(kinds.size()); ++t) {
        bool any = false, all = true;
        for (index_t h = g * group; h < (g + 1) * group; ++h)
          for (index_t q = 0; q < Q; ++q)
            for (index_t kv = t * 64; kv < std::min(K, t * 64 + 64); ++kv) keeps(b, h, q, kv) ? any = true : all = false;
        if (any && kinds[std::size_t(t)] == 0) return concat_text("tile ", t, " of batch ", b, ", key head ", g, " keeps pairs and is in no part");
        if (!all && kinds[std::size_t(t)] == 2) return concat_text("tile ", t, " of batch ", b, ", key head ", g, " is not full");
      }
    }
  return "";
}

/// Attention of Q queries over K keys, 4 heads for each of 2 key heads.
plan plan_of(const dim& Q, const dim& K, device on, index_t D = 128, const any_score& of_scores = {}) {
  graph g;
  const value keys = g.input("K", bf16, {2, 2, K, D}), values = g.input("V", bf16, {2, 2, K, D});
  g.output("out", contiguous(attention(g.input("Q", bf16, {2, 8, Q, D}), keys, values, {.mask = any_mask(kv < scalar(1000)), .score = of_scores}).out));
  return make_plan(g, on);
}

}  // namespace

TEST_CASE("parts hold every kept pair of all heads of a group, each tile once, and all but a list's last are equally long") {
  const table_ref lengths = table(std::vector<index_t>{0, 700, 65}), parents = table(subtree_ends({-1, 0, 1, 0, 3}));
  const std::vector<any_mask> masks{any_mask(length(lengths)), any_mask(kv <= q + 300), any_mask(tree(700, parents)), any_mask(kv % 130 < 3), any_mask(kv < 100 * h + 1), any_mask(kv >= 64 * h && kv < 64 * h + 200 * b),
                                    any_mask(kv < 0), any_mask((q * 7 + kv * 3 + h) % 5 != 0)};
  for (const any_mask& mask : masks)
    for (const index_t group : {1, 4})
      for (const index_t multiprocessors : {1, 24, 1000}) {
        INFO("mask ", mask.label(), ", group ", group, ", multiprocessors ", multiprocessors);
        CHECK(compare_parts(mask, 3, 2, group, 5, 705, {.pairs = 6, .row_tiles = 1, .multiprocessors = multiprocessors, .resident = 2, .rows = 4}) == "");
      }
}

TEST_CASE("one sequence is cut into as many parts as fill the device, many sequences into none, and long ones among short ones into several") {
  const auto parts_of = [](const std::vector<index_t>& tiles, const decode_grid& grid) {
    std::vector<index_t> parts;
    for (const index_t n : tiles) parts.push_back((n + part_tiles(tiles, grid) - 1) / part_tiles(tiles, grid));
    return parts;
  };
  CHECK(parts_of({128}, {.pairs = 8, .row_tiles = 1, .multiprocessors = 132, .resident = 3, .rows = 4}) == std::vector<index_t>{16});
  CHECK(parts_of({2048}, {.pairs = 8, .row_tiles = 1, .multiprocessors = 132, .resident = 3, .rows = 4}) == std::vector<index_t>{33});
  CHECK(parts_of({128}, {.pairs = 256, .row_tiles = 1, .multiprocessors = 132, .resident = 3, .rows = 4}) == std::vector<index_t>{1});
  CHECK(parts_of({512}, {.pairs = 8, .row_tiles = 1, .multiprocessors = 132, .resident = 1, .rows = 64, .is_alone = true}) == std::vector<index_t>{16});
  CHECK(parts_of({128}, {.pairs = 128, .row_tiles = 1, .multiprocessors = 132, .resident = 1, .rows = 64, .is_alone = true}) == std::vector<index_t>{1});
  CHECK(parts_of({1}, {.pairs = 1, .row_tiles = 1, .multiprocessors = 132, .resident = 3, .rows = 4}) == std::vector<index_t>{1});
  const std::vector<index_t> uneven = parts_of({2048, 16, 16, 16}, {.pairs = 32, .row_tiles = 1, .multiprocessors = 132, .resident = 3, .rows = 4});
  CHECK(uneven[0] > 16);
  CHECK(uneven[1] == 1);
}

TEST_CASE("few queries over many keys have decode kernels beside the others, or instead of them where lengths never change") {
  const auto labels_of = [](const dim& Q, const dim& K, bool rare = false, const char* arch = "sm_90a", index_t D = 128, const any_score& of_scores = {}) {
    std::string out;
    for (const kernel_source& source : detail::plan_kernels(plan_of(Q, K, device::cpu(), D, of_scores), arch).sources(rare))
      if (source.label.starts_with("attention_")) out += source.label.substr(10) + " ";
    return out;
  };
  CHECK(labels_of(1, 4096) == "decode_bf16_d128_r16 ");
  CHECK(labels_of(64, 4096) == "decode_sm90_bf16_d128 ");
  CHECK(labels_of(65, 4096).find("decode") == std::string::npos);
  CHECK(labels_of(1, 200).find("decode") == std::string::npos);
  const std::string session = labels_of(tokens(32, "n"), tokens(4096, "past"));
  for (const char* each : {"decode_bf16_d128_r16", "decode_sm90_bf16_d128", "forward_sm90_bf16_d128"}) CHECK(session.find(each) != std::string::npos);
  const dim long_queries = tokens(4096, "n");
  CHECK(labels_of(long_queries, tokens(4096, "past")).find("decode") == std::string::npos);
  CHECK(labels_of(long_queries, tokens(4096, "past"), true).find("decode_sm90_bf16_d128") != std::string::npos);
  CHECK(labels_of(long_queries, long_queries, true).find("decode") == std::string::npos);
  CHECK(labels_of(64, 4096, false, "sm_80") == "decode_bf16_d128_r64 forward_bf16_d128 ");
  const std::string scored = labels_of(64, 4096, false, "sm_90a", 128, any_score(30.0 * tanh(symbols::score / 30.0)));  // many rows and heads go to wgmma
  CHECK(scored == "forward_sm90_bf16_d128 decode_bf16_d128_r64 bits ");
  CHECK(labels_of(1, 4096, false, "sm_90a", 256) == "decode_sm90_bf16_d256 ");
  CHECK(labels_of(1, 4096, true, "sm_90a", 256).find("decode_bf16_d256_r16") != std::string::npos);  // for keys that TMA can't address
  const set_variable portable("SAMITE_ATTENTION", "portable");
  CHECK(labels_of(1, 4096) == "forward_bf16_d128 ");
}

TEST_CASE("SAMITE_ATTENTION that names no kernels is E-ENV-VALUE") {
  const set_variable wrong("SAMITE_ATTENTION", "fastest");
  CHECK(unlike("E-ENV-VALUE", {"SAMITE_ATTENTION=\"fastest\"", "auto, portable or decode"}, [&] { detail::attention_setting(); }) == "");
}

TEST_CASE("helper: starts attention of few queries on the driver without a device" * doctest::skip()) {
  void* const driver = ::dlopen(SAMITE_STUB_CUDA, RTLD_NOW);
  REQUIRE(driver != nullptr);
  const char* const log = static_cast<const char*>(::dlsym(driver, "stub_log"));
  const dim queries = tokens(300, "n"), keys = tokens(5000, "past");
  executor run(plan_of(queries, keys, device::cuda(1)));
  const auto started = [&](index_t Q, index_t K) {
    run.set_length(queries, Q), run.set_length(keys, K);
    run.bind("Q", run.device_backend().make_tensor(bf16, {2, 8, Q, 128}));
    for (const char* name : {"K", "V"}) run.bind(name, run.device_backend().make_tensor(bf16, {2, 2, K, 128}));
    const std::size_t before = std::strlen(log);
    run.step();
    std::string names;
    for (const char* line = log + before; *line != 0; line = std::strchr(line, '\n') + 1)
      if (std::strncmp(line, "attention", 9) == 0) names += std::string(line, std::strchr(line, '\n')) + " ";
    return names;
  };
  // 100 multiprocessors of 16 such blocks: 16 tiles in 16 parts for each of 4 pairs; then a block for each row of out.
  CHECK(started(1, 4096) == "attention_decode_bf16_d128_r16 64 attention_decode_merge 16 ");
  CHECK(started(4, 4096) == "attention_decode_bf16_d128_r16 64 attention_decode_merge 64 ");
  CHECK(started(5, 4096).ends_with("attention_decode_merge 80 "));
  CHECK(started(5, 4096).starts_with("attention_decode_sm90_bf16_d128 64 "));
  CHECK(started(64, 4096).starts_with("attention_decode_sm90_bf16_d128 64 "));  // two of 128 rows for each 2 tiles
  CHECK(started(65, 4096).find("attention_forward_sm90") != std::string::npos);
  CHECK(started(1, 255).find("attention_forward_sm90") != std::string::npos);
  const set_variable always("SAMITE_ATTENTION", "decode");
  executor small(plan_of(2, 3, device::cuda(1)));
  small.bind("Q", small.device_backend().make_tensor(bf16, {2, 8, 2, 128}));
  for (const char* name : {"K", "V"}) small.bind(name, small.device_backend().make_tensor(bf16, {2, 2, 3, 128}));
  const std::size_t before = std::strlen(log);
  small.step();
  CHECK(std::strstr(log + before, "attention_decode_bf16_d128_r16 4\n") != nullptr);
  CHECK(kernel_cache::instance().counters().compiles == 0);
}

TEST_CASE("up to 64 queries over at least 256 keys start a decode kernel, with blocks for the tiles that the mask keeps") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", disk_cache::mode::read_write);
  kernel_cache filler(disk, echo, one_build);
  const auto fill = [&](const plan& p) {
    for (const kernel_source& source : kernels_of(p, "sm_90a")) filler.get(source);
  };
  fill(plan_of(tokens(300, "n"), tokens(5000, "past"), device::cpu()));
  {
    const set_variable always("SAMITE_ATTENTION", "decode");
    fill(plan_of(2, 3, device::cpu()));
  }
  const auto ended = run_alone("helper: starts attention of few queries*", "SAMITE_NVRTC_PATH=/nowhere SAMITE_CACHE_DIR=" + (folder / "c"));
  const std::string& said = ended.second;
  CAPTURE(said);
  CHECK(ended.first == 0);
}
