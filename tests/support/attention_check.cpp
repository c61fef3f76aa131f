// tests/support/attention_check.cpp: one attention on the GPU against the oracle in double.
#include "attention_check.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/nn/attention.hpp>
#include <samite/nn/attention_parts.hpp>
#include <samite/testing/compare.hpp>

#include "masks.hpp"

using namespace samite;
using testing::attention_extents;
using testing::difference;
using testing::tolerance_of;

namespace samite_tests {

namespace {

constexpr index_t page = 16;

value operand(graph& g, const char* name, const attention_case& c, index_t heads, index_t rows, index_t channels) {
  const index_t B = c.e.batch;
  if (c.how == layout::tokens_first) return transpose(g.input(name, c.type, {B, rows, heads, channels}), {0, 2, 1, 3});
  if (c.how == layout::part_of_rows) return slice(g.input(name, c.type, {B, heads, rows, channels + 8}), 3, 8, channels);
  if (c.how == layout::paged && name[0] != 'Q') {
    const index_t used = (rows + page - 1) / page;
    return slice(paged_rows(g.input(name, c.type, {B * used + 3, page, heads, channels}), g.input(std::string(name) + "_pages", i32, {B, used})), 2, 0, rows);
  }
  return g.input(name, c.type, {B, heads, rows, channels});
}

/// The numbers of Q, K or V as [B,heads,rows,channels].
std::vector<double> dense(const attention_case& c, char name) {
  const attention_extents& e = c.e;
  if (name == 'Q') return numbers(random_tensor(c.type, {e.batch, e.heads, e.queries, e.head_dim}, 1));
  return numbers(random_tensor(c.type, {e.batch, e.key_heads, e.keys, name == 'K' ? e.head_dim : e.value_dim}, name == 'K' ? 2 : 3));
}

/// What operand reads.
void fill(named_tensors& inputs, const char* name, const attention_case& c, index_t heads, index_t rows, index_t channels) {
  const index_t B = c.e.batch;
  const std::vector<double> right = dense(c, name[0]);
  std::vector<std::int32_t> pages;
  const index_t used = (rows + page - 1) / page;
  extents dims{B, heads, rows, channels};
  if (c.how == layout::tokens_first) dims = {B, rows, heads, channels};
  if (c.how == layout::part_of_rows) dims = {B, heads, rows, channels + 8};
  if (c.how == layout::paged && name[0] != 'Q') {
    dims = {B * used + 3, page, heads, channels};
    for (index_t i = 0; i < B * used; ++i) pages.push_back(std::int32_t((i * 5 + 2) % (B * used + 3)));
    if ((B * used + 3) % 5 == 0)
      for (index_t i = 0; i < B * used; ++i) pages[std::size_t(i)] = std::int32_t(B * used + 2 - i);
    inputs.emplace(std::string(name) + "_pages", tensor::from<std::int32_t>(i32, {B, used}, pages));
  }
  tensor wide(f64, dims);
  for (double& x : wide.values<double>()) x = 77;  // what no kernel may read
  for (index_t b = 0; b < B; ++b)
    for (index_t h = 0; h < heads; ++h)
      for (index_t r = 0; r < rows; ++r)
        for (index_t d = 0; d < channels; ++d) {
          std::size_t at = std::size_t(((b * heads + h) * rows + r) * channels + d);
          const double x = right[at];
          if (c.how == layout::tokens_first) at = std::size_t(((b * rows + r) * heads + h) * channels + d);
          if (c.how == layout::part_of_rows) at = std::size_t(((b * heads + h) * rows + r) * (channels + 8) + 8 + d);
          if (!pages.empty()) at = std::size_t(((pages[std::size_t(b * used + r / page)] * page + r % page) * heads + h) * channels + d);
          wide.values<double>()[at] = x;
        }
  inputs.emplace(name, wide.to_dtype(c.type));
}

}  // namespace

std::string text_of(const attention_case& c) {
  const std::vector<index_t> sizes{c.e.batch, c.e.heads, c.e.key_heads, c.e.queries, c.e.keys, c.e.head_dim, c.e.value_dim};
  return concat_text("B H G Q K D Dv ", concat_text(sizes), ", ", std::string(name_of(c.type)), ", layout ", int(c.how), std::string(c.sink ? ", sink" : ""));
}

named_tensors inputs_of(const attention_case& c) {
  const attention_extents& e = c.e;
  const dtype wide = c.type == f64 ? f64 : f32;
  named_tensors inputs;
  fill(inputs, "Q", c, e.heads, e.queries, e.head_dim), fill(inputs, "K", c, e.key_heads, e.keys, e.head_dim), fill(inputs, "V", c, e.key_heads, e.keys, e.value_dim);
  if (c.sink) inputs.emplace("sink", random_tensor(f32, {e.heads}, 6));
  if (!c.gradients) return inputs;
  inputs.emplace("d_out", random_tensor(c.type, {e.batch, e.heads, e.queries, e.value_dim}, 4).to_dtype(wide));
  inputs.emplace("d_lse", random_tensor(wide, {e.batch, e.heads, e.queries, 1}, 5));
  return inputs;
}

void build(graph& g, const attention_case& c, const any_mask& mask) {
  const attention_extents& e = c.e;
  const dtype wide = c.type == f64 ? f64 : f32;
  const value Q = operand(g, "Q", c, e.heads, e.queries, e.head_dim), K = operand(g, "K", c, e.key_heads, e.keys, e.head_dim), V = operand(g, "V", c, e.key_heads, e.keys, e.value_dim);
  attention_options options{.mask = mask, .scale = c.scale};
  if (c.sink) options.sink = g.input("sink", f32, {e.heads});
  const attention_result a = attention(Q, K, V, options);
  g.output("out", contiguous(a.out)), g.output("lse", a.lse);
  if (!c.gradients) return;
  const value d_out = g.input("d_out", wide, {e.batch, e.heads, e.queries, e.value_dim}), d_lse = g.input("d_lse", wide, {e.batch, e.heads, e.queries, 1});
  const auto made = gradient(let(total(a.out * d_out) + total(a.lse * d_lse)), {Q, K, V});
  g.output("dQ", contiguous(made[0])), g.output("dK", contiguous(made[1])), g.output("dV", contiguous(made[2]));
}

void check_attention(const attention_case& c, const any_mask& mask) {
  INFO(text_of(c), ", mask ", mask.label());
  const attention_extents& e = c.e;
  const named_tensors inputs = inputs_of(c);
  graph g;
  build(g, c, mask);
  const named_numbers found = run_on(g, device::cuda(), inputs);

  const std::vector<double> Q = dense(c, 'Q'), K = dense(c, 'K'), V = dense(c, 'V');
  std::vector<char> kept(std::size_t(e.batch * e.heads * e.queries * e.keys));
  const auto at = [&](index_t b, index_t h, index_t q, index_t kv) { return std::size_t(((b * e.heads + h) * e.queries + q) * e.keys + kv); };
  for (index_t b = 0; b < e.batch; ++b)
    for (index_t h = 0; h < e.heads; ++h)
      for (index_t q = 0; q < e.queries; ++q)
        for (index_t kv = 0; kv < e.keys; ++kv) kept[at(b, h, q, kv)] = naive_value(mask.program(), mask.program().roots[0], {b, h, q, kv}) != 0;
  const auto keep = [&](index_t b, index_t h, index_t q, index_t kv) { return kept[at(b, h, q, kv)] != 0; };
  const double scale = c.scale.value_or(1 / std::sqrt(double(e.head_dim)));
  testing::attention_values right = testing::attention(e, Q, K, V, scale, keep);
  if (c.sink) {  // one more term of the sum, which has no value
    const std::vector<double> sinks = numbers(inputs.at("sink"));
    for (std::size_t row = 0; row < right.lse.size(); ++row) {
      const double sink = sinks[row / std::size_t(e.queries) % std::size_t(e.heads)], lse = right.lse[row], all = sink + std::log1p(std::exp(lse - sink));
      for (index_t d = 0; d < e.value_dim; ++d) right.out[row * std::size_t(e.value_dim) + std::size_t(d)] *= std::exp(lse - all);
      right.lse[row] = all;
    }
  }
  const dtype wide = c.type == f64 ? f64 : f32;
  // 16-bit paths round P and dS, whose terms make up one result of about its own size; sums are fp32 otherwise.
  const auto allowed = [&](const std::vector<double>& expected) { return tolerance_of(c.type, c.type == bf16 || c.type == f16 ? 4 : e.keys + e.queries + e.head_dim, magnitude_of(expected)); };
  CHECK(difference(found.at("out"), right.out, allowed(right.out)) == "");
  CHECK(difference(found.at("lse"), right.lse, tolerance_of(wide, e.keys + e.head_dim, magnitude_of(right.lse))) == "");
  if (!c.gradients) return;
  const auto gradients = testing::attention_gradient(e, Q, K, V, numbers(inputs.at("d_out")), numbers(inputs.at("d_lse")), scale, keep);
  CHECK(difference(found.at("dQ"), gradients.dQ, allowed(gradients.dQ)) == "");
  CHECK(difference(found.at("dK"), gradients.dK, allowed(gradients.dK)) == "");
  CHECK(difference(found.at("dV"), gradients.dV, allowed(gradients.dV)) == "");
}

}  // namespace samite_tests
