// The time and memory of tile maps on one CPU core and, where there is one, on the GPU, against size: JSON lines in the schema of
// docs/benchmarks.md. The date, the command and the commit come from the environment (BENCH_DATE, BENCH_COMMIT); see
// tests/bench/block_mask_peer.py for the peer.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <samite/mask.hpp>
#include <samite/run/attention_packing.hpp>
#include <samite/run/device_tile_map.hpp>

namespace {

using namespace samite;

struct timing {
  double best_ms, median_ms;
};

template <class F>
timing time_of(F f) {
  std::vector<double> ms;
  const auto begin = std::chrono::steady_clock::now();
  while (ms.size() < 5 || (ms.size() < 200 && std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(150))) {
    const auto start = std::chrono::steady_clock::now();
    f();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(ms.begin(), ms.end());
  return {ms[0], ms[ms.size() / 2]};
}

/// Milliseconds on the device of replays that come one after another, the median of 20 batches of 20.
double replay_ms(const cuda_stream& stream, const cuda_graph& graph) {
  std::vector<double> ms;
  cuda_event start(stream.device()), end(stream.device());
  for (int batch = 0; batch < 20; ++batch) {
    start.record(stream);
    for (int i = 0; i < 20; ++i) graph.launch(stream);
    end.record(stream);
    end.synchronize();
    ms.push_back(double(end.elapsed_ms(start)) / 20);
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

void device_row(const char* name, const any_mask& mask, const tile_options& sizes) {
  const cuda_stream stream(cuda_device::open());
  double ms[3] = {};  // rows and columns; with bit tiles; what the host does before a replay, nothing having changed
  std::size_t bytes = 0;
  detail::device_map_totals totals;
  for (const bool with_bits : {false, true}) {
    detail::device_tile_map map(stream.device(), mask.shared_program(), {.Q = sizes.Q, .K = sizes.K, .with_bits = with_bits});
    map.update(stream);
    map.run(stream);
    const cuda_graph graph = cuda_graph::capture(stream, [&] { map.run(stream); });
    ms[with_bits] = replay_ms(stream, graph);
    bytes = map.bytes(), totals = map.totals(stream);
    if (with_bits) ms[2] = time_of([&] { map.update(stream); }).median_ms;
  }
  const char *date = std::getenv("BENCH_DATE"), *commit = std::getenv("BENCH_COMMIT");
  std::printf("{\"bench\":\"tile_map\",\"case\":\"%s, %lld x %lld\",\"pass\":\"rows, columns and bit tiles\",\"regime\":\"captured graph\",\"ms\":%.4f,\"without_bits_ms\":%.4f,\"update_ms\":%.4f,"
              "\"bytes\":%zu,\"undecided\":%d,\"overflow\":%d,\"gpu\":\"%s\",\"date\":\"%s\",\"command\":\"tile_map_bench\",\"commit\":\"%s\"}\n",
              name, static_cast<long long>(sizes.Q), static_cast<long long>(sizes.K), ms[1], ms[0], ms[2], bytes, totals.undecided, totals.overflow, stream.device().name().c_str(), date ? date : "", commit ? commit : "");
  std::fflush(stdout);
}

void row(const char* name, const any_mask& mask, index_t Q, index_t K) {
  const tile_options sizes{.Q = Q, .K = K};
  const tile_map map(mask, sizes);
  const timing rows = time_of([&] { const tile_map m(mask, sizes); });
  const timing both = time_of([&] {
    tile_map m(mask, sizes);
    m.build_columns();
  });
  // As the kernels for sm_90a walk them: rows of four heads packed, narrow tiles found; and by keys, with their halves.
  const timing packed = time_of([&] { detail::packed_tiles::by_queries(mask, sizes, 4, true); }), by_keys = time_of([&] {
    detail::packed_tiles::by_keys(mask, {.Q = Q, .K = K, .tile_q = 64});
  });
  const char *date = std::getenv("BENCH_DATE"), *commit = std::getenv("BENCH_COMMIT");
  std::printf("{\"bench\":\"tile_map\",\"case\":\"%s, %lld x %lld\",\"pass\":\"rows\",\"regime\":\"one CPU core\",\"ms\":%.4f,\"median_ms\":%.4f,\"with_columns_ms\":%.4f,\"packed_ms\":%.4f,\"by_keys_ms\":%.4f,"
              "\"bytes\":%zu,\"full\":%lld,\"undecided\":%lld,\"date\":\"%s\",\"command\":\"tile_map_bench\",\"commit\":\"%s\"}\n",
              name, static_cast<long long>(Q), static_cast<long long>(K), rows.best_ms, rows.median_ms, both.best_ms, packed.best_ms, by_keys.best_ms, map.bytes(), static_cast<long long>(map.counts().full),
              static_cast<long long>(map.counts().undecided), date ? date : "", commit ? commit : "");
  std::fflush(stdout);
  if (cuda_available()) device_row(name, mask, sizes);
}

}  // namespace

int main() {
  for (const index_t S : {2048, 8192, 16384, 32768, 131072, 1048576}) {
    row("causal", causal(), S, S);
    row("causal window 1024", causal() && window(1024), S, S);
    std::vector<index_t> ids;
    for (index_t i = 0; i < S; ++i) ids.push_back(i / 1500);
    row("document causal", document_causal(table(ids)), S, S);
    const index_t blocks = S / 16;
    std::vector<index_t> anchors;
    for (index_t i = 0; i < blocks; ++i) anchors.push_back(std::min(S - 1, 16 * i + (i * 7) % 13));
    const dflash_mask_options full{.context_length = S, .block_size = 16, .anchors = table(anchors, {1, blocks})};
    dflash_mask_options sliding = full;
    sliding.window = scalar(2048);
    row("DFlash training", dflash_mask(full), blocks * 16, S + blocks * 16);
    row("DFlash training, window 2048", dflash_mask(sliding), blocks * 16, S + blocks * 16);
    dflash_mask_options packed = full;
    packed.documents = table(ids, {1, S});
    row("DFlash training, documents of 1500", dflash_mask(packed), blocks * 16, S + blocks * 16);
  }
}
