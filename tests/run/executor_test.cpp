#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/mask.hpp>
#include <samite/ir/verify.hpp>
#include <samite/nn/attention.hpp>
#include <samite/nn/layers.hpp>
#include <samite/run/cpu_backend.hpp>
#include <samite/run/executor.hpp>

#include "support/raised.hpp"

using namespace samite;
using samite_tests::unlike;

namespace {

tensor numbers(extents dims, double first = 0, double step = 1) {
  tensor t(f32, std::move(dims));
  double next = first;
  for (float& x : t.values<float>()) x = float(next), next += step;
  return t;
}

std::vector<float> floats(const tensor& t) {
  const auto span = t.values<float>();
  return {span.begin(), span.end()};
}

}  // namespace

TEST_CASE("building a graph refuses names, owners and constants that don't fit") {
  graph g, other;
  const value x = g.input("x", f32, {2, 3});
  CHECK(unlike("E-GRAPH-NAME", {"\"x\"", "unique"}, [&] { g.parameter("x", f32, {1}); }) == "");
  CHECK(unlike("E-GRAPH-NAME", {"empty name"}, [&] { g.input("", f32, {1}); }) == "");
  g.output("y", x);
  CHECK(unlike("E-GRAPH-NAME", {"output(\"y\")"}, [&] { g.output("y", x); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"another graph"}, [&] { concat({x, other.input("x", f32, {2, 3})}, 0); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"no graph"}, [&] { g.add(copy_node{}, {value()}, {}, "odd"); }) == "");
  CHECK(unlike("E-GRAPH-CONSTANT", {"[2]", "2 elements", "3 were given"}, [&] { g.constant({1, 2, 3}, f32, {2}); }) == "");
  CHECK(unlike("E-GRAPH-CONSTANT", {"[n]", "number"}, [&] { g.constant({1}, f32, {tokens(4, "n")}); }) == "");
}

TEST_CASE("structural operations refuse shapes that don't fit, with both shapes in the message") {
  graph g;
  const value x = g.input("x", f32, {2, 3}), row = g.input("row", f32, {4}), scalar_value = g.input("one", f32, {});
  const dim n = tokens(8, "n"), m = tokens(8, "m");
  const value ragged = g.input("ragged", f32, {n, m, 2});
  CHECK(unlike("E-SHAPE-AXIS", {"slice", "axis 2", "[2,3]", "-2 to 1"}, [&] { slice(x, 2, 0, 1); }) == "");
  CHECK(unlike("E-SHAPE-AXIS", {"transpose", "[0,0]"}, [&] { transpose(x, {0, 0}); }) == "");
  CHECK(unlike("E-SHAPE-AXIS", {"pad"}, [&] { pad(x, -3, 1, 1); }) == "");
  CHECK(unlike("E-SHAPE-PRODUCT", {"[n,m]", "run-time lengths"}, [&] { reshape(g.input("both", f32, {n, m}), {n * 8}); }) == "");
  CHECK(unlike("E-SHAPE-PRODUCT", {"[n,m,2]"}, [&] { matmul(ragged, g.input("w", f32, {2, 2})); }) == "");
  CHECK(unlike("E-SHAPE-RANK", {"scalar"}, [&] { matmul(scalar_value, x); }) == "");
  CHECK(unlike("E-SHAPE-RANK", {"fewer than two axes"}, [&] { transpose(row); }) == "");
  CHECK(unlike("E-SHAPE-RANK", {"[V,H]"}, [&] { embedding(row, g.input("ids", i32, {2})); }) == "");
  CHECK(unlike("E-SHAPE-RESHAPE", {"[2,3]", "[7]"}, [&] { reshape(x, {7}); }) == "");
  CHECK(unlike("E-SHAPE-SLICE", {"1 to 3", "[2,3]"}, [&] { slice(x, 1, 1, 3); }) == "");
  CHECK(unlike("E-SHAPE-SLICE", {"-1 to 0"}, [&] { slice(x, 1, -1, 2); }) == "");
  CHECK(unlike("E-SHAPE-CONCAT", {"no values"}, [&] { concat({}, 0); }) == "");
  CHECK(unlike("E-SHAPE-CONCAT", {"value 1", "[4]", "[2,3]"}, [&] { concat({x, row}, 0); }) == "");
  CHECK(unlike("E-SHAPE-CONCAT", {"f64", "f32"}, [&] { concat({x, g.input("d", f64, {2, 3})}, 0); }) == "");
  CHECK(unlike("E-SHAPE-INNER", {"\"up\"", "[2,3]", "[4]"}, [&] { matmul(x, row, {.label = "up"}); }) == "");
  CHECK(unlike("E-SHAPE-INNER", {"transposed"}, [&] { matmul(x, x, {.trans_a = true, .trans_b = true}); }) == "");
  CHECK(unlike("E-SHAPE-SUM", {"[2,3]", "[4]"}, [&] { sum_to(x, {4}); }) == "");
  CHECK(unlike("E-SHAPE-BROADCAST", {"let", "[2,3]", "[4]"}, [&] { let(x + row); }) == "");
  CHECK(unlike("E-SHAPE-CAPACITY", {"tokens(-1)"}, [&] { tokens(-1); }) == "");
  CHECK(unlike("E-DTYPE-OPERANDS", {"f32", "f64", "cast"}, [&] { matmul(x, g.input("wide", f64, {3, 3})); }) == "");
  CHECK(unlike("E-DTYPE-OPERANDS", {"i32"}, [&] { matmul(g.input("whole", i32, {3, 3}), g.input("whole2", i32, {3, 3})); }) == "");
  CHECK(unlike("E-DTYPE-OPERANDS", {"ids are f32"}, [&] { embedding(x, row); }) == "");
}

TEST_CASE("attention, expressions and rope refuse what they can't compute") {
  graph g;
  const auto qkv = [&](const char* name, shape dims, dtype type = f32) { return g.input(name, type, std::move(dims)); };
  const value q = qkv("q", {1, 4, 5, 8}), k = qkv("k", {1, 2, 7, 8}), v = qkv("v", {1, 2, 7, 6});
  CHECK(unlike("E-ATTN-RANK", {"attention \"first\"", "[4]", "[B,H,tokens,D]"}, [&] { attention(qkv("flat", {4}), k, v, {.label = "first"}); }) == "");
  CHECK(unlike("E-ATTN-HEADS", {"[4] query heads", "multiple"}, [&] { attention(q, qkv("k3", {1, 3, 7, 8}), qkv("v3", {1, 3, 7, 6})); }) == "");
  CHECK(unlike("E-ATTN-HEADS", {}, [&] { attention(q, qkv("k0", {1, 0, 7, 8}), qkv("v0", {1, 0, 7, 6})); }) == "");
  CHECK(unlike("E-ATTN-SHAPE", {"[1,2,7,8]", "[1,2,6,6]"}, [&] { attention(q, k, qkv("v_short", {1, 2, 6, 6})); }) == "");
  CHECK(unlike("E-ATTN-SHAPE", {}, [&] { attention(q, qkv("k_wide", {1, 2, 7, 9}), v); }) == "");
  CHECK(unlike("E-ATTN-SHAPE", {"numbers"}, [&] { const dim d = tokens(8, "d"); attention(qkv("qd", {1, 2, 3, d}), qkv("kd", {1, 2, 3, d}), qkv("vd", {1, 2, 3, 4})); }) == "");
  CHECK(unlike("E-ATTN-SHAPE", {"at least 1"}, [&] { attention(qkv("q_flat", {1, 4, 5, 0}), qkv("k_flat", {1, 2, 7, 0}), v); }) == "");
  CHECK(unlike("E-ATTN-SCALE", {"nan"}, [&] { attention(q, k, v, {.scale = std::nan("")}); }) == "");
  CHECK(unlike("E-DTYPE-OPERANDS", {"q is f32", "v is f64"}, [&] { attention(q, k, qkv("v64", {1, 2, 7, 6}, f64)); }) == "");
  CHECK(unlike("E-EXPR-EMPTY", {"no tensor"}, [&] { let(column() * 2.0); }) == "");
  CHECK(unlike("E-EXPR-SELECT", {"condition is a number"}, [&] { let(select(q + 0.0, 1.0, 2.0)); }) == "");
  CHECK(unlike("E-NN-ROPE", {"7 dimensions"}, [&] { rope_frequencies(7, 1e4); }) == "");
  CHECK(unlike("E-NN-ROPE", {"theta -1"}, [&] { rope_frequencies(8, -1); }) == "");
  CHECK(unlike("E-NN-ROPE", {}, [&] { rope_frequencies(8, std::nan("")); }) == "");
}

TEST_CASE("gradients refuse losses that are not one number and nodes without a rule") {
  graph g;
  const value x = g.parameter("x", f32, {2, 3}), ids = g.input("ids", i32, {1});
  CHECK(unlike("E-GRAPH-LOSS", {"f32 [2,3]"}, [&] { gradient(x, {x}); }) == "");
  CHECK(unlike("E-GRAPH-LOSS", {"i32"}, [&] { gradient(ids, {x}); }) == "");
  CHECK(unlike("E-GRAPH-LOSS", {"i32", "whole numbers"}, [&] { gradient(total(x), {ids}); }) == "");
  const value state = g.state("s", f32, {2, 3});
  CHECK(unlike("E-GRAPH-GRADIENT", {"assign", "stop_gradient"}, [&] { gradient(total(square(assign(state, x))), {x}); }) == "");
  graph h;
  const value table = h.parameter("t", f32, {3, 2}), d = h.parameter("d", f32, {1, 2});
  const value twice = h.add(embedding_gradient_node{}, {h.input("ids", i32, {1}), d}, {row_major(f32, {3, 2})}, "gather.grad")[0];
  CHECK(unlike("E-GRAPH-GRADIENT", {"gather.grad"}, [&] { gradient(total(twice * table), {d}); }) == "");
}

TEST_CASE("assign and append refuse targets and values that don't fit") {
  graph g;
  const value x = g.input("x", f32, {2, 3}), state = g.state("s", f32, {2, 3}), rows = g.input("rows", f32, {2, 1});
  CHECK(unlike("E-GRAPH-ASSIGN", {"of kind input"}, [&] { assign(x, x); }) == "");
  CHECK(unlike("E-GRAPH-ASSIGN", {"[2,3]", "[2,1]"}, [&] { assign(state, rows); }) == "");
  CHECK(unlike("E-GRAPH-APPEND", {"axis 0", "[2,1]"}, [&] { append(state, rows, 0, 0); }) == "");
  CHECK(unlike("E-GRAPH-APPEND", {"must be a state"}, [&] { append(x, rows, 1, 0); }) == "");
  CHECK(unlike("E-SHAPE-AXIS", {"append"}, [&] { append(state, rows, 2, 0); }) == "");
}

TEST_CASE("plans refuse graphs whose promises are broken and values that no memory holds") {
  graph g;
  const value x = g.input("x", f32, {2});
  g.output("y", g.add(copy_node{}, {x}, {value_info{f32, {2}, {}, true}}, "orderless")[0]);
  CHECK(unlike("E-GRAPH-VERIFY", {"node 1", "\"orderless\"", "memory order"}, [&] { make_plan(g); }) == "");
  graph negative;
  const dim n = tokens(4, "n");
  negative.output("y", contiguous(slice(negative.input("x", f32, {n}), 0, 2, n - 5)));
  CHECK(unlike("E-GRAPH-VERIFY", {"negative"}, [&] { make_plan(negative); }) == "");
  graph huge;
  const value a = huge.input("a", f32, {index_t(1) << 31, 1}), b = huge.input("b", f32, {1, index_t(1) << 31});
  huge.output("y", let(a + b));
  CHECK(unlike("E-SHAPE-OVERFLOW", {"2^62"}, [&] { make_plan(huge); }) == "");
}

TEST_CASE("a plan holds the graph as it was: the graph may grow or end before the plan runs") {
  std::optional<executor> run;
  {
    graph g;
    const value x = g.input("x", f32, {2, 3});
    g.output("y", let(2.0 * x));
    run.emplace(make_plan(g));
    g.output("z", let(x + g.input("late", f32, {2, 3})));
    CHECK(unlike("E-RUN-NAME", {"bind(\"late\")", "it had x when the plan was made"}, [&] { run->bind("late", numbers({2, 3})); }) == "");
  }
  run->bind("x", numbers({2, 3}));
  run->step();
  CHECK(run->output("y").data<float>()[5] == 2 * numbers({2, 3}).data<float>()[5]);
  CHECK(unlike("E-RUN-NAME", {"output(\"z\")", "before make_plan"}, [&] { run->output("z"); }) == "");
}

TEST_CASE("binding refuses tensors that the graph did not declare") {
  graph g;
  const dim n = tokens(8, "n");
  const value x = g.input("x", f32, {n, 3}), y = g.input("y", f32, {n * 2 + 1, 3}), both = g.input("both", f32, {n + tokens(4, "m"), 1});
  g.output("x2", let(2.0 * x)), g.output("y2", let(2.0 * y));
  executor run(make_plan(g));
  CHECK(unlike("E-RUN-NAME", {"bind(\"z\")", "x, y, both"}, [&] { run.bind("z", numbers({1})); }) == "");
  CHECK(unlike("E-RUN-DTYPE", {"f64", "f32", "to_dtype"}, [&] { run.bind("x", tensor(f64, {2, 3})); }) == "");
  CHECK(unlike("E-RUN-SHAPE", {"[2,4]", "[n,3]"}, [&] { run.bind("x", numbers({2, 4})); }) == "");
  CHECK(unlike("E-RUN-SHAPE", {"[3]"}, [&] { run.bind("x", numbers({3})); }) == "");
  CHECK(unlike("E-RUN-CAPACITY", {"9 elements", "at most 8"}, [&] { run.bind("x", numbers({9, 3})); }) == "");
  CHECK(unlike("E-RUN-UNBOUND", {"call step() first"}, [&] { run.output("x2"); }) == "");
  CHECK(unlike("E-RUN-UNBOUND", {"input \"x\" f32 [n,3]"}, [&] { run.step(); }) == "");
  run.bind("x", numbers({2, 3}));
  run.bind("y", numbers({6, 3}));
  CHECK(unlike("E-RUN-SHAPE", {"axis 0 holds 6", "2*n+1"}, [&] { run.step(); }) == "");
  run.bind("y", numbers({7, 3}));
  CHECK(unlike("E-RUN-LENGTH", {"\"n\" is 3", "but 2"}, [&] { run.step(); }) == "");
  run.bind("y", numbers({5, 3}));
  run.step();
  CHECK(run.output("y2").dims() == extents{5, 3});
  CHECK(unlike("E-RUN-NAME", {"no output"}, [&] { run.output("x3"); }) == "");
  CHECK(unlike("E-RUN-CAPACITY", {"set_length(\"n\", 9)", "0 to 8"}, [&] { run.set_length(n, 9); }) == "");
  CHECK(unlike("E-SHAPE-LENGTH", {"single run-time length"}, [&] { run.set_length(n * 2, 1); }) == "");
  run.set_length(n, 4);
  CHECK(unlike("E-RUN-LENGTH", {"\"n\""}, [&] { run.step(); }) == "");
  CHECK(both.rank() == 2);  // unused: it needs no tensor
}

TEST_CASE("weights must lie where the plan runs; only inputs are carried over") {
  graph g;
  g.output("y", let(g.parameter("w", f32, {2}) + g.input("x", f32, {2})));
  executor run(make_plan(g, device::cuda(0)), make_cpu_backend());
  CHECK(unlike("E-RUN-DEVICE", {"\"w\"", "the host", "cuda:0"}, [&] { run.bind("w", numbers({2})); }) == "");
  run.bind("x", numbers({2}));
}

TEST_CASE("extents of several lengths are checked once all are known") {
  graph g;
  const dim n = tokens(8, "n"), m = tokens(4, "m");
  const value x = g.input("x", f32, {n}), z = g.input("z", f32, {m}), sum = g.input("sum", f32, {n + m});
  g.output("y", let(concat({x, z}, 0) + sum));
  executor run(make_plan(g));
  run.bind("x", numbers({3})), run.bind("z", numbers({2})), run.bind("sum", numbers({6}));
  CHECK(unlike("E-RUN-SHAPE", {"\"sum\"", "[6]", "[5]"}, [&] { run.step(); }) == "");
  run.bind("sum", numbers({5}, 10));
  run.step();
  CHECK(floats(run.output("y")) == std::vector<float>{10, 12, 14, 13, 15});
}

TEST_CASE("a length that no tensor gives must be set, and views that leave their tensor are refused at the run") {
  graph g;
  const dim past = tokens(8, "past");
  const value x = g.input("x", f32, {6});
  g.output("y", contiguous(slice(x, 0, past, 2)));
  executor run(make_plan(g));
  run.bind("x", numbers({6}));
  CHECK(unlike("E-SHAPE-LENGTH", {"\"past\"", "no value yet"}, [&] { run.step(); }) == "");
  run.set_length(past, 5);
  CHECK(unlike("E-SHAPE-SLICE", {"5 to 6", "[6]"}, [&] { run.step(); }) == "");
  run.set_length(past, 4);
  run.step();
  CHECK(floats(run.output("y")) == std::vector<float>{4, 5});
  run.set_length(past, 0);
  CHECK(unlike("E-RUN-UNBOUND", {"nothing has run yet"}, [&] { run.output("y"); }) == "");
  run.step();
  CHECK(floats(run.output("y")) == std::vector<float>{0, 1});
}

TEST_CASE("an id outside the table is an error that names the id, and the run goes on with another") {
  graph g;
  g.output("y", embedding(g.parameter("table", f32, {3, 2}), g.input("ids", i32, {2}), "words"));
  executor run(make_plan(g));
  run.bind("table", numbers({3, 2}));
  for (const std::int32_t bad : {3, -1}) {
    run.bind("ids", tensor::from<std::int32_t>(i32, {2}, std::vector<std::int32_t>{2, bad}));
    CHECK(unlike("E-RUN-INDEX", {"\"words\"", "id 1", "0 to 2"}, [&] { run.step(); }) == "");
  }
  run.bind("ids", tensor::from<std::int32_t>(i32, {2}, std::vector<std::int32_t>{2, 0}));
  run.step();
  CHECK(floats(run.output("y")) == std::vector<float>{4, 5, 0, 1});
}

TEST_CASE("results follow lengths that change from step to step, an empty one included") {
  graph g;
  const dim n = tokens(300, "n");
  const value x = g.input("x", f32, {n, 4}), w = g.parameter("w", f32, {2, 4});
  g.output("y", linear(let(x * 2.0), w));
  g.output("sum", total(x));
  executor run(make_plan(g));
  run.bind("w", numbers({2, 4}, 1, 0));
  for (const index_t length : {5, 300, 1, 0, 77}) {
    CAPTURE(length);
    run.bind("x", numbers({length, 4}));
    run.step();
    const tensor y = run.output("y");
    CHECK(y.dims() == extents{length, 2});
    double sum = 0;
    for (index_t r = 0; r < length; ++r) {
      const double row = 16 * double(r) + 6;
      CHECK(double(y.data<float>()[2 * r + 1]) == doctest::Approx(2 * row));
      sum += row;
    }
    CHECK(double(run.output("sum").data<float>()[0]) == doctest::Approx(sum));
  }
}

TEST_CASE("a bound tensor is shared: what is written into it is read by the next step") {
  graph g;
  g.output("y", let(g.input("x", f32, {2}) + 1.0));
  executor run(make_plan(g));
  tensor x = numbers({2});
  run.bind("x", x);
  run.step();
  x.data<float>()[0] = 41;
  run.step();
  CHECK(floats(run.output("y")) == std::vector<float>{42, 2});
}

TEST_CASE("assign changes the state for the next step, and its result in this one") {
  graph g;
  const value state = g.state("s", f32, {3});
  const value next = assign(state, let(state * 2.0 + 1.0));
  g.output("seen", let(next + 0.0));
  executor run(make_plan(g));
  tensor kept = numbers({3});
  run.bind("s", kept);
  run.step();
  CHECK(floats(kept) == std::vector<float>{1, 3, 5});
  CHECK(floats(run.output("seen")) == std::vector<float>{1, 3, 5});
  run.step();
  CHECK(floats(kept) == std::vector<float>{3, 7, 11});
}

TEST_CASE("append writes rows behind those in use and shows all of them, also in the middle axis") {
  graph g;
  const dim n = tokens(3, "n"), past = tokens(8, "past");
  const value rows = g.input("rows", f32, {2, n, 2});
  const value held = append(g.state("cache", f32, {2, 5, 2}), rows, 1, past);
  g.output("held", contiguous(held));
  executor run(make_plan(g));
  tensor cache(f32, {2, 5, 2});
  run.bind("cache", cache);
  run.bind("rows", numbers({2, 2, 2}));
  run.set_length(past, 0);
  run.step();
  CHECK(floats(run.output("held")) == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7});
  run.bind("rows", numbers({2, 3, 2}, 100));
  run.set_length(past, 1);  // the second row is forgotten and written over
  run.step();
  CHECK(run.output("held").dims() == extents{2, 4, 2});
  CHECK(floats(run.output("held")) == std::vector<float>{0, 1, 100, 101, 102, 103, 104, 105, 4, 5, 106, 107, 108, 109, 110, 111});
  CHECK(floats(cache)[8] == 0);  // the fifth row was never written
  run.set_length(past, 3);
  CHECK(unlike("E-SHAPE-SLICE", {"append", "[2,5,2]"}, [&] { run.step(); }) == "");
  CHECK(floats(cache)[8] == 0);
}

TEST_CASE("a strided result is seen by output_view and refused by output") {
  graph g;
  const value x = g.input("x", f32, {2, 3});
  g.output("t", transpose(let(x + 0.0)));
  g.output("copy", contiguous(transpose(x)));
  executor run(make_plan(g));
  run.bind("x", numbers({2, 3}));
  run.step();
  CHECK(unlike("E-RUN-LAYOUT", {"output(\"t\")", "contiguous"}, [&] { run.output("t"); }) == "");
  const tensor_view t = run.output_view("t");
  CHECK(t.dims == extents{3, 2});
  CHECK(t.strides == extents{1, 3});
  CHECK(t.as<float>()[2 * t.strides[0] + t.strides[1]] == 5);
  CHECK(floats(run.output("copy")) == std::vector<float>{0, 3, 1, 4, 2, 5});
}

TEST_CASE("a graph prints one node a line, outputs last") {
  graph g;
  const value x = g.input("x", f32, {tokens(8, "n"), 3}), w = g.parameter("w", f32, {4, 3});
  const value y = let(silu(linear(x, w, "up")), {.type = bf16, .label = "gate"});
  g.output("y", transpose(y));
  CHECK(print(g) ==
        "%0 f32[n,3] = input()  \"x\"\n"
        "%1 f32[4,3] = parameter()  \"w\"\n"
        "%2 f32[n,4] = matmul(%0, %1)  \"up\"\n"
        "%3 bf16[n,4] = fused(%2)  \"gate\"\n"
        "%4 bf16[4,n] = transpose(%3)  \"transpose_4\"\n"
        "output \"y\" = %4\n");
}

TEST_CASE("attention computes exactly the tiles that its mask keeps") {
  graph g;
  const value q = g.parameter("q", f32, {1, 2, 300, 8}), k = g.parameter("k", f32, {1, 1, 300, 8}), v = g.parameter("v", f32, {1, 1, 300, 8});
  const value out = attention(q, k, v, {.mask = causal() && window(40)}).out;
  const value loss = total(square(out));
  g.output("loss", loss);
  const std::vector<value> d = gradient(loss, {q, k, v});
  for (std::size_t i = 0; i < d.size(); ++i) g.output(concat_text("d", i), contiguous(d[i]));
  executor run(make_plan(g));
  run.bind("q", numbers({1, 2, 300, 8}, 0, 1e-3)), run.bind("k", numbers({1, 1, 300, 8}, 0, 1e-3)), run.bind("v", numbers({1, 1, 300, 8}, 0, 1e-3));
  const cpu_counters before = read_cpu_counters();
  run.step();
  const cpu_counters after = read_cpu_counters();
  const index_t computed = after.attention_tiles - before.attention_tiles;
  CHECK(computed == after.attention_tiles_listed - before.attention_tiles_listed);
  // 5 x 5 tiles of 64: the diagonal and the one below; each once forward and twice backward (dQ, then dK and dV), for 2 heads.
  CHECK(computed == 9 * 2 * 3);
}

TEST_CASE("products over no elements are zero, also where a length becomes zero at run time") {
  graph g;
  const dim n = tokens(8, "n");
  const value x = g.input("x", f32, {3, n}), w = g.input("w", f32, {n, 2}), junk = g.input("junk", f32, {3, 3});
  const value fill = let(junk + 7.0);  // so that the arena's memory is not zero before
  g.output("fill", total(fill));
  g.output("plain", matmul(x, w)), g.output("other", matmul(x, x, {.trans_b = true})), g.output("rows", matmul(w, w, {.trans_a = true}));
  g.output("none", matmul(g.input("a", f32, {2, 0}), g.input("b", f32, {0, 3})));
  executor run(make_plan(g));
  run.bind("junk", numbers({3, 3})), run.bind("a", tensor(f32, {2, 0})), run.bind("b", tensor(f32, {0, 3}));
  for (const index_t length : {4, 0, 1, 0}) {
    CAPTURE(length);
    run.bind("x", numbers({3, length}, 1, 0)), run.bind("w", numbers({length, 2}, 1, 0));
    run.step();
    const float expected = float(length);
    CHECK(floats(run.output("plain")) == std::vector<float>(6, expected));
    CHECK(floats(run.output("other")) == std::vector<float>(9, expected));
    CHECK(floats(run.output("rows")) == std::vector<float>(4, expected));
    CHECK(floats(run.output("none")) == std::vector<float>(6, 0.0f));
  }
}

TEST_CASE("a row without columns has sum 0 and largest element -infinity") {
  graph g;
  const dim m = tokens(4, "m");
  const value x = g.input("x", f32, {3, m});
  g.output("sum", let(sum(x) + 1.0)), g.output("largest", let(largest(x))), g.output("smallest", let(smallest(x)));
  g.output("rolled", let(roll(x, 1) * sum(x))), g.output("total", total(x));
  executor run(make_plan(g));
  for (const index_t columns : {2, 0, 3, 0}) {
    CAPTURE(columns);
    run.bind("x", numbers({3, columns}, 1, 0));
    run.step();
    const bool none = columns == 0;
    CHECK(floats(run.output("sum")) == std::vector<float>(3, float(columns) + 1));
    CHECK(floats(run.output("largest")) == std::vector<float>(3, none ? -INFINITY : 1.0f));
    CHECK(floats(run.output("smallest")) == std::vector<float>(3, none ? INFINITY : 1.0f));
    CHECK(floats(run.output("rolled")) == std::vector<float>(std::size_t(3 * columns), float(columns)));
    CHECK(floats(run.output("total")) == std::vector<float>{float(3 * columns)});
  }
}

TEST_CASE("a backend outlives its graphs: another graph in the same memory runs its own kernels") {
  const std::shared_ptr<backend> shared = make_backend(device::cpu());
  for (int i = 0; i < 20; ++i) {
    graph g;  // most of them lie where the one before lay
    const value x = g.input("x", f32, {2});
    g.output("y", i % 2 == 0 ? let(x + x) : let(x * x));
    executor run(make_plan(g), shared);
    run.bind("x", numbers({2}, 5));
    run.step();
    CHECK(floats(run.output("y")) == (i % 2 == 0 ? std::vector<float>{10, 12} : std::vector<float>{25, 36}));
  }
}

TEST_CASE("one program in nodes of different shapes and dtypes is a kernel for each") {
  graph g;
  program doubled;
  const node_id x = build_operand(doubled, 0, value_kind::real);
  doubled.roots = {build(doubled, op::add, x, x)};
  const auto fn = std::make_shared<const program>(doubled);
  const value wide = g.input("wide", f64, {2, 3}), narrow = g.input("narrow", f32, {2, 1}), row = g.input("row", f32, {2, 3});
  g.output("wide2", g.add(fused_node{fn, wide.dims()}, {wide}, {row_major(f64, wide.dims())})[0]);
  g.output("narrow2", g.add(fused_node{fn, narrow.dims()}, {narrow}, {row_major(f32, narrow.dims())})[0]);
  g.output("row2", g.add(fused_node{fn, row.dims()}, {row}, {row_major(f32, row.dims())})[0]);
  executor run(make_plan(g));
  run.bind("wide", numbers({2, 3}, 1).to_dtype(f64)), run.bind("narrow", numbers({2, 1}, 1)), run.bind("row", numbers({2, 3}, 1));
  for (int i = 0; i < 2; ++i) {
    run.step();
    CHECK(floats(run.output("wide2").to_dtype(f32)) == std::vector<float>{2, 4, 6, 8, 10, 12});
    CHECK(floats(run.output("narrow2")) == std::vector<float>{2, 4});
    CHECK(floats(run.output("row2")) == std::vector<float>{2, 4, 6, 8, 10, 12});
  }
}

TEST_CASE("an empty tensor is refused where a scalar is declared, and a scalar is computed with") {
  graph g;
  g.output("y", let(g.input("x", f32, {}) * 2.0));
  executor run(make_plan(g));
  CHECK(unlike("E-RUN-UNBOUND", {"bind(\"x\")", "holds nothing"}, [&] { run.bind("x", tensor()); }) == "");
  tensor three(f32, extents{});
  three.data<float>()[0] = 3;
  run.bind("x", three);
  run.step();
  CHECK(floats(run.output("y")) == std::vector<float>{6});
}

TEST_CASE("capacities that 64 bits don't hold are refused, one extent alone or all intermediates together") {
  graph g;
  const dim n = tokens(index_t(1) << 62, "n");
  g.output("y", let(g.input("x", f32, {n * 8}) + 1.0));
  CHECK(unlike("E-SHAPE-OVERFLOW", {"\"n\"", "capacity"}, [&] { make_plan(g); }) == "");
  graph many;
  const dim m = tokens((index_t(1) << 60) - 256, "m");
  const value x = many.input("x", f32, {m});
  for (int i = 0; i < 6; ++i) many.output(std::to_string(i), let(x + double(i + 2)));
  CHECK(unlike("E-SHAPE-OVERFLOW", {"intermediates", "2^62"}, [&] { make_plan(many); }) == "");
}

TEST_CASE("executors of one plan run in threads of their own, while another thread changes a table and a number that the mask reads") {
  using namespace samite::symbols;
  constexpr index_t n = 40;
  table_ref ids = table(std::vector<std::int32_t>(n, 0));
  scalar width = n;
  graph g;
  const value q = g.input("q", f32, {1, 1, n, 8});
  g.output("out", contiguous(attention(q, q, q, {.mask = kv <= symbols::q && symbols::q - kv < width && ids[symbols::q] == ids[kv]}).out));
  const plan shared = make_plan(g);
  const tensor given = numbers({1, 1, n, 8}, -1, 0.01);
  // Of one document or of documents of 10, with every key or the last 3: each result is one of four.
  const auto set = [&](int state) {
    std::vector<std::int32_t> values;
    for (index_t i = 0; i < n; ++i) values.push_back(state % 2 == 0 ? 0 : std::int32_t(i / 10));
    ids.update(values), width.set(state < 2 ? n : 3);
  };
  std::vector<std::vector<float>> allowed;
  const auto result = [&](executor& run) {
    run.bind("q", given);
    run.step();
    return floats(run.output("out"));
  };
  for (int state = 0; state < 4; ++state) {
    set(state);
    executor alone(shared);
    allowed.push_back(result(alone));
  }
  std::atomic<int> running = 3, wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      executor run(shared);
      for (int i = 0; i < 40; ++i) wrong += std::find(allowed.begin(), allowed.end(), result(run)) == allowed.end();
      --running;
    });
  for (int state = 0; running > 0; state = (state + 1) % 4) set(state);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("rows before the first, zeros fewer than none, and parts that only this run's lengths make wrong are refused before anything is written") {
  graph g;
  const dim S = tokens(16, "S");
  const value cache = g.state("cache", f32, {8, 2}), rows = g.input("rows", f32, {3, 2}), x = g.input("x", f32, {S, 2});
  CHECK(unlike("E-SHAPE-SLICE", {"append", "-1"}, [&] { append(cache, rows, 0, -1); }) == "");
  CHECK(unlike("E-SHAPE-SLICE", {"pad", "-3", "slice"}, [&] { pad(rows, 0, -3, 1); }) == "");
  CHECK(unlike("E-SHAPE-SLICE", {"pad", "-100000"}, [&] { pad(rows, 0, 100000, -100000); }) == "");
  g.output("written", contiguous(append(cache, rows, 0, S - 2))), g.output("padded", contiguous(pad(x, 0, dim(8) - S, 0)));
  executor run(make_plan(g));
  run.bind("cache", numbers({8, 2})), run.bind("rows", numbers({3, 2}));
  run.bind("x", numbers({1, 2}));
  CHECK(unlike("E-SHAPE-SLICE", {"the first row", "is -1"}, [&] { run.step(); }) == "");
  run.bind("x", numbers({12, 2}));
  CHECK(unlike("E-SHAPE-SLICE", {}, [&] { run.step(); }) == "");
  run.bind("x", numbers({5, 2}));
  run.step();
  CHECK(run.output("padded").dims() == extents{8, 2});
}

TEST_CASE("an executor that was moved from, a plan that was never made and a tensor without memory are refused") {
  graph g;
  g.output("y", let(g.input("x", f32, {3}) * 2));
  executor first(make_plan(g));
  executor second = std::move(first);
  CHECK(unlike("E-RUN-PLAN", {"moved from"}, [&] { first.bind("x", numbers({3})); }) == "");
  CHECK(unlike("E-RUN-PLAN", {}, [&] { first.step(); }) == "");
  CHECK(unlike("E-RUN-PLAN", {}, [&] { first.synchronize(); }) == "");
  CHECK(unlike("E-RUN-PLAN", {"make_plan"}, [&] { executor nothing{plan()}; }) == "");
  second.bind("x", numbers({3}));
  second.step();
  CHECK(floats(second.output("y")) == std::vector<float>{0, 2, 4});
  CHECK(unlike("E-TENSOR-SHAPE", {"tensor::over", "[3]"}, [&] { tensor::over(f32, {3}, nullptr, nullptr); }) == "");
  CHECK(tensor::over(f32, {0}, nullptr, nullptr).bytes() == 0);
}

TEST_CASE("a gradient that would read a state as it was before a write is refused; taken before the write, or of a copy, it is right") {
  const auto slopes = [](int when) {  // 0: before the write, 1: after it, 2: after it, of a copy
    graph g;
    const value s = g.state("s", f32, {2}), x = g.input("x", f32, {2});
    const value y = let((when == 2 ? let(s * 1.0) : s) * x);
    value d;
    if (when == 0) d = gradient(total(y), {x})[0];
    g.output("next", assign(s, let(s * 10.0)));
    if (when != 0) d = gradient(total(y), {x})[0];
    g.output("d", contiguous(d));
    executor run(make_plan(g));
    run.bind("s", numbers({2}, 1)), run.bind("x", numbers({2}, 1));
    run.step();
    return floats(run.output("d"));
  };
  CHECK(slopes(0) == std::vector<float>{1, 2});
  CHECK(unlike("E-GRAPH-GRADIENT", {"\"s\"", "written since"}, [&] { slopes(1); }) == "");
  CHECK(slopes(2) == std::vector<float>{1, 2});
}

TEST_CASE("reals that become whole numbers saturate, and NaN becomes 0") {
  graph g;
  const value x = g.input("x", f32, {6});
  g.output("i32", let(x, {.type = i32})), g.output("u8", let(x * 1.0, {.type = u8}));
  executor run(make_plan(g));
  tensor given(f32, {6});
  const float values[] = {1e30f, -1e30f, std::nanf(""), -1.7f, 300.5f, 2.9f};
  std::copy(std::begin(values), std::end(values), given.values<float>().begin());
  run.bind("x", given);
  run.step();
  const tensor words = run.output("i32"), bytes = run.output("u8");
  CHECK(std::vector<std::int32_t>(words.values<std::int32_t>().begin(), words.values<std::int32_t>().end()) == std::vector<std::int32_t>{2147483647, -2147483647 - 1, 0, -1, 300, 2});
  CHECK(std::vector<std::uint8_t>(bytes.values<std::uint8_t>().begin(), bytes.values<std::uint8_t>().end()) == std::vector<std::uint8_t>{255, 0, 0, 0, 255, 2});
}

TEST_CASE("extents that are negative or beyond 64 bits are refused where they are written") {
  graph g;
  const value x = g.input("x", f32, {2, 2});
  CHECK(unlike("E-SHAPE-CAPACITY", {"\"y\"", "[-4]"}, [&] { g.input("y", f32, {-4}); }) == "");
  CHECK(unlike("E-SHAPE-CAPACITY", {"reshape", "[-2,-2]"}, [&] { reshape(x, {-2, -2}); }) == "");
  CHECK(unlike("E-SHAPE-OVERFLOW", {"2^63"}, [&] { dim(std::numeric_limits<index_t>::max()) + dim(5); }) == "");
  CHECK(unlike("E-SHAPE-OVERFLOW", {"2^63"}, [&] { tokens(4) * (index_t(1) << 62) * 4; }) == "");
  const dim S = tokens(4, "S");
  g.output("z", g.input("w", f32, {S}));
  executor run(make_plan(g));
  CHECK(unlike("E-RUN-CAPACITY", {"-3", "at least 0"}, [&] { run.set_length(S, -3); }) == "");
}
