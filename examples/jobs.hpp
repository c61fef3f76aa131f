// examples/jobs.hpp: the three jobs that the programs share: train a target, train a drafter against it, decode with both.
// Each reads top to bottom: settings, load, build, step loop, report.
#pragma once
#include <chrono>
#include <set>

#include "program.hpp"

namespace example {

using namespace samite;

inline bool file_exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

inline weight_map to_dtype(const weight_map& weights, dtype type) {
  weight_map out;
  for (const auto& [name, t] : weights) out[name] = t.to_dtype(type);
  return out;
}

/// Weights where a device's plans can bind them.
inline weight_map on_device(const weight_map& weights, device where) {
  if (where.type == device::kind::cpu) return weights;
  weight_map moved;
  const std::shared_ptr<backend> b = make_backend(where);
  for (const auto& [name, t] : weights) moved[name] = b->make_tensor(t.type(), t.dims()), moved[name].copy_from(t);
  return moved;
}

// ---- a target -------------------------------------------------------------------------------------------------------

struct target_settings {
  std::string text = "examples/data/austen.txt", output = "build/target", metrics{};
  device on = device::cpu();
  dtype used = f32, stored = f32;  // computing; in the checkpoint
  index_t hidden = 128, layers = 2, heads = 4, kv_heads = 2, head_dim = 32, intermediate = 352;
  index_t steps = 600, batch = 8, window = 128;
  double rate = 3e-3, weight_decay = 0.1;
  std::uint64_t seed = 1;
  index_t save_every = 200;
  bool resume = true;
};

struct loaded_target {
  decoder_config config;
  weight_map weights;  // on the host, as the checkpoint has them
};

inline loaded_target load_target(const std::string& folder) {
  loaded_target t;
  t.config = read_decoder_config(read_json(folder + "/config.json"), folder + "/config.json");
  graph g;
  declare_decoder(g, t.config, f32, f32);
  t.weights = load_weights(folder, parameter_shapes(g), f32, t.config.tied ? std::set<std::string>{"lm_head.weight"} : std::set<std::string>{});
  return t;
}

/// Trains a byte-level decoder from scratch, or continues an interrupted run of the same settings.
inline void train_target(const target_settings& s) {
  const byte_corpus corpus = load_corpus(s.text, s.window + 1);
  decoder_config c;
  c.sizes = {.hidden = s.hidden, .intermediate = s.intermediate, .heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim};
  c.vocab_size = byte_vocabulary, c.layers = s.layers, c.max_positions = 4096, c.rope_theta = 1e4, c.tied = true;

  trainer_options o;
  o.optimizer.weight_decay = s.weight_decay;
  o.schedule = {.peak = s.rate, .steps = s.steps, .warmup_steps = std::max<index_t>(1, s.steps / 25), .final_fraction = 0.05};
  o.contract = concat_text("target h", s.hidden, " l", s.layers, " heads ", s.heads, "/", s.kv_heads, "/", s.head_dim, " f", s.intermediate, " steps ", s.steps, " batch ", s.batch, "x",
                           s.window, " rate ", s.rate, " decay ", s.weight_decay, " seed ", s.seed, " text ", hash_text(corpus.text), " ", name_of(s.used));
  trainer run(s.on, o, [&](graph& g) { return language_model_graph(g, c, s.batch, s.window, s.used); });
  run.set_weights(initial_weights(parameter_shapes(run.inputs().source().source()), s.seed));
  const std::string state = s.output + "/training_state.safetensors";
  make_folder(s.output);
  if (s.resume && file_exists(state)) run.load(state);

  metrics_log metrics(s.metrics);
  progress_line progress("target", s.steps, run.step());
  while (run.step() < s.steps) {
    bind_windows(run.inputs(), choose_windows(corpus.training(), s.batch, s.window + 1, s.seed, run.step()));
    run.accumulate();
    run.update(double(s.batch * s.window));
    if (progress.due(run.step())) {
      const double loss = double(run.inputs().output("loss").data<float>()[0]);
      if (!std::isfinite(loss)) raise("E-DIVERGED", "training the target: the loss is ", loss, " at step ", run.step(), "; lower --rate");
      progress.show(run.step(), loss, double(s.batch * s.window));
      metrics.write({{"job", "target"}, {"step", run.step()}, {"loss", loss}, {"rate", o.schedule.at(run.step() - 1)}, {"grad_norm", run.gradient_norm()}});
    }
    if (run.step() % s.save_every == 0 && run.step() < s.steps) run.save(state);
  }
  progress.finish();
  std::fputs(run.profile().c_str(), stdout);
  save_checkpoint(s.output, to_json_text(c), run.weights(), s.stored);
  ::unlink(state.c_str());
}

// ---- a drafter ------------------------------------------------------------------------------------------------------

struct drafter_settings {
  std::string text = "examples/data/austen.txt", target = "examples/data/target", output = "build/drafter", metrics{};
  device on = device::cpu();
  dtype used = f32;
  index_t layers = 2, block_size = 8, taps = 3, anchors = 128, windows = 4, window = 128;
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
  // Small targets have no room for the default rule; then the last taps are spread below the final layer.
  const index_t taps = std::min(s.taps, target.layers - 1);
  if (target.layers >= taps + 3) c.target_layer_ids = default_target_layers(taps, target.layers);
  else
    for (index_t i = 0; i < taps; ++i) c.target_layer_ids.push_back(target.layers - 1 - taps + i);
  return c;
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
  if (index_t(layers.size()) != s.layers) raise("E-ARG-START", "--start-layers names ", layers.size(), " layers but the drafter has ", s.layers, "; name one target layer for each");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string from = concat_text("model.layers.", layers[i], "."), to = concat_text("layers.", i, ".");
    for (auto& [name, t] : start) {
      if (!name.starts_with(to)) continue;
      const auto found = target.weights.find(from + name.substr(to.size()));
      if (found == target.weights.end() || found->second.dims() != t.dims()) raise("E-ARG-START", "--start-layers: the target has no layer ", layers[i], " of the drafter's sizes; leave the flag out, or give the drafter the target's sizes");
      t = found->second;
    }
  }
  tensor fc(f32, {c.sizes.hidden, index_t(c.target_layer_ids.size()) * c.target_hidden});
  const index_t width = fc.dims()[1], last = width - c.target_hidden;
  for (index_t i = 0; i < std::min(c.sizes.hidden, c.target_hidden); ++i) fc.data<float>()[i * width + last + i] = 1;
  start["fc.weight"] = fc;
  start["hidden_norm.weight"] = target.weights.at(concat_text("model.layers.", c.target_layer_ids.back() + 1, ".input_layernorm.weight"));
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

/// The frozen embedding and head under the names that drafters bind.
inline weight_map frozen_target_io(const loaded_target& target, dtype used) {
  const tensor embedding = target.weights.at("model.embed_tokens.weight");
  return {{"target.embedding", embedding.to_dtype(used)}, {"target.head", (target.config.tied ? embedding : target.weights.at("lm_head.weight")).to_dtype(used)}};
}

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

struct drafter_report {
  std::vector<double> position_accuracy;  // held-out, slots 1 to block_size - 1, against the text
  double acceptance_length = 0;           // held-out, by matching the text
};

/// Trains a drafter against a frozen target, or continues an interrupted run of the same settings.
inline drafter_report train_drafter(const drafter_settings& s) {
  const byte_corpus corpus = load_corpus(s.text, s.window);
  const loaded_target target = load_target(s.target);
  const drafter_config c = drafter_for(target.config, s);
  const index_t S = s.windows * s.window, M = s.anchors * c.block_size;

  trainer_options o;
  o.schedule = {.peak = s.rate, .steps = s.steps, .warmup_steps = std::max<index_t>(1, s.steps / 25), .final_fraction = 0};
  o.contract = concat_text("drafter layers ", s.layers, " taps ", c.target_layer_ids, " block ", c.block_size, " mask ", c.mask_token_id, " anchors ", s.anchors, " rows ", s.windows, "x", s.window,
                           " steps ", s.steps, " rate ", s.rate, " gamma ", s.gamma, " start ", s.warm_start, s.start_layers, " written ", s.written, "/", s.written_prompt, " noise ", s.feature_noise, " loss ", int(s.loss), " seed ", s.seed, " text ", hash_text(corpus.text), " ", name_of(s.used));
  const written_text written = write_text(target, corpus.training(), s);
  drafter_batch batch = make_drafter_batch(corpus.training(), written, s, c, 0);
  drafter_mask_tables tables(batch, S);
  const std::vector<any_mask> masks = tables.masks(c, S);
  std::printf("training mask of the first blocks (rows: 4 blocks; columns: context by 16, then blocks):\n%s\n", draw(masks[0], std::min<index_t>(M, 4 * c.block_size), S + std::min<index_t>(M, 4 * c.block_size)).c_str());

  trainer run(s.on, o, [&](graph& g) {
    const drafter_step step = build_drafter_step(g, c, masks, dim(S), M, f32, s.used, {.target = s.loss});
    g.output("loss", let(step.numerator / step.denominator));
    g.output("right", step.right);
    return training_graph{step.numerator, step.parameters};
  });
  run.set_weights(start_of(c, target, s));
  bind_weights(run.inputs(), on_device(frozen_target_io(target, s.used), s.on));
  feature_reader features(target, c, s.on, s.used, s.windows, s.window);
  const std::string state = s.output + "/training_state.safetensors";
  make_folder(s.output);
  if (s.resume && file_exists(state)) run.load(state);

  const auto feed = [&](const drafter_batch& b, double noise, index_t step) {
    tables.update(b);
    features.feed(b.row, s.windows, run.inputs(), s.loss != draft_target::text, noise, counted_random(s.seed, 0x2015, std::uint32_t(step)));
    bind_blocks(run.inputs(), b);
    if (s.loss != draft_target::text) run.inputs().bind("teacher_rows", tensor::from<std::int32_t>(i32, {M}, b.blocks.teacher_rows));
  };
  metrics_log metrics(s.metrics);
  progress_line progress("drafter", s.steps, run.step());
  while (run.step() < s.steps) {
    batch = make_drafter_batch(corpus.training(), written, s, c, run.step());
    feed(batch, s.feature_noise, run.step());
    run.accumulate();
    double denominator = 0;
    for (float w : batch.blocks.weights) denominator += double(w);
    run.update(denominator);
    if (progress.due(run.step())) {
      const double loss = double(run.inputs().output("loss").data<float>()[0]);
      if (!std::isfinite(loss)) raise("E-DIVERGED", "training the drafter: the loss is ", loss, " at step ", run.step(), "; lower --rate");
      progress.show(run.step(), loss, double(S + M));
      metrics.write({{"job", "drafter"}, {"step", run.step()}, {"loss", loss}, {"rate", o.schedule.at(run.step() - 1)}, {"grad_norm", run.gradient_norm()}});
    }
    if (run.step() % s.save_every == 0 && run.step() < s.steps) run.save(state);
  }
  progress.finish();
  std::fputs((run.profile() + features.profile()).c_str(), stdout);
  save_checkpoint(s.output, to_json_text(c), run.weights(), f32);
  ::unlink(state.c_str());

  // Held-out accuracy by slot, on the same kind of batches.
  draft_metrics held_out;
  for (index_t i = 0; i < 8; ++i) {
    batch = make_drafter_batch(corpus.held_out(), {}, s, c, i);
    feed(batch, 0, i);
    run.inputs().step();
    held_out.add(batch.blocks.valid, run.inputs().output("right").values<float>(), c.block_size);
  }
  drafter_report report;
  for (index_t k = 1; k < c.block_size; ++k) report.position_accuracy.push_back(held_out.accuracy(k));
  report.acceptance_length = held_out.acceptance_length();
  return report;
}

// ---- decoding -------------------------------------------------------------------------------------------------------

struct decode_settings {
  std::string text = "examples/data/austen.txt", target = "examples/data/target", drafter = "build/drafter";
  device on = device::cpu();
  dtype used = f32;
  index_t prompts = 20, prompt_bytes = 64, new_tokens = 128;
  std::uint64_t seed = 3;
  bool show = true;
};

struct decode_report {
  index_t prompts = 0, identical = 0, loops = 0, block_size = 0;  // loops: greedy outputs with under 30 % distinct 4-grams
  double acceptance = 0, acceptance_t1 = 0;                       // over outputs that don't loop
  double draft_ms = 0, verify_ms = 0, plain_ms = 0;  // of one round, one round, one plain forward
  double distinct_4gram = 0, tokens_per_forward = 0, plain_tokens_per_s = 0, speculative_tokens_per_s = 0;
  std::vector<std::string> differences;                           // first difference and its margin, one a prompt that differs
};

inline double distinct_4grams(std::span<const std::int32_t> tokens) {
  std::set<std::vector<std::int32_t>> seen;
  index_t count = 0;
  for (std::size_t i = 0; i + 4 <= tokens.size(); ++i, ++count) seen.insert({tokens.begin() + std::ptrdiff_t(i), tokens.begin() + std::ptrdiff_t(i) + 4});
  return count == 0 ? 0 : double(seen.size()) / double(count);
}

/// Decodes held-out prompts plainly and speculatively and compares.
inline decode_report speculate(const decode_settings& s) {
  const byte_corpus corpus = load_corpus(s.text, s.prompt_bytes);
  const loaded_target target = load_target(s.target);
  const drafter_config c = read_drafter_config(read_json(s.drafter + "/config.json"), s.drafter + "/config.json");
  graph shapes;
  declare_drafter(shapes, c, f32, f32);
  weight_map draft_weights = to_dtype(load_weights(s.drafter, parameter_shapes(shapes), f32), s.used);
  for (const auto& [name, t] : frozen_target_io(target, s.used)) draft_weights[name] = t;

  const index_t capacity = s.prompt_bytes + s.new_tokens + c.block_size;
  target_session session(target.config, on_device(to_dtype(target.weights, s.used), s.on), s.on, s.used, {.capacity = capacity, .taps = c.target_layer_ids});
  drafter_session draft(c, on_device(draft_weights, s.on), s.on, s.used, {.capacity = capacity});

  decode_report report;
  report.block_size = c.block_size;
  const auto prompts = choose_windows(corpus.held_out(), s.prompts + 1, s.prompt_bytes, s.seed, 0);
  double rounds = 0, produced = 0, rounds_t1 = 0, produced_t1 = 0, plain_seconds = 0, speculative_seconds = 0, plain_tokens = 0, speculative_tokens = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<std::int32_t> prompt(prompts[i].begin(), prompts[i].end());
    const generation_options greedy{.new_tokens = s.new_tokens, .seed = s.seed, .sample = std::uint32_t(i)};
    session.crop(0);
    const generation plain = generate_plain(session, prompt, greedy);
    session.crop(0);
    const generation fast = generate_speculative(session, draft, prompt, greedy);
    if (i == 0) continue;  // the first prompt warms caches and kernels up
    session.crop(0);
    generation_options warm = greedy;
    warm.temperature = 1;
    const generation sampled = generate_speculative(session, draft, prompt, warm);

    ++report.prompts;
    if (plain.ids == fast.ids) ++report.identical;
    else {
      std::size_t at = 0;
      while (at < plain.ids.size() && at < fast.ids.size() && plain.ids[at] == fast.ids[at]) ++at;
      const std::size_t choice = at - prompt.size();
      report.differences.push_back(concat_text("prompt ", i, ": first difference at new token ", choice, ", top-2 margin of plain decoding ", choice < plain.margins.size() ? plain.margins[choice] : -1.0f));
    }
    const std::span<const std::int32_t> output = std::span(fast.ids).subspan(prompt.size()), output_t1 = std::span(sampled.ids).subspan(prompt.size());
    const double distinct = distinct_4grams(output);
    report.distinct_4gram += distinct;
    if (distinct < 0.3) ++report.loops;
    else
      for (index_t n : fast.produced) rounds += 1, produced += double(n);
    if (distinct_4grams(output_t1) >= 0.3)
      for (index_t n : sampled.produced) rounds_t1 += 1, produced_t1 += double(n);
    report.draft_ms += 1e3 * fast.draft_seconds / double(std::max<index_t>(1, fast.target_forwards)), report.verify_ms += 1e3 * fast.verify_seconds / double(std::max<index_t>(1, fast.target_forwards));
    report.plain_ms += 1e3 * plain.seconds / double(std::max<index_t>(1, plain.target_forwards));
    plain_seconds += plain.seconds, speculative_seconds += fast.seconds;
    plain_tokens += double(plain.new_tokens()), speculative_tokens += double(fast.new_tokens());
    report.tokens_per_forward += double(fast.new_tokens()) / double(std::max<index_t>(1, fast.target_forwards));
    if (s.show && i <= 2)
      std::printf("--- prompt %zu ---\n%s\n--- greedy continuation (%.2f tokens a round) ---\n%s\n--- sampled at temperature 1 (%.2f) ---\n%s\n", i, printable(prompt).c_str(), fast.acceptance_length(),
                  printable(output).c_str(), sampled.acceptance_length(), printable(output_t1).c_str());
  }
  std::fputs((session.profile() + draft.profile()).c_str(), stdout);
  const double n = double(std::max<index_t>(1, report.prompts));
  report.acceptance = rounds > 0 ? produced / rounds : 0, report.acceptance_t1 = rounds_t1 > 0 ? produced_t1 / rounds_t1 : 0;
  report.draft_ms /= n, report.verify_ms /= n, report.plain_ms /= n;
  report.distinct_4gram /= n, report.tokens_per_forward /= n;
  report.plain_tokens_per_s = plain_tokens / std::max(1e-9, plain_seconds), report.speculative_tokens_per_s = speculative_tokens / std::max(1e-9, speculative_seconds);
  return report;
}

inline void print_report(const decode_report& r) {
  std::printf("acceptance length (1 to %lld)         greedy %.3f, temperature 1 %.3f\n", static_cast<long long>(r.block_size), r.acceptance, r.acceptance_t1);
  std::printf("distinct 4-grams in greedy outputs  %.3f  (%lld of %lld outputs below 0.3, not counted above)\n", r.distinct_4gram, static_cast<long long>(r.loops), static_cast<long long>(r.prompts));
  std::printf("tokens per target forward           %.3f\n", r.tokens_per_forward);
  std::printf("tokens per second                   plain %.1f, speculative %.1f: %.2f times\n", r.plain_tokens_per_s, r.speculative_tokens_per_s, r.speculative_tokens_per_s / std::max(1e-9, r.plain_tokens_per_s));
  std::printf("milliseconds                        plain forward %.3f; a round: drafting %.3f, verification %.3f\n", r.plain_ms, r.draft_ms, r.verify_ms);
  std::printf("greedy output equals plain greedy   %lld of %lld prompts\n", static_cast<long long>(r.identical), static_cast<long long>(r.prompts));
  for (const std::string& line : r.differences) std::printf("  %s\n", line.c_str());
}

}  // namespace example
