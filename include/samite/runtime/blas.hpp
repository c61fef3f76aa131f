// samite/runtime/blas.hpp: matrix products on the CPU, through a BLAS found at run time or the built-in blocked kernel.
#pragma once
#include <string>

#include <samite/runtime/gemm_problem.hpp>

namespace samite {

namespace detail {
void run_gemm(const gemm_problem<float>& p);
void run_gemm(const gemm_problem<double>& p);
void run_gemm_serial(const gemm_problem<float>& p);
void run_gemm_serial(const gemm_problem<double>& p);
}  // namespace detail

/// C = alpha * op(A) * op(B) + beta * C with row-major matrices; op transposes if trans_a / trans_b.
///
/// a  [m,k], or [k,m] if trans_a; row stride lda elements      b  [k,n], or [n,k] if trans_b; row stride ldb
/// c  [m,n]; row stride ldc; not read if beta is 0, so that NaN in fresh memory does no harm. C overlaps neither A nor B
/// returns  the same bits for any number of threads: C is cut into fixed blocks and k is never split between threads
/// errors   E-BLAS-SHAPE for a negative extent or a row stride shorter than a row; E-BLAS-OPEN if SAMITE_BLAS names no usable library
/// threads  runs on the pool; thread-safe. A run-time BLAS is chosen at the first call: SAMITE_BLAS = path or off
template <blas_real Real>
void gemm(bool trans_a, bool trans_b, index_t m, index_t n, index_t k, Real alpha, const Real* a, index_t lda, const Real* b,
          index_t ldb, Real beta, Real* c, index_t ldc) {
  detail::run_gemm(detail::gemm_problem<Real>{trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc});
}

/// `gemm` on the calling thread alone, for use inside a loop that is parallel already.
template <blas_real Real>
void gemm_serial(bool trans_a, bool trans_b, index_t m, index_t n, index_t k, Real alpha, const Real* a, index_t lda, const Real* b,
                 index_t ldb, Real beta, Real* c, index_t ldc) {
  detail::run_gemm_serial(detail::gemm_problem<Real>{trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc});
}

/// What computes: "libopenblas.so.0", a path, or "built-in (avx2)".
const std::string& blas_name();

namespace detail {

struct blas_library {
  using sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
  using dgemm = void (*)(int, int, int, int, int, int, double, const double*, int, const double*, int, double, double*, int);
  std::string name;
  sgemm sgemm_function = nullptr;  // null: the built-in kernel serves
  dgemm dgemm_function = nullptr;

  template <class Real>
  auto function() const {
    if constexpr (sizeof(Real) == 4)
      return sgemm_function;
    else
      return dgemm_function;
  }
};

/// Chooses what computes; `setting` is the value of SAMITE_BLAS: a path, "off", or empty.
blas_library choose_blas(const std::string& setting);

}  // namespace detail
}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/runtime/blas_impl.hpp>
#endif
