// samite/train/trainer_impl.hpp: the two graphs of a training run, and its state on disk.
#pragma once
#include <charconv>
#include <cmath>
#include <string_view>

#include <samite/io/safetensors.hpp>
#include <samite/ir/autodiff.hpp>
#include <samite/train/trainer.hpp>

namespace samite {
namespace detail {

inline tensor scalar_input(double number) {
  tensor t(f32, {1});
  t.data<float>()[0] = float(number);
  return t;
}

}  // namespace detail

SAMITE_IMPL trainer::trainer(device target, trainer_options options, const std::function<training_graph(graph&)>& build) : options_(std::move(options)) {
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

SAMITE_IMPL void trainer::set_weights(const weight_map& weights) {
  for (const auto& [name, dims] : shapes_) {
    const auto found = weights.find(name);
    if (found == weights.end() || found->second.dims() != dims)
      raise("E-MODEL-TENSOR", "trainer::set_weights: \"", name, "\" ", dims, " is ", found == weights.end() ? "missing" : "of another shape");
    tensors_[name].copy_from(found->second.to_host().to_dtype(f32));
  }
}

SAMITE_IMPL weight_map trainer::weights() const {
  weight_map out;
  for (const auto& [name, dims] : shapes_) out[name] = tensors_.at(name).to_host().clone();
  return out;
}

SAMITE_IMPL void trainer::accumulate() {
  step_->bind("accumulate", detail::scalar_input(batches_ == 0 ? 0 : 1));
  step_->step();
  ++batches_;
}

SAMITE_IMPL void trainer::update(double denominator) {
  if (batches_ == 0) raise("E-TRAIN-ORDER", "trainer::update: no batch was accumulated since the last update");
  if (!(denominator >= 0) || std::isinf(denominator)) raise("E-TRAIN-ORDER", "trainer::update: the denominator is ", denominator, "; expected a sum of weights");
  last_update_empty_ = denominator == 0;
  if (!last_update_empty_) {
    const double t = double(++moment_updates_);
    optimize_->bind("scale", detail::scalar_input(1 / denominator));
    optimize_->bind("rate", detail::scalar_input(options_.schedule.at(step_count_)));
    optimize_->bind("bias1", detail::scalar_input(1 - std::pow(options_.optimizer.beta1, t)));
    optimize_->bind("bias2", detail::scalar_input(1 - std::pow(options_.optimizer.beta2, t)));
    optimize_->step();
  }
  ++step_count_, batches_ = 0;
}

SAMITE_IMPL double trainer::gradient_norm() { return last_update_empty_ ? 0.0 : double(optimize_->output("grad_norm").data<float>()[0]); }

SAMITE_IMPL void trainer::save(const std::string& path) const {
  if (batches_ > 0)
    raise("E-TRAIN-ORDER", "trainer::save: ", batches_, " batches were accumulated since the last update and would be lost; call update() before a save");
  std::vector<std::pair<std::string, tensor>> list;
  for (const auto& [name, t] : tensors_)
    if (!name.starts_with("grad.")) list.emplace_back(name, t.to_host());
  write_safetensors(path, list, {{"contract", options_.contract}, {"format", "samite training state"}, {"moment_updates", std::to_string(moment_updates_)}, {"step", std::to_string(step_count_)}});
}

SAMITE_IMPL void trainer::load(const std::string& path) {
  const safetensors_file file = safetensors_file::open(path);
  const auto text = [&](const char* key) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end()) raise("E-CHECKPOINT-TENSOR", path, ": it has no \"", key, "\"; it is not a training state of samite");
    return found->second;
  };
  if (text("contract") != options_.contract)
    raise("E-CHECKPOINT-CONTRACT", path, ": it was written by a run of \"", text("contract"), "\" but this one is \"", options_.contract, "\"; use the same settings, or another folder for a new run");
  const auto number = [&](const char* key) {
    const std::string digits = text(key);
    index_t count = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size() || count < 0) raise("E-CHECKPOINT-TENSOR", path, ": \"", key, "\" is \"", digits, "\"; expected a count");
    return count;
  };
  const index_t steps = number("step"), moment_updates = number("moment_updates");
  std::map<std::string, tensor> loaded;  // all or nothing: the run's tensors change only when every one was read
  for (const auto& [name, t] : tensors_) {
    if (name.starts_with("grad.")) continue;
    loaded[name] = file.load(name);
    if (loaded[name].dims() != t.dims() || loaded[name].type() != f32)
      raise("E-CHECKPOINT-TENSOR", path, ": \"", name, "\" is ", name_of(loaded[name].type()), " ", loaded[name].dims(), " but the run needs f32 ", t.dims());
  }
  for (auto& [name, t] : loaded) tensors_.at(name).copy_from(t);
  step_count_ = steps, moment_updates_ = moment_updates, batches_ = 0;
}

}  // namespace samite
