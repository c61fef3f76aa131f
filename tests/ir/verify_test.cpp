#include <doctest/doctest.h>

#include <algorithm>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/ir/verify.hpp>
#include <samite/mask/causal.hpp>
#include <samite/nn/attention.hpp>

#include "support/raised.hpp"

using namespace samite;
using samite_tests::unlike;

TEST_CASE("every broken promise of a graph is found, with the node's number, label and type") {
  const auto fault = [](std::initializer_list<const char*> parts, auto&& build) {
    graph g;
    build(g, g.input("x", f32, {2, 3}));
    return unlike("E-GRAPH-VERIFY", parts, [&] { verify(g); });
  };
  const value_info good = row_major(f32, {2, 3});
  CHECK(fault({"node 1", "\"late\"", "(copy)", "before"}, [&](graph& g, value) { g.add(copy_node{}, {value(&g, 1, 0)}, {good}, "late"); }) == "");
  CHECK(fault({"before"}, [&](graph& g, value) { g.add(copy_node{}, {value(&g, -1, 0)}, {good}); }) == "");
  CHECK(fault({"output that does not exist"}, [&](graph& g, value) { g.add(copy_node{}, {value(&g, 0, 1)}, {good}); }) == "");
  CHECK(fault({"output that does not exist"}, [&](graph& g, value) { g.add(copy_node{}, {value(&g, 0, -1)}, {good}); }) == "");
  CHECK(fault({"memory order"}, [&](graph& g, value x) { g.add(copy_node{}, {x}, {value_info{f32, {2, 3}, {0}, true}}); }) == "");
  CHECK(fault({"negative"}, [&](graph& g, value) { g.input("n", f32, {2, tokens(4, "S") - 8}); }) == "");
  const auto program_of = [](index_t slot, bool has_root) {
    auto p = std::make_shared<program>();
    const node_id x = build_operand(*p, slot, value_kind::real);
    if (has_root) p->roots = {x};
    return p;
  };
  CHECK(fault({"(fused)", "1 outputs but 0 roots"}, [&](graph& g, value x) { g.add(fused_node{program_of(0, false), {2, 3}}, {x}, {good}); }) == "");
  CHECK(fault({"(fused)", "operand that is not there"}, [&](graph& g, value x) { g.add(fused_node{program_of(1, true), {2, 3}}, {x}, {good}); }) == "");
}

TEST_CASE("a graph of every kind of node with its gradients keeps its promises, and a node of several outputs prints them") {
  graph g;
  const value q = g.parameter("q", f32, {1, 2, 4, 8}), k = g.parameter("k", f32, {1, 1, 4, 8}), table = g.parameter("table", f32, {5, 8});
  const value rows = embedding(table, g.input("ids", i32, {4}), "words");
  const attention_result a = attention(q, k, concat({slice(k, 2, 1, 3), slice(k, 2, 0, 1)}, 2), {.mask = causal(), .label = "heads"});
  const value mixed = matmul(reshape(transpose(a.out, {0, 2, 1, 3}), {4, 16}), g.constant(std::vector<double>(128, 0.5), f32, {16, 8}));
  const value loss = total(square(mixed + rows));
  const std::vector<value> d = gradient(loss, g.parameters());
  REQUIRE(d.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(d[i].dims() == g.parameters()[i].dims());
  g.output("loss", loss), g.output("lse", a.lse);
  verify(g);
  const std::string text = print(g);
  CHECK(text.find(".0 f32[1,2,4,8], %") != std::string::npos);
  CHECK(text.find(".1 f32[1,2,4,1] = attention(%") != std::string::npos);
  CHECK(text.find("= attention_gradient(") != std::string::npos);
  CHECK(text.find("= embedding_gradient(") != std::string::npos);
  CHECK(text.find("output \"lse\" = %" + std::to_string(a.lse.node()) + ".1\n") != std::string::npos);
  // One line a node and one an output.
  CHECK(index_t(std::count(text.begin(), text.end(), '\n')) == index_t(g.nodes().size()) + 2);
}
