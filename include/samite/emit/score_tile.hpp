// samite/emit/score_tile.hpp: a score function on the accumulators of the sm_90a kernels (codegen/device/score_tile.cuh).
#pragma once
#include <span>
#include <string>

#include <samite/emit/score.hpp>
#include <samite/emit/score_tile_use.hpp>

namespace samite {

/// struct `name`, which extends struct score_function of score_text and has the same bytes.
///
/// by_keys       rows of the accumulators are keys and columns queries; otherwise the other way round
/// approximates  a forward tanh may have a relative error of 2^-11: where weights are rounded to bf16
std::string score_tile_text(const program& score, std::span<const dtype> types, bool by_keys, bool approximates, const char* name);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/emit/score_tile_impl.hpp>
#endif
