// samite/model/checkpoint.hpp: weights by name, read from and written to checkpoint folders.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <samite/run/executor.hpp>

namespace samite {

/// Tensors by checkpoint name.
using weight_map = std::map<std::string, tensor>;

/// Name and shape of every tensor that a graph's parameters need.
std::vector<std::pair<std::string, extents>> parameter_shapes(const graph& g);

/// Reads a checkpoint's tensors as `type` and checks them against what the model needs.
///
/// optional  names that may be there and are ignored
/// errors    E-MODEL-TENSOR: a tensor is missing, unknown or of another shape; E-SAFETENSORS-*, E-FILE-*
weight_map load_weights(const std::string& folder, const std::vector<std::pair<std::string, extents>>& needed, dtype type, const std::set<std::string>& optional = {});

/// Initial weights: normal with deviation `range` for matrices, ones for norms. The same seed gives the same numbers on any machine.
weight_map initial_weights(const std::vector<std::pair<std::string, extents>>& needed, std::uint64_t seed, double range = 0.02);

/// Binds each of the graph's parameters that the map holds; a frozen model in a training graph has a prefix.
void bind_weights(executor& run, const weight_map& weights);

/// Writes config.json and model.safetensors into a folder; each file appears whole or not at all.
void save_checkpoint(const std::string& folder, const std::string& config_json, const weight_map& weights, dtype type);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/model/checkpoint_impl.hpp>
#endif
