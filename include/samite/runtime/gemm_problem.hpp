// samite/runtime/gemm_problem.hpp: the arguments of a matrix product in one place.
#pragma once
#include <concepts>

#include <samite/core/dtype.hpp>

namespace samite {

template <class Real>
concept blas_real = std::same_as<Real, float> || std::same_as<Real, double>;

namespace detail {

/// C = alpha * op(A) * op(B) + beta * C, as `gemm` in runtime/blas.hpp says.
template <class Real>
struct gemm_problem {
  bool trans_a, trans_b;
  index_t m, n, k;
  Real alpha;
  const Real* a;
  index_t lda;
  const Real* b;
  index_t ldb;
  Real beta;
  Real* c;
  index_t ldc;
};


}  // namespace detail
}  // namespace samite
