// Attention on the CPU against OpenBLAS's own rate on a square product, on one thread and on two: JSON lines in the schema of
// docs/benchmarks.md. FLOPs are those of the kept pairs, 4 D forward and 10 D backward. BENCH_DATE and BENCH_COMMIT name the run.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <samite/core/random.hpp>
#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/mask.hpp>
#include <samite/mask/count_kept.hpp>
#include <samite/nn/attention.hpp>
#include <samite/run/executor.hpp>
#include <samite/runtime/blas.hpp>
#include <samite/runtime/thread_pool.hpp>

namespace {

using namespace samite;

template <class F>
double best_ms(F f) {
  double best = 1e30;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5 || (i < 100 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(2)); ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// GFLOP/s of a 2048-cubed product by the library's own threads; the built-in kernel's where there is no library.
double product_rate(int threads) {
  constexpr int n = 2048;
  const std::vector<float> a(std::size_t(n * n), 0.5f), b(std::size_t(n * n), 0.25f);
  std::vector<float> c(a.size());
  const detail::blas_library library = detail::choose_blas("");
  double ms = 0;
  if (library.sgemm_function == nullptr) {
    const thread_limit limit(threads);
    ms = best_ms([&] { gemm(false, false, n, n, n, 1.f, a.data(), n, b.data(), n, 0.f, c.data(), n); });
  } else {
    void* const handle = dlopen(library.name.c_str(), RTLD_NOW | RTLD_NOLOAD);
    const auto set_threads = reinterpret_cast<void (*)(int)>(handle == nullptr ? nullptr : dlsym(handle, "openblas_set_num_threads"));
    if (set_threads != nullptr) set_threads(threads);
    ms = best_ms([&] { library.sgemm_function(101, 111, 111, n, n, n, 1.f, a.data(), n, b.data(), n, 0.f, c.data(), n); });
    if (set_threads != nullptr) set_threads(1);
  }
  return 2.0 * n * n * double(n) / ms * 1e-6;
}

tensor filled(index_t heads, index_t S, index_t D, std::uint32_t purpose) {
  tensor t(f32, {1, heads, S, D});
  counted_random random(1, purpose);
  for (float& x : t.values<float>()) x = float(random.below(2000)) * 1e-3f - 1;
  return t;
}

void row(const char* name, const any_mask& mask, index_t S, index_t D, int threads, double peer) {
  constexpr index_t heads = 2;
  const double kept = double(count_kept(mask, {.H = heads, .Q = S, .K = S}));
  const tensor Q = filled(heads, S, D, 1), K = filled(heads, S, D, 2), V = filled(heads, S, D, 3), d = filled(heads, S, D, 4);
  const thread_limit limit(threads);
  double ms[2];
  for (const bool backward : {false, true}) {
    graph g;
    const value q = g.input("Q", f32, {1, heads, S, D}), k = g.input("K", f32, {1, heads, S, D}), v = g.input("V", f32, {1, heads, S, D});
    const value out = attention(q, k, v, {.mask = mask}).out;
    g.output("out", out);
    if (backward) {
      const std::vector<value> gradients = gradient(total(let(out * g.input("d", f32, {1, heads, S, D}))), {q, k, v});
      for (std::size_t i = 0; i < 3; ++i) g.output("d" + std::to_string(i), gradients[i]);
    }
    executor run(make_plan(g, device::cpu()));
    run.bind("Q", Q), run.bind("K", K), run.bind("V", V);
    if (backward) run.bind("d", d);
    ms[backward] = best_ms([&] { run.step(); });
  }
  const char *date = std::getenv("BENCH_DATE"), *commit = std::getenv("BENCH_COMMIT");
  for (const bool backward : {false, true}) {
    const double time = backward ? ms[1] - ms[0] : ms[0], rate = kept * double(D) * (backward ? 10 : 4) / time * 1e-6;
    std::printf("{\"bench\":\"cpu_attention\",\"case\":\"%s, S %lld, D %lld, %lld heads, f32\",\"pass\":\"%s\",\"regime\":\"%d CPU thread(s)\",\"ms\":%.2f,\"gflops_kept\":%.1f,"
                "\"peer\":\"sgemm 2048^3 by %s: %.1f GFLOP/s\",\"ratio\":%.3f,\"date\":\"%s\",\"command\":\"cpu_attention_bench\",\"commit\":\"%s\"}\n",
                name, static_cast<long long>(S), static_cast<long long>(D), static_cast<long long>(heads), backward ? "backward" : "forward", threads, time, rate, blas_name().c_str(), peer,
                rate / peer, date ? date : "", commit ? commit : "");
    std::fflush(stdout);
  }
}

// I10: a tile map beside the attention of one training step of a drafter: five layers, forward and backward, one head of 64.
void map_share() {
  constexpr index_t S = 8192, N = 512, rows = 16 * N, D = 64;
  std::vector<index_t> anchors, ids;
  for (index_t i = 0; i < N; ++i) anchors.push_back(16 * i + 5);
  for (index_t i = 0; i < S; ++i) ids.push_back(i / 1500);
  const any_mask mask = dflash_mask({.context_length = S, .anchors = table(anchors, {1, N}), .documents = table(ids, {1, S})});
  const double map_ms = best_ms([&] { const tile_map map(mask, {.Q = rows, .K = S + rows}); });
  graph g;
  const value q = g.input("Q", f32, {1, 1, rows, D}), k = g.input("K", f32, {1, 1, S + rows, D});
  const value out = attention(q, k, k, {.mask = mask}).out;
  g.output("d", gradient(total(let(out * out)), {q})[0]);
  executor run(make_plan(g, device::cpu()));
  run.bind("Q", filled(1, rows, D, 1)), run.bind("K", filled(1, S + rows, D, 2));
  const double step_ms = 5 * best_ms([&] { run.step(); });
  std::printf("{\"bench\":\"cpu_attention\",\"case\":\"I10: DFlash training, %lld x %lld\",\"pass\":\"map\",\"regime\":\"best\",\"ms\":%.4f,\"peer\":\"attention of five layers: %.1f ms\",\"ratio\":%.6f,"
              "\"command\":\"cpu_attention_bench\"}\n",
              static_cast<long long>(rows), static_cast<long long>(S + rows), map_ms, step_ms, map_ms / step_ms);
}

}  // namespace

int main() {
  map_share();
  for (const int threads : {1, 2}) {
    const double peer = product_rate(threads);
    row("causal", causal(), 4096, 64, threads, peer);
    row("causal", causal(), 4096, 128, threads, peer);
    row("causal, window 1024", causal() && window(1024), 4096, 64, threads, peer);
    std::vector<index_t> ids;
    for (index_t i = 0; i < 4096; ++i) ids.push_back(i / 700);
    row("document causal", document_causal(table(ids)), 4096, 64, threads, peer);
  }
}
