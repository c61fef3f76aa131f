// The portable attention kernels, block by block on the host, against sums in double: what a GPU would do, where there is none.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <samite/core/random.hpp>

#include "block.hpp"

#include <attention_mma_gradient.cuh>

namespace {

using namespace samite;
using halves = std::vector<std::uint16_t>;

/// Visible pairs by a few rules; `hidden` rows see nothing.
struct keep_mask {
  enum rule { all, causal, scattered, documents, hidden_rows } of = all;
  struct part {
    template <class F> part each(F) const { return {}; }
  };
  part head(samite::index, samite::index) const { return {}; }
  part row(samite::index, samite::index, samite::index, part) const { return {}; }
  part column(samite::index, samite::index, samite::index, part) const { return {}; }
  bool keep(samite::index b, samite::index h, samite::index q, samite::index kv, part, part, part) const { return keeps(b, h, q, kv); }
  bool keeps(samite::index b, samite::index h, samite::index q, samite::index kv) const {
    switch (of) {
      case all: return true;
      case causal: return kv <= q;
      case scattered: return (q * 7 + kv * 13 + h * 5 + b) % 3 != 0;
      case documents: return kv / 50 == q / 50 && kv <= q;
      case hidden_rows: return q % 5 != 2 && kv < 70 + h;
    }
    return false;
  }
};

/// A soft cap: what emitted score functions look like.
struct soft_cap {
  static constexpr bool identity = false;
  static constexpr int held = 0;
  float value(samite::index, samite::index, samite::index, samite::index, float x) const { return 2 * std::tanh(x / 2); }
  float adjoint(samite::index, samite::index, samite::index, samite::index, float x, float dy) const {
    const float t = std::tanh(x / 2);
    return dy * (1 - t * t);
  }
  void gradient(samite::index, samite::index, samite::index, samite::index, float, float, float (&)[held + 1]) const {}
  void add_held(int, samite::index, samite::index, float) const {}
};

struct sizes {
  int Q, K, D, Dv, B = 1, H = 1, G = 1;
  keep_mask::rule mask = keep_mask::all;
  double scale = 0.1;
  bool strided = false, has_sink = false;
};

template <class T, class Score> struct problem {
  static constexpr bool is_bf16 = std::is_same_v<T, bf16>;
  sizes n;
  const int B;
  int pad;
  halves q, k, v, out, d_out, dq, dk, dv;
  std::vector<float> lse, row_lse, row_delta, sink;
  std::vector<double> s, want_out, want_lse, want_dq, want_dk, want_dv;  // scores [B,H,Q,K]
  std::vector<float> sums;                                               // of dQ
  keep_mask mask;
  Score score{};
  attention_parameters p{};
  std::vector<tile_run> runs;
  std::vector<long long> begin;

  explicit problem(const sizes& of) : n(of), B(of.B), pad(of.strided ? 3 : 0), mask{of.mask} {
    counted_random random(5, 1, 0, 0);
    const auto numbers = [&](int heads, int rows, int channels) {
      halves x(std::size_t(B * heads * rows * (channels + pad)) + 8);
      for (auto& e : x) e = is_bf16 ? emulated::to_bf16(float(random.normal())) : emulated::to_f16(float(random.normal()));
      return x;
    };
    q = numbers(n.H, n.Q, n.D), k = numbers(n.G, n.K, n.D), v = numbers(n.G, n.K, n.Dv), out = numbers(n.H, n.Q, n.Dv), d_out = numbers(n.H, n.Q, n.Dv);
    dq = q, dk = k, dv = v;
    lse.assign(std::size_t(B * n.H * n.Q), 7);
    for (int h = 0; h < n.H; ++h) sink.push_back(float(random.normal()));
    p.Q = tensor(q, n.H, n.Q, n.D), p.K = tensor(k, n.G, n.K, n.D), p.V = tensor(v, n.G, n.K, n.Dv);
    p.out = tensor(out, n.H, n.Q, n.Dv), p.d_out = tensor(d_out, n.H, n.Q, n.Dv), p.dQ = tensor(dq, n.H, n.Q, n.D), p.dK = tensor(dk, n.G, n.K, n.D), p.dV = tensor(dv, n.G, n.K, n.Dv);
    p.lse = lse.data(), p.sink = n.has_sink ? sink.data() : nullptr;
    p.batch = B, p.heads = n.H, p.key_heads = n.G, p.queries = n.Q, p.keys = n.K, p.head_dim = n.D, p.value_dim = n.Dv, p.scale = n.scale;
    reference();
  }

  attention_tensor tensor(halves& x, int heads, int rows, int channels) const {
    attention_tensor t{x.data(), samite::index(heads) * rows * (channels + pad), samite::index(rows) * (channels + pad), channels + pad, 1, 0, 0};
    t.vectors = pad == 0 && channels % 8 == 0;
    return t;
  }
  double at(const halves& x, int heads, int rows, int channels, int b, int h, int r, int c) const {
    return emulated::from_half(x[((std::size_t(b) * std::size_t(heads) + std::size_t(h)) * std::size_t(rows) + std::size_t(r)) * std::size_t(channels + pad) + std::size_t(c)], is_bf16);
  }
  std::size_t row(int b, int h, int i) const { return (std::size_t(b) * std::size_t(n.H) + std::size_t(h)) * std::size_t(n.Q) + std::size_t(i); }
  double scored(double x) const { return Score::identity ? x : 2 * std::tanh(x / 2); }

  void reference() {
    s.resize(lse.size() * std::size_t(n.K)), want_lse.resize(lse.size()), want_out.resize(lse.size() * std::size_t(n.Dv));
    for (int b = 0; b < B; ++b)
      for (int h = 0; h < n.H; ++h)
        for (int i = 0; i < n.Q; ++i) {
          double top = -INFINITY, sum = 0;
          double* x = &s[row(b, h, i) * std::size_t(n.K)];
          for (int j = 0; j < n.K; ++j) {
            double dot = 0;
            for (int c = 0; c < n.D; ++c) dot += at(q, n.H, n.Q, n.D, b, h, i, c) * at(k, n.G, n.K, n.D, b, h / (n.H / n.G), j, c);
            x[j] = dot * n.scale;
            if (mask.keeps(b, h, i, j)) top = std::max(top, scored(x[j]));
          }
          if (n.has_sink) top = std::max(top, double(sink[std::size_t(h)]));
          for (int j = 0; j < n.K; ++j)
            if (mask.keeps(b, h, i, j)) sum += std::exp(scored(x[j]) - top);
          if (n.has_sink) sum += std::exp(double(sink[std::size_t(h)]) - top);
          want_lse[row(b, h, i)] = sum > 0 ? top + std::log(sum) : -INFINITY;
          for (int j = 0; j < n.K; ++j)
            for (int c = 0; c < n.Dv && mask.keeps(b, h, i, j); ++c)
              want_out[row(b, h, i) * std::size_t(n.Dv) + std::size_t(c)] += weight(b, h, i, j) * at(v, n.G, n.K, n.Dv, b, h / (n.H / n.G), j, c);
        }
  }
  double weight(int b, int h, int i, int j) const {
    return mask.keeps(b, h, i, j) ? std::exp(scored(s[row(b, h, i) * std::size_t(n.K) + std::size_t(j)]) - want_lse[row(b, h, i)]) : 0;
  }

  /// Lists of tiles of `rows` by 64 that hold a visible pair, or those of keys by queries.
  void make_lists(int rows, bool by_keys) {
    runs.clear(), begin.clear();
    const int lines = by_keys ? n.K : n.Q, across = by_keys ? n.Q : n.K, lists = (lines + rows - 1) / rows;
    for (int b = 0; b < B; ++b)
      for (int h = 0; h < n.H; ++h)
        for (int i = 0; i < lists; ++i) {
          begin.push_back((long long)(runs.size()));
          for (int j = 0; j * 64 < across; ++j) {
            bool any = false, every = true;
            for (int x = i * rows; x < std::min(lines, (i + 1) * rows); ++x)
              for (int y = j * 64; y < std::min(across, j * 64 + 64); ++y) {
                const bool kept = by_keys ? mask.keeps(b, h, y, x) : mask.keeps(b, h, x, y);
                any = any || kept, every = every && kept;
              }
            if (!any) continue;
            const bool goes_on = (long long)(runs.size()) > begin.back() && runs.back().last == j && (runs.back().full != 0) == every;
            if (goes_on) ++runs.back().last;
            else runs.push_back({j, j + 1, every, -1});
          }
        }
    begin.push_back((long long)(runs.size()));
    runs.push_back({0, 0, 0, 0});
    p.lists = {runs.data(), begin.data(), samite::index(n.H) * lists, lists};
    if (n.mask == keep_mask::all) p.lists = {};
  }

  template <class Kernel> void launch(int blocks, Kernel run, int block_threads = mma_threads) {
    blockDim.x = block_threads, gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) emulated::run_block(block_threads, [&] { run(); });
  }

  template <int D, int Dv> void forward() {
    using shape = forward_shape<D, Dv, !Score::identity>;
    make_lists(shape::rows, false);
    launch((n.Q + shape::rows - 1) / shape::rows * n.H * B, [&] { attention_forward<T, D, Dv>(p, mask, score); });
    double worst = 0, worst_lse = 0;
    for (int b = 0; b < B; ++b)
      for (int h = 0; h < n.H; ++h)
        for (int i = 0; i < n.Q; ++i) {
          const double want = want_lse[row(b, h, i)], found = double(lse[row(b, h, i)]), off = found == want ? 0 : std::fabs(found - want);
          if (!(off <= worst_lse)) worst_lse = off;
          for (int c = 0; c < n.Dv; ++c) note(worst, at(out, n.H, n.Q, n.Dv, b, h, i, c) - want_out[row(b, h, i) * std::size_t(n.Dv) + std::size_t(c)]);
        }
    CHECK(worst <= (is_bf16 ? 0.02 : 0.003));
    CHECK(worst_lse <= 1e-4);
  }

  template <int D, int Dv> void backward() {
    row_lse.resize(lse.size()), row_delta.resize(lse.size());
    for (int b = 0; b < B; ++b)
      for (int h = 0; h < n.H; ++h)
        for (int i = 0; i < n.Q; ++i) {
          const std::size_t r = row(b, h, i);
          double delta = 0;
          for (int c = 0; c < n.Dv; ++c) delta += at(d_out, n.H, n.Q, n.Dv, b, h, i, c) * want_out[r * std::size_t(n.Dv) + std::size_t(c)];
          const bool hidden = want_lse[r] == -INFINITY;
          row_lse[r] = hidden ? INFINITY : float(want_lse[r]) * log2_e, row_delta[r] = hidden ? 0 : float(delta);
        }
    p.row_lse = row_lse.data(), p.row_delta = row_delta.data();
    want_gradients();
    make_lists(64, false);
    launch((n.Q + 63) / 64 * n.H * B, [&] { attention_query_gradient<T, D, Dv>(p, mask, score); });
    key_gradient<D, Dv, false>();
    compare_gradients();
    if constexpr (D <= 128 && Dv <= 128 && Score::identity) {
      key_gradient<D, Dv, true>();
      compare_gradients();
    }
  }

  /// dK and dV; fused, dQ too.
  template <int D, int Dv, bool Fused> void key_gradient() {
    using shape = key_gradient_shape<D, Dv, !Score::identity, Fused>;
    static_assert(shape::shared_bytes <= 101376 - 1024);
    constexpr int list_keys = std::max(64, shape::keys);
    std::fill(dk.begin(), dk.end(), std::uint16_t(0x7fff)), std::fill(dv.begin(), dv.end(), std::uint16_t(0x7fff));  // NaNs
    if (Fused) std::fill(dq.begin(), dq.end(), std::uint16_t(0x7fff));
    sums.assign(Fused ? std::size_t(B * n.H * ((n.Q + 63) / 64) * 64 * D) : 0, 0.0f);
    make_lists(list_keys, true);
    launch((n.K + list_keys - 1) / list_keys * (list_keys / shape::keys) * n.G * B, [&] {
      if constexpr (Fused) attention_fused_gradient<T, D, Dv>(p, mask, score, sums.data());
      else attention_key_gradient<T, D, Dv>(p, mask, score);
    });
    if constexpr (Fused) launch(2, [&] { finish_query_gradient<T, D>(p, sums.data()); }, 256);
  }

  void want_gradients() {
    want_dq.assign(lse.size() * std::size_t(n.D), 0), want_dk.assign(std::size_t(B * n.G * n.K * n.D), 0), want_dv.assign(std::size_t(B * n.G * n.K * n.Dv), 0);
    for (int b = 0; b < B; ++b)
      for (int h = 0; h < n.H; ++h)
        for (int i = 0; i < n.Q; ++i)
          for (int j = 0; j < n.K; ++j) {
            const double w = weight(b, h, i, j);
            if (w == 0) continue;
            const int g = h / (n.H / n.G);
            double dp = 0;
            for (int c = 0; c < n.Dv; ++c) dp += at(d_out, n.H, n.Q, n.Dv, b, h, i, c) * at(v, n.G, n.K, n.Dv, b, g, j, c);
            const double t = Score::identity ? 0 : std::tanh(s[row(b, h, i) * std::size_t(n.K) + std::size_t(j)] / 2), ds = w * (dp - double(row_delta[row(b, h, i)])) * (1 - t * t) * n.scale;
            const std::size_t key_row = (std::size_t(b) * std::size_t(n.G) + std::size_t(g)) * std::size_t(n.K) + std::size_t(j);
            for (int c = 0; c < n.D; ++c) {
              want_dq[row(b, h, i) * std::size_t(n.D) + std::size_t(c)] += ds * at(k, n.G, n.K, n.D, b, g, j, c);
              want_dk[key_row * std::size_t(n.D) + std::size_t(c)] += ds * at(q, n.H, n.Q, n.D, b, h, i, c);
            }
            for (int c = 0; c < n.Dv; ++c) want_dv[key_row * std::size_t(n.Dv) + std::size_t(c)] += w * at(d_out, n.H, n.Q, n.Dv, b, h, i, c);
          }
  }

  void compare_gradients() {
    const auto compare = [&](const halves& x, const std::vector<double>& want, int heads, int rows, int channels) {
      double worst = 0, largest = 1;
      for (const double w : want) largest = std::max(largest, std::fabs(w));
      for (int b = 0; b < B; ++b)
        for (int h = 0; h < heads; ++h)
          for (int r = 0; r < rows; ++r)
            for (int c = 0; c < channels; ++c)
              note(worst, at(x, heads, rows, channels, b, h, r, c) - want[((std::size_t(b) * std::size_t(heads) + std::size_t(h)) * std::size_t(rows) + std::size_t(r)) * std::size_t(channels) + std::size_t(c)]);
      return worst / largest;
    };
    const double allowed = is_bf16 ? 0.015 : 0.002;
    CHECK(compare(dq, want_dq, n.H, n.Q, n.D) <= allowed);
    CHECK(compare(dk, want_dk, n.G, n.K, n.D) <= allowed);
    CHECK(compare(dv, want_dv, n.G, n.K, n.Dv) <= allowed);
  }

  static void note(double& worst, double difference) {
    if (!(std::fabs(difference) <= worst)) worst = std::fabs(difference);  // a NaN too
  }
};

template <class T, int D, int Dv, class Score = no_score> void check(const sizes& n) {
  CAPTURE(n.Q);
  CAPTURE(n.K);
  CAPTURE(n.D);
  CAPTURE(int(n.mask));
  problem<T, Score> it(n);
  it.template forward<D, Dv>();
  it.template backward<D, Dv>();
}

}  // namespace

TEST_CASE("emulated: attention of the portable kernels, forward and backward, at odd sizes and strides") {
  check<bf16, 64, 64>({.Q = 130, .K = 70, .D = 64, .Dv = 64, .B = 2, .H = 2, .G = 1, .mask = keep_mask::causal});
  check<bf16, 64, 64>({.Q = 1, .K = 1, .D = 64, .Dv = 64});
  check<f16, 64, 64>({.Q = 140, .K = 130, .D = 64, .Dv = 64, .mask = keep_mask::documents, .scale = -0.125, .strided = true, .has_sink = true});
  check<bf16, 128, 128>({.Q = 129, .K = 130, .D = 128, .Dv = 128, .B = 2, .mask = keep_mask::scattered, .has_sink = true});
  check<f16, 96, 80>({.Q = 100, .K = 130, .D = 96, .Dv = 80, .H = 3, .G = 1, .mask = keep_mask::hidden_rows, .has_sink = true});
  check<f16, 48, 16>({.Q = 140, .K = 65, .D = 40, .Dv = 9, .mask = keep_mask::scattered, .scale = 0.3, .strided = true});
}

TEST_CASE("emulated: heads beyond 128 channels, and score functions, on the portable kernels") {
  check<f16, 192, 128>({.Q = 65, .K = 70, .D = 192, .Dv = 128, .mask = keep_mask::hidden_rows, .scale = 0.07});
  check<bf16, 256, 256>({.Q = 20, .K = 70, .D = 256, .Dv = 250, .mask = keep_mask::causal, .scale = -0.06});
  check<f16, 64, 64, soft_cap>({.Q = 70, .K = 70, .D = 64, .Dv = 64, .H = 2, .G = 1, .mask = keep_mask::causal, .has_sink = true});
}

TEST_CASE("emulated: scores so large that the sums change their unit again and again") {
  check<f16, 16, 16>({.Q = 70, .K = 300, .D = 16, .Dv = 16, .mask = keep_mask::scattered, .scale = 5});
}
