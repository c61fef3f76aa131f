// samite/train/data_impl.hpp: reading and cutting up text.
#pragma once
#include <samite/io/file.hpp>
#include <samite/train/data.hpp>

namespace samite {

SAMITE_IMPL byte_corpus load_corpus(const std::string& path, index_t least_bytes) {
  byte_corpus corpus{read_file(path), 0};
  const index_t size = index_t(corpus.text.size()), held_out = size / 10;
  corpus.train_bytes = size - held_out;
  if (held_out < least_bytes)
    raise("E-DATA-TEXT", path, ": the text has ", size, " bytes, so that its held-out tenth has ", held_out, "; at least ", least_bytes * 10, " bytes are needed for these windows; give a longer text or shorter windows");
  return corpus;
}

SAMITE_IMPL std::vector<std::span<const std::uint8_t>> choose_windows(std::span<const std::uint8_t> text, index_t count, index_t length, std::uint64_t seed, index_t step) {
  if (count < 0 || length < 1) raise("E-DATA-TEXT", count, " windows of ", length, " bytes are asked for; expected 0 or more of at least 1 byte; correct the two counts");
  if (index_t(text.size()) < length) raise("E-DATA-TEXT", "windows of ", length, " bytes of a text of ", text.size(), " bytes; use shorter windows or a longer text");
  counted_random random(seed, 0x31d0, std::uint32_t(step));
  std::vector<std::span<const std::uint8_t>> windows;
  for (index_t i = 0; i < count; ++i) windows.push_back(text.subspan(random.below(std::uint32_t(index_t(text.size()) - length + 1)), std::size_t(length)));
  return windows;
}

SAMITE_IMPL packed_row pack_windows(const std::vector<std::span<const std::uint8_t>>& windows) {
  packed_row row;
  for (std::size_t d = 0; d < windows.size(); ++d)
    for (std::size_t p = 0; p < windows[d].size(); ++p) {
      row.ids.push_back(windows[d][p]), row.positions.push_back(std::int32_t(p));
      row.documents.push_back(std::int32_t(d)), row.loss_mask.push_back(1);
    }
  return row;
}

SAMITE_IMPL std::string printable(std::span<const std::int32_t> tokens) {
  std::string out;
  const auto byte = [&](std::size_t i) { return i < tokens.size() && tokens[i] >= 0 && tokens[i] < 256 ? std::uint32_t(tokens[i]) : 0x100u; };
  for (std::size_t i = 0; i < tokens.size();) {
    const std::uint32_t lead = byte(i);
    const std::size_t length = lead < 0x80 ? 1 : lead >= 0xc2 && lead < 0xe0 ? 2 : lead >= 0xe0 && lead < 0xf0 ? 3 : lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
    std::uint32_t point = length == 1 ? lead : length == 0 ? 0 : lead & (0xffu >> (length + 1));
    bool valid = length > 0;
    for (std::size_t k = 1; k < length && valid; ++k) valid = (byte(i + k) & 0x1c0u) == 0x80u, point = point << 6 | (byte(i + k) & 0x3fu);
    static constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    valid = valid && point >= least[length] && point <= 0x10ffff && !(point >= 0xd800 && point < 0xe000);
    valid = valid && (point >= 0x20 || point == '\n' || point == '\t') && !(point >= 0x7f && point < 0xa0);
    if (valid)
      for (std::size_t k = 0; k < length; ++k) out += char(byte(i + k));
    else
      out += "\xef\xbf\xbd";
    i += valid ? length : 1;
  }
  return out;
}

}  // namespace samite
