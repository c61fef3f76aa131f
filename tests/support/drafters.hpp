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

drafter_config tiny_drafter(std::vector<draft_layer> layers, index_t block_size = 4);

tensor random_reals(dtype type, extents dims, unsigned seed, double size = 1);

std::vector<double> to_doubles(const tensor& t);

/// The drafter's weights and the frozen embedding and head, the norms near but not at 1.
weight_map tiny_weights(const drafter_config& c, dtype type, unsigned seed = 3);

/// One row of `lengths.size()` documents with tokens from a fixed pattern; all supervised.
packed_row tiny_row(const std::vector<index_t>& lengths);

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

  drafter_bench(const drafter_config& c, const packed_row& r, std::vector<index_t> anchors, std::vector<index_t> keep, const options& o);

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

double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace samite_tests
