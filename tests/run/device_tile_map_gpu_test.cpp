#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <samite/ir/tile_bits.hpp>
#include <samite/jit/compiler.hpp>
#include <samite/mask.hpp>
#include <samite/run/device_tile_map.hpp>

#include "support/random_programs.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite_tests;
using detail::device_tile_map;
using detail::device_tile_map_options;
using detail::device_tile_run;
using detail::device_undecided_tile;

namespace {

/// Lists as the kernels of attention read them.
struct lists {
  std::vector<device_tile_run> runs[2];
  std::vector<std::int64_t> begin[2];
  std::vector<device_undecided_tile> undecided;
};

std::vector<device_tile_run> as_runs(std::span<const tile_run> runs) {
  std::vector<device_tile_run> out;
  std::int32_t bits = 0;
  for (const tile_run& r : runs) {
    const bool full = r.kind == tile_kind::full;
    out.push_back({r.first, r.last + 1, full, full ? -1 : bits});
    if (!full) bits += r.last - r.first + 1;
  }
  return out;
}

lists host_lists(const any_mask& mask, const tile_options& o) {
  tile_map map(mask, o);
  map.build_columns();
  lists out;
  out.runs[0] = as_runs(map.row_runs()), out.runs[1] = as_runs(map.column_runs());
  out.begin[0].assign(map.row_starts().begin(), map.row_starts().end()), out.begin[1].assign(map.column_starts().begin(), map.column_starts().end());
  const index_t heads = mask.uses(symbol_id::h) ? o.H : 1;
  for (index_t m = 0; m < map.maps(); ++m)
    for (index_t i = 0; i < map.q_tiles(); ++i)
      for (const tile_run& r : map.row(mask.uses(symbol_id::b) ? m / heads : 0, m % heads, i))
        for (std::int32_t j = r.first; r.kind == tile_kind::undecided && j <= r.last; ++j) out.undecided.push_back({std::int32_t(m / heads), std::int32_t(m % heads), std::int32_t(i), j});
  return out;
}

template <class T>
std::vector<T> download(const cuda_stream& stream, device_address from, std::size_t count) {
  std::vector<T> out(count);
  if (count > 0) detail::check_cuda(detail::cuda().copy_to_host_async(out.data(), from, count * sizeof(T), stream.handle()), "reading lists");
  stream.synchronize();
  return out;
}

lists device_lists(const cuda_stream& stream, const device_tile_map& map, const lists& expected) {
  const detail::device_map_totals totals = map.totals(stream);
  CHECK(totals.overflow == 0);
  lists out;
  for (int d : {0, 1}) {
    const detail::device_tile_lists at = d == 0 ? map.rows() : map.columns();
    out.runs[d] = download<device_tile_run>(stream, at.runs, std::size_t(totals.runs[d])), out.begin[d] = download<std::int64_t>(stream, at.begin, expected.begin[d].size());
  }
  out.undecided = download<device_undecided_tile>(stream, map.undecided(), std::size_t(totals.undecided));
  return out;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

std::string difference_of(const lists& a, const lists& b) {
  std::string out;
  for (int d : {0, 1}) {
    if (!same(a.begin[d], b.begin[d])) out += d == 0 ? "row starts " : "column starts ";
    if (!same(a.runs[d], b.runs[d])) out += d == 0 ? "row runs " : "column runs ";
  }
  return out + (same(a.undecided, b.undecided) ? "" : "undecided tiles");
}

/// Pairs of the undecided tiles whose bit is not the mask's.
int wrong_bits(const cuda_stream& stream, const device_tile_map& map, const any_mask& mask, const lists& found, index_t Q, index_t K) {
  const index_t rows = map.options().tile_q, keys = map.options().tile_k;
  const std::vector<std::uint32_t> words = download<std::uint32_t>(stream, map.bits(), found.undecided.size() * std::size_t(4 * rows));
  tile_bits pairs(mask.program());
  int wrong = 0;
  std::vector<std::uint64_t> keep(static_cast<std::size_t>(rows));
  for (std::size_t t = 0; t < found.undecided.size(); ++t) {
    const device_undecided_tile& u = found.undecided[t];
    for (index_t half = 0; half < keys; half += 64) {
      const index_t q0 = u.query_tile * rows, k0 = u.key_tile * keys + half, q1 = std::min(q0 + rows, Q), k1 = std::min(k0 + 64, K);
      if (k0 >= k1) continue;
      pairs.evaluate({interval::point(u.b), interval::point(u.h), {q0, q1 - 1}, {k0, k1 - 1}}, keep.data());
      for (index_t q = q0; q < q1; ++q)
        for (index_t kv = k0; kv < k1; ++kv) {
          // The thread, the word and the bit that hold a pair in attention_sm90.cuh's accumulators.
          const index_t row = q - q0, column = kv - u.key_tile * keys, thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2, word = row % 16 / 8, bit = column / 8 * 2 + column % 2;
          const bool is_set = (words[t * std::size_t(4 * rows) + std::size_t(2 * thread + word)] >> bit & 1u) != 0;
          wrong += is_set != ((keep[std::size_t(row)] >> (kv - k0) & 1u) != 0);
        }
    }
  }
  return wrong;
}

void check_map(const cuda_stream& stream, const any_mask& mask, const tile_options& o) {
  INFO(mask.label(), ", B ", o.B, " H ", o.H, " Q ", o.Q, " K ", o.K, ", tiles ", o.tile_q, " x ", o.tile_k);
  device_tile_map map(stream.device(), mask.shared_program(), {.B = o.B, .H = o.H, .Q = o.Q, .K = o.K, .tile_q = o.tile_q, .tile_k = o.tile_k});
  map.update(stream);
  map.run(stream);
  const lists expected = host_lists(mask, o), found = device_lists(stream, map, expected);
  CHECK(difference_of(found, expected) == "");
  CHECK(wrong_bits(stream, map, mask, found, o.Q, o.K) == 0);
}

std::vector<index_t> rising(counted_random& random, index_t count, index_t most) {
  std::vector<index_t> values;
  for (index_t i = 0; i < count; ++i) values.push_back(index_t(random.below(std::uint32_t(most))));
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

TEST_CASE("tile maps made on the GPU are the host's, bit for bit, and their bit tiles are the mask's pairs") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  using namespace symbols;
  const cuda_stream stream(cuda_device::open());
  counted_random random(5, 1, 0, 0);
  const auto ids = table(rising(random, 1500, 9)), unordered = table({3, 1, 2, 0, 1, 3, 2, 2}), lengths = table({700, 1111});
  std::vector<index_t> noise;
  for (int i = 0; i < 1500; ++i) noise.push_back(index_t(random.below(5)));
  const auto mixed = table(noise);
  const std::vector<any_mask> masks{causal(), window(200), causal() && window(200) && document(ids), full(), none(), prefix(300), kv < lengths[b] && kv <= q + h * 64, mixed[q] == mixed[kv] && kv <= q,
                                    kv / 96 <= q / 96, unordered[q / 190] == unordered[kv / 190], (q - kv) % 64 == 0 || kv < 4, q * 46341 + kv >= 46341 * 70};
  for (const any_mask& mask : masks) {
    check_map(stream, mask, {.B = 2, .H = 3, .Q = 1200, .K = 1300});
    check_map(stream, mask, {.B = 2, .H = 1, .Q = 65, .K = 1500, .tile_q = 192});
    check_map(stream, mask, {.B = 1, .H = 2, .Q = 1, .K = 1, .tile_k = 64});
  }
  check_map(stream, causal(), {.Q = 0, .K = 100});
  check_map(stream, causal(), {.Q = 100, .K = 0});
}

TEST_CASE("random masks have the same tile map on the GPU as on the host") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const std::uint64_t seed = 23;
  MESSAGE("seed ", seed);
  const cuda_stream stream(cuda_device::open());
  for (std::uint32_t sample = 0; sample < 60; ++sample) {
    CAPTURE(sample);
    random_programs make(seed, sample);
    const any_mask mask(make.predicate(3), "random");
    check_map(stream, mask, {.B = 2, .H = 2, .Q = 1 + make.below(500), .K = 1 + make.below(700), .tile_k = sample % 2 == 0 ? 128 : 64});
  }
}

TEST_CASE("a map of hundreds of tiles a row is judged by stretches of tiles, with the same lists") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const cuda_stream stream(cuda_device::open());
  counted_random random(6, 1, 0, 0);
  for (const any_mask& mask : {any_mask(causal() && window(3000)), any_mask(document_causal(table(rising(random, 40000, 30))))}) {
    device_tile_map map(stream.device(), mask.shared_program(), {.Q = 40000, .K = 39990});
    map.update(stream);
    map.run(stream);
    const lists expected = host_lists(mask, {.Q = 40000, .K = 39990});
    CHECK(difference_of(device_lists(stream, map, expected), expected) == "");
  }
}

TEST_CASE("I7: captured once, tables, numbers and lengths change over 100 replays and every list is the host's") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  constexpr index_t most_S = 3000, most_N = 96, block = 16;
  const std::uint64_t seed = 31;
  MESSAGE("seed ", seed);
  const cuda_stream stream(cuda_device::open());
  counted_random random(seed, 1, 0, 0);
  scalar context = most_S, width = 500, blocks = most_N;
  table_ref anchors = table(std::vector<index_t>(most_N, 1), {1, most_N}), keep = table(std::vector<index_t>(most_N, 1), {1, most_N}), documents = table(std::vector<index_t>(most_S, 0), {1, most_S});
  const any_mask mask = dflash_mask({.context_length = context, .block_size = block, .anchors = anchors, .keep = keep, .documents = documents, .window = width, .block_count = blocks});
  device_tile_map map(stream.device(), mask.shared_program(), {.Q = most_N * block, .K = most_S + most_N * block, .run_limit = 4000, .undecided_limit = 1500});
  map.update(stream);
  const cuda_graph graph = cuda_graph::capture(stream, [&] { map.run(stream); });
  const int compiles = kernel_cache::instance().counters().compiles;
  for (int replay = 0; replay < 100; ++replay) {
    CAPTURE(replay);
    const index_t S = 200 + index_t(random.below(most_S - 200)), N = 1 + index_t(random.below(most_N - 1));
    context.set(S), width.set(1 + index_t(random.below(2000))), blocks.set(N);
    std::vector<index_t> at = rising(random, most_N, S), kept;
    if (replay % 3 == 0) std::reverse(at.begin(), at.end());  // not sorted
    for (index_t i = 0; i < most_N; ++i) kept.push_back(random.below(9) != 0);
    anchors.update(at, {1, most_N}), keep.update(kept, {1, most_N});
    documents.update(rising(random, S, 1 + index_t(random.below(12))), {1, S});
    const index_t Q = N * block - (replay % 2) * 5, K = S + N * block;
    map.update(stream, Q, K);
    graph.launch(stream);
    const lists expected = host_lists(mask, {.Q = Q, .K = K}), found = device_lists(stream, map, expected);
    CHECK(difference_of(found, expected) == "");
    if (replay % 10 == 0) CHECK(wrong_bits(stream, map, mask, found, Q, K) == 0);
  }
  CHECK(kernel_cache::instance().counters().compiles == compiles);
}

TEST_CASE("a map beyond its capacity leaves every list empty and says what it would need") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const cuda_stream stream(cuda_device::open());
  scalar width = 100;
  const any_mask mask = causal() && window(width);
  device_tile_map map(stream.device(), mask.shared_program(), {.Q = 2048, .K = 2048, .run_limit = 40, .undecided_limit = 32});
  map.update(stream);
  map.run(stream);
  CHECK(map.totals(stream).overflow == 0);
  CHECK(map.totals(stream).undecided == 31);
  width.set(700);
  map.update(stream), map.run(stream);
  detail::device_map_totals totals = map.totals(stream);
  CHECK(totals.overflow == 1);
  CHECK(totals.undecided == 0);
  CHECK(totals.needed_undecided == tile_map(mask, {.Q = 2048, .K = 2048}).counts().undecided);
  CHECK(totals.needed_runs[0] == index_t(tile_map(mask, {.Q = 2048, .K = 2048}).row_runs().size()));
  CHECK(download<std::int64_t>(stream, map.rows().begin, 17) == std::vector<std::int64_t>(17, 0));
  width.set(90);
  map.update(stream), map.run(stream);
  const lists expected = host_lists(mask, {.Q = 2048, .K = 2048});
  CHECK(difference_of(device_lists(stream, map, expected), expected) == "");
}

TEST_CASE("lengths beyond the capacity of a map on the GPU are refused") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  const cuda_stream stream(cuda_device::open());
  device_tile_map map(stream.device(), any_mask(causal()).shared_program(), {.Q = 256, .K = 256});
  CHECK_THROWS_WITH_AS(map.update(stream, 300, 256), doctest::Contains("E-MASK-DEVICE-MAP"), error);
}
