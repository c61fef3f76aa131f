// samite/runtime/blocked_gemm.hpp: the built-in matrix product, for machines without a BLAS (or with a slow one).
//
// Strategy: panels of A and B are packed so that the inner kernel reads both in order, then mr x nr tiles of C are kept in registers
// over a stretch of k. The kernel is compiled once per instruction set and chosen by CPUID, so the program runs on any processor.
// source  Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication"
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include <samite/runtime/gemm_problem.hpp>

namespace samite {

namespace detail {

/// C blocks that go to one thread each; part of the result's definition, so never derived from the machine.
inline constexpr index_t gemm_block_rows = 128, gemm_block_columns = 512;

/// The part of the problem that computes the block of C at (row, column).
template <class Real>
gemm_problem<Real> block_of(const gemm_problem<Real>& p, index_t row, index_t column) {
  gemm_problem<Real> block = p;
  block.m = std::min(gemm_block_rows, p.m - row);
  block.n = std::min(gemm_block_columns, p.n - column);
  block.a += p.trans_a ? row : row * p.lda;
  block.b += p.trans_b ? column * p.ldb : column;
  block.c += row * p.ldc + column;
  return block;
}

/// C = beta * C.
template <class Real>
void scale_matrix(const gemm_problem<Real>& p) {
  for (index_t row = 0; row < p.m; ++row)
    for (index_t column = 0; column < p.n; ++column) {
      Real& out = p.c[row * p.ldc + column];
      out = p.beta == Real(0) ? Real(0) : p.beta * out;
    }
}

/// Multiplies a packed panel of A [depth, mr] with one of B [depth, nr] into a tile [mr, nr].
template <class Real>
struct gemm_kernel {
  void (*multiply)(index_t depth, const Real* a, const Real* b, Real* tile);
  index_t mr, nr;
  const char* name;
};

// The accumulators are addressed by constants only (fold expressions), so that compilers keep them in registers at every -O level
// above 0 without unrolling pragmas. always_inline: the body takes the instruction set of the function it lands in.
template <class Real, int VectorBytes, std::size_t... Rows>
SAMITE_INLINE void multiply_panels(index_t depth, const Real* a, const Real* b, Real* tile, std::index_sequence<Rows...>) {
  typedef Real vector __attribute__((vector_size(VectorBytes)));
  constexpr std::size_t lanes = VectorBytes / sizeof(Real);
  vector left[sizeof...(Rows)] = {}, right[sizeof...(Rows)] = {};
  for (index_t i = 0; i < depth; ++i) {
    vector b0, b1;
    std::memcpy(&b0, b, sizeof b0);
    std::memcpy(&b1, b + lanes, sizeof b1);
    ((left[Rows] += a[Rows] * b0, right[Rows] += a[Rows] * b1), ...);
    a += sizeof...(Rows);
    b += 2 * lanes;
  }
  ((std::memcpy(tile + Rows * 2 * lanes, &left[Rows], sizeof(vector)),
    std::memcpy(tile + Rows * 2 * lanes + lanes, &right[Rows], sizeof(vector))),
   ...);
}

template <class Real>
void multiply_panels_baseline(index_t depth, const Real* a, const Real* b, Real* tile) {
  multiply_panels<Real, 16>(depth, a, b, tile, std::make_index_sequence<4>());
}

#if defined(__x86_64__)
template <class Real>
__attribute__((target("avx2,fma"))) void multiply_panels_avx2(index_t depth, const Real* a, const Real* b, Real* tile) {
  multiply_panels<Real, 32>(depth, a, b, tile, std::make_index_sequence<6>());
}

template <class Real>
__attribute__((target("avx512f"))) void multiply_panels_avx512(index_t depth, const Real* a, const Real* b, Real* tile) {
  multiply_panels<Real, 64>(depth, a, b, tile, std::make_index_sequence<12>());
}
#endif

template <class Real>
gemm_kernel<Real> choose_gemm_kernel() {
  constexpr index_t lanes = 16 / sizeof(Real);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {multiply_panels_avx512<Real>, 12, 8 * lanes, "avx512"};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {multiply_panels_avx2<Real>, 6, 4 * lanes, "avx2"};
#endif
  return {multiply_panels_baseline<Real>, 4, 2 * lanes, "baseline"};
}

template <class Real>
const gemm_kernel<Real>& gemm_kernel_for() {
  static const gemm_kernel<Real> kernel = choose_gemm_kernel<Real>();
  return kernel;
}

/// Scratch for packed panels, one per thread, kept for the next call.
template <class Real>
class gemm_scratch {
 public:
  Real* reserve(index_t count) {
    if (count > count_) {
      memory_.reset();
      memory_.reset(static_cast<Real*>(::operator new(std::size_t(count) * sizeof(Real), std::align_val_t(64))));
      count_ = count;
    }
    return memory_.get();
  }

 private:
  struct release {
    void operator()(Real* memory) const { ::operator delete(memory, std::align_val_t(64)); }
  };
  std::unique_ptr<Real, release> memory_;
  index_t count_ = 0;
};

/// Copies a [count, depth] part of a matrix into panels of `width`: panel, then depth, then place inside the panel. Missing places
/// are zero. `step` is the stride from item to item, `depth_step` along the depth.
template <class Real>
void pack_panels(index_t count, index_t depth, index_t width, const Real* from, index_t step, index_t depth_step, Real* to) {
  for (index_t first = 0; first < count; first += width) {
    const index_t here = std::min(width, count - first);
    for (index_t i = 0; i < depth; ++i) {
      const Real* source = from + first * step + i * depth_step;
      for (index_t j = 0; j < here; ++j) to[j] = source[j * step];
      for (index_t j = here; j < width; ++j) to[j] = Real(0);
      to += width;
    }
  }
}

/// The product on one thread; m, n and k are at least 1.
template <class Real>
void blocked_gemm(const gemm_problem<Real>& p) {
  const gemm_kernel<Real>& kernel = gemm_kernel_for<Real>();
  constexpr index_t depth_block = 256;
  const index_t a_panels = (gemm_block_rows + kernel.mr - 1) / kernel.mr, b_panels = (gemm_block_columns + kernel.nr - 1) / kernel.nr;
  static thread_local gemm_scratch<Real> scratch;
  Real* const packed_a = scratch.reserve((a_panels * kernel.mr + b_panels * kernel.nr) * depth_block + kernel.mr * kernel.nr);
  Real* const packed_b = packed_a + a_panels * kernel.mr * depth_block;
  Real* const tile = packed_b + b_panels * kernel.nr * depth_block;

  for (index_t row = 0; row < p.m; row += gemm_block_rows)
    for (index_t column = 0; column < p.n; column += gemm_block_columns) {
      const gemm_problem<Real> block = block_of(p, row, column);
      for (index_t k = 0; k < p.k; k += depth_block) {
        const index_t depth = std::min(depth_block, p.k - k);
        const Real beta = k == 0 ? p.beta : Real(1);
        pack_panels(block.m, depth, kernel.mr, block.a + (p.trans_a ? k * p.lda : k), p.trans_a ? 1 : p.lda, p.trans_a ? p.lda : 1,
                    packed_a);
        pack_panels(block.n, depth, kernel.nr, block.b + (p.trans_b ? k : k * p.ldb), p.trans_b ? p.ldb : 1, p.trans_b ? 1 : p.ldb,
                    packed_b);
        for (index_t j = 0; j < block.n; j += kernel.nr)
          for (index_t i = 0; i < block.m; i += kernel.mr) {
            kernel.multiply(depth, packed_a + i * depth, packed_b + j * depth, tile);
            add_tile(block, i, j, kernel, tile, beta);
          }
      }
    }
}

template <class Real>
void add_tile(const gemm_problem<Real>& p, index_t first_row, index_t first_column, const gemm_kernel<Real>& kernel, const Real* tile,
              Real beta) {
  const index_t rows = std::min(kernel.mr, p.m - first_row), columns = std::min(kernel.nr, p.n - first_column);
  for (index_t i = 0; i < rows; ++i) {
    Real* out = p.c + (first_row + i) * p.ldc + first_column;
    const Real* in = tile + i * kernel.nr;
    if (beta == Real(0))
      for (index_t j = 0; j < columns; ++j) out[j] = p.alpha * in[j];
    else
      for (index_t j = 0; j < columns; ++j) out[j] = p.alpha * in[j] + beta * out[j];
  }
}

}  // namespace detail
}  // namespace samite
