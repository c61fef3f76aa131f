#include <doctest/doctest.h>

#include <cmath>

#include <samite/io/file.hpp>
#include <samite/io/safetensors.hpp>
#include <samite/mask/dflash.hpp>
#include <samite/runtime/thread_pool.hpp>
#include <samite/train/language_model.hpp>

#include "support/drafters.hpp"
#include "support/full_disk.hpp"
#include "support/raised.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny_models.hpp"

using namespace samite_tests;

namespace {

using bytes = std::vector<std::uint8_t>;

bytes bytes_of(const weight_map& weights) {
  bytes all;
  for (const auto& [name, t] : weights) {
    const auto* from = reinterpret_cast<const std::uint8_t*>(t.raw());
    all.insert(all.end(), from, from + t.bytes());
  }
  return all;
}

decoder_config byte_target() { return tiny_target({.hidden = 48, .intermediate = 96, .heads = 4, .kv_heads = 2, .head_dim = 12}, byte_vocabulary, 2); }

std::vector<std::uint8_t> text() {
  std::vector<std::uint8_t> t;
  for (int i = 0; i < 2000; ++i) t.push_back(std::uint8_t('a' + (i * i + i / 7) % 26));
  return t;
}

constexpr index_t windows = 3, window = 70;

struct target_run {
  std::vector<std::uint8_t> corpus = text();
  trainer run;

  explicit target_run(trainer_options o = options(), index_t B = windows)
      : run(device::cpu(), o, [&](graph& g) { return language_model_graph(g, byte_target(), B, window, f32); }) {
    run.set_weights(initial_weights(parameter_shapes(run.inputs().source().source()), 4, 0.1));
  }
  static trainer_options options() {
    trainer_options o;
    o.optimizer.weight_decay = 0.1, o.schedule = {.peak = 1e-2, .steps = 10, .warmup_steps = 2}, o.contract = "tiny target";
    return o;
  }
  void update() {
    bind_windows(run.inputs(), choose_windows(corpus, windows, window + 1, 1, run.step()));
    run.accumulate();
    run.update(windows * window);
  }
};

/// Weights of a tiny drafter after some updates.
bytes train_drafter(index_t updates) {
  const drafter_config c = tiny_drafter({draft_layer{.window = 6, .causal = true}, draft_layer{}});
  const packed_row row = tiny_row({90, 60});
  const index_t S = row.length(), N = 24, M = N * c.block_size;
  block_batch blocks;
  choose_anchors(blocks, anchor_candidates(row, anchor_rule::canonical, c.block_size), N, counted_random(1, 2));
  fill_blocks(blocks, row, {.block_size = c.block_size, .mask_token_id = c.mask_token_id});
  std::vector<any_mask> masks;
  const table_ref anchors = table(blocks.anchors, {1, N}), documents = table(std::vector<index_t>(row.documents.begin(), row.documents.end()), {1, S});
  for (const draft_layer& l : c.layer_types) {
    dflash_mask_options m{.context_length = scalar(S), .block_size = c.block_size, .anchors = anchors, .documents = documents, .causal = l.causal};
    if (l.window) m.window = scalar(*l.window);
    masks.push_back(dflash_mask(m));
  }
  trainer run(device::cpu(), {}, [&](graph& g) {
    const drafter_step step = build_drafter_step(g, c, masks, dim(S), M, f32, bf16);
    return training_graph{step.numerator, step.parameters};
  });
  run.set_weights(tiny_weights(c, f32));
  bind_weights(run.inputs(), {{"target.embedding", tiny_weights(c, bf16).at("target.embedding")}, {"target.head", tiny_weights(c, bf16).at("target.head")}});
  executor& in = run.inputs();
  in.bind("features", random_reals(bf16, {1, S, 24}, 91));
  in.bind("context_positions", tensor::from<std::int32_t>(i32, {1, S}, row.positions));
  in.bind("block_ids", tensor::from<std::int32_t>(i32, {1, M}, blocks.ids)), in.bind("block_positions", tensor::from<std::int32_t>(i32, {1, M}, blocks.positions));
  in.bind("labels", tensor::from<std::int32_t>(i32, {M, 1}, blocks.labels));
  in.bind("weights", tensor::from<float>(f32, {M, 1}, blocks.weights)), in.bind("valid", tensor::from<float>(f32, {M, 1}, blocks.valid));
  double denominator = 0;
  for (const float w : blocks.weights) denominator += double(w);
  for (index_t i = 0; i < updates; ++i) run.accumulate(), run.update(denominator);
  return bytes_of(run.weights());
}

}  // namespace

TEST_CASE("trained weights don't depend on the number of threads") {
  bytes target, drafter;
  for (const int threads : {1, 2, 5}) {
    CAPTURE(threads);
    const thread_limit limit(threads);
    target_run t;
    for (int i = 0; i < 3; ++i) t.update();
    const bytes t_now = bytes_of(t.run.weights()), d_now = train_drafter(3);
    if (threads == 1) target = t_now, drafter = d_now;
    CHECK(t_now == target);
    CHECK(d_now == drafter);
  }
  CHECK(drafter != train_drafter(2));
}

TEST_CASE("a resumed run continues bit for bit") {
  const temporary_folder folder;
  target_run whole;
  for (int i = 0; i < 4; ++i) whole.update();
  target_run first;
  for (int i = 0; i < 2; ++i) first.update();
  first.run.save(folder / "state");
  target_run second;
  second.update();  // what a run did before it loads is forgotten
  second.run.load(folder / "state");
  CHECK(second.run.step() == 2);
  CHECK(bytes_of(second.run.weights()) == bytes_of(first.run.weights()));
  for (int i = 0; i < 2; ++i) second.update();
  CHECK(second.run.step() == 4);
  CHECK(bytes_of(second.run.weights()) == bytes_of(whole.run.weights()));
}

TEST_CASE("a state of another run or a damaged one is refused and changes nothing") {
  const temporary_folder folder;
  const std::string path = folder / "state";
  target_run run;
  run.update();
  run.run.save(path);
  run.update();
  const bytes before = bytes_of(run.run.weights());
  trainer_options other = target_run::options();
  other.contract = "another";
  target_run stranger(other);
  CHECK(unlike("E-CHECKPOINT-CONTRACT", {"tiny target", "another"}, [&] { stranger.run.load(path); }) == "");

  const std::string whole = read_file(path);
  for (const std::size_t size : {whole.size() - 1, whole.size() / 2, std::size_t(9), std::size_t(0)}) {
    write_file(path, whole.substr(0, size));
    std::string code;
    try {
      run.run.load(path);
    } catch (const error& e) {
      code = e.code();
    }
    CHECK(code.starts_with("E-SAFETENSORS-"));
  }
  const std::map<std::string, std::string> metadata = {{"contract", "tiny target"}, {"moment_updates", "1"}, {"step", "1"}};
  const auto state = [&](std::map<std::string, std::string> m, const std::string& change, tensor to) {
    write_file(path, whole);
    const safetensors_file file = safetensors_file::open(path);
    std::vector<std::pair<std::string, tensor>> list;
    for (const std::string& name : file.names())
      if (name != change) list.emplace_back(name, file.load(name).clone());
      else if (!to.is_empty()) list.emplace_back(name, to);
    write_safetensors(path, list, std::move(m));
  };
  const auto refuses = [&](const char* code, std::initializer_list<const char*> parts) { return unlike(code, parts, [&] { run.run.load(path); }); };
  state({{"step", "1"}}, "", {});
  CHECK(refuses("E-CHECKPOINT-TENSOR", {"contract"}) == "");
  state({{"contract", "tiny target"}, {"step", "1x"}}, "", {});
  CHECK(refuses("E-CHECKPOINT-TENSOR", {"1x"}) == "");
  state({{"contract", "tiny target"}, {"step", "-1"}}, "", {});
  CHECK(refuses("E-CHECKPOINT-TENSOR", {"-1"}) == "");
  state(metadata, "adam_v.model.norm.weight", tensor(f32, {47}));
  CHECK(refuses("E-CHECKPOINT-TENSOR", {"adam_v.model.norm.weight", "[47]", "[48]"}) == "");
  state(metadata, "model.norm.weight", tensor(bf16, {48}));
  CHECK(refuses("E-CHECKPOINT-TENSOR", {"bf16"}) == "");
  state(metadata, "model.norm.weight", {});
  CHECK(refuses("E-SAFETENSORS-NAME", {"model.norm.weight"}) == "");
  CHECK(refuses("E-SAFETENSORS-NAME", {}) == "");
  CHECK(run.run.step() == 2);
  CHECK(bytes_of(run.run.weights()) == before);
  state(metadata, "", {});
  run.run.load(path);
  CHECK(run.run.step() == 1);
}

TEST_CASE("several batches of one update give what one large batch gives") {
  trainer_options o = target_run::options();
  o.optimizer.eps = 1e-3;  // so that gradients near zero don't decide by their rounding
  target_run large(o), parts(o, 1);
  for (index_t step = 0; step < 2; ++step) {
    const auto chosen = choose_windows(large.corpus, windows, window + 1, 1, step);
    bind_windows(large.run.inputs(), chosen);
    large.run.accumulate();
    for (const auto& w : chosen) bind_windows(parts.run.inputs(), {w}), parts.run.accumulate();
    large.run.update(windows * window), parts.run.update(windows * window);
    CHECK(parts.run.gradient_norm() == doctest::Approx(large.run.gradient_norm()).epsilon(1e-5));
  }
  const weight_map a = large.run.weights(), b = parts.run.weights();
  for (const auto& [name, t] : a) {
    const std::string& which = name;  // lambdas of clang 14 capture no structured binding
    CAPTURE(which);
    CHECK(largest_difference(to_doubles(t), to_doubles(b.at(name))) < 1e-5);
  }
}

TEST_CASE("AdamW follows a double reference over five steps, with clipping and decay of matrices alone") {
  const adamw_options o{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .max_norm = 1};
  const cosine_schedule schedule{.peak = 0.05, .steps = 5, .warmup_steps = 2};
  trainer run(device::cpu(), {o, schedule, ""}, [](graph& g) {
    const value a = g.parameter("a", f32, {3, 2}), b = g.parameter("b", f32, {4});
    // A loss whose gradients are the inputs themselves.
    return training_graph{let(total(a * g.input("da", f32, {3, 2})) + total(b * g.input("db", f32, {4}))), {a, b}};
  });
  const weight_map start = {{"a", random_reals(f32, {3, 2}, 1)}, {"b", random_reals(f32, {4}, 2)}};
  run.set_weights(start);
  std::vector<double> p = to_doubles(start.at("a")), m(10, 0.0), v(10, 0.0);
  for (const double x : to_doubles(start.at("b"))) p.push_back(x);
  bool clipped = false, unclipped = false;
  for (int step = 0; step < 5; ++step) {
    const double size = step % 2 == 0 ? 3 : 0.1, denominator = 1.5;
    const tensor da = random_reals(f32, {3, 2}, unsigned(10 + step), size), db = random_reals(f32, {4}, unsigned(20 + step), size);
    run.inputs().bind("da", da), run.inputs().bind("db", db);
    run.accumulate();
    run.update(denominator);
    std::vector<double> gradient = to_doubles(da);
    for (const double x : to_doubles(db)) gradient.push_back(x);
    double norm = 0;
    for (double& x : gradient) x /= denominator, norm += x * x;
    norm = std::sqrt(norm);
    CHECK(run.gradient_norm() == doctest::Approx(norm).epsilon(1e-6));
    (norm > 1 ? clipped : unclipped) = true;
    for (std::size_t i = 0; i < 10; ++i) {
      const double x = gradient[i] * std::fmin(1, 1 / (norm + 1e-6));
      m[i] = 0.9 * m[i] + 0.1 * x, v[i] = 0.95 * v[i] + 0.05 * x * x;
      const double rate = schedule.at(step), t = step + 1;
      p[i] -= rate * (m[i] / (1 - std::pow(0.9, t)) / (std::sqrt(v[i] / (1 - std::pow(0.95, t))) + 1e-8) + (i < 6 ? 0.1 * p[i] : 0));
    }
    std::vector<double> now = to_doubles(run.weights().at("a"));
    for (const double x : to_doubles(run.weights().at("b"))) now.push_back(x);
    CHECK(largest_difference(now, p) < 2e-6);
  }
  CHECK((clipped && unclipped));
}

TEST_CASE("an update without a supervised token counts as a step and changes neither weights nor moments") {
  const temporary_folder folder;
  const auto build = [](graph& g) {
    const value a = g.parameter("a", f32, {3, 2});
    return training_graph{total(a * g.input("da", f32, {3, 2})), {a}};
  };
  trainer run(device::cpu(), target_run::options(), build), without(device::cpu(), target_run::options(), build);
  const auto moments = [&](const trainer& t) {
    t.save(folder / "state");
    const safetensors_file file = safetensors_file::open(folder / "state");
    return std::pair(to_doubles(file.load("adam_m.a")), to_doubles(file.load("adam_v.a")));
  };
  for (trainer* t : {&run, &without}) {
    t->set_weights({{"a", random_reals(f32, {3, 2}, 1)}});
    t->inputs().bind("da", random_reals(f32, {3, 2}, 2));
    t->accumulate();
    t->update(1);
  }
  const bytes before = bytes_of(run.weights());
  const auto moments_before = moments(run);
  run.accumulate();
  run.update(0);
  CHECK(bytes_of(run.weights()) == before);
  CHECK(moments(run) == moments_before);
  CHECK(run.step() == 2);
  CHECK(run.gradient_norm() == 0);
  // Moments that were not touched are corrected as such: the next update goes by the updates, the rate by the steps.
  run.accumulate(), run.update(1);
  without.accumulate(), without.update(1);
  CHECK(moments(run) == moments(without));
  trainer resumed(device::cpu(), target_run::options(), build);
  moments(run);
  resumed.load(folder / "state");
  for (trainer* t : {&run, &resumed}) t->inputs().bind("da", random_reals(f32, {3, 2}, 3)), t->accumulate(), t->update(1);
  CHECK(bytes_of(run.weights()) == bytes_of(resumed.weights()));
}

TEST_CASE("a state between accumulate and update is refused, since what was added up would be lost") {
  const temporary_folder folder;
  target_run t;
  t.update();
  bind_windows(t.run.inputs(), choose_windows(t.corpus, windows, window + 1, 1, 1));
  t.run.accumulate();
  CHECK(unlike("E-TRAIN-ORDER", {"1 batches", "update()"}, [&] { t.run.save(folder / "state"); }) == "");
  CHECK(folder.entry_count() == 0);
  t.run.update(windows * window);
  t.run.save(folder / "state");
}

TEST_CASE("a state that meets a full disk is E-FILE-WRITE and the older state stays") {
  const temporary_folder folder;
  target_run t;
  t.run.save(folder / "state");
  const std::string before = read_file(folder / "state");
  t.update();
  {
    const full_disk full(10000);
    CHECK(unlike("E-FILE-WRITE", {"state", "File too large", "unchanged"}, [&] { t.run.save(folder / "state"); }) == "");
  }
  CHECK(read_file(folder / "state") == before);
  CHECK(folder.entry_count() == 1);
}

TEST_CASE("a trainer refuses calls out of order, weights that don't fit and parameters kept in 16 bits") {
  const auto build = [](graph& g) {
    const value a = g.parameter("a", f32, {3, 2});
    return training_graph{total(a * a), {a}};
  };
  trainer run(device::cpu(), {}, build);
  CHECK(unlike("E-TRAIN-ORDER", {"no batch"}, [&] { run.update(1); }) == "");
  run.accumulate();
  CHECK(unlike("E-TRAIN-ORDER", {"denominator is -1"}, [&] { run.update(-1); }) == "");
  CHECK(unlike("E-TRAIN-ORDER", {"nan"}, [&] { run.update(std::nan("")); }) == "");
  CHECK(unlike("E-TRAIN-ORDER", {"inf"}, [&] { run.update(INFINITY); }) == "");
  run.update(1);
  CHECK(unlike("E-MODEL-TENSOR", {"\"a\"", "missing"}, [&] { run.set_weights({}); }) == "");
  CHECK(unlike("E-MODEL-TENSOR", {"another shape"}, [&] { run.set_weights({{"a", tensor(f32, {2, 3})}}); }) == "");
  CHECK(unlike("E-TRAIN-DTYPE", {"\"half\"", "bf16", "f32"}, [] {
          trainer(device::cpu(), {}, [](graph& g) {
            const value h = g.parameter("half", bf16, {2});
            return training_graph{total(h * h, {.type = f32}), {h}};
          });
        }) == "");
}
