// samite/train/trainer.hpp: accumulate gradients, step AdamW, save and resume.
#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <samite/ir/autodiff.hpp>
#include <samite/model/checkpoint.hpp>
#include <samite/train/optimizer.hpp>
#include <samite/train/schedule.hpp>

namespace samite {

struct trainer_options {
  adamw_options optimizer{};
  cosine_schedule schedule{};
  /// What must be the same when a run is resumed, e.g. data, seed and block size in one line.
  std::string contract{};
};

/// What a training graph offers: a loss whose sum is normalised once per update over all its batches.
struct training_graph {
  value numerator;                // [1]
  std::vector<value> parameters;  // fp32
};

/// Trains the parameters of one graph. All batches of an update are normalised together:
/// gradient of (sum of numerators) / (sum of denominators), exact for any number of batches.
///
/// A run is a function of its contract and step count: randomness is counted, so that a resumed run continues bit for bit
/// (on the CPU, for any number of threads).
/// threads  one thread at a time
class trainer {
 public:
  /// build  adds the model to the graph and names what is trained; inputs are bound through `inputs()`
  trainer(device target, trainer_options options, const std::function<training_graph(graph&)>& build);
  trainer(const trainer&) = delete;

  /// The executor of forward and backward: bind a batch's inputs here, and frozen weights once.
  executor& inputs() { return *step_; }
  /// Sets the trained parameters; names as in the graph.
  void set_weights(const weight_map& weights);
  /// Host copies of the trained parameters, fp32.
  weight_map weights() const;

  /// Forward and backward on what is bound; adds to the update's gradients.
  void accumulate();
  /// Ends an update of the batches accumulated since the last one.
  ///
  /// denominator  sum over the batches of what the numerators are divided by
  void update(double denominator);

  index_t step() const { return step_count_; }
  /// Where the time went (executor::profile), forward and backward, then the optimizer.
  std::string profile() const { return step_->profile() + optimize_->profile(); }
  /// Norm of the last update's gradients before clipping; waits for the device.
  double gradient_norm() { return double(optimize_->output("grad_norm").data<float>()[0]); }

  /// Writes parameters, moments and step into one file, whole or not at all.
  void save(const std::string& path) const;
  /// Continues from a file of `save`. errors: E-CHECKPOINT-CONTRACT, E-CHECKPOINT-TENSOR, E-SAFETENSORS-*
  void load(const std::string& path);

 private:
  tensor scalar_input(double number) const {
    tensor t(f32, {1});
    t.data<float>()[0] = float(number);
    return t;
  }

  trainer_options options_;
  graph step_graph_, optimizer_graph_;
  std::vector<std::pair<std::string, extents>> shapes_;
  std::unique_ptr<executor> step_, optimize_;
  std::map<std::string, tensor> tensors_;  // parameters, grad.*, adam_m.*, adam_v.*
  index_t step_count_ = 0, batches_ = 0;
};

inline trainer::trainer(device target, trainer_options options, const std::function<training_graph(graph&)>& build) : options_(std::move(options)) {
  const training_graph model = build(step_graph_);
  for (const value& p : model.parameters) {
    if (p.type() != f32) raise("E-TRAIN-DTYPE", "parameter \"", step_graph_.node(p.node()).label, "\" is ", name_of(p.type()), "; trained parameters are kept in f32");
    shapes_.emplace_back(step_graph_.node(p.node()).label, capacities(p.dims()));
  }
  add_accumulation(step_graph_, model.parameters, gradient(model.numerator, model.parameters));
  add_adamw(optimizer_graph_, shapes_, options_.optimizer);
  step_ = std::make_unique<executor>(make_plan(step_graph_, target));
  optimize_ = std::make_unique<executor>(make_plan(optimizer_graph_, target));
  for (const auto& [name, dims] : shapes_)
    for (const char* kind : {"", "grad.", "adam_m.", "adam_v."}) {
      const std::string full = kind + name;
      tensors_[full] = step_->device_backend().make_tensor(f32, dims);
      const bool in_step = *kind == '\0' || std::string_view(kind) == "grad.";
      if (in_step) step_->bind(full, tensors_[full]);
      optimize_->bind(full, tensors_[full]);
    }
}

inline void trainer::set_weights(const weight_map& weights) {
  for (const auto& [name, dims] : shapes_) {
    const auto found = weights.find(name);
    if (found == weights.end() || found->second.dims() != dims)
      raise("E-MODEL-TENSOR", "trainer::set_weights: \"", name, "\" ", dims, " is ", found == weights.end() ? "missing" : "of another shape");
    tensors_[name].copy_from(found->second.to_host().to_dtype(f32));
  }
}

inline weight_map trainer::weights() const {
  weight_map out;
  for (const auto& [name, dims] : shapes_) out[name] = tensors_.at(name).to_host().clone();
  return out;
}

inline void trainer::accumulate() {
  step_->bind("accumulate", scalar_input(batches_ == 0 ? 0 : 1));
  step_->step();
  ++batches_;
}

inline void trainer::update(double denominator) {
  if (batches_ == 0) raise("E-TRAIN-ORDER", "trainer::update: no batch was accumulated since the last update");
  if (!(denominator >= 0) || std::isinf(denominator)) raise("E-TRAIN-ORDER", "trainer::update: the denominator is ", denominator, "; expected a sum of weights");
  const double t = double(step_count_ + 1);
  // An update without a single supervised token changes nothing but the step count.
  optimize_->bind("scale", scalar_input(denominator > 0 ? 1 / denominator : 0));
  optimize_->bind("rate", scalar_input(denominator > 0 ? options_.schedule.at(step_count_) : 0));
  optimize_->bind("bias1", scalar_input(1 - std::pow(options_.optimizer.beta1, t)));
  optimize_->bind("bias2", scalar_input(1 - std::pow(options_.optimizer.beta2, t)));
  optimize_->step();
  ++step_count_, batches_ = 0;
}

inline void trainer::save(const std::string& path) const {
  std::vector<std::pair<std::string, tensor>> list;
  for (const auto& [name, t] : tensors_)
    if (!name.starts_with("grad.")) list.emplace_back(name, t.to_host());
  write_safetensors(path, list, {{"contract", options_.contract}, {"format", "samite training state"}, {"step", std::to_string(step_count_)}});
}

inline void trainer::load(const std::string& path) {
  const safetensors_file file = safetensors_file::open(path);
  const auto text = [&](const char* key) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end()) raise("E-CHECKPOINT-TENSOR", path, ": it has no \"", key, "\"; it is not a training state of samite");
    return found->second;
  };
  if (text("contract") != options_.contract)
    raise("E-CHECKPOINT-CONTRACT", path, ": it was written by a run of \"", text("contract"), "\" but this one is \"", options_.contract, "\"; use the same settings, or another folder for a new run");
  const std::string step = text("step");
  index_t count = 0;
  const auto parsed = std::from_chars(step.data(), step.data() + step.size(), count);
  if (parsed.ec != std::errc() || parsed.ptr != step.data() + step.size() || count < 0) raise("E-CHECKPOINT-TENSOR", path, ": the step is \"", step, "\"");
  std::map<std::string, tensor> loaded;  // all or nothing: the run's tensors change only when every one was read
  for (const auto& [name, t] : tensors_) {
    if (name.starts_with("grad.")) continue;
    loaded[name] = file.load(name);
    if (loaded[name].dims() != t.dims() || loaded[name].type() != f32)
      raise("E-CHECKPOINT-TENSOR", path, ": \"", name, "\" is ", name_of(loaded[name].type()), " ", loaded[name].dims(), " but the run needs f32 ", t.dims());
  }
  for (auto& [name, t] : loaded) tensors_.at(name).copy_from(t);
  step_count_ = count, batches_ = 0;
}

}  // namespace samite
