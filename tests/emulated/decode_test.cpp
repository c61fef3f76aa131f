// The portable decode kernels, block by block on the host, against sums in double.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <samite/core/random.hpp>

#include "block.hpp"

#include <attention_decode.cuh>

namespace {

using namespace samite;
using halves = std::vector<std::uint16_t>;

/// Visible pairs by a few rules. `by_head` is the one that reads h.
struct keep_mask {
  enum rule { all, causal, by_head, lengths, none } of = all;
  samite::index past = 0;  // keys before the first query's own
  struct part {};
  part head(samite::index, samite::index) const { return {}; }
  part row(samite::index, samite::index, samite::index, part) const { return {}; }
  part column(samite::index, samite::index, samite::index, part) const { return {}; }
  bool keep(samite::index b, samite::index h, samite::index q, samite::index kv, part, part, part) const { return keeps(b, h, q, kv); }
  bool keeps(samite::index b, samite::index h, samite::index q, samite::index kv) const {
    switch (of) {
      case all: return true;
      case causal: return kv <= q + past;
      case by_head: return (q * 7 + kv * 13 + h * 5) % 3 != 0;
      case lengths: return b == 0 ? kv < past : kv < 3 && q != 1;
      case none: return false;
    }
    return false;
  }
};

struct soft_cap {
  static constexpr bool identity = false;
  float value(samite::index, samite::index h, samite::index, samite::index kv, float x) const { return 2 * std::tanh((x + float(h) - 0.01f * float(kv)) / 2); }
};

struct sizes {
  int group, Q, K, D, Dv, chunk = 1, B = 1, G = 1;  // chunk: tiles a part
  keep_mask::rule mask = keep_mask::all;
  bool strided = false, has_sink = false;
  double scale = 0.1;
};

template <class T, int D, int Dv, int RowWarps, class Score = no_score> void check(const sizes& n) {
  CAPTURE(n.Q);
  CAPTURE(n.K);
  CAPTURE(n.D);
  CAPTURE(int(n.mask));
  constexpr bool is_bf16 = std::is_same_v<T, bf16>;
  const int H = n.G * n.group, pad = n.strided ? 3 : 0, packed = n.Q * n.group, block_rows = 16 * RowWarps;
  counted_random random(6, 1, 0, 0);
  const auto numbers = [&](int heads, int rows, int channels) {
    halves x(std::size_t(n.B * heads * rows * (channels + pad)) + 8);
    for (auto& e : x) e = is_bf16 ? emulated::to_bf16(float(random.normal())) : emulated::to_f16(float(random.normal()));
    return x;
  };
  halves q = numbers(H, n.Q, n.D), k = numbers(n.G, n.K, n.D), v = numbers(n.G, n.K, n.Dv), out = numbers(H, n.Q, n.Dv);
  std::vector<float> lse(std::size_t(n.B * H * n.Q), 7), sink;
  for (int h = 0; h < H; ++h) sink.push_back(float(random.normal()));
  const auto tensor = [&](halves& x, int heads, int rows, int channels) {
    attention_tensor t{x.data(), samite::index(heads) * rows * (channels + pad), samite::index(rows) * (channels + pad), channels + pad, 1, 0, 0};
    t.vectors = pad == 0 && channels % 8 == 0;
    return t;
  };
  const auto at = [&](const halves& x, int heads, int rows, int channels, int b, int h, int r, int c) {
    return double(emulated::from_half(x[((std::size_t(b) * std::size_t(heads) + std::size_t(h)) * std::size_t(rows) + std::size_t(r)) * std::size_t(channels + pad) + std::size_t(c)], is_bf16));
  };
  keep_mask mask{n.mask, n.K - n.Q};
  decode_parameters a{};
  a.p.Q = tensor(q, H, n.Q, n.D), a.p.K = tensor(k, n.G, n.K, n.D), a.p.V = tensor(v, n.G, n.K, n.Dv), a.p.out = tensor(out, H, n.Q, n.Dv);
  a.p.lse = lse.data(), a.p.sink = n.has_sink ? sink.data() : nullptr;
  a.p.batch = n.B, a.p.heads = H, a.p.key_heads = n.G, a.p.queries = n.Q, a.p.keys = n.K, a.p.head_dim = n.D, a.p.value_dim = n.Dv, a.p.scale = n.scale;
  const int tiles = (n.K + 63) / 64;
  a.chunk = n.chunk, a.splits = (tiles + n.chunk - 1) / n.chunk, a.row_tiles = (packed + block_rows - 1) / block_rows, a.rows = block_rows;

  // Lists: the tiles in which a pair of the batch and key head is visible, each a run of its own.
  std::vector<decode_run> runs(std::size_t(n.B * n.G * a.splits));
  std::vector<i32> parts;
  if (n.mask != keep_mask::all) {
    for (int list = 0; list < n.B * n.G; ++list) {
      int taken = 0;
      std::size_t last = 0;
      for (int tile = 0; tile < tiles; ++tile) {
        bool any = false, every = true;
        for (int h = 0; h < n.group; ++h)
          for (int i = 0; i < n.Q; ++i)
            for (int j = tile * 64; j < std::min(n.K, tile * 64 + 64); ++j) mask.keeps(list / n.G, list % n.G * n.group + h, i, j) ? any = true : every = false;
        if (!any) continue;
        std::size_t place = std::size_t(list * a.splits + taken / n.chunk);
        if (taken % n.chunk != 0) place = runs.size(), runs[last].next = i32(place), runs.emplace_back();
        runs[place] = {tile, tile + 1, every, 0}, last = place, ++taken;
      }
      parts.push_back(std::max(1, (taken + n.chunk - 1) / n.chunk));
    }
    a.runs = runs.data(), a.parts = parts.data(), a.batch_lists = n.G, a.head_lists = 1;
  }
  const int blocks = a.row_tiles * a.splits * n.B * n.G;
  std::vector<float> partials(std::size_t(blocks) * std::size_t(block_rows * (Dv + 2)) + 4, NAN);
  a.partials = partials.data() + (4 - reinterpret_cast<std::uintptr_t>(partials.data()) / 4 % 4) % 4;
  const auto launch = [](int count, const auto& run) {
    blockDim.x = 128, gridDim.x = count;
    for (blockIdx.x = 0; blockIdx.x < count; ++blockIdx.x) emulated::run_block(128, [&] { run(); });
  };
  const Score score{};
  launch(blocks, [&] { attention_decode<T, D, Dv, RowWarps, true>(a, mask, score); });
  if (a.splits > 1) launch(n.B * n.G * packed, [&] { merge_decode<T, Dv>(a); });

  double worst = 0, worst_lse = 0;
  const auto note = [](double& most, double difference) {
    if (!(std::fabs(difference) <= most)) most = std::fabs(difference);  // a NaN too
  };
  for (int b = 0; b < n.B; ++b)
    for (int h = 0; h < H; ++h)
      for (int i = 0; i < n.Q; ++i) {
        std::vector<double> s(std::size_t(n.K)), o(std::size_t(n.Dv), 0.0);
        double top = n.has_sink ? double(sink[std::size_t(h)]) : -INFINITY, sum = 0;
        for (int j = 0; j < n.K; ++j) {
          double dot = 0;
          for (int c = 0; c < n.D; ++c) dot += at(q, H, n.Q, n.D, b, h, i, c) * at(k, n.G, n.K, n.D, b, h / n.group, j, c);
          double& x = s[std::size_t(j)] = dot * n.scale;
          if constexpr (!Score::identity) x = 2 * std::tanh((x + h - 0.01 * j) / 2);
          if (!mask.keeps(b, h, i, j)) x = -INFINITY;
          top = std::max(top, x);
        }
        if (n.has_sink) sum = std::exp(double(sink[std::size_t(h)]) - top);
        for (int j = 0; j < n.K; ++j) {
          if (s[std::size_t(j)] == -INFINITY) continue;
          const double weight = std::exp(s[std::size_t(j)] - top);
          sum += weight;
          for (int c = 0; c < n.Dv; ++c) o[std::size_t(c)] += weight * at(v, n.G, n.K, n.Dv, b, h / n.group, j, c);
        }
        const double want_lse = sum > 0 ? top + std::log(sum) : -INFINITY, found = double(lse[std::size_t((b * H + h) * n.Q + i)]);
        note(worst_lse, found == want_lse ? 0 : found - want_lse);
        for (int c = 0; c < n.Dv; ++c) note(worst, at(out, H, n.Q, n.Dv, b, h, i, c) - (sum > 0 ? o[std::size_t(c)] / sum : 0));
      }
  CHECK(worst <= (is_bf16 ? 0.02 : 0.003));
  CHECK(worst_lse <= 1e-4);
}

}  // namespace

TEST_CASE("emulated: decode kernels of 16 packed rows, parts merged or alone, at odd sizes and strides") {
  check<f16, 64, 64, 1>({.group = 4, .Q = 1, .K = 1, .D = 64, .Dv = 64});
  check<f16, 64, 64, 1>({.group = 7, .Q = 2, .K = 201, .D = 64, .Dv = 64, .B = 2, .G = 2, .mask = keep_mask::lengths, .has_sink = true});
  check<f16, 64, 64, 1>({.group = 4, .Q = 2, .K = 130, .D = 64, .Dv = 64, .mask = keep_mask::none, .scale = -0.1});
  check<f16, 64, 64, 1>({.group = 2, .Q = 7, .K = 133, .D = 40, .Dv = 57, .chunk = 2, .G = 2, .mask = keep_mask::by_head, .strided = true, .has_sink = true});
  check<bf16, 256, 256, 1>({.group = 4, .Q = 3, .K = 330, .D = 256, .Dv = 250, .chunk = 2, .mask = keep_mask::causal, .scale = 0.06});
}

TEST_CASE("emulated: decode kernels of 64 packed rows, several blocks of them, and a score function") {
  check<bf16, 128, 128, 4>({.group = 7, .Q = 10, .K = 200, .D = 128, .Dv = 128, .B = 2, .mask = keep_mask::lengths, .scale = -0.1});
  check<bf16, 128, 128, 4>({.group = 4, .Q = 6, .K = 140, .D = 128, .Dv = 128, .mask = keep_mask::causal, .has_sink = true});
  check<f16, 48, 16, 4, soft_cap>({.group = 8, .Q = 5, .K = 150, .D = 40, .Dv = 9, .chunk = 3, .mask = keep_mask::by_head});
}
