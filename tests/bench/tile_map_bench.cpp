// The time and memory of tile maps on one CPU core, against size: JSON lines in the schema of docs/benchmarks.md. The date, the
// command and the commit come from the environment (BENCH_DATE, BENCH_COMMIT); see tests/bench/block_mask_peer.py for the peer.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <samite/mask.hpp>

namespace {

using namespace samite;

struct timing {
  double best_ms, median_ms;
};

template <class F>
timing time_of(F f) {
  std::vector<double> ms;
  const auto begin = std::chrono::steady_clock::now();
  while (ms.size() < 5 || (ms.size() < 200 && std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(500))) {
    const auto start = std::chrono::steady_clock::now();
    f();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(ms.begin(), ms.end());
  return {ms[0], ms[ms.size() / 2]};
}

void row(const char* name, const any_mask& mask, index_t Q, index_t K) {
  const tile_options sizes{.Q = Q, .K = K};
  const tile_map map(mask, sizes);
  const timing rows = time_of([&] { const tile_map m(mask, sizes); });
  const timing both = time_of([&] {
    tile_map m(mask, sizes);
    m.build_columns();
  });
  const char *date = std::getenv("BENCH_DATE"), *commit = std::getenv("BENCH_COMMIT");
  std::printf("{\"bench\":\"tile_map\",\"case\":\"%s, %lld x %lld\",\"pass\":\"rows\",\"regime\":\"one CPU core\",\"ms\":%.4f,\"median_ms\":%.4f,\"with_columns_ms\":%.4f,"
              "\"bytes\":%zu,\"full\":%lld,\"undecided\":%lld,\"date\":\"%s\",\"command\":\"tile_map_bench\",\"commit\":\"%s\"}\n",
              name, static_cast<long long>(Q), static_cast<long long>(K), rows.best_ms, rows.median_ms, both.best_ms, map.bytes(), static_cast<long long>(map.counts().full),
              static_cast<long long>(map.counts().undecided), date ? date : "", commit ? commit : "");
  std::fflush(stdout);
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
  }
}
