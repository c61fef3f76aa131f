// Blocks, losses and gradients of a drafter's training step against three public trainers (tests/golden/README.md).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <samite/ir/autodiff.hpp>
#include <samite/train/drafter_loss.hpp>

#include "support/golden.hpp"

using namespace samite_tests;

namespace {

// A trainer's rules.
struct trainer_rules {
  std::string file;
  std::vector<draft_layer> layers;
  bool packed = true, mask_padded_anchor = true;
  padded_slots padded = padded_slots::own_block;
  samite::window_rule window = window_rule::per_slot;
  draft_target target = draft_target::text;
  double epsilon = 0;           // added to the denominator
  bool divide_by_valid = false; // sum of valid instead of sum of weights
};

const trainer_rules automodel_full{.file = "automodel_full", .layers = {{}, {}}, .epsilon = 1e-6};
const trainer_rules automodel_window{.file = "automodel_window", .layers = {{.window = 16}, {.window = 16}}, .epsilon = 1e-6};
const trainer_rules speculators{.file = "speculators_mixed", .layers = {{.window = 16, .causal = true}, {}}, .mask_padded_anchor = false, .window = window_rule::fixed_at_anchor,
                                .target = draft_target::teacher_argmax, .epsilon = 1e-5, .divide_by_valid = true};
const trainer_rules specforge{.file = "specforge_mixed", .layers = {{.window = 16, .causal = true}, {}}, .packed = false, .padded = padded_slots::hidden};

// w * x / sqrt(mean(x^2) + eps) of each row, in double: the verifier's norm, which trainers apply before the head.
tensor normalised(const tensor& x, const tensor& w, double eps) {
  tensor out(f32, x.dims());
  const index_t C = x.dims()[1];
  for (index_t r = 0; r < x.dims()[0]; ++r) {
    const float* in = x.data<float>() + r * C;
    double squares = 0;
    for (index_t i = 0; i < C; ++i) squares += double(in[i]) * double(in[i]);
    for (index_t i = 0; i < C; ++i) out.data<float>()[r * C + i] = float(double(in[i]) / std::sqrt(squares / double(C) + eps) * double(w.data<float>()[i]));
  }
  return out;
}

std::vector<float> to_floats(const std::vector<double>& x) { return {x.begin(), x.end()}; }

// One training step of a trainer on its golden inputs.
struct golden_step {
  trainer_rules rules;
  golden_file golden, inputs;
  drafter_config config = golden_drafter_config("dflash_forward/drafter/config.json");
  packed_row row;
  block_batch blocks;
  graph g;
  drafter_step step;
  std::optional<executor> run;

  golden_step(const trainer_rules& r, const drafter_loss_options& o = {})
      : rules(r), golden("dflash_training/" + r.file + ".safetensors"), inputs("dflash_training/" + (r.packed ? std::string("inputs") : r.file) + ".safetensors") {
    config.layer_types = rules.layers;
    row.ids = inputs.integers<std::int32_t>("input_ids");
    row.loss_mask = inputs.integers<std::uint8_t>("loss_mask");
    const index_t S = row.length();
    for (index_t p = 0; p < S; ++p) row.positions.push_back(std::int32_t(p)), row.documents.push_back(0);
    if (rules.packed) row.positions = inputs.integers<std::int32_t>("position_ids"), row.documents = inputs.integers<std::int32_t>("document_ids");
    blocks.anchors = inputs.integers("anchors"), blocks.keep = inputs.integers("keep");
    fill_blocks(blocks, row, {.block_size = config.block_size, .mask_token_id = config.mask_token_id, .gamma = 4, .mask_padded_anchor = rules.mask_padded_anchor});

    const index_t N = index_t(blocks.anchors.size());
    const table_ref anchors = table(blocks.anchors, {N}), keep = table(blocks.keep, {N}), documents = table(std::vector<index_t>(row.documents.begin(), row.documents.end()), {S});
    std::vector<any_mask> masks;
    for (const draft_layer& l : config.layer_types) {
      dflash_mask_options m{.context_length = scalar(S), .block_size = config.block_size, .anchors = anchors, .keep = keep, .causal = l.causal, .padded = rules.padded, .rule = rules.window};
      if (rules.packed) m.documents = documents;
      if (l.window) m.window = scalar(*l.window);
      masks.push_back(dflash_mask(m));
    }
    drafter_loss_options options = o;
    options.target = rules.target;
    step = build_drafter_step(g, config, masks, dim(S), slots(), f32, f32, options);
  }

  index_t slots() const { return index_t(blocks.ids.size()); }

  value per_slot(const std::vector<double>& x) { return g.constant(x, f32, {slots(), 1}); }
  value valid() { return per_slot({blocks.valid.begin(), blocks.valid.end()}); }
  value loss() { return let(step.numerator / ((rules.divide_by_valid ? total(valid()) : step.denominator) + rules.epsilon)); }
  // Sum of weight * x over the slots, by the number of valid slots: how one trainer reports each of its objectives.
  value by_valid_slots(const value& x, const value& weight) { return let(total(weight * x) / (total(valid()) + rules.epsilon)); }

  void execute() {
    run.emplace(make_plan(g));
    bind_weights(*run, golden_forward_weights(config));
    const index_t S = row.length(), M = slots();
    run->bind("features", inputs["context_features"].reshaped({1, S, index_t(config.target_layer_ids.size()) * config.target_hidden}));
    run->bind("context_positions", tensor::from<std::int32_t>(i32, {1, S}, row.positions));
    run->bind("block_ids", tensor::from<std::int32_t>(i32, {1, M}, blocks.ids));
    run->bind("block_positions", tensor::from<std::int32_t>(i32, {1, M}, blocks.positions));
    run->bind("labels", tensor::from<std::int32_t>(i32, {M, 1}, blocks.labels));
    run->bind("weights", tensor::from<float>(f32, {M, 1}, blocks.weights));
    run->bind("valid", tensor::from<float>(f32, {M, 1}, blocks.valid));
    if (rules.target != draft_target::text) {
      run->bind("teacher_rows", tensor::from<std::int32_t>(i32, {M}, blocks.teacher_rows));
      run->bind("last_hidden", normalised(golden["verifier_last_hidden"], golden["verifier_norm.weight"], config.sizes.norm_eps));
    }
    run->step();
  }
  double result(const std::string& name) { return double(run->output(name).data<float>()[0]); }

  // A result's rows where the slot is trained, the others zeroed.
  tensor where_valid(const tensor& t) const {
    tensor out = t.to_dtype(f32).clone();
    const index_t width = out.elements() / slots();
    for (index_t i = 0; i < out.elements(); ++i)
      if (blocks.valid[std::size_t(i / width)] == 0) out.data<float>()[i] = 0;
    return out;
  }
  draft_metrics metrics() {
    draft_metrics m;
    m.add(blocks.valid, run->output("right").values<float>(), config.block_size);
    return m;
  }
};

double counted(const draft_metrics& m) {
  double sum = 0;
  for (const double c : m.counted) sum += c;
  return sum;
}
double correct(const draft_metrics& m) {
  double sum = 0;
  for (const double c : m.correct) sum += c;
  return sum;
}

doctest::Approx close_to(double expected) { return doctest::Approx(expected).epsilon(1e-5).scale(0); }

}  // namespace

TEST_CASE("blocks, positions, labels and weights are those of each trainer") {
  for (const trainer_rules& rules : {automodel_full, automodel_window, speculators, specforge}) {
    CAPTURE(rules.file);
    golden_step s(rules);
    CHECK(s.blocks.ids == s.golden.integers<std::int32_t>("block_ids"));
    CHECK(s.blocks.positions == s.golden.integers<std::int32_t>("block_position_ids"));
    CHECK(s.blocks.valid == to_floats(s.golden.numbers("valid")));
    if (s.golden.has("labels")) CHECK(golden_difference(s.where_valid(tensor::from<std::int32_t>(i32, {s.slots()}, s.blocks.labels)), s.where_valid(s.golden["labels"]), {0, 0}) == "");
    std::vector<double> weights = s.golden.has("weights") ? s.golden.numbers("weights") : s.golden.numbers("valid");
    if (!s.golden.has("weights"))
      for (std::size_t i = 0; i < weights.size(); ++i) weights[i] *= s.golden.numbers("decay")[i % 8];
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double expected = weights[i] * double(s.blocks.valid[i]);
      if (expected == 0) CHECK(s.blocks.weights[i] == 0);
      else CHECK(double(s.blocks.weights[i]) == close_to(expected));
    }
  }
}

TEST_CASE("a training step has each trainer's hidden states, logits, losses and gradients") {
  for (const trainer_rules& rules : {automodel_full, automodel_window, speculators, specforge}) {
    CAPTURE(rules.file);
    golden_step s(rules);
    const value loss = s.loss();
    s.g.output("loss", loss), s.g.output("numerator", s.step.numerator), s.g.output("denominator", s.step.denominator), s.g.output("right", s.step.right);
    s.g.output("hidden", s.step.forward.hidden), s.g.output("logits", s.step.logits), s.g.output("token_ce", s.step.token_ce);
    if (rules.target != draft_target::text) s.g.output("teacher", s.step.teacher), s.g.output("teacher_argmax", argmax(s.step.teacher));
    REQUIRE(s.step.parameters.size() == 25);
    const std::vector<value> gradients = gradient(loss, s.step.parameters);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      names.push_back(s.g.node(s.step.parameters[i].node()).label);
      s.g.output("grad." + names.back(), contiguous(gradients[i]));
    }
    s.execute();
    CHECK(golden_difference(s.run->output("hidden"), s.golden["hidden"]) == "");
    CHECK(golden_difference(s.run->output("logits"), s.golden["logits"]) == "");
    CHECK(golden_difference(s.where_valid(s.run->output("token_ce")), s.where_valid(s.golden["token_ce"])) == "");
    if (rules.target != draft_target::text) {
      CHECK(golden_difference(s.where_valid(s.run->output("teacher")), s.where_valid(s.golden["teacher_logits"])) == "");
      CHECK(golden_difference(s.where_valid(s.run->output("teacher_argmax")), s.where_valid(s.golden["teacher_ids"]), {0, 0}) == "");
    }
    CHECK(s.result("loss") == close_to(s.golden.number("loss")));
    if (s.golden.has("loss_numerator")) CHECK(s.result("numerator") == close_to(s.golden.number("loss_numerator")));
    if (s.golden.has("loss_denominator")) CHECK(s.result("denominator") == close_to(s.golden.number("loss_denominator")));
    if (s.golden.has("loss_weight_sum")) CHECK(s.result("denominator") == close_to(s.golden.number("loss_weight_sum")));
    for (const std::string& name : names) {
      CAPTURE(name);
      CHECK(golden_gradient_difference(s.run->output("grad." + name), s.golden["grad." + name]) == "");
    }

    const draft_metrics m = s.metrics();
    if (s.golden.has("accuracy")) CHECK(correct(m) / counted(m) == close_to(s.golden.number("accuracy")));
    if (s.golden.has("valid_tokens")) CHECK(counted(m) == s.golden.number("valid_tokens"));
    if (s.golden.has("correct_tokens")) CHECK(correct(m) == s.golden.number("correct_tokens"));
    if (s.golden.has("accept_len")) {
      CHECK(m.acceptance_length() == close_to(s.golden.number("accept_len")));
      CHECK(m.accepted == s.golden.number("accept_len_sum"));
      CHECK(m.blocks == s.golden.number("valid_blocks"));
    }
    if (s.golden.has("accept_len_per_block")) {
      const std::vector<double> expected = s.golden.numbers("accept_len_per_block");
      const std::size_t bs = std::size_t(s.config.block_size);
      for (std::size_t n = 0; n < expected.size(); ++n) {
        draft_metrics block;
        block.add(std::span(s.blocks.valid).subspan(n * bs, bs), s.run->output("right").values<float>().subspan(n * bs, bs), s.config.block_size);
        CHECK(block.accepted - block.blocks == expected[n]);  // without the bonus token
      }
    }
    if (s.golden.has("metric.eal_sum")) {
      for (index_t k = 1; k < s.config.block_size; ++k) {
        CHECK(m.correct[std::size_t(k)] == s.golden.number(concat_text("metric.position_", k, "_acc_sum")));
        CHECK(m.counted[std::size_t(k)] == s.golden.number(concat_text("metric.position_", k, "_acc_total")));
      }
      CHECK(correct(m) == s.golden.number("metric.full_acc_sum"));
      CHECK(counted(m) == s.golden.number("metric.full_acc_total"));
      CHECK(marginal_acceptance(m) == close_to(s.golden.number("metric.eal_sum")));
    }
  }
}

TEST_CASE("with gamma 0 all slots count the same") {
  for (const trainer_rules& rules : {automodel_full, automodel_window}) {
    CAPTURE(rules.file);
    golden_step s(rules);
    fill_blocks(s.blocks, s.row, {.block_size = 8, .mask_token_id = s.config.mask_token_id, .gamma = 0});
    s.g.output("loss", s.loss());
    s.execute();
    CHECK(s.result("loss") == close_to(s.golden.number("loss_no_decay")));
  }
}

TEST_CASE("divergences from the teacher have one trainer's values") {
  constexpr std::pair<const char*, divergence> kinds[] = {{"kl_div", divergence::forward_kl}, {"rkl", divergence::reverse_kl}, {"jsd", divergence::jensen_shannon},
                                                          {"tv", divergence::total_variation}, {"nla", divergence::negative_log_acceptance}, {"lk_hybrid", divergence::kl_tv_hybrid}};
  golden_step s(speculators);
  const value rows = reshape(s.step.logits, {s.slots(), s.config.vocab_size});
  const value weights = s.per_slot({s.blocks.weights.begin(), s.blocks.weights.end()});
  for (const auto& [name, kind] : kinds) s.g.output(name, s.by_valid_slots(distillation(rows, s.step.teacher, kind), weights));
  s.execute();
  for (const auto& pair : kinds) {
    const std::string name = pair.first;
    CAPTURE(name);
    CHECK(s.result(name) == close_to(s.golden.number(concat_text("loss.", name))));
  }
}

TEST_CASE("the soft cross-entropy is the forward divergence and the teacher's entropy") {
  golden_step s(speculators);
  const value rows = reshape(s.step.logits, {s.slots(), s.config.vocab_size});
  s.g.output("sum", let(distillation(rows, s.step.teacher, divergence::forward_kl) + soft_cross_entropy(s.step.teacher, s.step.teacher)));
  s.g.output("soft", soft_cross_entropy(rows, s.step.teacher));
  s.execute();
  CHECK(golden_difference(s.run->output("sum"), s.run->output("soft")) == "");
}

TEST_CASE("gradients of the divergences are those of finite differences") {
  constexpr index_t rows = 3, V = 5;
  for (const divergence kind : {divergence::forward_kl, divergence::reverse_kl, divergence::jensen_shannon, divergence::total_variation, divergence::negative_log_acceptance, divergence::kl_tv_hybrid}) {
    CAPTURE(int(kind));
    graph g;
    const value logits = g.parameter("logits", f64, {rows, V}), teacher = g.input("teacher", f64, {rows, V});
    const value loss = total(distillation(logits, teacher, kind));
    g.output("loss", loss), g.output("d", contiguous(gradient(loss, {logits})[0]));
    executor run(make_plan(g));
    tensor x(f64, {rows, V}), t(f64, {rows, V});
    counted_random random(4, 1);
    for (index_t i = 0; i < rows * V; ++i) x.data<double>()[i] = 2 * random.normal(), t.data<double>()[i] = 2 * random.normal();
    run.bind("logits", x), run.bind("teacher", t);
    run.step();
    const tensor d = run.output("d").clone();
    // The hybrid's share is constant, so its own change is taken out of the difference: the share at x, parts at x +- h.
    std::vector<double> share(std::size_t(rows), -1.0);
    const auto value_at = [&] {
      double sum = 0;
      for (index_t r = 0; r < rows; ++r) {
        double zq = 0, zp = 0, kl = 0, overlap = 0;
        for (index_t v = 0; v < V; ++v) zq += std::exp(x.data<double>()[r * V + v]), zp += std::exp(t.data<double>()[r * V + v]);
        for (index_t v = 0; v < V; ++v) {
          const double q = std::exp(x.data<double>()[r * V + v]) / zq, p = std::exp(t.data<double>()[r * V + v]) / zp, m = (p + q) / 2;
          switch (kind) {
            case divergence::reverse_kl: sum += q * std::log(q / p); break;
            case divergence::jensen_shannon: sum += (p * std::log(p / m) + q * std::log(q / m)) / 2; break;
            case divergence::forward_kl: sum += p * std::log(p / q); break;
            default: kl += p * std::log(p / q), overlap += std::min(p, q);
          }
        }
        if (kind == divergence::total_variation) sum += 1 - overlap;
        if (kind == divergence::negative_log_acceptance) sum -= std::log(overlap);
        if (kind == divergence::kl_tv_hybrid) {
          if (share[std::size_t(r)] < 0) share[std::size_t(r)] = std::exp(-3 * overlap);
          sum += share[std::size_t(r)] * kl + (1 - share[std::size_t(r)]) * (1 - overlap);
        }
      }
      return sum;
    };
    CHECK(run.output("loss").data<double>()[0] == doctest::Approx(value_at()).epsilon(1e-12));
    for (index_t i = 0; i < rows * V; ++i) {
      const double h = 1e-6, at = x.data<double>()[i];
      x.data<double>()[i] = at + h;
      const double above = value_at();
      x.data<double>()[i] = at - h;
      const double below = value_at();
      x.data<double>()[i] = at;
      CHECK(d.data<double>()[i] == doctest::Approx((above - below) / (2 * h)).epsilon(1e-6).scale(1));
    }
  }
}

TEST_CASE("divergences stay finite where one side's probability is 0 in fp32") {
  graph g;
  const value logits = g.parameter("logits", f32, {1, 3}), teacher = g.input("teacher", f32, {1, 3});
  std::vector<std::string> names;
  for (const divergence kind : {divergence::forward_kl, divergence::reverse_kl, divergence::jensen_shannon, divergence::total_variation, divergence::negative_log_acceptance, divergence::kl_tv_hybrid}) {
    const value loss = total(distillation(logits, teacher, kind));
    names.push_back(std::to_string(int(kind)));
    g.output(names.back(), loss), g.output("d" + names.back(), contiguous(gradient(loss, {logits})[0]));
  }
  executor run(make_plan(g));
  run.bind("logits", tensor::from({1, 3}, std::vector<float>{500, 0, -400})), run.bind("teacher", tensor::from({1, 3}, std::vector<float>{-400, 300, 0}));
  run.step();
  for (const std::string& name : names) {
    CAPTURE(name);
    CHECK(std::isfinite(run.output(name).data<float>()[0]));
    const tensor gradients = run.output("d" + name);  // named: the loop reads its memory
    for (const float x : gradients.values<float>()) CHECK(std::isfinite(x));
  }
}

TEST_CASE("D-PACE weights and losses are those of two trainers") {
  const auto by_block = [](golden_step& s, const value& x) { return reshape(x, {s.slots() / s.config.block_size, s.config.block_size}); };
  const auto check_weights = [](golden_step& s, const std::string& result, const std::string& name) {
    CAPTURE(name);
    CHECK(golden_difference(s.where_valid(s.run->output(result)), s.where_valid(s.golden[name])) == "");
  };
  golden_step sp(speculators, {.weighting = draft_weighting::dpace});
  sp.g.output("loss", sp.loss());
  sp.g.output("weights", dpace_weights(by_block(sp, sp.step.token_ce), by_block(sp, sp.valid())).weights);
  sp.execute();
  CHECK(sp.result("loss") == close_to(sp.golden.number("loss.ce_dpace")));
  check_weights(sp, "weights", "dpace_weights");

  golden_step sf(specforge);
  const dpace_parts parts = dpace_weights(by_block(sf, sf.step.token_ce), by_block(sf, sf.valid()));
  const std::pair<const char*, value> variants[] = {{"dpace", parts.weights}, {"dpace_cumulative_confidence_only", parts.confidence}, {"dpace_continuation_value_only", parts.continuation}};
  for (const auto& [name, weights] : variants) {
    sf.g.output(concat_text("weights.", name), weights);
    sf.g.output(concat_text("loss.", name), total(reshape(weights, {sf.slots(), 1}) * sf.step.token_ce));  // one row: by 1
  }
  sf.execute();
  for (const auto& pair : variants) {
    const std::string name = pair.first;
    CAPTURE(name);
    CHECK(sf.result(concat_text("loss.", name)) == close_to(sf.golden.number(concat_text("loss.", name))));
    check_weights(sf, concat_text("weights.", name), concat_text("weights.", name));
  }
}

TEST_CASE("accuracy and accepted lengths of hand-made blocks are those of two trainers") {
  const golden_file golden("metrics.safetensors");
  const std::vector<index_t> labels = golden.integers("labels"), predictions = golden.integers("predictions");
  const std::vector<float> valid = to_floats(golden.numbers("valid"));
  std::vector<float> right;
  for (std::size_t i = 0; i < labels.size(); ++i) right.push_back(labels[i] == predictions[i] ? 1.0f : 0.0f);
  draft_metrics m;
  m.add(valid, right, 7);
  CHECK(m.correct == golden.numbers("correct_per_slot"));
  CHECK(m.counted == golden.numbers("count_per_slot"));
  CHECK(correct(m) / counted(m) == close_to(golden.number("pooled_accuracy")));
  CHECK(m.blocks == golden.number("valid_blocks"));
  CHECK(m.accepted == golden.number("accept_len_sum"));
  CHECK(m.acceptance_length() == close_to(golden.number("accept_len")));
  CHECK(marginal_acceptance(m) == close_to(golden.number("marginal_eal")));
  const std::vector<double> accepted = golden.numbers("block_accepted");
  for (std::size_t n = 0; n < accepted.size(); ++n) {
    draft_metrics block;
    block.add(std::span(valid).subspan(n * 7, 7), std::span(right).subspan(n * 7, 7), 7);
    CHECK(block.accepted - block.blocks == accepted[n]);
  }
}
