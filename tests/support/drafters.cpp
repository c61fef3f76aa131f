// tests/support/drafters.cpp: tiny drafters in their training layout.
#include "drafters.hpp"

namespace samite_tests {

drafter_config tiny_drafter(std::vector<draft_layer> layers, index_t block_size) {
  drafter_config c;
  c.sizes = {.hidden = 12, .intermediate = 20, .heads = 4, .kv_heads = 2, .head_dim = 6};
  c.vocab_size = 40, c.target_hidden = 12, c.block_size = block_size, c.mask_token_id = 39, c.num_target_layers = 6;
  c.target_layer_ids = {1, 3}, c.layer_types = std::move(layers), c.rope_theta = 1e4;
  return c;
}

tensor random_reals(dtype type, extents dims, unsigned seed, double size) {
  tensor t(f64, std::move(dims));
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> number(-size, size);
  for (double& x : t.values<double>()) x = number(generator);
  return t.to_dtype(type);
}

std::vector<double> to_doubles(const tensor& t) {
  const tensor wide = t.to_dtype(f64);
  return {wide.values<double>().begin(), wide.values<double>().end()};
}

weight_map tiny_weights(const drafter_config& c, dtype type, unsigned seed) {
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

drafter_bench::drafter_bench(const drafter_config& c, const packed_row& r, std::vector<index_t> anchors, std::vector<index_t> keep, const options& o) : config(c), row(r) {
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

packed_row tiny_row(const std::vector<index_t>& lengths) {
  packed_row row;
  for (std::size_t d = 0; d < lengths.size(); ++d)
    for (index_t p = 0; p < lengths[d]; ++p) {
      row.ids.push_back(std::int32_t((p * 7 + index_t(d) * 11 + 3) % 38)), row.positions.push_back(std::int32_t(p));
      row.documents.push_back(std::int32_t(d)), row.loss_mask.push_back(1);
    }
  return row;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double d = std::fabs(a[i] - b[i]);
    worst = d > worst || std::isnan(d) ? d : worst;
  }
  return worst;
}

}  // namespace samite_tests
