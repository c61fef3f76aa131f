#include <doctest/doctest.h>

#include <limits>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>

#include "support/raised.hpp"

using namespace samite;
using samite_tests::unlike;

TEST_CASE("a value that was never computed is refused wherever it is used") {
  graph g;
  const value x = g.input("x", f32, {2, 3}), none;
  CHECK_FALSE(none);
  CHECK(x);
  CHECK(unlike("E-GRAPH-OWNER", {"never computed"}, [&] { let(x + none); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"never computed"}, [&] { matmul(none, x); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"never computed"}, [&] { matmul(x, none); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"never computed"}, [&] { reshape(none, {6}); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"never computed"}, [&] { g.output("y", none); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"never computed"}, [&] { gradient(none, {x}); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"never computed"}, [&] { gradient(total(x), {none}); }) == "");
  CHECK(g.outputs().empty());
}

TEST_CASE("a value of another graph is refused, as an operand, as a result and where a gradient is wanted") {
  graph g, h;
  const value x = g.parameter("x", f32, {2});
  value y = h.parameter("y", f32, {2});
  for (int i = 0; i < 100; ++i) y = let(y * 2.0);  // its number is none of g's
  CHECK(unlike("E-GRAPH-OWNER", {"another graph"}, [&] { let(x + y); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"output(\"z\")", "another graph"}, [&] { g.output("z", y); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"gradient", "another graph"}, [&] { gradient(total(x), {x, y}); }) == "");
  CHECK(g.outputs().empty());
}

TEST_CASE("values are handles: two of one node are equal, and extents count from either end") {
  graph g;
  const dim n = tokens(8, "n");
  const value x = g.input("x", bf16, {n, 3, 5});
  const value copy = x;
  CHECK(copy == x);
  CHECK_FALSE(x == g.input("z", bf16, {n, 3, 5}));
  CHECK(x.rank() == 3);
  CHECK(x.extent(0) == n);
  CHECK(x.extent(-1) == dim(5));
  CHECK(x.extent(-2) == x.extent(1));
  CHECK(x.type() == bf16);
}

TEST_CASE("parameters are listed in the order in which they were made, inputs and states are not") {
  graph g;
  const value b = g.parameter("b", f32, {1});
  g.input("x", f32, {1}), g.state("s", f32, {1});
  const value a = g.parameter("a", f32, {1});
  CHECK(g.parameters() == std::vector<value>{b, a});
}

TEST_CASE("nodes get a name of their own where they have none, and may be given another") {
  graph g;
  const value x = g.input("x", f32, {2});
  const value y = let(x + 1.0), z = let(x + 2.0, {.label = "shifted"});
  CHECK(g.node(y.node()).label == "fused_1");
  CHECK(g.node(z.node()).label == "shifted");
  g.label(y, "raised");
  CHECK(g.node(y.node()).label == "raised");
}

TEST_CASE("a view keeps the elements where they are, and what needs them in order copies them") {
  graph g;
  const value x = g.input("x", f32, {2, 3, 4});
  const value t = transpose(x, {2, 0, 1});
  CHECK(t.dims() == shape{4, 2, 3});
  CHECK(t.info().order == std::vector<int>{1, 2, 0});
  CHECK(transpose(t, {1, 2, 0}).info().is_row_major());
  CHECK(contiguous(x) == x);
  CHECK(g.node(contiguous(t).node()).as<copy_node>() != nullptr);
  CHECK(reshape(x, {2, 3, 4}) == x);
  CHECK(slice(x, 1, 0, 3) == x);
  CHECK_FALSE(slice(x, 1, 0, 2).info().is_row_major());
  CHECK(slice(x, -1, 1, 2).dims() == shape{2, 3, 2});
}

TEST_CASE("messages name a node by its label, and leave an empty one out") {
  graph g, h;
  const value x = g.input("x", f32, {2, 3}), w = g.input("w", f32, {2, 3}), other = h.input("other", f32, {3, 2});
  CHECK(unlike("E-SHAPE-INNER", {"matmul: the inner"}, [&] { matmul(x, w); }) == "");
  CHECK(unlike("E-SHAPE-INNER", {"matmul \"up\": the inner"}, [&] { matmul(x, w, {.label = "up"}); }) == "");
  CHECK(unlike("E-SHAPE-INNER", {"linear \"up\": x is [2,3] and w is [3,2]"}, [&] { linear(x, g.input("u", f32, {3, 2}), "up"); }) == "");
  CHECK(unlike("E-DTYPE-OPERANDS", {"matmul: a is"}, [&] { matmul(x, g.input("i", i32, {3, 2})); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"the matmul node \"up\" was given"}, [&] { matmul(x, other, {.label = "up"}); }) == "");
  CHECK(unlike("E-GRAPH-OWNER", {"an unnamed matmul node was given"}, [&] { matmul(x, other); }) == "");
  CHECK(unlike("E-SHAPE-CONCAT", {"give at least one"}, [] { concat({}, 0); }) == "");
  CHECK(unlike("E-SHAPE-SLICE", {"elements 1 to 3", "their sum at most 3"}, [&] { slice(x, 1, 1, 3); }) == "");
  constexpr index_t most = std::numeric_limits<index_t>::max();
  CHECK(unlike("E-SHAPE-SLICE", {"elements 2"}, [&] { slice(x, 1, 2, most); }) == "");
}
