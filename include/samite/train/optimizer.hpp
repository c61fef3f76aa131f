// samite/train/optimizer.hpp: gradient accumulation and AdamW as graphs over shared state.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include <samite/expr/tensor.hpp>

namespace samite {

struct adamw_options {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double max_norm = 1;  // of all gradients together; 0 or less: no clipping
};

/// Adds `gradients` to the states "grad.NAME", or overwrites them where the input "accumulate" is 0.
void add_accumulation(graph& g, const std::vector<value>& parameters, const std::vector<value>& gradients);

/// One AdamW step on the parameters from the states "grad.NAME", with states "adam_m.NAME" and "adam_v.NAME".
///
/// Inputs of shape [1], fp32: "scale" multiplies every gradient (1 / global denominator), "rate" is the learning rate,
/// "bias1" and "bias2" are 1 - beta^t. Output "grad_norm": the norm of all scaled gradients before clipping.
/// source  Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2; clipping: Pascanu et al. 2013, arXiv:1211.5063
void add_adamw(graph& g, const std::vector<std::pair<std::string, extents>>& parameters, const adamw_options& o);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/train/optimizer_impl.hpp>
#endif
