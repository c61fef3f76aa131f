#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>

#include <samite/emit/row_kernel.hpp>
#include <samite/expr/tensor.hpp>

#include "support/kernels.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite_tests;

namespace {

/// The program of an expression over values of the graph, and the types of its operands.
template <class E>
program program_of(const E& e, row_kernel_options& options) {
  row_builder b;
  b.p.roots = {b.real(detail::as_expr(e).lower(b))};
  for (const value& v : b.operands) options.operands.push_back({v.type(), v.rank() > 0 && !(v.extent(-1) == dim(1))});
  return b.p;
}

kernel_text norm_text() {
  graph g;
  const value x = g.input("x", bf16, {8, 5120}), w = g.input("w", bf16, {5120});
  row_kernel_options options{.label = "layer 0.norm", .outputs = {{bf16, true}}, .team = 256};
  const program p = program_of(x * rsqrt(mean(x * x) + 1e-6) * w, options);
  return emit_row_kernel(p, options);
}

kernel_text rope_text() {
  graph g;
  const value x = g.input("x", f32, {8, 4, 64}), position = g.input("position", i64, {8, 1, 1});
  row_kernel_options options{.label = "rope", .outputs = {{f32, true}}, .team = 32};
  const auto angle = position * exp(column() * (-0.25));
  const program p = program_of(x * cos(angle) + select(column() < 32, -roll(x, 32), roll(x, -32)) * sin(angle), options);
  return emit_row_kernel(p, options);
}

kernel_text softmax_text() {
  graph g;
  const value x = g.input("x", f64, {8, 3});
  row_kernel_options options{.label = "softmax", .outputs = {{f64, true}, {f64, false}}, .team = 1};
  program p = program_of(exp(x - largest(x)) / sum(exp(x - largest(x))), options);
  p.roots.push_back(build(p, op::row_min, p.roots[0]));
  return emit_row_kernel(p, options);
}

/// Compares with a file of tests/emit/golden; SAMITE_GOLDEN=update rewrites it.
void check_golden(const char* name, const std::string& text) {
  const std::string path = std::string("tests/emit/golden/") + name;
  const char* mode = std::getenv("SAMITE_GOLDEN");
  if (mode != nullptr && std::string(mode) == "update") {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  const std::string golden{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  INFO(path);
  CHECK(text == golden);
}

}  // namespace

TEST_CASE("emit_row_kernel: a norm reads its row twice: once for the sum, once to store") { check_golden("norm.cu", norm_text().text); }

TEST_CASE("emit_row_kernel: a rolled value is the expression at another column") { check_golden("rope.cu", rope_text().text); }

TEST_CASE("emit_row_kernel: nested reductions take one pass a depth, and a double operand makes all arithmetic double") {
  check_golden("softmax.cu", softmax_text().text);
}

TEST_CASE("emit_row_kernel: the kernel is named after the label") {
  CHECK(norm_text().name == "row_layer_0_norm");
  CHECK(kernel_name("row_", "a/b  c-d") == "row_a_b_c_d");
}

TEST_CASE("emit_row_kernel: numbers are spelled so that they read back exactly") {
  CHECK(detail::real_literal(0.1) == "real(0.1)");
  CHECK(detail::real_literal(3) == "real(3.0)");
  CHECK(detail::real_literal(1e-300) == "real(1e-300)");
  CHECK(detail::real_literal(-HUGE_VAL) == "real(real_bits(18442240474082181120ull))");
  CHECK(detail::index_literal(-5) == "(-5)");
  CHECK(detail::index_literal(std::numeric_limits<index_t>::min()) == "(-9223372036854775807 - 1)");
}

TEST_CASE("emit_row_kernel: table gathers and the symbols of attention are refused") {
  program p;
  p.roots = {build(p, op::to_real, build_symbol(p, symbol_id::q))};
  const row_kernel_options options{.label = "wrong", .operands = {}, .outputs = {{f32, true}}};
  CHECK_THROWS_WITH_AS(emit_row_kernel(p, options), doctest::Contains("row kernel \"wrong\": the symbol q has no meaning in a row kernel"), samite::error);
}

TEST_CASE("emit_row_kernel: more tensors than a launch can name are refused") {
  program p;
  node_id sum = build_operand(p, 0, value_kind::real);
  row_kernel_options options{.label = "wide", .outputs = {{f32, true}}};
  for (index_t i = 0; i < 80; ++i) {
    options.operands.push_back({f32, true});
    sum = build(p, op::add, sum, build_operand(p, i, value_kind::real));
  }
  p.roots = {sum};
  CHECK_THROWS_WITH_AS(emit_row_kernel(p, options), doctest::Contains("[E-EMIT-PARAMETERS]"), samite::error);
}

TEST_CASE("row kernels compile for every served architecture; only the range reduction of sin and cos may spill a register") {
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason());
  for (const char* arch : served_archs) {
    CAPTURE(arch);
    CHECK(spills_of(norm_text(), arch) == "");
    CHECK(spills_of(softmax_text(), arch) == "");
    const std::string rope = spills_of(rope_text(), arch);  // ptxas 13.0 keeps one register across the call of the slow path
    CHECK((rope.empty() || rope == "row_rope: 4 bytes"));
  }
}
