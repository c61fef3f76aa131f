// samite/run/cpu_attention.hpp: attention on the CPU, forward and backward, over the listed tiles only.
//
// Strategy: a task is one query tile (forward, dQ) or one key tile (dK, dV) of one head; it walks the runs of the tile map
// in ascending order with an online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867; tiling as in Dao et al. 2022,
// arXiv:2205.14135) and small serial products. Full tiles are not tested; undecided ones are, row by row. Every output
// element belongs to one task, so the result does not depend on the number of threads.
#pragma once
#include <algorithm>
#include <atomic>
#include <limits>
#include <map>

#include <samite/ir/evaluate.hpp>
#include <samite/mask/tile_map.hpp>
#include <samite/run/backend.hpp>
#include <samite/run/row_loops.hpp>
#include <samite/run/score_tiles.hpp>
#include <samite/run/strided.hpp>
#include <samite/runtime/blas.hpp>

namespace samite::detail {

inline constexpr index_t attention_tile = 64;

struct attention_counts {
  std::atomic<index_t> computed{0}, listed{0};
};
inline attention_counts& attention_count() {
  static attention_counts counts;
  return counts;
}
inline cpu_counters attention_totals() { return {attention_count().computed.load(), attention_count().listed.load()}; }

/// What one mask needs at one size: its tiles, and one bit a pair of the undecided ones, computed once and shared by all
/// heads, layers and passes that see the same map.
class attention_map {
 public:
  attention_map(const any_mask& mask, const tile_options& options) : tiles(mask, options), rows_(mask.program()) {
    find_undecided();
    // Beyond 256 MiB of bits, tiles are evaluated when they are met.
    if (columns_.size() * words_per_tile > std::size_t(1) << 25) return;
    bits_.resize(columns_.size() * words_per_tile);
    const std::size_t lists = starts_.size() - 1;
    parallel_for(index_t(lists), [&](index_t list) {
      if (starts_[std::size_t(list)] == starts_[std::size_t(list) + 1]) return;
      row_evaluator rows = rows_;
      for (std::size_t t = starts_[std::size_t(list)]; t < starts_[std::size_t(list) + 1]; ++t)
        evaluate(rows, owner_[std::size_t(list) / std::size_t(tiles.q_tiles())], list % tiles.q_tiles(), columns_[t], bits_.data() + t * words_per_tile);
    });
  }

  tile_map tiles;

  /// Bit c of word r is set if row r of the tile sees its column c. `scratch` holds the words if they are not kept.
  const std::uint64_t* keep(index_t b, index_t h, index_t q_tile, index_t k_tile, std::vector<std::uint64_t>& scratch) const {
    const std::size_t list = std::size_t(tiles.map_of(b, h) * tiles.q_tiles() + q_tile);
    if (!bits_.empty()) {
      const auto first = columns_.begin() + std::ptrdiff_t(starts_[list]), last = columns_.begin() + std::ptrdiff_t(starts_[list + 1]);
      return bits_.data() + std::size_t(std::lower_bound(first, last, std::int32_t(k_tile)) - columns_.begin()) * words_per_tile;
    }
    scratch.resize(words_per_tile);
    row_evaluator rows = rows_;
    evaluate(rows, {b, h}, q_tile, k_tile, scratch.data());
    return scratch.data();
  }

 private:
  static constexpr std::size_t words_per_tile = std::size_t(attention_tile);
  struct batch_head {
    index_t b, h;
  };

  void find_undecided() {
    const tile_options& o = tiles.options();
    owner_.assign(std::size_t(tiles.maps()), {-1, -1});
    for (index_t b = 0; b < o.B; ++b)
      for (index_t h = 0; h < o.H; ++h)
        if (batch_head& owner = owner_[std::size_t(tiles.map_of(b, h))]; owner.b < 0) owner = {b, h};
    for (const batch_head& owner : owner_)
      for (index_t i = 0; i < tiles.q_tiles(); ++i) {
        starts_.push_back(columns_.size());
        for (const tile_run& run : tiles.row(owner.b, owner.h, i))
          if (run.kind == tile_kind::undecided)
            for (std::int32_t j = run.first; j <= run.last; ++j) columns_.push_back(j);
      }
    starts_.push_back(columns_.size());
  }

  void evaluate(row_evaluator& rows, batch_head at, index_t q_tile, index_t k_tile, std::uint64_t* words) const {
    const tile_options& o = tiles.options();
    const index_t k0 = k_tile * attention_tile, columns = std::min(attention_tile, o.K - k0);
    std::uint8_t keep[attention_tile];
    for (index_t r = 0; r < std::min(attention_tile, o.Q - q_tile * attention_tile); ++r) {
      rows.row(at.b, at.h, q_tile * attention_tile + r, k0, k0 + columns, keep);
      std::uint64_t word = 0;
      for (index_t c = 0; c < columns; ++c) word |= std::uint64_t(keep[c] != 0) << c;
      words[r] = word;
    }
  }

  row_evaluator rows_;
  std::vector<batch_head> owner_;      // a batch and head that each map serves
  std::vector<std::size_t> starts_;    // undecided tiles of list m * q_tiles + i are [starts[..], starts[.. + 1])
  std::vector<std::int32_t> columns_;  // their key tiles
  std::vector<std::uint64_t> bits_;
};

/// Tile maps of the current step: layers that share a mask share its map.
class attention_maps {
 public:
  void clear() { maps_.clear(); }

  attention_map& get(const std::shared_ptr<const program>& mask, index_t B, index_t H, index_t Q, index_t K) {
    const key k{mask.get(), B, H, Q, K};
    auto found = maps_.find(k);
    if (found != maps_.end()) return found->second;
    const any_mask lowered = mask ? any_mask(*mask) : any_mask();
    return maps_.try_emplace(k, lowered, tile_options{.B = B, .H = H, .Q = Q, .K = K, .tile_q = attention_tile, .tile_k = attention_tile}).first->second;
  }

 private:
  struct key {
    const program* mask;
    index_t B, H, Q, K;
    friend auto operator<=>(const key&, const key&) = default;
  };
  std::map<key, attention_map> maps_;
};

/// A [B,H,rows,D] operand in the computing type with unit stride along D.
template <class T>
struct head_view {
  const T* data;
  index_t batch, head, row;  // strides in elements
  std::vector<T> store;

  explicit head_view(const tensor_view& v) {
    if (v.type == (sizeof(T) == 8 ? dtype::f64 : dtype::f32) && v.strides[3] == 1) {
      data = v.as<const T>();
      batch = v.strides[0], head = v.strides[1], row = v.strides[2];
      return;
    }
    store.resize(std::size_t(v.size()));
    const index_t columns = v.dims[3], rows = columns == 0 ? 0 : v.size() / columns;
    parallel_for((rows + 255) / 256, [&](index_t block) {
      for (index_t r = block * 256; r < std::min(rows, block * 256 + 256); ++r)
        load_row(store.data() + r * columns, v.data + row_offset(v, r) * index_t(size_of(v.type)), v.type, v.strides[3], columns);
    });
    data = store.data();
    row = columns, head = row * v.dims[2], batch = head * v.dims[1];
  }
  head_view(const head_view&) = delete;

  const T* at(index_t b, index_t h, index_t r) const { return data + b * batch + h * head + r * row; }
};

template <class T>
void store_head_row(const tensor_view& out, index_t b, index_t h, index_t r, const T* from) {
  std::byte* to = out.data + (b * out.strides[0] + h * out.strides[1] + r * out.strides[2]) * index_t(size_of(out.type));
  store_row(to, out.type, from, out.dims[3]);
}

inline constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// exp(x - shift) for a row; hidden keys hold -inf and give exactly 0.
template <class T>
SAMITE_INLINE T exp_row_body(T* x, index_t n, T shift) {
  for (index_t i = 0; i < n; ++i) x[i] = rules::exp::value(x[i] - shift);
  return row_sum_body(x, n);
}
template <class T>
SAMITE_TARGET_AVX2 T exp_row_avx2(T* x, index_t n, T shift) { return exp_row_body(x, n, shift); }
template <class T>
T exp_row(T* x, index_t n, T shift) { return cpu_has_avx2() ? exp_row_avx2(x, n, shift) : exp_row_body(x, n, shift); }

template <class T>
SAMITE_INLINE void score_gradient_body(T* p, const T* dp, index_t n, T delta) {
  for (index_t i = 0; i < n; ++i) p[i] = p[i] * (dp[i] - delta);
}
template <class T>
SAMITE_TARGET_AVX2 void score_gradient_avx2(T* p, const T* dp, index_t n, T delta) { score_gradient_body(p, dp, n, delta); }
template <class T>
void score_gradient_row(T* p, const T* dp, index_t n, T delta) {
  if (cpu_has_avx2()) score_gradient_avx2(p, dp, n, delta);
  else score_gradient_body(p, dp, n, delta);
}

struct attention_sizes {
  index_t B, H, G, Q, K, D, Dv;
  explicit attention_sizes(const launch& l)
      : B(l.inputs[0].dims[0]), H(l.inputs[0].dims[1]), G(l.inputs[1].dims[1]), Q(l.inputs[0].dims[2]), K(l.inputs[1].dims[2]), D(l.inputs[0].dims[3]), Dv(l.inputs[2].dims[3]) {}
  index_t q_tiles() const { return (Q + attention_tile - 1) / attention_tile; }
  index_t k_tiles() const { return (K + attention_tile - 1) / attention_tile; }
  index_t group_of(index_t h) const { return h / (H / G); }
  static index_t rows_of(index_t tile, index_t length) { return std::min(attention_tile, length - tile * attention_tile); }
};

/// Scores of one tile: s = score(scale * Q K^T), -inf where the mask hides the pair.
template <class T>
class tile_scores {
 public:
  tile_scores(const attention_map& map, const score_tiles<T>& function, T scale, bool keep_raw = false)
      : map_(map), function_(function), scale_(scale), s(std::size_t(attention_tile * attention_tile)), raw(keep_raw && !function.is_identity() ? s.size() : 0) {}

  void compute(const attention_sizes& n, const head_view<T>& Q, const head_view<T>& K, index_t b, index_t h, index_t q_tile, index_t k_tile, bool is_full) {
    const index_t q0 = q_tile * attention_tile, k0 = k_tile * attention_tile;
    const index_t rows = n.rows_of(q_tile, n.Q), columns = n.rows_of(k_tile, n.K);
    gemm_serial<T>(false, true, rows, columns, n.D, scale_, Q.at(b, h, q0), Q.row, K.at(b, n.group_of(h), k0), K.row, T(0), s.data(), attention_tile);
    ++tiles_;
    if (!raw.empty()) raw = s;
    function_.apply(b, h, q0, k0, rows, columns, s.data(), attention_tile);
    if (is_full) return;
    const std::uint64_t* keep = map_.keep(b, h, q_tile, k_tile, scratch_);
    for (index_t r = 0; r < rows; ++r) {
      T* row = s.data() + r * attention_tile;
      for (index_t c = 0; c < columns; ++c) row[c] = (keep[r] >> c & 1u) != 0 ? row[c] : T(minus_infinity);
    }
  }
  ~tile_scores() { attention_count().computed.fetch_add(tiles_, std::memory_order_relaxed); }

 private:
  const attention_map& map_;
  const score_tiles<T>& function_;
  T scale_;
  std::vector<std::uint64_t> scratch_;
  index_t tiles_ = 0;

 public:
  std::vector<T> s, raw;  // raw: before the score function, for its derivative
};

inline void count_listed(const tile_map& map, index_t B, index_t H, index_t passes) {
  // One map may serve all batches or heads.
  const index_t shared = B * H / std::max<index_t>(1, map.maps());
  attention_count().listed.fetch_add((map.counts().full + map.counts().undecided) * shared * passes, std::memory_order_relaxed);
}

inline index_box score_box(const attention_sizes& n) {
  return index_box::whole(std::max<index_t>(1, n.B), n.H, std::max<index_t>(1, n.Q), std::max<index_t>(1, n.K));
}

/// The sink's logit for each head; empty if there is none.
template <class T>
std::vector<T> sink_of(const attention_terms& a, const launch& l) {
  std::vector<T> sink;
  if (!a.has_sink) return sink;
  const tensor_view& v = l.inputs.back();
  sink.resize(std::size_t(v.dims[0]));
  load_row(sink.data(), v.data, v.type, v.strides[0], v.dims[0]);
  return sink;
}

/// log(exp(a) + exp(b)).
template <class T>
T log_of_sum(T a, T b) {
  const T top = std::max(a, b);
  return top == T(minus_infinity) ? top : top + std::log(std::exp(a - top) + std::exp(b - top));
}

template <class T>
void attention_forward_in(const launch& l, const attention_node& a, attention_maps& maps) {
  const attention_sizes n(l);
  attention_map& map = maps.get(a.mask, std::max<index_t>(1, n.B), n.H, n.Q, n.K);
  if (n.B == 0) return;
  count_listed(map.tiles, n.B, n.H, 1);
  const head_view<T> Q(l.inputs[0]), K(l.inputs[1]), V(l.inputs[2]);
  const score_tiles<T> function(a, l.inputs.subspan(3, std::size_t(a.tensors)), score_box(n));
  const std::vector<T> sink = sink_of<T>(a, l);
  const tensor_view &out = l.outputs[0], &lse = l.outputs[1];
  parallel_for(n.B * n.H * n.q_tiles(), [&](index_t task) {
    const index_t i = task % n.q_tiles(), h = task / n.q_tiles() % n.H, b = task / (n.q_tiles() * n.H);
    const index_t rows = n.rows_of(i, n.Q);
    tile_scores<T> scores(map, function, T(a.scale));
    std::vector<T> o(std::size_t(attention_tile * n.Dv), T(0));
    T largest[attention_tile], sum[attention_tile];
    std::fill_n(largest, attention_tile, T(minus_infinity));
    std::fill_n(sum, attention_tile, T(0));
    for (const tile_run& run : map.tiles.row(b, h, i))
      for (index_t j = run.first; j <= run.last; ++j) {
        scores.compute(n, Q, K, b, h, i, j, run.kind == tile_kind::full);
        const index_t columns = n.rows_of(j, n.K);
        for (index_t r = 0; r < rows; ++r) {
          T* s = scores.s.data() + r * attention_tile;
          const T top = std::max(largest[r], row_extreme(s, columns, true));
          // A row that has seen no key yet has no maximum to subtract; its weights are all 0.
          const T shift = top == T(minus_infinity) ? T(0) : top;
          const T keep = largest[r] == T(minus_infinity) ? T(0) : rules::exp::value(largest[r] - shift);
          sum[r] = sum[r] * keep + exp_row(s, columns, shift);
          if (keep != T(1))
            for (index_t d = 0; d < n.Dv; ++d) o[std::size_t(r * n.Dv + d)] *= keep;
          largest[r] = top;
        }
        gemm_serial<T>(false, false, rows, n.Dv, columns, T(1), scores.s.data(), attention_tile, V.at(b, n.group_of(h), j * attention_tile), V.row, T(1), o.data(), std::max<index_t>(1, n.Dv));
      }
    for (index_t r = 0; r < rows; ++r) {
      const index_t q = i * attention_tile + r;
      T log_sum = sum[r] > T(0) ? largest[r] + std::log(sum[r]) : T(minus_infinity);
      T scale = sum[r] > T(0) ? T(1) / sum[r] : T(0);
      if (!sink.empty()) {  // a key without a value: it takes weight and gives nothing
        const T own = log_sum, with_sink = log_of_sum(own, sink[std::size_t(h)]);
        if (sum[r] > T(0)) scale *= rules::exp::value(own - with_sink);
        log_sum = with_sink;
      }
      for (index_t d = 0; d < n.Dv; ++d) o[std::size_t(r * n.Dv + d)] *= scale;
      store_head_row(out, b, h, q, o.data() + r * n.Dv);
      store_row(lse.data + (b * lse.strides[0] + h * lse.strides[1] + q * lse.strides[2]) * index_t(size_of(lse.type)), lse.type, &log_sum, 1);
    }
  });
}

/// d sink[h] = -sum over rows of exp(sink - lse) * delta.  source  facts of softmax with one more key whose value is 0
template <class T>
void sink_gradient(const attention_sizes& n, const std::vector<T>& sink, const std::vector<T>& lse, const std::vector<T>& delta, const tensor_view& out) {
  std::vector<double> total(std::size_t(n.H), 0.0);
  for (index_t bh = 0; bh < n.B * n.H; ++bh)
    for (index_t q = 0; q < n.Q; ++q) {
      const std::size_t at = std::size_t(bh * n.Q + q), h = std::size_t(bh % n.H);
      if (lse[at] != T(minus_infinity)) total[h] -= std::exp(double(sink[h]) - double(lse[at])) * double(delta[at]);
    }
  store_row(out.data, out.type, total.data(), n.H);
}

/// Gradients of the tensors that a score function reads, added up in double. Query tiles are dealt to a number of parts that
/// depends on sizes alone, and the parts are added in order: the sum does not depend on the number of threads.
template <class T, class Gradients>
void tensor_gradients(const attention_sizes& n, std::span<const tensor_view> outputs, const attention_map& map, const score_tiles<T>& function, T scale, Gradients&& gradients) {
  std::vector<index_t> offset{0};
  for (const tensor_view& v : outputs) offset.push_back(offset.back() + v.size());
  const index_t elements = offset.back(), tasks = n.B * n.H * n.q_tiles();
  constexpr index_t budget = index_t(1) << 25;  // doubles: 256 MiB for all parts together
  const index_t parts = std::clamp<index_t>(budget / std::max<index_t>(1, elements), 1, std::clamp<index_t>(tasks, 1, 64));
  std::vector<double> sums(std::size_t(parts * elements), 0.0);
  parallel_for(parts, [&](index_t part) {
    double* sum = sums.data() + part * elements;
    const auto add = [&](index_t slot, index_t at, T adjoint) { sum[offset[std::size_t(slot)] + at] += double(adjoint); };
    tile_scores<T> scores(map, function, scale, true);
    std::vector<T> dp(std::size_t(attention_tile * attention_tile));
    for (index_t task = part * tasks / parts; task < (part + 1) * tasks / parts; ++task) {
      const index_t i = task % n.q_tiles(), h = task / n.q_tiles() % n.H, b = task / (n.q_tiles() * n.H);
      for (const tile_run& run : map.tiles.row(b, h, i))
        for (index_t j = run.first; j <= run.last; ++j) gradients(scores, dp, b, h, i, j, run.kind == tile_kind::full, nullptr, add);
    }
  });
  for (index_t part = 1; part < parts; ++part)
    for (index_t i = 0; i < elements; ++i) sums[std::size_t(i)] += sums[std::size_t(part * elements + i)];
  for (std::size_t t = 0; t < outputs.size(); ++t) store_row(outputs[t].data, outputs[t].type, sums.data() + offset[t], outputs[t].size());
}

template <class T>
void attention_backward_in(const launch& l, const attention_gradient_node& a, attention_maps& maps) {
  const attention_sizes n(l);
  attention_map& map = maps.get(a.mask, std::max<index_t>(1, n.B), n.H, n.Q, n.K);
  map.tiles.build_columns();
  if (n.B == 0) return;
  count_listed(map.tiles, n.B, n.H, 2);
  const head_view<T> Q(l.inputs[0]), K(l.inputs[1]), V(l.inputs[2]), O(l.inputs[3]), dO(l.inputs[5]);
  const tensor_view& lse_view = l.inputs[4];
  std::vector<T> lse(std::size_t(n.B * n.H * n.Q)), delta(lse.size());
  load_row(lse.data(), lse_view.data, lse_view.type, 1, index_t(lse.size()));
  if (a.has_lse_gradient) load_row(delta.data(), l.inputs[6].data, l.inputs[6].type, 1, index_t(delta.size()));
  parallel_for(n.B * n.H, [&](index_t bh) {
    for (index_t q = 0; q < n.Q; ++q) {
      const T *o = O.at(bh / n.H, bh % n.H, q), *d = dO.at(bh / n.H, bh % n.H, q);
      T product = 0;
      for (index_t c = 0; c < n.Dv; ++c) product += o[c] * d[c];
      T& at = delta[std::size_t(bh * n.Q + q)];
      at = product - at;
    }
  });

  const std::size_t first_tensor = a.has_lse_gradient ? 7 : 6;
  score_tiles<T> function(a, l.inputs.subspan(first_tensor, std::size_t(a.tensors)), score_box(n));
  function.differentiate(a);
  if (a.has_sink) sink_gradient(n, sink_of<T>(a, l), lse, delta, l.outputs.back());
  const auto ignore = [](index_t, index_t, T) {};

  // Weights P and gradients dS of the scores of one tile, both in place; `add` gets what the score's tensors receive.
  const auto gradients = [&](tile_scores<T>& scores, std::vector<T>& dp, index_t b, index_t h, index_t i, index_t j, bool is_full, std::vector<T>* weights, auto&& add) {
    scores.compute(n, Q, K, b, h, i, j, is_full);
    const index_t rows = n.rows_of(i, n.Q), columns = n.rows_of(j, n.K);
    gemm_serial<T>(false, true, rows, columns, n.Dv, T(1), dO.at(b, h, i * attention_tile), dO.row, V.at(b, n.group_of(h), j * attention_tile), V.row, T(0), dp.data(), attention_tile);
    for (index_t r = 0; r < rows; ++r) {
      const std::size_t at = std::size_t((b * n.H + h) * n.Q + i * attention_tile + r);
      T* s = scores.s.data() + r * attention_tile;
      if (lse[at] == T(minus_infinity)) std::fill_n(s, columns, T(0));  // no visible key: exactly no gradient
      else exp_row(s, columns, lse[at]);
      if (weights) std::copy_n(s, columns, weights->data() + r * attention_tile);
      score_gradient_row(s, dp.data() + r * attention_tile, columns, delta[at]);
    }
    function.gradient(b, h, i * attention_tile, j * attention_tile, rows, columns, scores.raw.data(), scores.s.data(), attention_tile, add);
  };

  const tensor_view &dQ = l.outputs[0], &dK = l.outputs[1], &dV = l.outputs[2];
  parallel_for(n.B * n.H * n.q_tiles(), [&](index_t task) {
    const index_t i = task % n.q_tiles(), h = task / n.q_tiles() % n.H, b = task / (n.q_tiles() * n.H);
    const index_t rows = n.rows_of(i, n.Q);
    tile_scores<T> scores(map, function, T(a.scale), true);
    std::vector<T> dp(std::size_t(attention_tile * attention_tile)), dq(std::size_t(attention_tile * n.D), T(0));
    for (const tile_run& run : map.tiles.row(b, h, i))
      for (index_t j = run.first; j <= run.last; ++j) {
        gradients(scores, dp, b, h, i, j, run.kind == tile_kind::full, nullptr, ignore);
        gemm_serial<T>(false, false, rows, n.D, n.rows_of(j, n.K), T(a.scale), scores.s.data(), attention_tile, K.at(b, n.group_of(h), j * attention_tile), K.row, T(1), dq.data(), std::max<index_t>(1, n.D));
      }
    for (index_t r = 0; r < rows; ++r) store_head_row(dQ, b, h, i * attention_tile + r, dq.data() + r * n.D);
  });
  parallel_for(n.B * n.G * n.k_tiles(), [&](index_t task) {
    const index_t j = task % n.k_tiles(), g = task / n.k_tiles() % n.G, b = task / (n.k_tiles() * n.G);
    const index_t columns = n.rows_of(j, n.K);
    tile_scores<T> scores(map, function, T(a.scale), true);
    std::vector<T> dp(std::size_t(attention_tile * attention_tile)), p(dp.size());
    std::vector<T> dk(std::size_t(attention_tile * n.D), T(0)), dv(std::size_t(attention_tile * n.Dv), T(0));
    for (index_t h = g * (n.H / n.G); h < (g + 1) * (n.H / n.G); ++h)
      for (const tile_run& run : map.tiles.column(b, h, j))
        for (index_t i = run.first; i <= run.last; ++i) {
          gradients(scores, dp, b, h, i, j, run.kind == tile_kind::full, &p, ignore);
          const index_t rows = n.rows_of(i, n.Q), q0 = i * attention_tile;
          gemm_serial<T>(true, false, columns, n.Dv, rows, T(1), p.data(), attention_tile, dO.at(b, h, q0), dO.row, T(1), dv.data(), std::max<index_t>(1, n.Dv));
          gemm_serial<T>(true, false, columns, n.D, rows, T(a.scale), scores.s.data(), attention_tile, Q.at(b, h, q0), Q.row, T(1), dk.data(), std::max<index_t>(1, n.D));
        }
    for (index_t c = 0; c < columns; ++c) {
      store_head_row(dK, b, g, j * attention_tile + c, dk.data() + c * n.D);
      store_head_row(dV, b, g, j * attention_tile + c, dv.data() + c * n.Dv);
    }
  });
  if (a.tensors > 0) tensor_gradients(n, l.outputs.subspan(3, std::size_t(a.tensors)), map, function, T(a.scale), gradients);
}

inline void attention_forward(const launch& l, const attention_node& a, attention_maps& maps) {
  if (l.inputs[0].type == dtype::f64) attention_forward_in<double>(l, a, maps);
  else attention_forward_in<float>(l, a, maps);
}

inline void attention_backward(const launch& l, const attention_gradient_node& a, attention_maps& maps) {
  if (l.inputs[0].type == dtype::f64) attention_backward_in<double>(l, a, maps);
  else attention_backward_in<float>(l, a, maps);
}

}  // namespace samite::detail
