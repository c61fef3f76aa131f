// Attention on a GPU, forward and backward: milliseconds and TFLOP/s on kept pairs as JSON lines in the schema of docs/benchmarks.md. Each output
// is checked on sampled rows against sums in double. Dates and commits come from BENCH_DATE and BENCH_COMMIT; the peers are timed
// by tests/bench/attention_peers.py on the same masks.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include <samite/io/safetensors.hpp>
#include <samite/mask/count_kept.hpp>
#include <samite/run/attention_packing.hpp>
#include <samite/run/plan_kernels.hpp>
#include <samite/runtime/cuda_driver.hpp>
#include <samite/samite.hpp>

namespace {

using namespace samite;

struct bench_case {
  std::string name;
  index_t B, H, G, Q, K, D;
  any_mask mask;
  std::function<bool(index_t q, index_t kv)> keeps;  // written anew, so that a wrong mask shows
  any_score score{};
  // The same of the score function: its value and its derivative.
  std::function<std::pair<double, double>(double score, index_t h, index_t q, index_t kv)> scores = [](double score, index_t, index_t, index_t) { return std::pair{score, 1.0}; };
  index_t value_dim = 0;  // 0: D
  index_t Dv() const { return value_dim > 0 ? value_dim : D; }
};

double milliseconds(executor& run, int steps) {
  run.synchronize();
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) run.step();
  run.synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// From an idle card: four steps less one, so that what a call costs once cancels; the median of five.
double burst(executor& run) {
  std::vector<double> ms;
  for (int i = 0; i < 5; ++i) ms.push_back((milliseconds(run, 4) - milliseconds(run, 1)) / 3);
  std::sort(ms.begin(), ms.end());
  return ms[2];
}

double sustained(executor& run, double one) {
  for (int i = 0; i < int(200 / one) + 1; ++i) run.step();
  const int steps = int(350 / one) + 1;
  run.synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) run.step();
  run.synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / steps;
}

tensor normal(extents dims, std::uint32_t purpose) {
  // Pieces of one long list of normal numbers, begun anywhere: a hundred million fresh ones would take longer than the measurements.
  constexpr std::size_t length = std::size_t(1) << 20, piece = 509;
  static const tensor list = [] {
    tensor numbers(f32, {index_t(length + piece)});
    counted_random random(7, 1);
    for (float& x : numbers.values<float>()) x = float(random.normal());
    return numbers.to_dtype(bf16);
  }();
  tensor t(bf16, std::move(dims));
  counted_random random(7, 100 + purpose);
  for (std::size_t at = 0; at < t.bytes(); at += piece * 2)
    std::memcpy(t.raw() + at, list.raw() + random.below(length) * 2, std::min(piece * 2, t.bytes() - at));
  return t;
}

// A row of bf16 numbers.
struct half_row {
  const std::uint16_t* row;
  index_t channels;
  half_row(const tensor& t, index_t number) : row(reinterpret_cast<const std::uint16_t*>(t.raw()) + number * t.dims().back()), channels(t.dims().back()) {}
  double operator()(index_t d) const {
    const std::uint32_t bits = std::uint32_t(row[d]) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return double(x);
  }
};

double worst_error(const bench_case& c, const tensor& Q, const tensor& K, const tensor& V, const tensor& out) {
  double worst = 0;
  for (index_t i = 0; i < 12; ++i) {
    const index_t b = i % c.B, h = (i * 5) % c.H, q = i == 0 ? c.Q - 1 : (i * 7919 + 13) % c.Q;
    const half_row query(Q, (b * c.H + h) * c.Q + q);
    std::vector<double> s(std::size_t(c.K), -INFINITY), o(std::size_t(c.Dv()), 0.0);
    double top = -INFINITY, sum = 0;
    for (index_t k = 0; k < c.K; ++k) {
      if (!c.keeps(q, k)) continue;
      const half_row key(K, (b * c.G + h / (c.H / c.G)) * c.K + k);
      double dot = 0;
      for (index_t d = 0; d < c.D; ++d) dot += query(d) * key(d);
      top = std::max(top, s[std::size_t(k)] = c.scores(dot / std::sqrt(double(c.D)), h, q, k).first);
    }
    for (index_t k = 0; k < c.K; ++k) {
      if (std::isinf(s[std::size_t(k)])) continue;
      const double w = std::exp(s[std::size_t(k)] - top);
      const half_row value(V, (b * c.G + h / (c.H / c.G)) * c.K + k);
      sum += w;
      for (index_t d = 0; d < c.Dv(); ++d) o[std::size_t(d)] += w * value(d);
    }
    const half_row found(out, (b * c.Q + q) * c.H + h);
    for (index_t d = 0; d < c.Dv(); ++d) worst = std::max(worst, std::fabs(found(d) - (sum > 0 ? o[std::size_t(d)] / sum : 0)));
  }
  return worst;
}

// Sampled rows of dQ, dK and dV, relative to the largest number of the row.
double worst_gradient_error(const bench_case& c, const tensor& Q, const tensor& K, const tensor& V, const tensor& out, const tensor& lse, const tensor& d_out, const tensor (&found)[3]) {
  const double scale = 1 / std::sqrt(double(c.D));
  const auto dot = [&](const half_row& x, const half_row& y) {
    double sum = 0;
    for (index_t d = 0; d < x.channels; ++d) sum += x(d) * y(d);
    return sum;
  };
  // P and dS of a pair.
  const auto pair = [&](index_t head, index_t key_head, index_t q, index_t k) {
    const index_t row = head * c.Q + q, token_row = (head / c.H * c.Q + q) * c.H + head % c.H;
    const half_row d(d_out, token_row);
    const auto [score, slope] = c.scores(dot(half_row(Q, row), half_row(K, key_head * c.K + k)) * scale, head % c.H, q, k);
    const double P = std::exp(score - double(lse.values<float>()[std::size_t(row)]));
    return std::pair{P, slope * P * (dot(d, half_row(V, key_head * c.K + k)) - dot(d, half_row(out, token_row)))};
  };
  double worst = 0;
  const auto compare = [&](const half_row& given, const std::vector<double>& right) {
    double top = 0, error = 0;
    for (index_t d = 0; d < given.channels; ++d) top = std::max(top, std::fabs(right[std::size_t(d)])), error = std::max(error, std::fabs(given(d) - right[std::size_t(d)]));
    worst = std::max(worst, top > 0 ? error / top : error);
  };
  for (index_t i = 0; i < 4; ++i) {
    const index_t group = c.H / c.G, head = (i * 5) % (c.B * c.H), key_head = head / c.H * c.G + head % c.H / group, q = i == 0 ? c.Q - 1 : (i * 7919 + 13) % c.Q, k = i == 0 ? 0 : (i * 6151 + 7) % c.K;
    std::vector<double> dQ(std::size_t(c.D), 0.0), dK = dQ, dV(std::size_t(c.Dv()), 0.0);
    for (index_t j = 0; j < c.K; ++j)
      if (c.keeps(q, j)) {
        const double dS = pair(head, key_head, q, j).second * scale;
        for (index_t d = 0; d < c.D; ++d) dQ[std::size_t(d)] += dS * half_row(K, key_head * c.K + j)(d);
      }
    compare(half_row(found[0], head * c.Q + q), dQ);
    for (index_t h = head / group * group; h < head / group * group + group; ++h)
      for (index_t j = 0; j < c.Q; ++j)
        if (c.keeps(j, k)) {
          const auto [P, dS] = pair(h, key_head, j, k);
          const half_row query(Q, h * c.Q + j), d_row(d_out, (h / c.H * c.Q + j) * c.H + h % c.H);
          for (index_t d = 0; d < c.D; ++d) dK[std::size_t(d)] += dS * scale * query(d);
          for (index_t d = 0; d < c.Dv(); ++d) dV[std::size_t(d)] += P * d_row(d);
        }
    compare(half_row(found[1], key_head * c.K + k), dK), compare(half_row(found[2], key_head * c.K + k), dV);
  }
  return worst;
}

// Pairs of the tiles that the kernels for sm_90a compute, of all heads, and those of the tiles that hold a kept pair, found pair by pair at B 1, H 1.
struct executed_pairs {
  double computed = 0, least = 0;
};

// The kernel of that role in the plan; null if none, as on other paths.
const detail::kernel_use* kernel_of(const plan& p, detail::kernel_role role, const detail::plan_kernels& kernels) {
  for (const int id : p.steps())
    for (const detail::kernel_use& use : kernels.of(id))
      if (use.role == role) return &use;
  return nullptr;
}

executed_pairs pairs_of_tiles(const bench_case& c, executor& run, bool backward) {
  using detail::kernel_role;
  const detail::plan_kernels kernels(run.source(), cuda_device::open().arch_name());
  const detail::kernel_use* use = kernel_of(run.source(), backward ? kernel_role::sm90_keys : kernel_role::attention_sm90, kernels);
  if (use == nullptr) return {};
  const tile_options sizes{.B = 1, .H = 1, .Q = c.Q, .K = c.K, .tile_q = backward ? use->block_keys : use->block_rows, .tile_k = backward ? use->block_rows : use->block_keys};
  const bool narrows = sizes.tile_k == 128 && c.score.is_identity();
  const detail::packed_tiles tiles = backward ? detail::packed_tiles::by_keys(c.mask, sizes) : detail::packed_tiles::by_queries(c.mask, sizes, detail::heads_to_pack(c.mask.program(), c.H / c.G, !c.score.is_identity()), narrows);
  const index_t tile_q = tiles.map.options().tile_q, tile_k = tiles.map.options().tile_k;
  double computed = double(tiles.map.counts().full + tiles.map.counts().undecided);
  if (backward) computed -= 0.5 * double(std::count_if(tiles.marks.halves.begin(), tiles.marks.halves.end(), [](std::int32_t half) { return half != 0; }));
  for (const std::int32_t part : tiles.marks.narrow) computed -= part >= 0 ? 1 - 1 / double(tiles.marks.parts) : 0;
  double least = 0;
  for (index_t i = 0; i < c.Q; i += tile_q)
    for (index_t j = 0; j < c.K; j += tile_k) {
      bool any = false;
      for (index_t q = i; q < std::min(i + tile_q, c.Q) && !any; ++q)
        for (index_t k = j; k < std::min(j + tile_k, c.K) && !any; ++k) any = c.keeps(q, k);
      least += any;
    }
  const double pairs = double(tile_q * tile_k) * double(c.B * c.H);
  return {computed * pairs, least * pairs};
}

// Where and when a row is from, as the end of its JSON object.
std::string stamp(const char* command) {
  static const std::string gpu = cuda_device::open().name();
  const auto text = [](const char* variable) { return std::getenv(variable) != nullptr ? std::getenv(variable) : ""; };
  return concat_text("\"gpu\":\"", gpu, "\",\"date\":\"", text("BENCH_DATE"), "\",\"command\":\"", command, "\",\"commit\":\"", text("BENCH_COMMIT"), "\"}");
}

// channels: multiplied and added for a pair. Rows of a tile are queries.
void print(const bench_case& c, const char* pass, index_t channels, executor& run, double error) {
  const executed_pairs tiles = pairs_of_tiles(c, run, pass[0] == 'b');
  const double kept = double(count_kept(c.mask, {.B = 1, .H = 1, .Q = c.Q, .K = c.K})), flops = 2 * double(channels) * kept * double(c.B * c.H);
  const double ms = burst(run), steady = sustained(run, ms);
  std::printf("{\"bench\":\"attention\",\"case\":\"%s\",\"pass\":\"%s\",\"ms\":%.4f,\"ms_sustained\":%.4f,\"tflops_kept\":%.1f,\"tflops_kept_sustained\":%.1f,\"tflops_executed\":%.1f,\"pairs_executed\":%.0f,"
              "\"pairs_of_tiles\":%.0f,\"density\":%.5f,\"worst_error\":%.5f,%s\n",
              c.name.c_str(), pass, ms, steady, flops / ms / 1e9, flops / steady / 1e9, 2 * double(channels) * tiles.computed / ms / 1e9, tiles.computed, tiles.least, kept / double(c.Q) / double(c.K), error, stamp("attention_bench").c_str());
  std::fflush(stdout);
}

tensor on_device(executor& run, const tensor& t) {
  tensor moved = run.device_backend().make_tensor(t.type(), t.dims());
  moved.copy_from(t);
  return moved;
}

// Both passes of a case over the same data, each in an executor of its own; outputs are token-major, as models store them.
struct both_passes {
  const bench_case& c;
  graph g, gradients;
  tensor Q, K, V, d_out, out, lse, d[3];
  attention_result a;

  explicit both_passes(const bench_case& given)
      : c(given), Q(normal({c.B, c.H, c.Q, c.D}, 1)), K(normal({c.B, c.G, c.K, c.D}, 2)), V(normal({c.B, c.G, c.K, c.Dv()}, 3)), d_out(normal({c.B, c.Q, c.H, c.Dv()}, 4)) {}

  executor forward() {
    a = attention(g.input("Q", bf16, {c.B, c.H, c.Q, c.D}), g.input("K", bf16, {c.B, c.G, c.K, c.D}), g.input("V", bf16, {c.B, c.G, c.K, c.Dv()}), {.mask = c.mask, .score = c.score});
    g.output("out", transpose(a.out, {0, 2, 1, 3})), g.output("lse", a.lse);
    executor run(make_plan(g, device::cuda()));
    for (const auto& [name, t] : {std::pair{"Q", Q}, {"K", K}, {"V", V}}) run.bind(name, on_device(run, t));
    run.step();
    run.synchronize();
    out = run.output("out"), lse = run.output("lse");
    return run;
  }

  // The backward pass alone; after forward.
  executor backward() {
    std::vector<value> inputs;
    const shape token_major{c.B, c.Q, c.H, c.Dv()};
    for (const auto& [name, dims] : {std::pair{"Q", shape{c.B, c.H, c.Q, c.D}}, {"K", shape{c.B, c.G, c.K, c.D}}, {"V", shape{c.B, c.G, c.K, c.Dv()}}, {"out", token_major}, {"lse", shape{c.B, c.H, c.Q, 1}}, {"d_out", token_major}}) {
      const bool row = name[0] == 'l', transposed = name[0] == 'o' || name[0] == 'd';
      const value in = gradients.input(name, row ? f32 : bf16, dims);
      inputs.push_back(transposed ? transpose(in, {0, 2, 1, 3}) : in);
    }
    std::vector<value_info> made;
    for (int i = 0; i < 3; ++i) made.push_back(gradients.info(value_ref{inputs[std::size_t(i)].node(), inputs[std::size_t(i)].output()}));
    const std::vector<value> found = gradients.add(attention_gradient_node{*g.node(a.out.node()).as<attention_node>(), false}, inputs, made, "backward");
    const char* names[] = {"dQ", "dK", "dV"};
    for (int i = 0; i < 3; ++i) gradients.output(names[i], found[std::size_t(i)]);
    executor back(make_plan(gradients, device::cuda()));
    for (const auto& [name, t] : {std::pair{"Q", Q}, {"K", K}, {"V", V}, {"out", out}, {"lse", lse}, {"d_out", d_out}}) back.bind(name, on_device(back, t));
    back.step();
    back.synchronize();
    for (int i = 0; i < 3; ++i) d[i] = back.output(names[i]);
    return back;
  }
};

void run_case(const bench_case& c, bool forward, bool backward) {
  both_passes passes(c);
  executor run = passes.forward();
  if (forward) print(c, "forward", c.D + c.Dv(), run, worst_error(c, passes.Q, passes.K, passes.V, passes.out));
  if (!backward) return;
  executor back = passes.backward();
  print(c, "backward", 3 * c.D + 2 * c.Dv(), back, worst_gradient_error(c, passes.Q, passes.K, passes.V, passes.out, passes.lse, passes.d_out, passes.d));
}

// What a call costs the host while the device is never behind: shapes are tiny, and the device is waited for after every 50 calls.
void host_cost() {
  const bench_case c{"host cost", 1, 1, 1, 64, 64, 64, causal(), {}};
  both_passes passes(c);
  executor run = passes.forward(), back = passes.backward();
  for (const auto& [pass, e] : {std::pair{"forward", &run}, {"backward", &back}}) {
    std::vector<double> us;
    for (int i = 0; i < 41; ++i) {
      e->synchronize();
      const auto start = std::chrono::steady_clock::now();
      for (int n = 0; n < 50; ++n) e->step();
      us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 50);
    }
    std::sort(us.begin(), us.end());
    std::printf("{\"bench\":\"attention\",\"case\":\"host cost of a step, causal S64 B1 H1 D64\",\"pass\":\"%s\",\"us\":%.2f,%s\n", pass, us[us.size() / 2], stamp("attention_bench host").c_str());
  }
}

// Inputs and results of both passes, for attention_peers.py to compare with double precision and with its own results.
void write_results(const std::string& folder) {
  const std::pair<index_t, index_t> dims[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};
  for (const auto& [D, Dv] : dims) {
    const bench_case c{"", 1, 4, 4, 1024, 1024, D, causal(), {}, {}, {}, Dv};
    both_passes p(c);
    (void)p.forward(), (void)p.backward();
    write_safetensors(concat_text(folder, "/causal S1024 B1 H4 D", D, Dv != D ? concat_text("_", Dv) : std::string(), ".safetensors"),
                      {{"Q", p.Q}, {"K", p.K}, {"V", p.V}, {"d_out", p.d_out}, {"out", p.out}, {"dQ", p.d[0]}, {"dK", p.d[1]}, {"dV", p.d[2]}});
  }
}

// Causal at lengths with 16384 tokens together, at head dims, and windows of any width.
void add_sweeps(std::vector<bench_case>& cases) {
  using namespace symbols;
  const auto add = [&](std::string name, index_t B, index_t H, index_t S, index_t D, index_t Dv, const any_mask& mask, std::function<bool(index_t, index_t)> keeps) {
    cases.push_back({std::move(name), B, H, H, S, S, D, mask, std::move(keeps)});
    cases.back().value_dim = Dv;
  };
  const auto lower = [](index_t q, index_t kv) { return kv <= q; };
  for (const index_t S : {512, 1024, 2048, 4096, 8192, 16384, 32768, 65536}) {
    const index_t B = std::max<index_t>(1, 16384 / S);
    add(concat_text("sweep causal S", S, " B", B, " H16 D128"), B, 16, S, 128, 128, causal(), lower);
  }
  const std::pair<index_t, index_t> dims[] = {{64, 64}, {96, 96}, {192, 128}, {256, 256}};
  for (const auto& [D, Dv] : dims) add(concat_text("sweep causal S4096 B4 H16 D", D, Dv != D ? concat_text("/", Dv) : std::string()), 4, 16, 4096, D, Dv, causal(), lower);
  for (const index_t width : {128, 256, 512, 1024, 2048, 4096, 8192})
    add(concat_text("sweep window ", width, " S16384 B1 H16 D128"), 1, 16, 16384, 128, 128, any_mask(kv <= q && q - kv < width), [width](index_t q, index_t kv) { return kv <= q && q - kv < width; });
}

}  // namespace

// attention_bench [forward|backward|both [words that a case's name begins with]]; the sweeps run where these begin with "sweep".
// attention_bench host; attention_bench results FOLDER, for `attention_peers.py errors FOLDER`
int main(int arguments, char** argument) {
  if (!cuda_available()) return 77;
  const std::string pass = arguments > 1 ? argument[1] : "", begin = arguments > 2 ? argument[2] : "";
  if (pass == "host") return host_cost(), 0;
  if (pass == "results") return write_results(begin), 0;
  using namespace symbols;
  const auto lower = [](index_t q, index_t kv) { return kv <= q; };
  const auto all = [](index_t, index_t) { return true; };
  const index_t S = 8192, blocks = 512;
  std::vector<index_t> ids, long_ids, anchors;
  for (index_t i = 0; i < 2 * S; ++i) (i < S ? ids : long_ids).push_back(i / 1500);
  long_ids.insert(long_ids.begin(), ids.begin(), ids.end());
  for (index_t i = 0; i < blocks; ++i) anchors.push_back(16 * i + (i * 7) % 13);
  const auto dflash = [&](bool documents, index_t window) {
    dflash_mask_options o{.context_length = S, .block_size = 16, .anchors = table(anchors, {1, blocks})};
    if (documents) o.documents = table(ids, {1, S});
    if (window > 0) o.window = scalar(window);
    return dflash_mask(o);
  };
  const auto drafts = [&](bool documents, index_t window) {
    return [=](index_t q, index_t kv) {
      const index_t a = anchors[std::size_t(q / 16)];
      if (kv >= S) return (kv - S) / 16 == q / 16;
      return kv < a && (!documents || kv / 1500 == a / 1500) && (window == 0 || a + q % 16 - kv < window);
    };
  };
  std::vector<bench_case> cases{
      {"causal S8192 B2 H16 D128", 2, 16, 16, 8192, 8192, 128, causal(), lower},
      {"full S16384 B1 H16 D128", 1, 16, 16, 16384, 16384, 128, {}, all},
      {"causal S1024 B16 H16 D128", 16, 16, 16, 1024, 1024, 128, causal(), lower},
      {"causal S8192 B2 H32 D64", 2, 32, 32, 8192, 8192, 64, causal(), lower},
      {"causal S8192 B2 H8 D256", 2, 8, 8, 8192, 8192, 256, causal(), lower},
      {"causal S8192 B1 H32/8 D128", 1, 32, 8, S, S, 128, causal(), lower},
      {"document causal S8192 B1 H16 D128", 1, 16, 16, S, S, 128, document_causal(table(ids)), [](index_t q, index_t kv) { return kv <= q && q / 1500 == kv / 1500; }},
      {"document causal S8192 B1 H16/4 D128", 1, 16, 4, S, S, 128, document_causal(table(ids)), [](index_t q, index_t kv) { return kv <= q && q / 1500 == kv / 1500; }},
      {"sliding 1024 S8192 B1 H16 D128", 1, 16, 16, S, S, 128, any_mask(kv <= q && q - kv < 1024), [](index_t q, index_t kv) { return kv <= q && q - kv < 1024; }},
      {"sliding 1024 S8192 B1 H16/4 D128", 1, 16, 4, S, S, 128, any_mask(kv <= q && q - kv < 1024), [](index_t q, index_t kv) { return kv <= q && q - kv < 1024; }},
      {"document causal S16384 B1 H64/8 D128", 1, 64, 8, 2 * S, 2 * S, 128, document_causal(table(long_ids)), [](index_t q, index_t kv) { return kv <= q && q / 1500 == kv / 1500; }},
      {"sliding 1024 S16384 B1 H64/8 D128", 1, 64, 8, 2 * S, 2 * S, 128, any_mask(kv <= q && q - kv < 1024), [](index_t q, index_t kv) { return kv <= q && q - kv < 1024; }},
      {"DFlash 512x16 S8192 B1 H32/8 D128", 1, 32, 8, S, 2 * S, 128, dflash(true, 0), drafts(true, 0)},
      {"DFlash 512x16 S8192 B1 H32/8 D128 window 2048", 1, 32, 8, S, 2 * S, 128, dflash(true, 2048), drafts(true, 2048)},
      {"DFlash 512x16 S8192 B1 H32/8 D128 one document", 1, 32, 8, S, 2 * S, 128, dflash(false, 0), drafts(false, 0)},
      {"DFlash 512x16 S8192 B1 H32/8 D128 one document window 2048", 1, 32, 8, S, 2 * S, 128, dflash(false, 2048), drafts(false, 2048)},
  };
  // Causal under score functions, and beside a mask of ten clauses and three tables that keeps the same pairs.
  const std::vector<index_t> ones(std::size_t(S), 1);
  std::vector<index_t> positions;
  for (index_t i = 0; i < S; ++i) positions.push_back(i);
  const auto docs = table(std::vector<index_t>(std::size_t(S), 0)), key = table(ones), at = table(positions);
  cases.push_back({"alibi causal S8192 B2 H16 D128", 2, 16, 16, S, S, 128, causal(), lower, alibi(16), [](double s, index_t head, index_t i, index_t j) {
                     return std::pair{s - std::exp2(-0.5 * double(head + 1)) * std::fabs(double(i - j)), 1.0};
                   }});
  const auto capped = [](double s, index_t, index_t, index_t) {
    const double t = std::tanh(s / 30);
    return std::pair{30 * t, 1 - t * t};
  };
  cases.push_back({"soft cap causal S8192 B2 H16 D128", 2, 16, 16, S, S, 128, causal(), lower, any_score(softcap(30.0)), capped});
  cases.push_back({"soft cap causal S8192 B2 H32 D64", 2, 32, 32, S, S, 64, causal(), lower, any_score(softcap(30.0)), capped});
  cases.push_back({"ten clauses causal S8192 B2 H16 D128", 2, 16, 16, S, S, 128,
                   any_mask(kv <= q && docs[q] == docs[kv] && q - kv < S && kv < scalar(S) && q / 16 >= kv / 16 && key[kv] != 0 && (kv >= 4 || q < scalar(2 * S)) && abs(q - kv) != scalar(2 * S) && at[kv] <= at[q] && q + kv < scalar(4 * S)),
                   lower});
  if (begin.starts_with("sweep")) add_sweeps(cases);
  for (const bench_case& c : cases)
    if (c.name.starts_with(begin)) run_case(c, pass != "backward", pass != "forward");
}
