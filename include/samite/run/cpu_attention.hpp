// samite/run/cpu_attention.hpp: attention on the CPU, forward and backward, over the listed tiles only.
//
// Strategy: a task is one query tile (forward, dQ) or one key tile (dK, dV) of one head; it walks the runs of the tile map
// in ascending order with an online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867; tiling as in Dao et al. 2022,
// arXiv:2205.14135) and serial products. Up to four neighbouring tiles on its way share the products that sum over them and a step of the softmax:
// the groups are cut at fixed places, and a hidden pair adds exactly 0, so that neither the map's kinds nor padding change a bit.
// Full tiles are not tested; undecided ones are, row by row. Every output element belongs to one task, so the result does not
// depend on the number of threads.
#pragma once
#include <samite/run/attention_blocks.hpp>

namespace samite::detail {

inline void count_listed(const tile_map& map, index_t B, index_t H, index_t passes) {
  // One map may serve all batches or heads.
  const index_t shared = B * H / std::max<index_t>(1, map.maps());
  attention_count().listed.fetch_add((map.counts().full + map.counts().undecided) * shared * passes, std::memory_order_relaxed);
}

inline index_box score_box(const attention_sizes& n) { return index_box::whole(n.B, n.H, n.Q, n.K); }  // highs of -1 where there is no pair

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
  if (a == T(minus_infinity)) return b;
  if (b == T(minus_infinity)) return a;
  const T top = std::max(a, b);
  return top + std::log(std::exp(a - top) + std::exp(b - top));
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
    tile_scores<T> scores(map, function, T(a.scale), false, rows, n.widest_group(n.K));
    block_rows<T> v_rows;
    std::vector<T> o(std::size_t(attention_tile * n.Dv), T(0));
    T largest[attention_tile], sum[attention_tile];
    std::fill_n(largest, attention_tile, T(minus_infinity));
    std::fill_n(sum, attention_tile, T(0));
    const auto at = [&](index_t j, bool is_full) { return attention_pair{i, j, is_full}; };
    in_groups(n, map.tiles.row(b, h, i), at, [&](const attention_block& block) {
      scores.compute(n, Q, K, b, h, block);
      for (index_t r = 0; r < rows; ++r) {
        T* s = scores.s.data() + r * scores.stride;
        const T top = std::max(largest[r], row_top(s, block.columns));
        // A row that has seen no key yet has no maximum to subtract; its weights are all 0.
        const T shift = top == T(minus_infinity) ? T(0) : top;
        const T keep = largest[r] == T(minus_infinity) ? T(0) : rules::exp::value(largest[r] - shift);
        sum[r] = sum[r] * keep + exp_row(s, block.columns, shift);
        if (keep != T(1)) scale_row(o.data() + r * n.Dv, n.Dv, keep);
        largest[r] = top;
      }
      const auto v = v_rows.keys(n, V, b, h, n.Dv, block);
      gemm_serial<T>(false, false, rows, n.Dv, block.columns, T(1), scores.s.data(), scores.stride, v.data, v.stride, T(1), o.data(), std::max<index_t>(1, n.Dv));
    });
    for (index_t r = 0; r < rows; ++r) {
      const index_t q = i * attention_tile + r;
      const bool hidden = sum[r] == T(0);  // a NaN among visible scores is not: it is the row's log-sum-exp
      T log_sum = hidden ? T(minus_infinity) : largest[r] + std::log(sum[r]);
      T scale = hidden ? T(0) : T(1) / sum[r];
      if (!sink.empty()) {  // a key without a value: it takes weight and gives nothing
        const T own = log_sum, with_sink = log_of_sum(own, sink[std::size_t(h)]);
        if (!hidden) scale *= rules::exp::value(own - with_sink);
        log_sum = with_sink;
      }
      scale_row(o.data() + r * n.Dv, n.Dv, scale);
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
    tile_scores<T> scores(map, function, scale, true, std::min(attention_tile, n.Q), n.widest_group(n.K));
    std::vector<T> dp(scores.s.size());
    for (index_t task = part * tasks / parts; task < (part + 1) * tasks / parts; ++task) {
      const index_t i = task % n.q_tiles(), h = task / n.q_tiles() % n.H, b = task / (n.q_tiles() * n.H);
      const auto at = [&](index_t j, bool is_full) { return attention_pair{i, j, is_full}; };
      in_groups(n, map.tiles.row(b, h, i), at, [&](const attention_block& block) { gradients(scores, dp, b, h, block, nullptr, add); });
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

  // Weights P and gradients dS of the scores of a block, both in place; `add` gets what the score's tensors receive.
  const auto gradients = [&](tile_scores<T>& scores, std::vector<T>& dp, index_t b, index_t h, const attention_block& block, std::vector<T>* weights, auto&& add) {
    block_rows<T> d_rows, v_rows;
    scores.compute(n, Q, K, b, h, block);
    const auto d = d_rows.queries(n, dO, b, h, n.Dv, block), v = v_rows.keys(n, V, b, h, n.Dv, block);
    outer_product(block, n.Dv, T(1), d.data, d.stride, v.data, v.stride, dp.data(), scores.stride);
    for (index_t r = 0; r < block.rows; ++r) {
      const std::size_t at = std::size_t((b * n.H + h) * n.Q + block.q + r);
      T* s = scores.s.data() + r * scores.stride;
      if (lse[at] == T(minus_infinity)) std::fill_n(s, block.columns, T(0));  // no visible key: exactly no gradient
      else exp_row(s, block.columns, lse[at]);
      if (weights) std::copy_n(s, block.columns, weights->data() + r * scores.stride);
      score_gradient_row(s, dp.data() + r * scores.stride, block.columns, delta[at]);
    }
    if (function.is_identity()) return;
    for (const attention_pair& tile : block.tiles) {
      const std::ptrdiff_t place = scores.place(block, tile);
      function.gradient(b, h, tile.q_tile * attention_tile, tile.k_tile * attention_tile, n.rows_of(tile.q_tile, n.Q), n.rows_of(tile.k_tile, n.K), scores.raw.data() + place,
                        scores.s.data() + place, scores.stride, add);
    }
  };

  const tensor_view &dQ = l.outputs[0], &dK = l.outputs[1], &dV = l.outputs[2];
  parallel_for(n.B * n.H * n.q_tiles(), [&](index_t task) {
    const index_t i = task % n.q_tiles(), h = task / n.q_tiles() % n.H, b = task / (n.q_tiles() * n.H);
    const index_t rows = n.rows_of(i, n.Q);
    tile_scores<T> scores(map, function, T(a.scale), true, rows, n.widest_group(n.K));
    std::vector<T> dp(scores.s.size()), dq(std::size_t(attention_tile * n.D), T(0));
    block_rows<T> k_rows;
    const auto at = [&](index_t j, bool is_full) { return attention_pair{i, j, is_full}; };
    in_groups(n, map.tiles.row(b, h, i), at, [&](const attention_block& block) {
      gradients(scores, dp, b, h, block, nullptr, ignore);
      const auto k = k_rows.keys(n, K, b, h, n.D, block);
      gemm_serial<T>(false, false, rows, n.D, block.columns, T(a.scale), scores.s.data(), scores.stride, k.data, k.stride, T(1), dq.data(), std::max<index_t>(1, n.D));
    });
    for (index_t r = 0; r < rows; ++r) store_head_row(dQ, b, h, i * attention_tile + r, dq.data() + r * n.D);
  });
  parallel_for(n.B * n.G * n.k_tiles(), [&](index_t task) {
    const index_t j = task % n.k_tiles(), g = task / n.k_tiles() % n.G, b = task / (n.k_tiles() * n.G);
    const index_t columns = n.rows_of(j, n.K);
    tile_scores<T> scores(map, function, T(a.scale), true, n.widest_group(n.Q), columns);
    std::vector<T> dp(scores.s.size()), p(dp.size());
    std::vector<T> dk(std::size_t(attention_tile * n.D), T(0)), dv(std::size_t(attention_tile * n.Dv), T(0));
    block_rows<T> d_rows, q_rows;
    const auto at = [&](index_t i, bool is_full) { return attention_pair{i, j, is_full}; };
    for (index_t h = g * (n.H / n.G); h < (g + 1) * (n.H / n.G); ++h)
      in_groups(n, map.tiles.column(b, h, j), at, [&](const attention_block& block) {
        gradients(scores, dp, b, h, block, &p, ignore);
        const auto d = d_rows.queries(n, dO, b, h, n.Dv, block), q = q_rows.queries(n, Q, b, h, n.D, block);
        gemm_serial<T>(true, false, columns, n.Dv, block.rows, T(1), p.data(), scores.stride, d.data, d.stride, T(1), dv.data(), std::max<index_t>(1, n.Dv));
        gemm_serial<T>(true, false, columns, n.D, block.rows, T(a.scale), scores.s.data(), scores.stride, q.data, q.stride, T(1), dk.data(), std::max<index_t>(1, n.D));
      });
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
