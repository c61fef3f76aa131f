// examples/drafter_job.hpp: trains a drafter against a target: settings, load, build, step loop, report.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "target_job.hpp"

namespace example {

using namespace samite;

struct drafter_settings {
  std::string text = "examples/data/austen.txt", target = "examples/data/target", output = "build/drafter", metrics{};
  device on = device::cpu();
  dtype used = f32;
  index_t layers = 2, block_size = 8, anchors = 128, windows = 4, window = 128;
  std::optional<index_t> taps{};  // target layers read; left out: as many as the target has room for, up to 3
  index_t steps = 700;
  double rate = 1e-2, gamma = 4, feature_noise = 0;
  draft_target loss = draft_target::teacher;
  index_t written = 512, written_prompt = 32;  // windows that the target writes itself, greedily, and the bytes it continues
  bool warm_start = true;             // the drafter's layers start as copies of target layers
  std::vector<index_t> start_layers{};  // which; empty: the last ones
  std::uint64_t seed = 2;
  index_t save_every = 100;
  bool resume = true;
};

inline drafter_config drafter_for(const decoder_config& target, const drafter_settings& s) {
  drafter_config c;
  c.sizes = target.sizes;
  c.vocab_size = target.vocab_size, c.target_hidden = target.sizes.hidden, c.num_target_layers = target.layers;
  c.block_size = s.block_size, c.mask_token_id = byte_mask_token, c.rope_theta = target.rope_theta, c.max_positions = target.max_positions;
  c.layer_types.assign(std::size_t(s.layers), draft_layer{});
  const index_t room = std::max<index_t>(1, target.layers - 1), taps = s.taps.value_or(std::min<index_t>(3, room));
  if (taps > room) raise("E-ARG-TAPS", "--taps ", taps, ": the target in \"", s.target, "\" has ", target.layers, " layers, of which ", room, " can be read; give --taps 1 to ", room, ", or leave the flag out");
  // Small targets have no room for the default rule; then the taps are the last layers below the final one, or the only layer.
  if (target.layers >= taps + 3) c.target_layer_ids = default_target_layers(taps, target.layers);
  else
    for (index_t i = 0; i < taps; ++i) c.target_layer_ids.push_back(std::max<index_t>(0, target.layers - 1 - taps) + i);
  return c;
}

/// Raises E-ARG-START unless --start-layers names a layer of the target for each of the drafter's.
inline void check_start_layers(const decoder_config& target, const drafter_settings& s) {
  if (!s.warm_start || s.start_layers.empty()) return;
  if (index_t(s.start_layers.size()) != s.layers) raise("E-ARG-START", "--start-layers names ", s.start_layers.size(), " layers but the drafter has ", s.layers, "; name one target layer for each, separated by commas");
  for (const index_t layer : s.start_layers)
    if (layer < 0 || layer >= target.layers) raise("E-ARG-START", "--start-layers: the target has no layer ", layer, "; name layers from 0 to ", target.layers - 1, ", or leave the flag out");
}

/// Where training starts. With `warm_start` the drafter's layers are copies of the target's, its context rows are the last
/// tap normalised as the target's next layer would, and training begins with working attention instead of a plateau.
inline weight_map start_of(const drafter_config& c, const loaded_target& target, const drafter_settings& s) {
  graph shapes;
  declare_drafter(shapes, c, f32, f32);
  weight_map start = initial_weights(parameter_shapes(shapes), s.seed);
  // The frozen head expects states of the size that the target's final norm gives.
  start["norm.weight"] = target.weights.at("model.norm.weight");
  if (!s.warm_start) return start;
  std::vector<index_t> layers = s.start_layers;
  if (layers.empty())
    for (index_t i = 0; i < s.layers; ++i) layers.push_back(std::max<index_t>(0, target.config.layers - s.layers + i));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string from = concat_text("model.layers.", layers[i], "."), to = concat_text("layers.", i, ".");
    for (auto& [name, t] : start) {
      if (!name.starts_with(to)) continue;
      const auto found = target.weights.find(from + name.substr(to.size()));
      ensure(found != target.weights.end() && found->second.dims() == t.dims(), "a drafter's layer has the tensors of a target's");
      t = found->second;
    }
  }
  tensor fc(f32, {c.sizes.hidden, index_t(c.target_layer_ids.size()) * c.target_hidden});
  const index_t width = fc.dims()[1], last = width - c.target_hidden;
  for (index_t i = 0; i < std::min(c.sizes.hidden, c.target_hidden); ++i) fc.data<float>()[i * width + last + i] = 1;
  start["fc.weight"] = fc;
  const index_t after = c.target_layer_ids.back() + 1;
  start["hidden_norm.weight"] = target.weights.at(after < target.config.layers ? concat_text("model.layers.", after, ".input_layernorm.weight") : "model.norm.weight");
  return start;
}

/// The target's features and last hidden states over B windows at once.
class feature_reader {
 public:
  feature_reader(const loaded_target& target, const drafter_config& c, device on, dtype used, index_t B, index_t S) : rows_(B * S), width_(index_t(c.target_layer_ids.size()) * c.target_hidden) {
    const decoder_weights w = declare_decoder(graph_, target.config, used, used);
    const decoder_result r = decoder(graph_.input("ids", i32, {B, S}), graph_.input("positions", i32, {B, S}), w, target.config, {.mask = causal(), .taps = c.target_layer_ids});
    graph_.output("features", reshape(concat(r.taps, 2), {1, rows_, width_}));
    graph_.output("last_hidden", reshape(r.hidden, {rows_, target.config.sizes.hidden}));
    run_.emplace(make_plan(graph_, on));
    bind_weights(*run_, on_device(to_dtype(target.weights, used), on));
  }

  std::string profile() const { return run_->profile(); }

  /// Binds "features" and "last_hidden" of a row of packed windows to a training graph.
  void feed(const packed_row& row, index_t B, executor& into, bool with_teacher, double noise, counted_random random) {
    tensor ids = tensor::from<std::int32_t>(i32, {B, rows_ / B}, row.ids), positions = tensor::from<std::int32_t>(i32, {B, rows_ / B}, row.positions);
    run_->bind("ids", ids), run_->bind("positions", positions);
    run_->step();
    tensor features = run_->output("features");
    if (noise > 0) {  // uniform in [-noise, noise)
      tensor noisy = features.to_dtype(f32);
      for (float& x : noisy.values<float>()) x += float(2 * (random.uniform() - 0.5) * noise);
      features = noisy.to_dtype(features.type());
    }
    into.bind("features", features);
    if (with_teacher) into.bind("last_hidden", run_->output("last_hidden"));
  }

 private:
  graph graph_;
  std::optional<executor> run_;
  index_t rows_, width_;
};

/// Text in the target's own words: greedy continuations of training windows. What a drafter meets when it serves.
struct written_text {
  std::vector<std::uint8_t> bytes;  // windows one after another
  index_t window = 1, prompt = 0;

  index_t windows() const { return index_t(bytes.size()) / window; }
};

inline written_text write_text(const loaded_target& target, std::span<const std::uint8_t> text, const drafter_settings& s) {
  written_text w{{}, s.window, s.written_prompt};
  const index_t B = std::min<index_t>(64, s.written);
  if (B == 0) return w;
  batch_decoder decoder(target.config, on_device(to_dtype(target.weights, s.used), s.on), s.on, s.used, B, s.window);
  for (index_t round = 0; w.windows() < s.written; ++round) {
    std::vector<std::vector<std::int32_t>> prompts;
    for (const auto& span : choose_windows(text, B, s.written_prompt, s.seed + 1000, round)) prompts.emplace_back(span.begin(), span.end());
    for (const auto& sequence : decoder.generate(prompts, {.new_tokens = s.window - s.written_prompt}))
      for (std::int32_t id : sequence) w.bytes.push_back(std::uint8_t(id < 256 ? id : 0));
  }
  return w;
}

/// One training batch: packed windows, anchors, blocks, and the training mask's tables.
struct drafter_batch {
  packed_row row;
  block_batch blocks;
};

/// A quarter of the windows, rounded down, come from `written` if there is any; of those only the continuation is supervised.
inline drafter_batch make_drafter_batch(std::span<const std::uint8_t> text, const written_text& written, const drafter_settings& s, const drafter_config& c, index_t step) {
  drafter_batch b;
  auto windows = choose_windows(text, s.windows, s.window, s.seed, step);
  const index_t own = written.windows() > 0 ? s.windows / 4 : 0;
  counted_random random(s.seed, 0x0f27, std::uint32_t(step));
  for (index_t i = 0; i < own; ++i)
    windows[std::size_t(i)] = std::span(written.bytes).subspan(std::size_t(index_t(random.below(std::uint32_t(written.windows()))) * s.window), std::size_t(s.window));
  b.row = pack_windows(windows);
  for (index_t i = 0; i < own; ++i) std::fill_n(b.row.loss_mask.begin() + i * s.window, written.prompt, std::uint8_t(0));
  choose_anchors(b.blocks, anchor_candidates(b.row, anchor_rule::canonical, c.block_size), s.anchors, counted_random(s.seed, 0xa2c4, std::uint32_t(step)));
  fill_blocks(b.blocks, b.row, {.block_size = c.block_size, .mask_token_id = c.mask_token_id, .gamma = s.gamma});
  return b;
}

/// Tables of the training mask; their contents change with every batch, the mask and its kernels don't.
struct drafter_mask_tables {
  table_ref anchors, keep, documents;

  drafter_mask_tables(const drafter_batch& b, index_t S)
      : anchors(table(b.blocks.anchors, {1, index_t(b.blocks.anchors.size())})), keep(table(b.blocks.keep, {1, index_t(b.blocks.keep.size())})),
        documents(table(std::vector<index_t>(b.row.documents.begin(), b.row.documents.end()), {1, S})) {}
  void update(const drafter_batch& b) {
    anchors.update(b.blocks.anchors), keep.update(b.blocks.keep);
    documents.update(std::vector<index_t>(b.row.documents.begin(), b.row.documents.end()));
  }
  std::vector<any_mask> masks(const drafter_config& c, index_t S) const {
    std::vector<any_mask> list;
    for (std::size_t i = 0; i < c.layer_types.size(); ++i) {
      const draft_layer& l = c.layer_types[i];
      if (i > 0 && l.window == c.layer_types[i - 1].window && l.causal == c.layer_types[i - 1].causal) {
        list.push_back(list.back());  // layers of a kind share one mask, and so its tiles
        continue;
      }
      dflash_mask_options o{.context_length = scalar(S), .block_size = c.block_size, .anchors = anchors, .keep = keep, .documents = documents};
      if (l.window) o.window = scalar(*l.window);
      o.causal = l.causal;
      list.push_back(dflash_mask(o));
    }
    return list;
  }
};

inline void bind_blocks(executor& run, const drafter_batch& b) {
  const index_t S = b.row.length(), M = index_t(b.blocks.ids.size());
  run.bind("context_positions", tensor::from<std::int32_t>(i32, {1, S}, b.row.positions));
  run.bind("block_ids", tensor::from<std::int32_t>(i32, {1, M}, b.blocks.ids));
  run.bind("block_positions", tensor::from<std::int32_t>(i32, {1, M}, b.blocks.positions));
  run.bind("labels", tensor::from<std::int32_t>(i32, {M, 1}, b.blocks.labels));
  run.bind("weights", tensor::from<float>(f32, {M, 1}, b.blocks.weights));
  run.bind("valid", tensor::from<float>(f32, {M, 1}, b.blocks.valid));
}

/// What a trained drafter does on held-out text, by slot from 1 to block_size - 1.
struct drafter_report {
  std::vector<double> position_accuracy;   // share of proposals that are the text's next bytes
  std::vector<double> position_agreement;  // share that are the target's most likely ones; empty if trained on the text alone
  double acceptance_length = 0;            // leading proposals that are the text's, and the bonus token
};

/// Trains a drafter against a frozen target, or continues an interrupted run of the same settings.
inline drafter_report train_drafter(const drafter_settings& s) {
  if (s.written > 0 && s.written_prompt >= s.window)
    raise("E-ARG-WRITTEN", "--written-prompt ", s.written_prompt, " --window ", s.window, ": a prompt that fills its window leaves the target nothing to write; give a --written-prompt below ", s.window, ", or --written 0");
  // What the arguments alone can't have is said before anything is written, the run's status included.
  make_backend(s.on);
  check_text(s.text, s.window);
  const decoder_config read = load_target_config(s.target);
  check_positions("train_drafter --window", read, s.window);
  const drafter_config c = drafter_for(read, s);
  check_start_layers(read, s);
  watch_run(status_folder(s.output));
  beat("load");
  const byte_corpus corpus = load_corpus(s.text, s.window);
  const loaded_target target = load_target(s.target);
  const weight_map start = start_of(c, target, s);
  prepare_folder(s.output);
  metrics_log metrics(s.metrics);
  const index_t S = s.windows * s.window, M = s.anchors * c.block_size;

  trainer_options o;
  o.schedule = {.peak = s.rate, .steps = s.steps, .warmup_steps = std::max<index_t>(1, s.steps / 25), .final_fraction = 0};
  o.contract = concat_text("drafter layers ", s.layers, " taps ", c.target_layer_ids, " block ", c.block_size, " mask ", c.mask_token_id, " anchors ", s.anchors, " rows ", s.windows, "x", s.window,
                           " steps ", s.steps, " rate ", s.rate, " gamma ", s.gamma, " start ", s.warm_start, s.start_layers, " written ", s.written, "/", s.written_prompt, " noise ", s.feature_noise, " loss ", int(s.loss), " seed ", s.seed, " text ", hash_text(corpus.text), " target ", hash_target(target), " ", name_of(s.used));
  beat("write");
  const written_text written = write_text(target, corpus.training(), s);
  drafter_batch batch = make_drafter_batch(corpus.training(), written, s, c, 0);
  drafter_mask_tables tables(batch, S);
  const std::vector<any_mask> masks = tables.masks(c, S);
  const index_t rows = std::min<index_t>(M, 4 * c.block_size), columns = S + rows, width = (columns + 63) / 64;
  std::printf("training mask of the first blocks (rows: their slots; columns: the context, then these blocks, %lld a character):\n%s\n", static_cast<long long>(width),
              draw(masks[0], rows, columns).c_str());

  beat("compile");
  trainer run(s.on, o, [&](graph& g) {
    const drafter_step step = build_drafter_step(g, c, masks, dim(S), M, f32, s.used, {.target = s.loss});
    g.output("loss", let(step.numerator / step.denominator));
    g.output("right_text", step.right_text), g.output("right", step.right);
    return training_graph{step.numerator, step.parameters};
  });
  beat("load");
  run.set_weights(start);
  bind_weights(run.inputs(), on_device(frozen_target_io(target, s.used), s.on));
  feature_reader features(target, c, s.on, s.used, s.windows, s.window);
  const std::string state = s.output + "/training_state.safetensors";
  if (s.resume && file_exists(state)) run.load(state);

  const auto feed = [&](const drafter_batch& b, double noise, index_t step) {
    tables.update(b);
    features.feed(b.row, s.windows, run.inputs(), s.loss != draft_target::text, noise, counted_random(s.seed, 0x2015, std::uint32_t(step)));
    bind_blocks(run.inputs(), b);
    if (s.loss != draft_target::text) run.inputs().bind("teacher_rows", tensor::from<std::int32_t>(i32, {M}, b.blocks.teacher_rows));
  };
  stop_signals stop;
  progress_line progress("drafter", s.steps, run.step(), run_id());
  while (run.step() < s.steps) {
    beat("step", run.step());
    batch = make_drafter_batch(corpus.training(), written, s, c, run.step());
    feed(batch, s.feature_noise, run.step());
    run.accumulate();
    double denominator = 0;
    for (float w : batch.blocks.weights) denominator += double(w);
    run.update(denominator);
    const bool saving = run.step() % s.save_every == 0 || run.step() == s.steps || stop.asked(), due = progress.due(run.step());
    if (!saving && !due) continue;
    const double loss = denominator > 0 ? double(run.inputs().output("loss").data<float>()[0]) : 0;  // nothing supervised: 0 / 0
    check_converging("drafter", run, loss, s.rate, saving);
    if (due) {
      progress.show(run.step(), loss, double(S + M));
      metrics.write({{"job", "drafter"}, {"run", run_id()}, {"step", run.step()}, {"loss", loss}, {"rate", o.schedule.at(run.step() - 1)}, {"grad_norm", run.gradient_norm()}});
    }
    if (saving && run.step() < s.steps) {
      beat("save", run.step());
      run.save(state);
      if (stop.asked()) progress.finish(), stop.leave("drafter", run.step(), s.steps);
    }
  }
  progress.finish();
  std::fputs((run.profile() + features.profile()).c_str(), stdout);
  beat("save", run.step());
  save_checkpoint(s.output, to_json_text(c), run.weights(), f32);
  remove_file(state);

  // Held-out, on the same kind of batches.
  beat("judge", run.step());
  draft_metrics text, agreement;
  for (index_t i = 0; i < 8; ++i) {
    batch = make_drafter_batch(corpus.held_out(), {}, s, c, i);
    feed(batch, 0, i);
    run.inputs().step();
    text.add(batch.blocks.valid, run.inputs().output("right_text").values<float>(), c.block_size);
    if (s.loss != draft_target::text) agreement.add(batch.blocks.valid, run.inputs().output("right").values<float>(), c.block_size);
  }
  drafter_report report;
  for (index_t k = 1; k < c.block_size; ++k) {
    report.position_accuracy.push_back(text.accuracy(k));
    if (s.loss != draft_target::text) report.position_agreement.push_back(agreement.accuracy(k));
  }
  report.acceptance_length = text.acceptance_length();
  return report;
}

}  // namespace example
