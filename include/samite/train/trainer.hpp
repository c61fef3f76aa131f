// samite/train/trainer.hpp: accumulate gradients, step AdamW, save and resume.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

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
  /// denominator  sum over the batches of what the numerators are divided by. With 0, nothing was supervised: the step is counted,
  ///              for schedule and data go by it, but parameters and moments stay as they are
  /// errors       E-TRAIN-ORDER without a batch, or for a denominator that is no sum of weights
  void update(double denominator);

  index_t step() const { return step_count_; }
  /// Where the time went (executor::profile), forward and backward, then the optimizer.
  std::string profile() const { return step_->profile() + optimize_->profile(); }
  /// Norm of the last update's gradients before clipping, 0 if nothing was supervised; waits for the device.
  double gradient_norm();

  /// Writes parameters, moments and counts into one file, whole or not at all.
  ///
  /// errors  E-TRAIN-ORDER between accumulate and update: what was added up would be lost; E-FILE-WRITE
  void save(const std::string& path) const;
  /// Continues from a file of `save`. errors: E-CHECKPOINT-CONTRACT, E-CHECKPOINT-TENSOR, E-SAFETENSORS-*
  void load(const std::string& path);

 private:
  trainer_options options_;
  graph step_graph_, optimizer_graph_;
  std::vector<std::pair<std::string, extents>> shapes_;
  std::unique_ptr<executor> step_, optimize_;
  std::map<std::string, tensor> tensors_;  // parameters, grad.*, adam_m.*, adam_v.*
  index_t step_count_ = 0, moment_updates_ = 0;  // they differ by the steps with nothing supervised
  index_t batches_ = 0;                          // accumulated since the last update
  bool last_update_empty_ = false;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/train/trainer_impl.hpp>
#endif
