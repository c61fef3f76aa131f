// What a mask costs inside the portable attention kernels: causal beside a mask of ten clauses that keeps the same pairs and leaves the same
// tiles undecided, forward and forward with backward, as JSON lines in the schema of docs/benchmarks.md. Run it with
// SAMITE_ATTENTION=portable; dates and commits come from BENCH_DATE and BENCH_COMMIT.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <samite/runtime/cuda_driver.hpp>
#include <samite/samite.hpp>

namespace {

using namespace samite;

struct bench_mask {
  const char* name;
  any_mask mask;
};

double median_ms(executor& run) {
  std::vector<double> ms;
  for (int i = 0; i < 3; ++i) run.step();
  for (int sample = 0; sample < 9; ++sample) {
    run.synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) run.step();
    run.synchronize();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / 10);
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

void run_case(const char* size, index_t H, index_t S, index_t D, const bench_mask& m, bool with_gradient) {
  graph g;
  const value q = g.input("Q", bf16, {1, H, S, D}), k = g.input("K", bf16, {1, H, S, D}), v = g.input("V", bf16, {1, H, S, D});
  const attention_result a = attention(q, k, v, {.mask = m.mask});
  if (with_gradient) {
    const std::vector<value> gradients = gradient(total(a.out), {q, k, v});
    const char* names[] = {"dQ", "dK", "dV"};
    for (std::size_t i = 0; i < 3; ++i) g.output(names[i], gradients[i]);
  } else {
    g.output("out", a.out);
  }
  executor run(make_plan(g, device::cuda()));
  for (const char* name : {"Q", "K", "V"}) {
    tensor numbers(f32, {1, H, S, D});
    counted_random random(3, std::uint32_t(name[0]));
    for (float& x : numbers.values<float>()) x = float(random.normal());
    tensor moved = run.device_backend().make_tensor(bf16, numbers.dims());
    moved.copy_from(numbers.to_dtype(bf16));
    run.bind(name, moved);
  }
  const double ms = median_ms(run);
  const tile_map map(m.mask, {.Q = S, .K = S, .tile_q = 64, .tile_k = 64});
  const char *date = std::getenv("BENCH_DATE"), *commit = std::getenv("BENCH_COMMIT");
  std::printf("{\"bench\":\"mask_cost\",\"case\":\"%s, %s\",\"pass\":\"%s\",\"ms\":%.4f,\"full\":%lld,\"undecided\":%lld,\"gpu\":\"%s\",\"date\":\"%s\",\"command\":\"mask_cost_bench\",\"commit\":\"%s\"}\n", m.name, size,
              with_gradient ? "forward and backward" : "forward", ms, static_cast<long long>(map.counts().full), static_cast<long long>(map.counts().undecided), cuda_device::open().name().c_str(), date ? date : "",
              commit ? commit : "");
  std::fflush(stdout);
}

}  // namespace

int main() {
  if (!cuda_available()) return 77;
  using namespace symbols;
  const auto run_both = [](const char* size, index_t S, index_t length_of_document) {
    std::vector<index_t> ids, ones(std::size_t(S), 1), positions;
    for (index_t i = 0; i < S; ++i) ids.push_back(i / length_of_document), positions.push_back(i);
    const auto docs = table(ids), key = table(ones), row = table(ones), at = table(positions);
    const any_mask two(kv <= q && docs[q] == docs[kv], "two clauses");
    const any_mask ten(kv <= q && docs[q] == docs[kv] && q - kv < S && kv < scalar(S) && q / 16 >= kv / 16 && key[kv] != 0 && row[q] != 0 && (kv >= 4 || q < scalar(2 * S)) && abs(q - kv) != scalar(2 * S) && at[kv] <= at[q],
                       "ten clauses");
    for (const bench_mask& m : {bench_mask{"causal", causal()}, {"causal in documents", two}, {"ten clauses", ten}})
      for (const bool with_gradient : {false, true}) run_case(size, 16, S, 64, m, with_gradient);
  };
  run_both("S4096 H16 D64, one document", 4096, 1 << 20);
  run_both("S4096 H16 D64, documents of 50", 4096, 50);
}
