// samite/train/data.hpp: byte-level text, split into training and held-out parts.
#pragma once
#include <span>
#include <string>
#include <vector>

#include <samite/train/blocks.hpp>

namespace samite {

/// Tokens of byte-level models: 0 to 255 are bytes, 256 is the drafter's mask; the rest pads the table to a multiple of 8.
inline constexpr index_t byte_vocabulary = 264, byte_mask_token = 256;

/// A text and where its held-out end begins.
struct byte_corpus {
  std::string text;
  index_t train_bytes = 0;

  std::span<const std::uint8_t> training() const { return bytes().first(std::size_t(train_bytes)); }
  std::span<const std::uint8_t> held_out() const { return bytes().subspan(std::size_t(train_bytes)); }

 private:
  std::span<const std::uint8_t> bytes() const { return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}; }
};

/// Reads a text of any encoding; the last tenth is held out.
///
/// least_bytes  of each part: what the caller's windows need
/// errors       E-DATA-TEXT if the text is too short; E-FILE-OPEN, E-FILE-READ
byte_corpus load_corpus(const std::string& path, index_t least_bytes);

/// `count` windows of `length` bytes of a text: the choice depends on (seed, step) alone.
std::vector<std::span<const std::uint8_t>> choose_windows(std::span<const std::uint8_t> text, index_t count, index_t length, std::uint64_t seed, index_t step);

/// Windows side by side as documents of one row; every token is supervised.
packed_row pack_windows(const std::vector<std::span<const std::uint8_t>>& windows);

/// Bytes as text for a terminal: whatever is not valid UTF-8 or is a control character becomes U+FFFD.
std::string printable(std::span<const std::int32_t> tokens);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/train/data_impl.hpp>
#endif
