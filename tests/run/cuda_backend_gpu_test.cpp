#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/testing/compare.hpp>
#include <samite/runtime/cuda_driver.hpp>

#include "support/gpu.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite_tests;
using testing::difference;
using testing::tolerance_of;

namespace {

/// Every output of the graph on the GPU against the CPU backend.
void check_devices(const graph& g, const named_tensors& inputs, index_t reduction = 1, double magnitude = 4, int steps = 1) {
  const named_numbers cpu = run_on(g, device::cpu(), inputs, steps), gpu = run_on(g, device::cuda(), inputs, steps);
  for (const auto& [output, ref] : g.outputs()) {
    const std::string name = output;  // clang 14 can't capture a structured binding
    INFO(name);
    CHECK(difference(gpu.at(name), cpu.at(name), tolerance_of(g.info(ref).type, reduction, magnitude)) == "");
  }
}

}  // namespace

TEST_CASE("gpu rows: a norm with its gradient agrees with the CPU at every width and dtype") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (dtype type : {f32, bf16, f16, f64})
    for (index_t columns : {1, 2, 7, 64, 65, 1000, 1025, 5120}) {
      CAPTURE(name_of(type));
      CAPTURE(columns);
      graph g;
      const value x = g.input("x", type, {5, 3, columns}), w = g.input("w", type, {columns});
      const value y = let(x * rsqrt(mean(x * x) + 1e-6) * w, {.label = "norm"});
      g.output("y", y);
      const auto gradients = gradient(total(cast(y, type == f64 ? f64 : f32) * 0.5), {x, w});
      g.output("dx", gradients[0]);
      g.output("dw", gradients[1]);
      const tensor x_numbers = random_tensor(type, {5, 3, columns}, 1);
      // Of dx = w r (1 - x mean(x ...) r^2) / 2 the terms may cancel, in a row of one column nearly all: r is what they are as large as.
      double magnitude = 2;
      const std::vector<double> all = numbers(x_numbers);
      for (std::size_t row = 0; row < all.size(); row += std::size_t(columns)) {
        double squares = 0;
        for (std::size_t i = row; i < row + std::size_t(columns); ++i) squares += all[i] * all[i];
        magnitude = std::max(magnitude, 1 / std::sqrt(squares / double(columns) + 1e-6));
      }
      check_devices(g, {{"x", x_numbers}, {"w", random_tensor(type, {columns}, 2)}}, columns, magnitude);
    }
}

TEST_CASE("gpu rows: every real op agrees with the CPU") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (dtype type : {f32, f64}) {
    graph g;
    const value x = g.input("x", type, {4, 33}), y = g.input("y", type, {33}), z = g.input("z", type, {4, 1});
    g.output("arithmetic", let(x + y * z - x / (y + 3) + (-z)));
    g.output("functions", let(exp(x) + log(abs(x) + 1) + sqrt(abs(y)) + rsqrt(abs(y) + 1) + tanh(x) + sin(y) + cos(z)));
    g.output("extremes", let(min(x, y) + 2 * max(x, z) + largest(x) + smallest(x * y)));
    g.output("choices", let(select(x < y, select(x <= z, x, z), select(equal(z, y), x, y * 2))));
    g.output("rolled", let(roll(x * y, 5) + roll(roll(x, -7) + y, 3) + roll(z, 1)));
    g.output("columns", let(x * column() / columns()));
    g.output("rounded", let(round_to(x, bf16) + round_to(y, f16)));
    g.output("half", let(x + y, {.type = bf16}));
    g.output("sum", let(sum(x * (x - mean(x))) + sum(z)));
    g.output("softmax", let(exp(x - largest(x)) / sum(exp(x - largest(x)))));
    check_devices(g, {{"x", random_tensor(type, {4, 33}, 1)}, {"y", random_tensor(type, {33}, 2)}, {"z", random_tensor(type, {4, 1}, 3)}}, 33);
  }
}

TEST_CASE("gpu rows: integers are read as indices, and rotary embedding by position agrees with the CPU") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (dtype ids : {i32, i64}) {
    graph g;
    const value x = g.input("x", f32, {2, 9, 4, 32}), position = g.input("position", ids, {2, 9, 1, 1});
    const auto angle = position * exp(select(column() < 16, column(), column() - 16) * (-0.5));
    g.output("y", let(x * cos(angle) + select(column() < 16, -roll(x, 16), roll(x, 16)) * sin(angle)));
    tensor positions(ids, {2, 9, 1, 1});
    for (index_t i = 0; i < 18; ++i) {
      if (ids == i32) positions.data<std::int32_t>()[i] = std::int32_t(i * 3);
      else positions.data<std::int64_t>()[i] = i * 3;
    }
    check_devices(g, {{"x", random_tensor(f32, {2, 9, 4, 32}, 1)}, {"position", positions}}, 1, 40);
  }
}

TEST_CASE("gpu rows: strided operands, views and run-time lengths below the capacity") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  graph g;
  const dim length = tokens(64);
  const value x = g.input("x", f32, {2, length, 4, 8});
  const value t = transpose(x, {0, 2, 1, 3}), last = transpose(x, {0, 1, 3, 2});
  g.output("transposed", let(t * 2));
  g.output("last", let(last + 1));
  g.output("sliced", let(slice(t, 3, 2, 5) + slice(t, 3, 3, 5)));
  g.output("copied", contiguous(last));
  g.output("sum", let(sum(t)));
  g.output("joined", concat({contiguous(t), t}, 1));
  g.output("padded", pad(t, 2, 1, 3));
  g.output("total", total(last));
  check_devices(g, {{"x", random_tensor(f32, {2, 37, 4, 8}, 1)}}, 64);
}

TEST_CASE("gpu products: all transpositions and dtypes agree with the CPU") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (dtype type : {f32, bf16, f16, f64})
    for (int flags = 0; flags < 4; ++flags)
      for (index_t inner : {0, 1, 65, 256}) {
        const bool trans_a = flags & 1, trans_b = flags & 2;
        CAPTURE(name_of(type));
        CAPTURE(flags);
        CAPTURE(inner);
        const extents a = trans_a ? extents{inner, 40} : extents{40, inner}, b = trans_b ? extents{72, inner} : extents{inner, 72};
        graph g;
        const value x = g.input("a", type, shape(a.begin(), a.end())), w = g.input("b", type, shape(b.begin(), b.end()));
        g.output("c", matmul(x, w, {.trans_a = trans_a, .trans_b = trans_b}));
        if (type != f64) g.output("wide", matmul(x, w, {.trans_a = trans_a, .trans_b = trans_b, .out_type = f32}));
        check_devices(g, {{"a", random_tensor(type, a, 1)}, {"b", random_tensor(type, b, 2)}}, inner, 1);
      }
}

TEST_CASE("gpu sums: leading, trailing and middle axes agree with the CPU and repeat bitwise") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (dtype type : {f32, bf16, f64}) {
    graph g;
    const value x = g.input("x", type, {7, 300, 5, 11});
    g.output("leading", sum_to(x, {5, 11}));
    g.output("one", sum_to(x, {1, 1, 1, 1}));
    g.output("middle", sum_to(x, {7, 1, 5, 11}));
    g.output("trailing", sum_to(x, {7, 300, 1, 1}));
    g.output("alternate", sum_to(x, {1, 300, 1, 11}));
    check_devices(g, {{"x", random_tensor(type, {7, 300, 5, 11}, 1)}}, 7 * 300, 1);
    const named_tensors inputs{{"x", random_tensor(type, {7, 300, 5, 11}, 1)}};
    CHECK(run_on(g, device::cuda(), inputs) == run_on(g, device::cuda(), inputs));
  }
}

TEST_CASE("gpu sums: a long sum keeps its precision and an empty one is zero") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  graph g;
  const value x = g.input("x", f32, {tokens(100000), 3}), none = g.input("none", f32, {0, 3});
  g.output("sum", sum_to(x, {1, 3}));
  g.output("all", total(x));
  g.output("empty", sum_to(none, {1, 3}));
  check_devices(g, {{"x", random_tensor(f32, {70001, 3}, 1, 0, 1)}, {"none", tensor(f32, {0, 3})}}, 1, 70001 * 1e-2);
}

TEST_CASE("gpu embedding: rows, and gradients of repeated ids in a fixed order") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  for (dtype type : {f32, bf16, f64}) {
    graph g;
    const value t = g.input("table", type, {50, 33}), ids = g.input("ids", i64, {tokens(1000)});
    const value rows = embedding(t, ids);
    g.output("rows", rows);
    g.output("gradient", gradient(total(cast(rows, type == f64 ? f64 : f32) * column()), {t})[0]);
    tensor picked(i64, {700});
    for (index_t i = 0; i < 700; ++i) picked.data<std::int64_t>()[i] = i * i % 47;
    const named_tensors inputs{{"table", random_tensor(type, {50, 33}, 1)}, {"ids", picked}};
    check_devices(g, inputs, 64, 32);
    CHECK(run_on(g, device::cuda(), inputs) == run_on(g, device::cuda(), inputs));
  }
}

TEST_CASE("gpu embedding: an id outside the table is raised when the device is waited for, and the next step is clean") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  graph g;
  const value t = g.input("table", f32, {5, 4}), ids = g.input("ids", i32, {3});
  g.output("rows", embedding(t, ids, "words"));
  executor run(make_plan(g, device::cuda()));
  tensor picked(i32, {3});
  picked.data<std::int32_t>()[1] = 5;
  run.bind("table", random_tensor(f32, {5, 4}, 1));
  run.bind("ids", picked);
  run.step();
  CHECK_THROWS_WITH_AS(run.synchronize(), doctest::Contains("embedding \"words\": id 1 is 5; the table has rows 0 to 4"), samite::error);
  picked.data<std::int32_t>()[1] = 4;
  run.step();
  CHECK_NOTHROW(run.synchronize());
}

TEST_CASE("gpu state: assign and append write what later steps read") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  graph g;
  const value x = g.input("x", f32, {2, 3, 4}), counter = g.state("counter", f32, {2, 3, 4}), cache = g.state("cache", f32, {2, 10, 4});
  g.output("counter_now", assign(counter, let(counter + x)));
  g.output("cache_now", contiguous(append(cache, x, 1, 2)));
  check_devices(g, {{"x", random_tensor(f32, {2, 3, 4}, 1)}, {"counter", random_tensor(f32, {2, 3, 4}, 2)}, {"cache", random_tensor(f32, {2, 10, 4}, 3)}}, 1, 4, 3);
}

TEST_CASE("gpu rows: numbers are read anew at each step") {
  SKIP_IF(!cuda_available(), cuda_missing_reason());
  graph g;
  const value x = g.input("x", f32, {1, 2});
  const auto cell = std::make_shared<scalar_cell>(2.0);
  program p;
  p.roots = {samite::build(p, op::mul, build_operand(p, 0, value_kind::real), build_argument(p, cell))};
  g.output("y", fuse(g, std::move(p), {x}, {1, 2}, {f32})[0]);
  executor run(make_plan(g, device::cuda()));
  run.bind("x", tensor::from({1, 2}, std::vector<float>{1, 3}));
  run.step();
  CHECK(numbers(run.output("y")) == std::vector<double>{2, 6});
  cell->set(5.0);
  run.step();
  CHECK(numbers(run.output("y")) == std::vector<double>{5, 15});
}
