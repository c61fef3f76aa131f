#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <samite/expr/tensor.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/mask.hpp>
#include <samite/nn/attention.hpp>
#include <samite/run/executor.hpp>
#include <samite/run/plan_kernels.hpp>
#include <samite/run/row_tuning.hpp>

#include "jit/allocations.hpp"
#include "support/jit_faults.hpp"
#include "support/raised.hpp"

using namespace samite;
using namespace samite_tests;
using mode = disk_cache::mode;

namespace {

/// A node of each kind that launches kernels, but for products, which are cuBLASLt's.
void add_every_kind(graph& g, const scalar& width) {
  const value Q = g.input("Q", f32, {1, 2, 70, 32}), K = g.input("K", f32, {1, 2, 70, 32}), V = g.input("V", f32, {1, 2, 70, 32});
  const attention_result a = attention(Q, K, V, {.mask = causal() && window(width), .label = "attend"});
  g.output("attended", contiguous(a.out));
  g.output("scaled", let(K * 2, {.label = "scaled"})), g.output("scaled again", let(V * 2, {.label = "again"}));
  g.output("sum", sum_to(Q, {1, 1, 1, 32}));
  g.output("joined", concat({Q, K}, 2));
  g.output("turned", contiguous(transpose(Q, {0, 2, 1, 3})));
  g.output("dV", contiguous(gradient(total(a.out), {V})[0]));
}

plan plan_of_every_kind(index_t width_tokens, device on = device::cpu()) {
  graph g;
  const scalar width = width_tokens;
  add_every_kind(g, width);
  return make_plan(g, on);
}

std::vector<std::string> labels_of(const std::vector<kernel_source>& sources) {
  std::vector<std::string> labels;
  for (const kernel_source& source : sources) labels.push_back(source.label);
  std::sort(labels.begin(), labels.end());
  return labels;
}

}  // namespace

TEST_CASE("the kernels of a plan are known without a GPU: one of each program, named after the first that has it") {
  const plan p = plan_of_every_kind(9);
  const std::vector<kernel_source> sources = kernels_of(p, "sm_90a");
  const std::vector<std::string> labels = labels_of(sources);
  const auto has = [&](const std::string& part) { return std::count_if(labels.begin(), labels.end(), [&](const std::string& label) { return label.find(part) != std::string::npos; }); };
  CHECK(has("attention_forward_f32_d32") == 1);
  CHECK(has("attention_query_gradient_f32_d32") == 1);
  CHECK(has("scaled") == 1);
  CHECK(has("again") == 0);
  CHECK(has("sum_to") == 1);
  CHECK(has("copy") == 1);
  for (const kernel_source& source : sources) CHECK(source.arch == "sm_90a");
}

TEST_CASE("what a plan compiles depends on the plan alone: another graph of the same model, with other numbers, has the same texts") {
  const auto first = kernels_of(plan_of_every_kind(9), "sm_80"), second = kernels_of(plan_of_every_kind(20), "sm_80");
  REQUIRE(first.size() == second.size());
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(first[i].text == second[i].text);
}

TEST_CASE("on sm_90a attention in bf16 has its own kernel and the mask's bits; the portable one is kept for tensors that TMA can't read") {
  graph g;
  const value Q = g.input("Q", bf16, {1, 2, 70, 64});
  g.output("out", contiguous(attention(Q, Q, Q, {.mask = causal()}).out));
  const plan p = make_plan(g);
  const detail::plan_kernels all(p, "sm_90a");
  CHECK(labels_of(all.sources(false)) == std::vector<std::string>{"attention_bits", "attention_forward_sm90_bf16_d64", "copy"});
  CHECK(labels_of(all.sources(true)) == std::vector<std::string>{"attention_bits", "attention_forward_bf16_d64", "attention_forward_sm90_bf16_d64", "copy"});
  CHECK(labels_of(kernels_of(p, "sm_80")) == std::vector<std::string>{"attention_forward_bf16_d64", "copy"});
}

TEST_CASE("SAMITE_RACECHECK=1 has kernels whose threads all arrive at barriers, another value is E-ENV-VALUE") {
  const plan p = plan_of_every_kind(20);
  ::setenv("SAMITE_RACECHECK", "1", 1);
  CHECK(kernels_of(p, "sm_90a")[0].options == std::vector<std::string>{"-DSAMITE_EVERY_THREAD_ARRIVES"});
  ::setenv("SAMITE_RACECHECK", "2", 1);
  CHECK(unlike("E-ENV-VALUE", {"SAMITE_RACECHECK", "2"}, [&] { kernels_of(p, "sm_90a"); }) == "");
  ::unsetenv("SAMITE_RACECHECK");
  CHECK(kernels_of(p, "sm_90a")[0].options.empty());
}

TEST_CASE("row kernels have the team that was tuned for the device class, and the rule's own for a class that is not known") {
  graph g;
  g.output("y", let(g.input("x", f32, {4, 2000}) * 2, {.label = "twice"}));
  const plan p = make_plan(g);
  tuner::instance().pin(row_team_problem(2000, false, "a class of this test"), "team=32");
  const auto text_for = [&](const char* device_class) { return detail::plan_kernels(p, "sm_90a", device_class).sources(true)[0].text; };
  CHECK(text_for("a class of this test") != text_for(""));
  CHECK(text_for("another class of this test") == text_for(""));
}

TEST_CASE("an executor on the CPU compiles its plan's kernels for a GPU that it is told of, once") {
  graph g;
  g.output("y", let(g.input("x", f32, {4, 8}) * 2, {.label = "twice"}));
  disk_cache none("", mode::off);
  kernel_cache cache(none, echo, one_build);
  compile_plans_for("sm_90a", cache);
  executor first(make_plan(g)), second(make_plan(g));
  compile_plans_for("", cache);
  executor third(make_plan(g, device::cpu()));
  CHECK(cache.counters().compiles == 1);
  REQUIRE(cache.history().size() == 1);
  CHECK(cache.history()[0].arch == "sm_90a");
}

TEST_CASE("helper: makes an executor with SAMITE_COMPILE_FOR as it is" * doctest::skip()) {
  graph g;
  g.output("y", let(g.input("x", f32, {4, 8}) * 2));
  CHECK(unlike("E-ENV-VALUE", {"SAMITE_COMPILE_FOR=\"hopper\"", "sm_90a"}, [&] { executor run(make_plan(g)); }) == "");
}

TEST_CASE("archs that the kernels don't serve are refused before anything is compiled") {
  for (const char* arch : {"sm_70", "sm_12345", "sm_", "sm_9", "sm_90b", "compute_90", "sm_090"}) CHECK_THROWS_WITH_AS(compile_plans_for(arch), doctest::Contains("E-ARG"), error);
  for (const char* arch : {"sm_80", "sm_90a", "sm_100f", "sm_121", ""}) CHECK_NOTHROW(compile_plans_for(arch));
}

TEST_CASE("SAMITE_COMPILE_FOR that is no arch is E-ENV-VALUE") {
  CHECK(run_alone("helper: makes an executor with SAMITE_COMPILE_FOR*", "SAMITE_COMPILE_FOR=hopper").first == 0);
}

TEST_CASE("helper: runs every kind of node on the driver without a device, from the cache in SAMITE_CACHE_DIR" * doctest::skip()) {
  void* const driver = ::dlopen(SAMITE_STUB_CUDA, RTLD_NOW);
  REQUIRE(driver != nullptr);
  const int& launches = *static_cast<int*>(::dlsym(driver, "stub_launches"));
  executor run(plan_of_every_kind(9, device::cuda(1)));  // 9.0
  for (const char* name : {"Q", "K", "V"}) run.bind(name, run.device_backend().make_tensor(f32, {1, 2, 70, 32}));
  for (int i = 0; i < 3; ++i) run.step();
  const int before = launches;
  run.step();
  const int step_launches = launches - before;
  CHECK(kernel_cache::instance().counters().compiles == 0);
  CHECK(kernel_cache::instance().counters().disk_hits == int(kernels_of(run.source(), "sm_90a").size()));
  const long long allocations = allocations_of_thread();
  constexpr int steps = 2000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) run.step();
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  const double each = us / steps / step_launches;
  const double step_allocations = double(allocations_of_thread() - allocations) / steps;
  std::printf("launches a step %d, host time a launch %.3f us, allocations a step %.2f\n", step_launches, each, step_allocations);
  CHECK(step_allocations <= 2);  // the width of the window in the key of the tile lists, forward and backward
}

TEST_CASE("with kernels that another machine compiled, and no compiler, a plan runs with 0 compiles; a step builds no text and allocates nothing for its launches") {
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  kernel_cache filler(disk, echo, one_build);
  for (const kernel_source& source : kernels_of(plan_of_every_kind(3), "sm_90a")) filler.get(source);
  const auto ended = run_alone("helper: runs every kind of node*", "SAMITE_NVRTC_PATH=/nowhere SAMITE_CACHE_DIR=" + (folder / "c"));
  const std::string& said = ended.second;
  CAPTURE(said);
  CHECK(ended.first == 0);
  MESSAGE(said.substr(said.find("launches a step"), said.find('\n', said.find("launches a step")) - said.find("launches a step")));
}
