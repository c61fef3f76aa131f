// samite/run/attention_blocks.hpp: groups of tiles of attention on the CPU: their operands, their scores, and loops over rows.
#pragma once
#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include <samite/run/attention_map.hpp>
#include <samite/run/row_loops.hpp>
#include <samite/run/score_tiles.hpp>
#include <samite/run/strided.hpp>
#include <samite/runtime/blas.hpp>

namespace samite::detail {

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

// Beside the products of a BLAS with AVX-512, exponentials in AVX2 would take a quarter of the time.
#if SAMITE_HAS_AVX2_TARGET && !defined(__clang__)
#define SAMITE_TARGET_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"), optimize("O3")))
#elif SAMITE_HAS_AVX2_TARGET
#define SAMITE_TARGET_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma")))
#else
#define SAMITE_TARGET_AVX512
#endif
inline bool cpu_has_avx512() {
#if SAMITE_HAS_AVX2_TARGET
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
#else
  return false;
#endif
}

// exp(x - shift) for a row; hidden keys hold -inf and give exactly 0.
template <class T>
SAMITE_INLINE T exp_row_body(T* x, index_t n, T shift) {
  for (index_t i = 0; i < n; ++i) x[i] = rules::exp::value(x[i] - shift);
  return row_sum_body(x, n);
}
template <class T>
SAMITE_TARGET_AVX2 T exp_row_avx2(T* x, index_t n, T shift) { return exp_row_body(x, n, shift); }
template <class T>
SAMITE_TARGET_AVX512 T exp_row_avx512(T* x, index_t n, T shift) { return exp_row_body(x, n, shift); }
template <class T>
T exp_row(T* x, index_t n, T shift) {
  if (cpu_has_avx512()) return exp_row_avx512(x, n, shift);
  return cpu_has_avx2() ? exp_row_avx2(x, n, shift) : exp_row_body(x, n, shift);
}

// The largest of a row in 32 partial maxima, which vectorises. NaN is passed over: exp() brings it into the row's sum.
template <class T>
SAMITE_INLINE T row_top_body(const T* x, index_t n) {
  T part[32];
  for (int k = 0; k < 32; ++k) part[k] = T(minus_infinity);
  index_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int k = 0; k < 32; ++k) part[k] = x[i + k] > part[k] ? x[i + k] : part[k];
  for (int k = 0; i < n; ++i, ++k) part[k] = x[i] > part[k] ? x[i] : part[k];
  for (int half = 16; half >= 1; half /= 2)
    for (int k = 0; k < half; ++k) part[k] = part[k + half] > part[k] ? part[k + half] : part[k];
  return part[0];
}
template <class T>
SAMITE_TARGET_AVX2 T row_top_avx2(const T* x, index_t n) { return row_top_body(x, n); }
template <class T>
T row_top(const T* x, index_t n) { return cpu_has_avx2() ? row_top_avx2(x, n) : row_top_body(x, n); }

template <class T>
SAMITE_INLINE void scale_row_body(T* x, index_t n, T factor) {
  for (index_t i = 0; i < n; ++i) x[i] *= factor;
}
template <class T>
SAMITE_TARGET_AVX2 void scale_row_avx2(T* x, index_t n, T factor) { scale_row_body(x, n, factor); }
template <class T>
void scale_row(T* x, index_t n, T factor) {
  if (cpu_has_avx2()) scale_row_avx2(x, n, factor);
  else scale_row_body(x, n, factor);
}

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
  static index_t widest_group(index_t length) { return std::min(attention_group * attention_tile, length); }
  static index_t rows_of(index_t tile, index_t length) { return std::min(attention_tile, length - tile * attention_tile); }
};

struct attention_pair {
  index_t q_tile, k_tile;
  bool is_full;
};

/// A group of listed tiles of one row, or of one column, of the map: the block of pairs from its first tile to its last.
struct attention_block {
  std::span<const attention_pair> tiles;
  index_t q, kv, rows, columns;

  attention_block(const attention_sizes& n, std::span<const attention_pair> of)
      : tiles(of), q(of.front().q_tile * attention_tile), kv(of.front().k_tile * attention_tile),
        rows((of.back().q_tile - of.front().q_tile) * attention_tile + n.rows_of(of.back().q_tile, n.Q)),
        columns((of.back().k_tile - of.front().k_tile) * attention_tile + n.rows_of(of.back().k_tile, n.K)) {}

  bool has_gaps() const { return index_t(tiles.size()) <= tiles.back().q_tile - tiles.front().q_tile + tiles.back().k_tile - tiles.front().k_tile; }
};

/// The rows of an operand that belong to a block's queries or keys. What lies in tiles that are not listed is never read: a product
/// with 0 would bring its NaN into the result. Where there are such tiles, the others are copied and they are 0.
template <class T>
class block_rows {
 public:
  struct rows_view {
    const T* data;
    index_t stride;
  };

  rows_view queries(const attention_sizes& n, const head_view<T>& v, index_t b, index_t h, index_t width, const attention_block& block) {
    return rows(v, b, h, width, block, block.q, block.rows, n.Q, &attention_pair::q_tile);
  }
  rows_view keys(const attention_sizes& n, const head_view<T>& v, index_t b, index_t h, index_t width, const attention_block& block) {
    return rows(v, b, n.group_of(h), width, block, block.kv, block.columns, n.K, &attention_pair::k_tile);
  }

 private:
  rows_view rows(const head_view<T>& v, index_t b, index_t head, index_t width, const attention_block& block, index_t first, index_t count, index_t length, index_t attention_pair::*tile) {
    if (!block.has_gaps() || count <= attention_tile) return {v.at(b, head, first), v.row};
    copy_.assign(std::size_t(count * width), T(0));
    for (const attention_pair& p : block.tiles)
      for (index_t r = p.*tile * attention_tile; r < std::min(length, (p.*tile + 1) * attention_tile); ++r)
        std::copy_n(v.at(b, head, r), width, copy_.data() + (r - first) * width);
    return {copy_.data(), std::max<index_t>(1, width)};
  }

  std::vector<T> copy_;
};

/// Calls take(block) for the tiles of runs in groups that end at multiples of attention_group. at: the pair of the n-th tile
template <class At, class Take>
void in_groups(const attention_sizes& n, std::span<const tile_run> runs, At&& at, Take&& take) {
  attention_pair group[attention_group];
  std::size_t held = 0;
  index_t number = -1;
  for (const tile_run& run : runs)
    for (index_t t = run.first; t <= run.last; ++t) {
      if (held > 0 && number != t / attention_group) take(attention_block(n, std::span(group, std::exchange(held, 0))));
      number = t / attention_group;
      group[held++] = at(t, run.kind == tile_kind::full);
    }
  if (held > 0) take(attention_block(n, std::span(group, held)));
}

/// factor * A B^T for the pairs of a block, a tile at a time: a BLAS computes the last rows and columns of a product in another order
/// than the others, and what is last must not depend on which tiles are listed.
template <class T>
void outer_product(const attention_block& block, index_t depth, T factor, const T* a, index_t a_stride, const T* b, index_t b_stride, T* out, index_t stride) {
  for (index_t r = 0; r < block.rows; r += attention_tile)
    for (index_t c = 0; c < block.columns; c += attention_tile)
      gemm_serial<T>(false, true, std::min(attention_tile, block.rows - r), std::min(attention_tile, block.columns - c), depth, factor, a + r * a_stride, a_stride, b + c * b_stride, b_stride, T(0),
                     out + r * stride + c, stride);
}

/// Scores of a block: s = score(scale * Q K^T), -inf where the mask hides the pair.
template <class T>
class tile_scores {
 public:
  /// rows, columns  the most that a block has
  tile_scores(const attention_map& map, const score_tiles<T>& function, T scale, bool keep_raw, index_t rows, index_t columns)
      : map_(map), function_(function), scale_(scale), stride(std::max<index_t>(1, columns)), s(std::size_t(rows * stride)), raw(keep_raw && !function.is_identity() ? s.size() : 0) {}

  void compute(const attention_sizes& n, const head_view<T>& Q, const head_view<T>& K, index_t b, index_t h, const attention_block& block) {
    const auto q = q_rows_.queries(n, Q, b, h, n.D, block), k = k_rows_.keys(n, K, b, h, n.D, block);
    outer_product(block, n.D, scale_, q.data, q.stride, k.data, k.stride, s.data(), stride);
    tiles_ += index_t(block.tiles.size());
    if (!raw.empty()) std::copy_n(s.begin(), block.rows * stride, raw.begin());
    const attention_pair* before = nullptr;
    for (const attention_pair& tile : block.tiles) {
      if (before != nullptr) hide_between(block, *before, tile);
      before = &tile;
      T* const from = s.data() + place(block, tile);
      const index_t rows = n.rows_of(tile.q_tile, n.Q), columns = n.rows_of(tile.k_tile, n.K);
      function_.apply(b, h, tile.q_tile * attention_tile, tile.k_tile * attention_tile, rows, columns, from, stride);
      if (tile.is_full) continue;
      const std::uint64_t* keep = map_.keep(b, h, tile.q_tile, tile.k_tile, scratch_);
      for (index_t r = 0; r < rows; ++r) {
        T* row = from + r * stride;
        for (index_t c = 0; c < columns; ++c) row[c] = (keep[r] >> c & 1u) != 0 ? row[c] : T(minus_infinity);
      }
    }
  }
  /// Where a tile begins in `s`.
  std::ptrdiff_t place(const attention_block& block, const attention_pair& tile) const {
    return (tile.q_tile * attention_tile - block.q) * stride + tile.k_tile * attention_tile - block.kv;
  }
  ~tile_scores() { attention_count().computed.fetch_add(tiles_, std::memory_order_relaxed); }

 private:
  // Tiles that are not listed keep nothing.
  void hide_between(const attention_block& block, const attention_pair& a, const attention_pair& b) {
    for (index_t q = a.q_tile, kv = a.k_tile;;) {
      q += a.q_tile != b.q_tile, kv += a.k_tile != b.k_tile;
      if (q == b.q_tile && kv == b.k_tile) return;
      T* tile = s.data() + place(block, {q, kv, false});
      for (index_t r = 0; r < std::min(attention_tile, block.rows); ++r) std::fill_n(tile + r * stride, std::min(attention_tile, block.columns), T(minus_infinity));
    }
  }

  const attention_map& map_;
  const score_tiles<T>& function_;
  T scale_;
  block_rows<T> q_rows_, k_rows_;
  std::vector<std::uint64_t> scratch_;
  index_t tiles_ = 0;

 public:
  const index_t stride;
  std::vector<T> s, raw;  // raw: before the score function, for its derivative
};

}  // namespace samite::detail
