// samite/runtime/blas_impl.hpp: finding, checking and calling a BLAS.
#pragma once
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <vector>

#include <samite/core/env.hpp>
#include <samite/runtime/blas.hpp>
#include <samite/runtime/blocked_gemm.hpp>
#include <samite/runtime/thread_pool.hpp>

namespace samite {
namespace detail {

inline constexpr int cblas_row_major = 101, cblas_no_trans = 111, cblas_trans = 112;

template <class Real>
void gemm_with(const blas_library& library, const gemm_problem<Real>& p) {
  // BLAS counts in 32 bits. Only a stride or k can be that large here: gemm() hands over small blocks of m and n.
  const bool fits = std::max({p.m, p.n, p.k, p.lda, p.ldb, p.ldc}) <= INT_MAX;
  if (auto* function = library.function<Real>(); function != nullptr && fits)
    function(cblas_row_major, p.trans_a ? cblas_trans : cblas_no_trans, p.trans_b ? cblas_trans : cblas_no_trans, int(p.m), int(p.n),
             int(p.k), p.alpha, p.a, int(p.lda), p.b, int(p.ldb), p.beta, p.c, int(p.ldc));
  else
    blocked_gemm(p);
}

// Debian's OpenBLAS takes a 1995 core for any processor newer than itself, at a sixth of the speed, so it is told.
inline void tell_openblas_core() {
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    setenv("OPENBLAS_CORETYPE", "SkylakeX", 1);
  else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    setenv("OPENBLAS_CORETYPE", "Haswell", 1);
#endif
}

/// The library at `path` with its functions, or functions left null and `reason` filled.
inline blas_library open_blas_library(const std::string& path, std::string& reason) {
  blas_library library{.name = path};
  tell_openblas_core();
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* text = dlerror();
    reason = text != nullptr ? text : "dlopen failed";
    return library;
  }
  // Threads are ours, above the library, so that blocks and hence results are fixed.
  if (auto* set_threads = reinterpret_cast<void (*)(int)>(dlsym(handle, "openblas_set_num_threads"))) set_threads(1);
  library.sgemm_function = reinterpret_cast<blas_library::sgemm>(dlsym(handle, "cblas_sgemm"));
  library.dgemm_function = reinterpret_cast<blas_library::dgemm>(dlsym(handle, "cblas_dgemm"));
  if (library.sgemm_function == nullptr || library.dgemm_function == nullptr) {
    reason = "it has no cblas_sgemm or cblas_dgemm";
    library.sgemm_function = nullptr, library.dgemm_function = nullptr;
  }
  return library;
}

template <class Real>
std::vector<Real> blas_trial_values(index_t size) {
  std::vector<Real> values(static_cast<std::size_t>(size));
  for (index_t i = 0; i < size; ++i) values[static_cast<std::size_t>(i)] = Real((i * 37 + 11) % 64) / Real(32) - Real(1);
  return values;
}

/// Compares one odd-shaped product with the plain triple loop. All values are small fractions, so the error is tiny if right.
template <class Real>
bool computes_rightly(const blas_library& library) {
  const index_t m = 37, n = 41, k = 29;
  const auto a = blas_trial_values<Real>(m * k), b = blas_trial_values<Real>(k * n);
  auto c = blas_trial_values<Real>(m * n);
  auto expected = c;
  for (index_t row = 0; row < m; ++row)
    for (index_t col = 0; col < n; ++col) {
      double sum = 0;
      for (index_t i = 0; i < k; ++i) sum += double(a[std::size_t(i * m + row)]) * double(b[std::size_t(col * k + i)]);
      Real& out = expected[std::size_t(row * n + col)];
      out = Real(sum + 0.5 * double(out));
    }
  gemm_with<Real>(library, {true, true, m, n, k, Real(1), a.data(), m, b.data(), k, Real(0.5), c.data(), n});
  for (std::size_t i = 0; i < c.size(); ++i)
    if (!(std::abs(c[i] - expected[i]) <= Real(1e-4))) return false;
  return true;
}

/// Best of three runs of a 256-cubed product on one thread, in seconds.
inline double time_blas(const blas_library& library) {
  const index_t size = 256;
  const auto a = blas_trial_values<float>(size * size);
  std::vector<float> c(a.size());
  double best = 1e30;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    gemm_with<float>(library, {false, true, size, size, size, 1.f, a.data(), size, a.data(), size, 0.f, c.data(), size});
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

SAMITE_IMPL blas_library choose_blas(const std::string& setting) {
  const blas_library built_in{.name = std::string("built-in (") + gemm_kernel_for<float>().name + ")"};
  if (setting == "off") return built_in;
  std::string reason;
  if (!setting.empty()) {
    blas_library library = open_blas_library(setting, reason);
    if (library.sgemm_function != nullptr && !(computes_rightly<float>(library) && computes_rightly<double>(library)))
      reason = "its product of two small matrices is wrong";
    if (!reason.empty())
      raise("E-BLAS-OPEN", "SAMITE_BLAS=\"", setting, "\" can't be used: ", reason,
            "; name a CBLAS library, or set SAMITE_BLAS=off for the built-in kernel, or unset it to search");
    return library;
  }
  for (const char* name : {"libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libblas.so.3"}) {
    const blas_library library = open_blas_library(name, reason);
    if (library.sgemm_function == nullptr) continue;
    if (!computes_rightly<float>(library) || !computes_rightly<double>(library)) continue;
    // A near tie goes to the library, so that timing noise does not change the choice, and with it the last bits, between runs.
    if (time_blas(library) < 1.2 * time_blas(built_in)) return library;
  }
  return built_in;
}

inline const blas_library& chosen_blas() {
  static const blas_library library = choose_blas(env_text("SAMITE_BLAS").value_or(""));
  return library;
}

template <class Real>
void check_gemm(const gemm_problem<Real>& p) {
  if (p.m < 0 || p.n < 0 || p.k < 0) raise("E-BLAS-SHAPE", "gemm: m=", p.m, ", n=", p.n, ", k=", p.k, ": extents can't be negative");
  const auto check = [](const char* name, index_t stride, index_t rows, index_t columns) {
    if (rows > 1 && stride < columns)
      raise("E-BLAS-SHAPE", "gemm: ", name, "=", stride, " is shorter than a row of ", columns, " elements; it is the row stride");
  };
  check("lda", p.lda, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k);
  check("ldb", p.ldb, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n);
  check("ldc", p.ldc, p.m, p.n);
}

template <class Real>
void run_gemm_block(const gemm_problem<Real>& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) return scale_matrix(p);
  // One row needs no row stride, but BLAS checks it against the row's length all the same.
  gemm_problem<Real> q = p;
  q.lda = std::max(p.lda, p.trans_a ? p.m : p.k);
  q.ldb = std::max(p.ldb, p.trans_b ? p.k : p.n);
  q.ldc = std::max(p.ldc, p.n);
  gemm_with(chosen_blas(), q);
}

template <class Real>
void gemm_blocks(const gemm_problem<Real>& p, bool on_the_pool) {
  check_gemm(p);
  const index_t rows = (p.m + gemm_block_rows - 1) / gemm_block_rows, columns = (p.n + gemm_block_columns - 1) / gemm_block_columns;
  const auto run_block = [&](index_t i) { run_gemm_block(block_of(p, i / columns * gemm_block_rows, i % columns * gemm_block_columns)); };
  const bool small = double(p.m) * double(p.n) * double(p.k) < 250000.;  // some 10 us: less than waking the pool
  if (small || !on_the_pool)  // the same blocks as on the pool: the same bits
    for (index_t i = 0; i < rows * columns; ++i) run_block(i);
  else
    parallel_for(rows * columns, run_block);
}

SAMITE_IMPL void run_gemm(const gemm_problem<float>& p) { gemm_blocks(p, true); }
SAMITE_IMPL void run_gemm(const gemm_problem<double>& p) { gemm_blocks(p, true); }
SAMITE_IMPL void run_gemm_serial(const gemm_problem<float>& p) { gemm_blocks(p, false); }
SAMITE_IMPL void run_gemm_serial(const gemm_problem<double>& p) { gemm_blocks(p, false); }

}  // namespace detail

SAMITE_IMPL const std::string& blas_name() { return detail::chosen_blas().name; }

}  // namespace samite
