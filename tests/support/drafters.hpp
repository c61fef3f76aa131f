// tests/support/drafters.hpp: tiny drafters in their training layout, one packed row at a time.
#pragma once
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <samite/ir/autodiff.hpp>
#include <samite/mask/dflash.hpp>
#include <samite/model/checkpoint.hpp>
#include <samite/run/executor.hpp>
#include <samite/train/drafter_loss.hpp>

namespace samite_tests {

using namespace samite;

inline drafter_config tiny_drafter(std::vector<draft_layer> layers, index_t block_size = 4) {
  drafter_config c;
  c.sizes = {.hidden = 12, .intermediate = 20, .heads = 4, .kv_heads = 2, .head_dim = 6};
  c.vocab_size = 40, c.target_hidden = 12, c.block_size = block_size, c.mask_token_id = 39, c.num_target_layers = 6;
  c.target_layer_ids = {1, 3}, c.layer_types = std::move(layers), c.rope_theta = 1e4;
  return c;
}

inline tensor random_reals(dtype type, extents dims, unsigned seed, double size = 1) {
  tensor t(f64, std::move(dims));
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> number(-size, size);
  for (double& x : t.values<double>()) x = number(generator);
  return t.to_dtype(type);
}

inline std::vector<double> to_doubles(const tensor& t) {
  const tensor wide = t.to_dtype(f64);
  return {wide.values<double>().begin(), wide.values<double>().end()};
}

/// The drafter's weights and the frozen embedding and head, the norms near but not at 1.
inline weight_map tiny_weights(const drafter_config& c, dtype type, unsigned seed = 3) {
  graph g;
  declare_drafter(g, c, f64, f64);
  weight_map weights;
  for (const auto& [name, dims] : parameter_shapes(g)) {
    tensor t = random_reals(f64, dims, seed++, dims.size() > 1 ? 0.5 : 0.3);
    if (dims.size() == 1)
      for (double& x : t.values<double>()) x += 1;
    weights[name] = t.to_dtype(type);
  }
  weights["target.embedding"] = random_reals(type, {c.vocab_size, c.target_hidden}, seed + 1);
  weights["target.head"] = random_reals(type, {c.vocab_size, c.target_hidden}, seed + 2);
  return weights;
}

/// One row of `lengths.size()` documents with tokens from a fixed pattern; all supervised.
inline packed_row tiny_row(const std::vector<index_t>& lengths) {
  packed_row row;
  for (std::size_t d = 0; d < lengths.size(); ++d)
    for (index_t p = 0; p < lengths[d]; ++p) {
      row.ids.push_back(std::int32_t((p * 7 + index_t(d) * 11 + 3) % 38)), row.positions.push_back(std::int32_t(p));
      row.documents.push_back(std::int32_t(d)), row.loss_mask.push_back(1);
    }
  return row;
}

/// A training step of one row, ready to be run again with other features or tokens.
struct drafter_bench {
  drafter_config config;
  packed_row row;
  block_batch blocks;
  graph g;
  drafter_step step;
  std::optional<executor> run;
  tensor features, block_ids;  // shared with the executor: writes are seen by the next run
  weight_map weights;

  struct options {
    dtype type = f64;
    bool with_gradients = false, documents = true;
    padded_slots padded = padded_slots::own_block;
    drafter_loss_options loss{};
    double gamma = 3;
  };

  drafter_bench(const drafter_config& c, const packed_row& r, std::vector<index_t> anchors, std::vector<index_t> keep, const options& o) : config(c), row(r) {
    const index_t S = row.length(), N = index_t(anchors.size()), M = N * c.block_size;
    blocks.anchors = anchors, blocks.keep = keep;
    fill_blocks(blocks, row, {.block_size = c.block_size, .mask_token_id = c.mask_token_id, .gamma = o.gamma});
    std::vector<any_mask> masks;
    for (const draft_layer& l : c.layer_types) {
      dflash_mask_options m{.context_length = scalar(S), .block_size = c.block_size, .anchors = table(anchors, {1, N}), .keep = table(keep, {1, N}), .causal = l.causal, .padded = o.padded};
      if (o.documents) m.documents = table(std::vector<index_t>(row.documents.begin(), row.documents.end()), {1, S});
      if (l.window) m.window = scalar(*l.window);
      masks.push_back(dflash_mask(m));
    }
    step = build_drafter_step(g, c, masks, dim(S), M, o.type, o.type, o.loss);
    g.output("logits", step.logits), g.output("numerator", step.numerator), g.output("denominator", step.denominator), g.output("token_ce", step.token_ce), g.output("right", step.right);
    for (std::size_t i = 0; i < step.forward.layers.size(); ++i) g.output("layer" + std::to_string(i), step.forward.layers[i]);
    if (o.with_gradients) {
      const std::vector<value> d = gradient(step.numerator, step.parameters);
      for (std::size_t i = 0; i < d.size(); ++i) g.output("d." + g.node(step.parameters[i].node()).label, contiguous(d[i]));
    }
    run.emplace(make_plan(g));
    weights = tiny_weights(c, o.type);
    bind_weights(*run, weights);
    features = random_reals(o.type, {1, S, index_t(c.target_layer_ids.size()) * c.target_hidden}, 91);
    block_ids = tensor::from<std::int32_t>(i32, {1, M}, blocks.ids);
    run->bind("features", features), run->bind("block_ids", block_ids);
    run->bind("context_positions", tensor::from<std::int32_t>(i32, {1, S}, row.positions));
    run->bind("block_positions", tensor::from<std::int32_t>(i32, {1, M}, blocks.positions));
    run->bind("labels", tensor::from<std::int32_t>(i32, {M, 1}, blocks.labels));
    run->bind("weights", tensor::from<float>(f32, {M, 1}, blocks.weights));
    run->bind("valid", tensor::from<float>(f32, {M, 1}, blocks.valid));
    if (o.loss.target != draft_target::text) {
      run->bind("last_hidden", random_reals(o.type, {S, c.target_hidden}, 92));
      run->bind("teacher_rows", tensor::from<std::int32_t>(i32, {M}, blocks.teacher_rows));
    }
  }

  /// Runs and returns a result in doubles.
  std::vector<double> result(const std::string& name) {
    run->step();
    return to_doubles(run->output(name));
  }
  /// Adds to every feature of one context row.
  void shift_features(index_t at, double by) {
    const index_t width = features.dims()[2];
    for (index_t i = 0; i < width; ++i) features.data<double>()[at * width + i] += by;
  }
  /// Part of a result that belongs to one block slot.
  std::vector<double> slot(const std::vector<double>& all, index_t block, index_t o) const {
    const index_t width = index_t(all.size()) / index_t(blocks.ids.size()), at = (block * config.block_size + o) * width;
    return {all.begin() + at, all.begin() + at + width};
  }
  std::vector<double> block(const std::vector<double>& all, index_t n) const {
    const index_t width = index_t(all.size()) / index_t(blocks.anchors.size());
    return {all.begin() + n * width, all.begin() + (n + 1) * width};
  }
};

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double d = std::fabs(a[i] - b[i]);
    worst = d > worst || std::isnan(d) ? d : worst;
  }
  return worst;
}

}  // namespace samite_tests
