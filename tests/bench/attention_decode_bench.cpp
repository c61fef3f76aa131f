// Attention of few queries over many keys on a GPU: microseconds a call and GB/s of keys and values as JSON lines in the schema of
// docs/benchmarks.md. Calls take turns on buffers of 400 MB together, so that none finds its keys in the L2; `ratio` is of the bandwidth of a
// device copy (bytes read and written) measured first, `over_us` what a call takes beyond its bytes at that bandwidth. Sampled rows are checked
// against sums in double. Dates and commits come from BENCH_DATE and BENCH_COMMIT; the peers are timed by tests/bench/attention_peers.py decode.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include <samite/runtime/cuda_driver.hpp>
#include <samite/samite.hpp>

namespace {

using namespace samite;

struct bench_case {
  std::string name;
  index_t B, H, G, Q, K, D;
  any_mask mask;
  std::function<bool(index_t b, index_t q, index_t kv)> keeps;  // written anew, so that a wrong mask shows
};

using clock_type = std::chrono::steady_clock;
double seconds_since(clock_type::time_point start) { return std::chrono::duration<double>(clock_type::now() - start).count(); }

constexpr index_t period = (index_t(1) << 20) + 24;  // elements after which a buffer repeats

const tensor& numbers_of_period() {
  static const tensor list = [] {
    tensor numbers(f32, {period});
    counted_random random(7, 1);
    for (float& x : numbers.values<float>()) x = float(random.normal());
    return numbers.to_dtype(bf16);
  }();
  return list;
}

/// Element i of Q, K or V, which begin at different places of the period.
double number_at(char name, index_t i) {
  std::uint16_t half;
  std::memcpy(&half, numbers_of_period().raw() + (i + (name - 'A') * index_t(40009)) % period * 2, 2);
  const std::uint32_t bits = std::uint32_t(half) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return double(x);
}

void copy_on_device(std::byte* to, const std::byte* from, std::size_t bytes) {
  detail::check_cuda(detail::cuda().copy_device_async(reinterpret_cast<device_address>(to), reinterpret_cast<device_address>(from), bytes, nullptr), "copying on the device");
}
void wait() { detail::check_cuda(detail::cuda().stream_synchronize(nullptr), "waiting for copies"); }

/// The period again and again.
tensor filled(executor& run, char name, extents dims) {
  tensor t = run.device_backend().make_tensor(bf16, std::move(dims));
  std::size_t done = std::min(t.bytes(), std::size_t(period) * 2);
  std::vector<std::byte> first(done);
  const std::size_t begin = std::size_t(name - 'A') * 40009 * 2;
  for (std::size_t i = 0; i < done; ++i) first[i] = numbers_of_period().raw()[(i + begin) % (std::size_t(period) * 2)];
  detail::check_cuda(detail::cuda().copy_to_device(reinterpret_cast<device_address>(t.raw()), first.data(), done), "filling a buffer");
  for (; done < t.bytes(); done = std::min(t.bytes(), 2 * done)) copy_on_device(t.raw() + done, t.raw(), std::min(done, t.bytes() - done));
  wait();
  return t;
}

double copy_gbps() {
  const cuda_device device = cuda_device::open(0);
  device.make_current();
  const std::size_t bytes = std::size_t(2) << 30;
  const cuda_buffer from(device, bytes), to(device, bytes);
  const auto run = [&](int copies) {
    wait();
    const auto start = clock_type::now();
    for (int i = 0; i < copies; ++i) detail::check_cuda(detail::cuda().copy_device_async(to.address(), from.address(), bytes, nullptr), "copying on the device");
    wait();
    return seconds_since(start);
  };
  run(3);
  std::vector<double> gbps;
  for (int i = 0; i < 5; ++i) gbps.push_back(2 * double(bytes) * 10 / (run(11) - run(1)) / 1e9);
  std::sort(gbps.begin(), gbps.end());
  return gbps[2];
}

double worst_error(const bench_case& c, const tensor& out) {
  double worst = 0;
  const tensor wide = out.to_dtype(f32);
  for (index_t i = 0; i < 4; ++i) {
    const index_t b = i % c.B, h = (i * 5) % c.H, q = i == 0 ? c.Q - 1 : (i * 7919 + 13) % c.Q, g = h / (c.H / c.G);
    std::vector<double> s(std::size_t(c.K), -INFINITY), o(std::size_t(c.D), 0.0);
    double top = -INFINITY, sum = 0;
    for (index_t k = 0; k < c.K; ++k) {
      if (!c.keeps(b, q, k)) continue;
      double dot = 0;
      for (index_t d = 0; d < c.D; ++d) dot += number_at('Q', ((b * c.Q + q) * c.H + h) * c.D + d) * number_at('K', ((b * c.K + k) * c.G + g) * c.D + d);
      top = std::max(top, s[std::size_t(k)] = dot / std::sqrt(double(c.D)));
    }
    for (index_t k = 0; k < c.K; ++k) {
      if (std::isinf(s[std::size_t(k)])) continue;
      const double w = std::exp(s[std::size_t(k)] - top);
      sum += w;
      for (index_t d = 0; d < c.D; ++d) o[std::size_t(d)] += w * number_at('V', ((b * c.K + k) * c.G + g) * c.D + d);
    }
    for (index_t d = 0; d < c.D; ++d) {
      const double found = double(wide.data<float>()[((b * c.Q + q) * c.H + h) * c.D + d]);
      worst = std::max(worst, std::fabs(found - (sum > 0 ? o[std::size_t(d)] / sum : 0)));
    }
  }
  return worst;
}

void run_case(const bench_case& c, double copy) {
  double kept = 0;  // keys that some query of a batch sees
  for (index_t b = 0; b < c.B; ++b)
    for (index_t k = 0; k < c.K; ++k) kept += c.keeps(b, 0, k) || c.keeps(b, c.Q - 1, k);
  const double bytes = kept * double(c.G * c.D) * 4;
  const index_t calls = std::clamp<index_t>(index_t(4e8 / (double(c.B * c.K * c.G * c.D) * 4)) + 1, 1, 16);
  graph g;  // caches as decoding holds them: tokens first
  const auto operand = [&](const std::string& name, index_t heads, index_t rows) { return transpose(g.input(name, bf16, {c.B, rows, heads, c.D}), {0, 2, 1, 3}); };
  const value Q = operand("Q", c.H, c.Q);
  for (index_t i = 0; i < calls; ++i) {
    const std::string number = std::to_string(i);
    g.output("out" + number, transpose(attention(Q, operand("K" + number, c.G, c.K), operand("V" + number, c.G, c.K), {.mask = c.mask}).out, {0, 2, 1, 3}));
  }
  executor run(make_plan(g, device::cuda()));
  run.bind("Q", filled(run, 'Q', {c.B, c.Q, c.H, c.D}));
  for (index_t i = 0; i < calls; ++i)
    for (const char name : {'K', 'V'}) run.bind(name + std::to_string(i), filled(run, name, {c.B, c.K, c.G, c.D}));
  run.step();
  const double error = worst_error(c, run.output("out0"));
  const auto timed = [&](int steps) {
    run.synchronize();
    const auto start = clock_type::now();
    for (int i = 0; i < steps; ++i) run.step();
    run.synchronize();
    return seconds_since(start);
  };
  const int steps = std::clamp(int(0.02 / (timed(2) / 2)), 2, 200);
  std::vector<double> us;
  for (int i = 0; i < 5; ++i) us.push_back((timed(steps + 1) - timed(1)) / steps / double(calls) * 1e6);
  std::sort(us.begin(), us.end());
  const double gbps = bytes / us[2] / 1e3;
  const char *date = std::getenv("BENCH_DATE"), *commit = std::getenv("BENCH_COMMIT");
  std::printf("{\"bench\":\"attention_decode\",\"case\":\"%s\",\"pass\":\"forward\",\"regime\":\"sustained\",\"ms\":%.5f,\"mb\":%.1f,\"gbps\":%.0f,\"copy_gbps\":%.0f,\"ratio\":%.3f,\"over_us\":%.1f,"
              "\"worst_error\":%.5f,\"date\":\"%s\",\"command\":\"attention_decode_bench\",\"commit\":\"%s\"}\n",
              c.name.c_str(), us[2] / 1e3, bytes / 1e6, gbps, copy, gbps / copy, us[2] - bytes / copy / 1e3, error, date ? date : "", commit ? commit : "");
  std::fflush(stdout);
}

}  // namespace

// attention_decode_bench [words that a case's name begins with]
int main(int arguments, char** argument) {
  if (!cuda_available()) return 77;
  const std::string begin = arguments > 1 ? argument[1] : "";
  using namespace symbols;
  const auto causal_case = [](std::string name, index_t B, index_t H, index_t G, index_t Q, index_t K, index_t D) {
    return bench_case{std::move(name), B, H, G, Q, K, D, any_mask(kv <= q + scalar(K - Q)), [=](index_t, index_t row, index_t key) { return key <= row + K - Q; }};
  };
  std::vector<bench_case> cases;
  for (const index_t B : {1, 4, 16, 64})
    for (const index_t K : {8, 32, 128}) cases.push_back(causal_case(concat_text("plain B", B, " K", K, "k H32/8 D128"), B, 32, 8, 1, K * 1024, 128));
  for (const index_t Q : {4, 16, 64}) cases.push_back(causal_case(concat_text("block of ", Q, " B1 K32k H32/8 D128"), 1, 32, 8, Q, 32768, 128));
  for (const index_t Q : {4, 16, 64}) cases.push_back(causal_case(concat_text("block of ", Q, " B16 K8k H32/8 D128"), 16, 32, 8, Q, 8192, 128));
  cases.push_back(causal_case("heads B4 K32k H8/8 D128", 4, 8, 8, 1, 32768, 128));
  cases.push_back(causal_case("heads B4 K32k H64/8 D64", 4, 64, 8, 1, 32768, 64));
  cases.push_back(causal_case("heads B4 K32k H16/4 D256", 4, 16, 4, 1, 32768, 256));
  std::vector<index_t> lengths, parents{-1};
  for (index_t b = 0; b < 16; ++b) lengths.push_back(b == 0 ? 65536 : 2000 + 300 * b);
  for (index_t i = 1; i < 32; ++i) parents.push_back(i % 2 == 1 ? i - 1 : i - 2);
  cases.push_back({"lengths B16 K64k H32/8 D128", 16, 32, 8, 1, 65536, 128, any_mask(length(table(lengths))), [=](index_t b, index_t, index_t kv) { return kv < lengths[std::size_t(b)]; }});
  cases.push_back({"lengths B16 K64k H64/8 D64", 16, 64, 8, 1, 65536, 64, any_mask(length(table(lengths))), [=](index_t b, index_t, index_t kv) { return kv < lengths[std::size_t(b)]; }});
  const std::vector<index_t> ends = subtree_ends(parents);
  cases.push_back({"tree of 32 B1 K32k H32/8 D128", 1, 32, 8, 32, 32768 + 32, 128, any_mask(tree(32768, table(ends))), [=](index_t, index_t q, index_t kv) {
                     const index_t node = kv - 32768;
                     return node < 0 || (node <= q && q < ends[std::size_t(node)]);
                   }});
  const double copy = copy_gbps();
  for (const bench_case& c : cases)
    if (c.name.starts_with(begin)) run_case(c, copy);
}
