// examples/target_job.hpp: trains a byte-level target: settings, load, build, step loop.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "program.hpp"

namespace example {

using namespace samite;

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

inline decoder_config load_target_config(const std::string& folder) {
  const decoder_config c = read_decoder_config(read_json(folder + "/config.json"), folder + "/config.json");
  if (c.vocab_size <= byte_mask_token)
    raise("E-MODEL-CONFIG", folder, "/config.json: vocab_size is ", c.vocab_size, "; these programs read bytes and need ", byte_mask_token + 1, " tokens or more: 256 bytes and a mask token");
  return c;
}

inline loaded_target load_target(const std::string& folder) {
  loaded_target t;
  t.config = load_target_config(folder);
  graph g;
  declare_decoder(g, t.config, f32, f32);
  t.weights = load_weights(folder, parameter_shapes(g), f32, t.config.tied ? std::set<std::string>{"lm_head.weight"} : std::set<std::string>{});
  return t;
}

/// The frozen embedding and head under the names that drafters bind.
inline weight_map frozen_target_io(const loaded_target& target, dtype used) {
  const tensor embedding = target.weights.at("model.embed_tokens.weight");
  return {{"target.embedding", embedding.to_dtype(used)}, {"target.head", (target.config.tied ? embedding : target.weights.at("lm_head.weight")).to_dtype(used)}};
}

/// Names a target's config and weights in contracts of runs that read it.
inline std::uint64_t hash_target(const loaded_target& target) {
  std::uint64_t hash = hash_text(to_json_text(target.config));
  for (const auto& [name, t] : target.weights) {
    hash = hash_text(name, hash);
    for (float x : t.values<float>()) hash = combine_hash(hash, std::bit_cast<std::uint32_t>(x));
  }
  return hash;
}

/// The model that the settings ask for. Raises E-ARG-SIZES if no reader of checkpoints would take it.
inline decoder_config target_for(const target_settings& s) {
  if (s.heads % s.kv_heads != 0) raise("E-ARG-SIZES", "--heads ", s.heads, " --kv-heads ", s.kv_heads, ": query heads share key heads evenly; give --heads that is a multiple of --kv-heads, e.g. --heads ", 2 * s.kv_heads);
  if (s.head_dim % 2 != 0) raise("E-ARG-SIZES", "--head-dim ", s.head_dim, ": positions turn pairs of channels; give an even number, e.g. --head-dim ", s.head_dim + 1);
  decoder_config c;
  c.sizes = {.hidden = s.hidden, .intermediate = s.intermediate, .heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim};
  c.vocab_size = byte_vocabulary, c.layers = s.layers, c.max_positions = std::max<index_t>(4096, s.window), c.rope_theta = 1e4, c.tied = true;
  return read_decoder_config(parse_json(to_json_text(c), "config.json to be"), "config.json to be");  // what can't be read back is not trained
}

/// Raises E-MEMORY-HOST if what training keeps of each parameter does not fit this machine, whatever the batch.
inline void check_memory(const decoder_config& c, device on) {
  graph g;
  declare_decoder(g, c, f32, f32);
  double parameters = 0;
  for (const auto& [name, dims] : parameter_shapes(g)) parameters += double(count(dims));
  const bool on_host = on.type == device::kind::cpu;  // else only where training starts
  const double needed = parameters * (on_host ? 16 : 4), there = double(::sysconf(_SC_PHYS_PAGES)) * double(::sysconf(_SC_PAGESIZE));
  if (there > 0 && needed > there)
    raise("E-MEMORY-HOST", "training the target: its ", index_t(parameters), on_host ? " parameters with their gradients and moments take " : " parameters take ", std::ceil(needed / 1e9), " GB of host memory, and this machine has ",
          std::floor(there / 1e9), "; lower --hidden, --layers or --intermediate");
}

/// Trains a byte-level decoder from scratch, or continues an interrupted run of the same settings.
inline void train_target(const target_settings& s) {
  // What the arguments alone can't have is said before anything is written, the run's status included.
  const decoder_config c = target_for(s);
  make_backend(s.on);
  check_text(s.text, s.window + 1);
  check_memory(c, s.on);
  watch_run(status_folder(s.output));
  beat("load");
  const byte_corpus corpus = load_corpus(s.text, s.window + 1);
  prepare_folder(s.output);
  metrics_log metrics(s.metrics);

  trainer_options o;
  o.optimizer.weight_decay = s.weight_decay;
  o.schedule = {.peak = s.rate, .steps = s.steps, .warmup_steps = std::max<index_t>(1, s.steps / 25), .final_fraction = 0.05};
  o.contract = concat_text("target h", s.hidden, " l", s.layers, " heads ", s.heads, "/", s.kv_heads, "/", s.head_dim, " f", s.intermediate, " steps ", s.steps, " batch ", s.batch, "x",
                           s.window, " rate ", s.rate, " decay ", s.weight_decay, " seed ", s.seed, " text ", hash_text(corpus.text), " ", name_of(s.used));
  beat("compile");
  trainer run(s.on, o, [&](graph& g) { return language_model_graph(g, c, s.batch, s.window, s.used); });
  beat("load");
  run.set_weights(initial_weights(parameter_shapes(run.inputs().source().source()), s.seed));
  const std::string state = s.output + "/training_state.safetensors";
  if (s.resume && file_exists(state)) run.load(state);

  stop_signals stop;
  progress_line progress("target", s.steps, run.step(), run_id());
  while (run.step() < s.steps) {
    beat("step", run.step());
    bind_windows(run.inputs(), choose_windows(corpus.training(), s.batch, s.window + 1, s.seed, run.step()));
    run.accumulate();
    run.update(double(s.batch * s.window));
    const bool saving = run.step() % s.save_every == 0 || run.step() == s.steps || stop.asked(), due = progress.due(run.step());
    if (!saving && !due) continue;
    const double loss = double(run.inputs().output("loss").data<float>()[0]);
    check_converging("target", run, loss, s.rate, saving);
    if (due) {
      progress.show(run.step(), loss, double(s.batch * s.window));
      metrics.write({{"job", "target"}, {"run", run_id()}, {"step", run.step()}, {"loss", loss}, {"rate", o.schedule.at(run.step() - 1)}, {"grad_norm", run.gradient_norm()}});
    }
    if (saving && run.step() < s.steps) {
      beat("save", run.step());
      run.save(state);
      if (stop.asked()) progress.finish(), stop.leave("target", run.step(), s.steps);
    }
  }
  progress.finish();
  std::fputs(run.profile().c_str(), stdout);
  beat("save", run.step());
  save_checkpoint(s.output, to_json_text(c), run.weights(), s.stored);
  remove_file(state);
}

}  // namespace example
