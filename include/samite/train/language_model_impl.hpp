// samite/train/language_model_impl.hpp: next-token training and scoring.
#pragma once
#include <algorithm>
#include <cmath>

#include <samite/mask/causal.hpp>
#include <samite/train/language_model.hpp>

namespace samite {

SAMITE_IMPL training_graph language_model_graph(graph& g, const decoder_config& c, index_t B, index_t S, dtype used) {
  const decoder_weights w = declare_decoder(g, c, f32, used);
  training_graph t;
  t.parameters = g.parameters();
  const decoder_result r = decoder(g.input("ids", i32, {B, S}), g.input("positions", i32, {B, S}), w, c, {.mask = causal()});
  const value ce = cross_entropy(reshape(r.logits, {B * S, c.vocab_size}), g.input("labels", i32, {B * S, 1}), "token_ce");
  t.numerator = total(ce, {.label = "loss_numerator"});
  g.output("loss", let(t.numerator / double(B * S)));
  g.output("token_ce", ce);
  return t;
}

SAMITE_IMPL void bind_windows(executor& run, const std::vector<std::span<const std::uint8_t>>& windows) {
  const index_t B = index_t(windows.size()), S = index_t(windows[0].size()) - 1;
  tensor ids(i32, {B, S}), positions(i32, {B, S}), labels(i32, {B * S, 1});
  for (index_t b = 0; b < B; ++b)
    for (index_t s = 0; s < S; ++s) {
      ids.data<std::int32_t>()[b * S + s] = windows[std::size_t(b)][std::size_t(s)];
      labels.data<std::int32_t>()[b * S + s] = windows[std::size_t(b)][std::size_t(s) + 1];
      positions.data<std::int32_t>()[b * S + s] = std::int32_t(s);
    }
  run.bind("ids", ids), run.bind("positions", positions), run.bind("labels", labels);
}

SAMITE_IMPL double bits_per_byte(const decoder_config& c, const weight_map& weights, device target, dtype used, std::span<const std::uint8_t> text, index_t S) {
  constexpr index_t B = 8;
  graph g;
  language_model_graph(g, c, B, S, used);
  executor run(make_plan(g, target));
  bind_weights(run, weights);
  const index_t bytes = index_t(text.size());
  if (bytes < S + 1) raise("E-DATA-TEXT", "bits_per_byte: the text has ", bytes, " bytes but the windows need ", S + 1, "; give a longer text or a shorter window");
  std::vector<index_t> begins;
  for (index_t begin = 0; begin + S + 1 <= bytes; begin += S / 2) begins.push_back(begin);
  double nats = 0;
  index_t scored = 0;
  for (std::size_t i = 0; i < begins.size(); i += B) {
    std::vector<std::span<const std::uint8_t>> windows;
    for (index_t b = 0; b < B; ++b) windows.push_back(text.subspan(std::size_t(begins[std::min(begins.size() - 1, i + std::size_t(b))]), std::size_t(S) + 1));
    bind_windows(run, windows);
    run.step();
    const tensor ce = run.output("token_ce");
    for (index_t b = 0; b < B && i + std::size_t(b) < begins.size(); ++b)
      for (index_t s = i + std::size_t(b) == 0 ? 0 : S - S / 2; s < S; ++s) nats += double(ce.data<float>()[b * S + s]), ++scored;
  }
  return nats / double(scored) / std::log(2.0);
}

}  // namespace samite
