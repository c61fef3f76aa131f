#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include <samite/core/random.hpp>
#include <samite/runtime/blas.hpp>
#include <samite/runtime/blocked_gemm.hpp>
#include <samite/runtime/thread_pool.hpp>

using namespace samite;

namespace {

template <class Real>
std::vector<Real> random_values(index_t count, std::uint32_t purpose) {
  counted_random random(20261130, purpose);
  std::vector<Real> values(static_cast<std::size_t>(count));
  for (Real& value : values) value = Real(random.uniform() * 2 - 1);
  return values;
}

// Runs one product with row strides longer than the rows, and gives the largest error against the triple loop in double.
template <class Real, class Gemm>
double worst_error(bool trans_a, bool trans_b, index_t m, index_t n, index_t k, Real beta, Gemm&& run) {
  const index_t lda = (trans_a ? m : k) + 3, ldb = (trans_b ? k : n) + 1, ldc = n + 2;
  const auto a = random_values<Real>((trans_a ? k : m) * lda + 1, 1), b = random_values<Real>((trans_b ? n : k) * ldb + 1, 2);
  auto c = random_values<Real>(m * ldc + 1, 3);
  if (beta == Real(0)) std::fill(c.begin(), c.end(), std::numeric_limits<Real>::quiet_NaN());
  const auto before = c;
  run(trans_a, trans_b, m, n, k, Real(0.75), a.data(), lda, b.data(), ldb, beta, c.data(), ldc);
  double worst = 0;
  for (index_t row = 0; row < m; ++row)
    for (index_t column = 0; column < ldc; ++column) {
      const std::size_t at = std::size_t(row * ldc + column);
      if (column >= n) {  // the gap between rows belongs to someone else
        if (std::bit_cast<std::array<char, sizeof(Real)>>(c[at]) != std::bit_cast<std::array<char, sizeof(Real)>>(before[at])) return 1e9;
        continue;
      }
      double sum = 0;
      for (index_t i = 0; i < k; ++i)
        sum += double(a[std::size_t(trans_a ? i * lda + row : row * lda + i)]) * double(b[std::size_t(trans_b ? column * ldb + i : i * ldb + column)]);
      const double expected = 0.75 * sum + (beta == Real(0) ? 0. : double(beta) * double(before[at]));
      const double off = std::abs(double(c[at]) - expected);
      worst = off <= worst ? worst : off;  // a NaN stays
    }
  return worst;
}

struct by_gemm {
  template <class... Args>
  void operator()(Args... args) const { gemm(args...); }
};
struct by_gemm_serial {
  template <class... Args>
  void operator()(Args... args) const { gemm_serial(args...); }
};
struct by_built_in {
  template <class Real>
  void operator()(bool trans_a, bool trans_b, index_t m, index_t n, index_t k, Real alpha, const Real* a, index_t lda, const Real* b,
                  index_t ldb, Real beta, Real* c, index_t ldc) const {
    if (m > 0 && n > 0 && k > 0) detail::blocked_gemm<Real>({trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc});
  }
};

template <class Real, class Gemm>
void check_shapes(Gemm&& run, double tolerance) {
  for (const auto& [m, n, k] : std::vector<std::array<index_t, 3>>{{1, 1, 1}, {1, 7, 3}, {5, 1, 9}, {6, 16, 8}, {13, 33, 64}, {63, 65, 64},
                                                                  {129, 515, 31}, {40, 50, 257}, {1, 600, 300}})
    for (bool trans_a : {false, true})
      for (bool trans_b : {false, true})
        for (Real beta : {Real(0), Real(1), Real(-0.5)}) {
          const std::string label = concat_text("m=", m, " n=", n, " k=", k, " ", trans_a, trans_b, " beta=", beta);
          CAPTURE(label);
          CHECK(worst_error<Real>(trans_a, trans_b, m, n, k, beta, run) < tolerance);
        }
}

}  // namespace

TEST_CASE("gemm agrees with the triple loop for both types, all transpositions, odd shapes and long row strides") {
  MESSAGE(blas_name());
  check_shapes<float>(by_gemm(), 1e-4);
  check_shapes<double>(by_gemm(), 1e-12);
  check_shapes<float>(by_gemm_serial(), 1e-4);
  check_shapes<double>(by_gemm_serial(), 1e-12);
}

TEST_CASE("the built-in kernel agrees with the triple loop") {
  check_shapes<float>(by_built_in(), 1e-4);
  check_shapes<double>(by_built_in(), 1e-12);
}

TEST_CASE("every instruction set's kernel that this processor runs gives the plain sum") {
  const auto check = [](auto multiply, index_t mr, index_t nr) {
    const index_t depth = 70;
    const auto a = random_values<float>(depth * mr, 5), b = random_values<float>(depth * nr, 6);
    std::vector<float> tile(std::size_t(mr * nr));
    multiply(depth, a.data(), b.data(), tile.data());
    for (index_t i = 0; i < mr; ++i)
      for (index_t j = 0; j < nr; ++j) {
        double sum = 0;
        for (index_t d = 0; d < depth; ++d) sum += double(a[std::size_t(d * mr + i)]) * double(b[std::size_t(d * nr + j)]);
        CHECK(double(tile[std::size_t(i * nr + j)]) == doctest::Approx(sum).epsilon(1e-4));
      }
  };
  check(detail::multiply_panels_baseline<float>, 4, 8);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) check(detail::multiply_panels_avx2<float>, 6, 16);
  if (__builtin_cpu_supports("avx512f")) check(detail::multiply_panels_avx512<float>, 12, 32);
#endif
}

TEST_CASE("gemm gives the same bits with 1 and with 5 threads, and as gemm_serial") {
  const index_t m = 300, n = 700, k = 130;
  const auto a = random_values<float>(m * k, 1), b = random_values<float>(k * n, 2);
  std::vector<float> one(std::size_t(m * n)), five = one, serial = one;
  { const thread_limit limit(1); gemm(false, false, m, n, k, 1.f, a.data(), k, b.data(), n, 0.f, one.data(), n); }
  { const thread_limit limit(5); gemm(false, false, m, n, k, 1.f, a.data(), k, b.data(), n, 0.f, five.data(), n); }
  gemm_serial(false, false, m, n, k, 1.f, a.data(), k, b.data(), n, 0.f, serial.data(), n);
  CHECK(one == five);
  CHECK(one == serial);
}

TEST_CASE("gemm with k = 0 scales C by beta, and with m = 0 or n = 0 does nothing") {
  std::vector<double> c = {1, 2, 3, 4};
  gemm<double>(false, false, 2, 2, 0, 1, nullptr, 0, nullptr, 2, 0.5, c.data(), 2);
  CHECK(c == std::vector<double>{0.5, 1, 1.5, 2});
  gemm<double>(false, false, 2, 2, 0, 1, nullptr, 0, nullptr, 2, 0, c.data(), 2);
  CHECK(c == std::vector<double>{0, 0, 0, 0});
  gemm<double>(false, false, 0, 2, 3, 1, nullptr, 3, nullptr, 2, 0, nullptr, 2);
  gemm<double>(false, false, 2, 0, 3, 1, nullptr, 3, nullptr, 0, 0, nullptr, 0);
}

TEST_CASE("gemm refuses negative extents and row strides shorter than a row") {
  float x[4] = {};
  CHECK_THROWS_WITH_AS(gemm(false, false, -1, 1, 1, 1.f, x, 1, x, 1, 0.f, x, 1), doctest::Contains("E-BLAS-SHAPE"), samite::error);
  CHECK_THROWS_WITH_AS(gemm(false, false, 2, 1, 2, 1.f, x, 1, x, 1, 0.f, x, 1), doctest::Contains("lda=1"), samite::error);
}

TEST_CASE("SAMITE_BLAS: off gives the built-in kernel, an unusable path is an error that names it") {
  CHECK((detail::choose_blas("off").sgemm_function == nullptr));
  CHECK(detail::choose_blas("off").name.starts_with("built-in ("));
  CHECK_THROWS_WITH_AS(detail::choose_blas("/nonexistent/libblas.so"), doctest::Contains("E-BLAS-OPEN"), samite::error);
  CHECK_THROWS_WITH_AS(detail::choose_blas("libm.so.6"), doctest::Contains("no cblas_sgemm"), samite::error);
}
