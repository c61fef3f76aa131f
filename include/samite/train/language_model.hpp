// samite/train/language_model.hpp: next-token training and scoring of a target.
#pragma once
#include <samite/model/decoder.hpp>
#include <samite/train/data.hpp>
#include <samite/train/trainer.hpp>

namespace samite {

/// Next-token cross-entropy of a decoder over B windows of S tokens.
///
/// Inputs "ids" and "positions" [B,S] i32, "labels" [B*S,1] i32. Output "loss": mean cross-entropy in nats, [1];
/// "token_ce" [B*S,1].
training_graph language_model_graph(graph& g, const decoder_config& c, index_t B, index_t S, dtype used);

/// Binds B windows of S + 1 bytes.
void bind_windows(executor& run, const std::vector<std::span<const std::uint8_t>>& windows);

/// Mean bits per byte of a decoder over a text: windows of S bytes that overlap by half, of which the second half is scored
/// (all of the first window), so that every byte but the first is scored once with at least S / 2 bytes of context.
double bits_per_byte(const decoder_config& c, const weight_map& weights, device target, dtype used, std::span<const std::uint8_t> text, index_t S);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/train/language_model_impl.hpp>
#endif
