#include <doctest/doctest.h>

#include <samite/runtime/cublaslt.hpp>

#if __has_include(<cublasLt.h>) && __has_include(<cuda_runtime_api.h>)
#include <cublasLt.h>
using namespace samite::detail;
static_assert(cublas_compute_32f == CUBLAS_COMPUTE_32F && cublas_compute_32f_tf32 == CUBLAS_COMPUTE_32F_FAST_TF32 &&
              cublas_compute_64f == CUBLAS_COMPUTE_64F);
static_assert(cublas_real_32f == CUDA_R_32F && cublas_real_64f == CUDA_R_64F && cublas_real_16f == CUDA_R_16F &&
              cublas_real_16bf == CUDA_R_16BF);
static_assert(cublas_desc_trans_a == CUBLASLT_MATMUL_DESC_TRANSA && cublas_desc_trans_b == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(cublas_preference_workspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES == 5 && CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES == 8);
static_assert(sizeof(cublas_heuristic) == sizeof(cublasLtMatmulHeuristicResult_t) &&
              offsetof(cublas_heuristic, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) &&
              offsetof(cublas_heuristic, status) == offsetof(cublasLtMatmulHeuristicResult_t, state));
#endif

using namespace samite;

TEST_CASE("a cuBLASLt that can't be opened is E-CUBLAS-OPEN, naming the path and the variable") {
  const auto missing = detail::open_cublas_lt("/nonexistent/libcublasLt.so");
  CHECK_THROWS_WITH_AS(detail::require_cublas_lt(missing), doctest::Contains("/nonexistent/libcublasLt.so"), samite::error);
  CHECK_THROWS_WITH_AS(detail::require_cublas_lt(missing), doctest::Contains("SAMITE_CUBLASLT_PATH"), samite::error);
  CHECK_THROWS_WITH_AS(detail::require_cublas_lt(detail::open_cublas_lt("libm.so.6")), doctest::Contains("E-CUBLAS-OPEN"), samite::error);
}

TEST_CASE("a failed cuBLASLt call and an integer matmul are E-CUBLAS-CALL with the purpose in words") {
  CHECK_THROWS_WITH_AS(detail::check_cublas(15, "starting a matmul"), doctest::Contains("starting a matmul failed"), samite::error);
  CHECK_THROWS_WITH_AS(detail::cublas_type(i32), doctest::Contains("E-CUBLAS-CALL"), samite::error);
  CHECK(detail::cublas_type(bf16) == 14);
}
