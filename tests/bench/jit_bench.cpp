// The kernel cache on a GPU: hits, loads, launches, a decoder layer's plan cold and from disk, threads with new keys: JSON lines in the
// schema of docs/benchmarks.md. Dates and commits come from BENCH_DATE and BENCH_COMMIT; tests/bench/jit_peers.py times Triton and
// torch.compile in the same run.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include <samite/ir/autodiff.hpp>
#include <samite/jit/precompile.hpp>
#include <samite/run/plan_kernels.hpp>
#include <samite/runtime/cuda_driver.hpp>
#include <samite/samite.hpp>

namespace {

using namespace samite;
using std::chrono::steady_clock;
using mode = disk_cache::mode;

double us_since(steady_clock::time_point start) { return std::chrono::duration<double, std::micro>(steady_clock::now() - start).count(); }
double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

void print_row(const char* name, const char* unit, double value, const std::string& more = "") {
  const auto text = [](const char* variable) { return std::getenv(variable) != nullptr ? std::getenv(variable) : ""; };
  std::printf("{\"bench\": \"jit\", \"case\": \"%s\", \"%s\": %.4g%s, \"date\": \"%s\", \"command\": \"jit_bench\", \"commit\": \"%s\", \"gpu\": \"%s\", \"nvrtc\": \"%s\"}\n", name, unit, value, more.c_str(),
              text("BENCH_DATE"), text("BENCH_COMMIT"), cuda_device::open().name().c_str(), nvrtc_available() ? nvrtc_build().c_str() : "");
  std::fflush(stdout);
}

struct scratch_folder {
  std::string path = (std::filesystem::temp_directory_path() / concat_text("samite-jit-bench-", ::getpid())).string();
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

kernel_source adding(const cuda_device& device, int step) {
  return {.label = concat_text("add ", step), .text = concat_text("extern \"C\" __global__ void add(int* x) { *x += ", step, "; }\n"), .arch = device.arch_name()};
}

void hits_and_loads(const cuda_device& device, const scratch_folder& folder) {
  disk_cache disk(folder.path + "/small", mode::read_write);
  kernel_cache cold(disk), warm(disk), loading(disk);
  std::vector<double> compile_ms, disk_us, load_us;
  for (int i = 0; i < 21; ++i) {
    const auto start = steady_clock::now();
    cold.function(device, adding(device, i), "add");
    compile_ms.push_back(us_since(start) / 1000);
  }
  for (int i = 0; i < 21; ++i) {
    auto start = steady_clock::now();
    warm.get(adding(device, i));
    disk_us.push_back(us_since(start));
    start = steady_clock::now();
    loading.function(device, adding(device, i), "add");
    load_us.push_back(us_since(start));
  }
  print_row("a kernel of one line, compiled, stored and loaded", "ms", median(compile_ms));
  print_row("disk hit, before the driver", "us", median(disk_us));
  print_row("disk hit with the driver's load", "us", median(load_us));
  const kernel_handle handle = warm.prepare(adding(device, 0));
  constexpr int uses = 20'000'000;
  std::size_t bytes = 0;
  const auto start = steady_clock::now();
  for (int i = 0; i < uses; ++i) {
    bytes += handle.if_ready()->cubin.size();
    asm volatile("" ::: "memory");
  }
  print_row("memory hit through a handle", "ns", us_since(start) * 1000 / uses, bytes == 0 ? ", \"odd\": true" : "");
}

/// What our launch costs beyond the driver's, in turn so that the clock meets both alike.
void launches(const cuda_device& device) {
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  const cuda_stream stream(device);
  const cuda_function add = cache.function(device, adding(device, 1), "add");
  cuda_buffer x(device, sizeof(int));
  device_address address = x.address();
  void* arguments[] = {&address};
  double raw_us = 1e9, own_us = 1e9;
  for (int round = 0; round < 200; ++round) {  // few at a time: the stream's queue must not be full
    auto start = steady_clock::now();
    for (int i = 0; i < 100; ++i) detail::cuda().launch(add.handle(), 1, 1, 1, 1, 1, 1, 0, stream.handle(), arguments, nullptr);
    raw_us = std::min(raw_us, us_since(start) / 100);
    stream.synchronize();
    start = steady_clock::now();
    for (int i = 0; i < 100; ++i) add.launch(stream, {}, arguments);
    own_us = std::min(own_us, us_since(start) / 100);
    stream.synchronize();
  }
  print_row("launch, the driver's own call", "us", raw_us);
  print_row("launch, beyond the driver's own call", "us", own_us - raw_us);
}

/// One decoder layer of a model of 2048 channels in bf16, 1024 tokens, with or without its gradients.
void build_layer(graph& g, bool with_gradients) {
  decoder_config c;
  c.sizes = {.hidden = 2048, .intermediate = 6144, .heads = 16, .kv_heads = 8, .head_dim = 128};
  c.vocab_size = 512, c.layers = 1, c.rope_theta = 1e4, c.tied = true;
  const decoder_weights w = declare_decoder(g, c, bf16, bf16);
  const decoder_result r = decoder(g.input("ids", i32, {1, 1024}), g.input("positions", i32, {1, 1024}), w, c, {.mask = causal()});
  g.output("hidden", contiguous(r.hidden));
  if (!with_gradients) return;
  std::vector<value> parameters;
  for (std::size_t i = 0; i < g.nodes().size(); ++i)
    if (g.nodes()[i].as<parameter_node>()) parameters.push_back(value(&g, int(i), 0));
  const value loss = total(cast(r.hidden, f32));
  const auto gradients = gradient(loss, parameters);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i]) g.output(concat_text("gradient ", i), contiguous(gradients[i]));
}

/// Attention of bf16 tensors, forward and backward, 8192 tokens.
void build_attention(graph& g, index_t D) {
  const shape dims{1, 8, 8192, D};
  const value Q = g.input("Q", bf16, dims), K = g.input("K", bf16, dims), V = g.input("V", bf16, dims), d_out = g.input("d_out", bf16, dims);
  const attention_result a = attention(Q, K, V, {.mask = causal()});
  std::vector<value_info> made;
  for (const value& x : {Q, K, V}) made.push_back(g.info(value_ref{x.node(), x.output()}));
  const auto d = g.add(attention_gradient_node{*g.node(a.out.node()).as<attention_node>(), false}, {Q, K, V, a.out, a.lse, d_out}, made, "backward");
  g.output("out", a.out), g.output("dQ", d[0]), g.output("dK", d[1]), g.output("dV", d[2]);
}

/// What `build` makes, cold and from disk.
void cold_and_stored(const cuda_device& device, const scratch_folder& folder, const std::string& name, const std::function<void(graph&)>& build) {
  graph g;
  build(g);
  const plan p = make_plan(g, device::cuda());
  const detail::plan_kernels kernels(p, device.arch_name());
  const std::vector<kernel_source> sources = kernels.sources(false);
  const std::string what = name + ": ", count = concat_text(", \"kernels\": ", sources.size());
  const auto load_all = [&](kernel_cache& cache) {
    for (const int id : p.steps())
      for (const detail::kernel_use& use : kernels.of(id))
        if (!use.is_rare) cache.function(device, *use.unit, use.name);
  };
  std::vector<double> disk_ms;
  for (const int threads : {1, 2, 4}) {
    disk_cache disk(folder.path + concat_text("/", name, " ", threads), mode::read_write);
    {
      kernel_cache cold(disk);
      const auto start = steady_clock::now();
      precompilation(cold, sources, {.threads = threads}).wait();
      load_all(cold);
      print_row((what + concat_text("all kernels cold, ", threads, threads == 1 ? " thread" : " threads")).c_str(), "ms", us_since(start) / 1000, count);
    }
    for (int i = 0; i < 5; ++i) {
      kernel_cache warm(disk);
      const auto start = steady_clock::now();
      load_all(warm);
      disk_ms.push_back(us_since(start) / 1000);
    }
  }
  print_row((what + "all kernels from disk, loaded").c_str(), "ms", median(disk_ms), count);
}

/// Host time of a launch in an executor's step, everything included: shapes are small, so that the device is never behind.
void step_cost() {
  graph g;
  constexpr int layers = 64;
  value x = g.input("x", f32, {4, 64});
  for (int i = 0; i < layers; ++i) x = let(x * 0.5 + 1, {.label = concat_text("y", i)}), x = sum_to(x, {4, 64}), x = contiguous(transpose(reshape(x, {4, 8, 8}), {0, 2, 1})), x = reshape(x, {4, 64});
  g.output("y", x);
  executor run(make_plan(g, device::cuda()));
  run.bind("x", run.device_backend().make_tensor(f32, {4, 64}));
  for (int i = 0; i < 3; ++i) run.step();
  run.synchronize();
  std::vector<double> us;
  for (int i = 0; i < 50; ++i) {
    const auto start = steady_clock::now();
    run.step();
    us.push_back(us_since(start) / double(run.source().steps().size()));
    run.synchronize();
  }
  print_row("executor's step, host time a node", "us", median(us), concat_text(", \"nodes\": ", run.source().steps().size()));
}

void threads_with_new_keys(const cuda_device& device) {
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  std::atomic<int> ready = 0, wrong = 0;
  std::vector<std::thread> threads;
  const auto start = steady_clock::now();
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      const cuda_stream stream(device);
      cuda_buffer x(device, sizeof(int));
      ++ready;
      while (ready < 4) std::this_thread::yield();
      for (int key = 0; key < 12; ++key) {
        int before = 5, after = 0;
        x.upload(&before, sizeof before);
        device_address address = x.address();
        void* arguments[] = {&address};
        try {
          cache.function(device, adding(device, 1000 + key), "add").launch(stream, {}, arguments);
          x.download(stream, &after, sizeof after);
          stream.synchronize();
        } catch (const error&) {
        }
        wrong += after != 1005 + key;
      }
    });
  for (std::thread& thread : threads) thread.join();
  const double ms = us_since(start) / 1000;
  print_row("4 threads, the same 12 new kernels each", "ms", ms, concat_text(", \"calls\": 48, \"errors\": ", wrong.load(), ", \"compiles\": ", cache.counters().compiles));
}

}  // namespace

int main() {
  if (!cuda_available() || !nvrtc_available()) return 77;
  const cuda_device device = cuda_device::open();
  const scratch_folder folder;
  hits_and_loads(device, folder);
  launches(device);
  step_cost();
  threads_with_new_keys(device);
  cold_and_stored(device, folder, "decoder layer, forward", [](graph& g) { build_layer(g, false); });
  cold_and_stored(device, folder, "decoder layer, forward and backward", [](graph& g) { build_layer(g, true); });
  for (const index_t D : {64, 128, 256}) cold_and_stored(device, folder, concat_text("attention, forward and backward, D", D), [D](graph& g) { build_attention(g, D); });
}
