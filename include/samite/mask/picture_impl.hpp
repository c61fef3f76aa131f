// samite/mask/picture_impl.hpp: the bodies behind mask/picture.hpp.
#pragma once
#include <array>
#include <span>

#include <algorithm>
#include <samite/core/renamed_error.hpp>
#include <samite/ir/bounds.hpp>
#include <samite/ir/evaluate.hpp>
#include <samite/mask/picture.hpp>

namespace samite {

namespace detail {

/// A mask cut into bars: stretches of cells of one kind in one row of the picture. Cells are tiles or pairs.
struct mask_bars {
  struct bar {
    index_t row, first, last;
    bool full;
  };
  index_t rows = 0, columns = 0, cell_q = 1, cell_k = 1;
  index_t q = 0, kv = 0;  // of the first cell
  std::vector<bar> bars;
};

inline constexpr index_t picture_limit = 4096, most_pixels = 32768;  // a PNG of 32768 x 32768 stays below the format's 2^31 bytes

inline mask_bars bars_of(const any_mask& mask, const tile_options& sizes, const picture_options& o) {
  check_sizes("picture", sizes);
  if (o.pixels < 1 || o.pixels > most_pixels) raise("E-MASK-DRAW", "picture: pixels = ", o.pixels, " for the longer side; expected 1 to ", most_pixels);
  // A start outside leaves nothing, and is refused below.
  const auto rest = [](index_t length, index_t first) { return first < 0 || first > length ? index_t(0) : length - first; };
  const index_t rows = o.rows == 0 ? rest(sizes.Q, o.first_q) : o.rows, keys = o.keys == 0 ? rest(sizes.K, o.first_kv) : o.keys;
  if (o.first_q < 0 || o.first_kv < 0 || rows < 1 || keys < 1 || o.first_q > sizes.Q - rows || o.first_kv > sizes.K - keys || o.b < 0 || o.h < 0 || o.b >= sizes.B ||
      o.h >= sizes.H)
    raise("E-MASK-DRAW", "picture: ", rows, " rows from ", o.first_q, " and ", keys, " keys from ", o.first_kv, " of batch ", o.b, ", head ", o.h, ", but the matrix has ", sizes.Q,
          " rows, ", sizes.K, " keys, ", sizes.B, " batch(es) and ", sizes.H, " head(s); show a range inside it");
  mask_bars m;
  m.cell_q = o.pairs ? 1 : sizes.tile_q, m.cell_k = o.pairs ? 1 : sizes.tile_k;
  const index_t q0 = o.first_q / m.cell_q, q1 = (o.first_q + rows - 1) / m.cell_q, k0 = o.first_kv / m.cell_k, k1 = (o.first_kv + keys - 1) / m.cell_k;
  m.rows = q1 - q0 + 1, m.columns = k1 - k0 + 1, m.q = q0 * m.cell_q, m.kv = k0 * m.cell_k;
  if (m.rows > picture_limit || m.columns > picture_limit)
    raise("E-MASK-DRAW", "picture: ", m.rows, " x ", m.columns, o.pairs ? " pairs" : " tiles", ", but at most ", picture_limit, " a side are shown; show a smaller range",
          o.pairs ? " or tiles" : " or larger tiles");
  if (!o.pairs) {
    const tile_map map(mask, sizes);
    for (index_t i = q0; i <= q1; ++i)
      for (const tile_run& run : map.row(o.b, o.h, i)) {
        const index_t first = std::max<index_t>(run.first, k0), last = std::min<index_t>(run.last, k1);
        if (first <= last) m.bars.push_back({i - q0, first - k0, last - k0, run.kind == tile_kind::full});
      }
    return m;
  }
  with_name("mask", titled("mask", mask.label()), [&] { box_judge(mask.program()).check({interval::point(o.b), interval::point(o.h), {q0, q1}, {k0, k1}}); });
  row_evaluator evaluate(mask.program());
  std::vector<std::uint8_t> keep(std::size_t(m.columns) + 1, 0);
  for (index_t i = 0; i < m.rows; ++i) {
    evaluate.row(o.b, o.h, q0 + i, k0, k1 + 1, keep.data());
    for (index_t first = 0; first < m.columns; ++first) {
      if (!keep[std::size_t(first)]) continue;
      index_t last = first;
      while (keep[std::size_t(last) + 1]) ++last;
      m.bars.push_back({i, first, last, true});
      first = last;
    }
  }
  return m;
}

struct picture_colour {
  std::uint8_t r, g, b;
};
inline constexpr picture_colour full_colour{0x1f, 0x4e, 0x79}, undecided_colour{0x9d, 0xc3, 0xe6}, empty_colour{0xff, 0xff, 0xff}, frame_colour{0x80, 0x80, 0x80};

inline index_t cell_pixels(const mask_bars& m, const picture_options& o) { return std::max<index_t>(1, o.pixels / std::max(m.rows, m.columns)); }

inline std::string hex_colour(picture_colour c) {
  std::string text = "#";
  for (std::uint8_t byte : {c.r, c.g, c.b})
    for (int nibble : {byte >> 4, byte & 15}) text += "0123456789abcdef"[nibble];
  return text;
}

/// Text inside XML.
inline std::string xml_text(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (static_cast<unsigned char>(c) >= 0x20 || c == '\n') out += c;
  }
  return out;
}

// --- PNG, with its image data stored and not compressed: no library, and any reader takes it -----------------------------

inline void put_big_endian(std::vector<std::uint8_t>& out, std::uint32_t x) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(std::uint8_t(x >> shift));
}

inline std::uint32_t crc_of(std::span<const std::uint8_t> bytes) {
  std::uint32_t crc = ~std::uint32_t(0);
  for (std::uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

inline void put_chunk(std::vector<std::uint8_t>& out, const char (&type)[5], std::span<const std::uint8_t> data) {
  put_big_endian(out, std::uint32_t(data.size()));
  const std::size_t start = out.size();
  out.insert(out.end(), type, type + 4);
  out.insert(out.end(), data.begin(), data.end());
  put_big_endian(out, crc_of(std::span(out).subspan(start)));
}

/// A zlib stream of stored blocks.  source  RFC 1950 and RFC 1951, section 3.2.4
inline std::vector<std::uint8_t> stored_zlib(std::span<const std::uint8_t> data) {
  std::vector<std::uint8_t> out{0x78, 0x01};
  std::uint32_t a = 1, b = 0;
  for (std::uint8_t byte : data) a = (a + byte) % 65521, b = (b + a) % 65521;
  do {
    const std::size_t n = std::min<std::size_t>(data.size(), 65535);
    out.push_back(n == data.size() ? 1 : 0);
    for (std::size_t length : {n, ~n}) out.push_back(std::uint8_t(length & 255)), out.push_back(std::uint8_t(length >> 8 & 255));
    out.insert(out.end(), data.begin(), data.begin() + std::ptrdiff_t(n));
    data = data.subspan(n);
  } while (!data.empty());
  put_big_endian(out, b << 16 | a);
  return out;
}

}  // namespace detail

SAMITE_IMPL std::string svg(const any_mask& mask, const tile_options& sizes, const picture_options& options) {
  const detail::mask_bars m = detail::bars_of(mask, sizes, options);
  const index_t cell = detail::cell_pixels(m, options), width = m.columns * cell, height = m.rows * cell;
  std::string out = concat_text("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width + 2, "\" height=\"", height + 2, "\" viewBox=\"-1 -1 ", width + 2, " ", height + 2,
                                "\" shape-rendering=\"crispEdges\">\n<title>", detail::xml_text(mask.label()), ": queries ", m.q, " to ", std::min(sizes.Q, m.q + m.rows * m.cell_q) - 1,
                                " (down), keys ", m.kv, " to ", std::min(sizes.K, m.kv + m.columns * m.cell_k) - 1, " (across)",
                                options.pairs ? std::string() : concat_text(", tiles of ", m.cell_q, " x ", m.cell_k), "</title>\n<rect x=\"-0.5\" y=\"-0.5\" width=\"", width + 1, "\" height=\"",
                                height + 1, "\" fill=\"", detail::hex_colour(detail::empty_colour), "\" stroke=\"", detail::hex_colour(detail::frame_colour), "\"/>\n");
  for (const bool full : {true, false}) {
    std::string path;
    for (const auto& bar : m.bars)
      if (bar.full == full) path += concat_text("M", bar.first * cell, " ", bar.row * cell, "h", (bar.last - bar.first + 1) * cell, "v", cell, "h", -(bar.last - bar.first + 1) * cell, "z");
    if (!path.empty()) out += concat_text("<path fill=\"", detail::hex_colour(full ? detail::full_colour : detail::undecided_colour), "\" d=\"", path, "\"/>\n");
  }
  return out + "</svg>\n";
}

SAMITE_IMPL std::vector<std::uint8_t> png(const any_mask& mask, const tile_options& sizes, const picture_options& options) {
  const detail::mask_bars m = detail::bars_of(mask, sizes, options);
  const index_t cell = detail::cell_pixels(m, options), width = m.columns * cell, height = m.rows * cell;
  // One byte a pixel, an index into the palette; each line begins with its filter, none.
  std::vector<std::uint8_t> pixels(std::size_t(height * (width + 1)), 0);
  for (const auto& bar : m.bars)
    for (index_t y = bar.row * cell; y < (bar.row + 1) * cell; ++y) {
      const auto line = pixels.begin() + y * (width + 1) + 1;
      std::fill(line + bar.first * cell, line + (bar.last + 1) * cell, std::uint8_t(bar.full ? 2 : 1));
    }
  std::vector<std::uint8_t> out{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, header;
  detail::put_big_endian(header, std::uint32_t(width)), detail::put_big_endian(header, std::uint32_t(height));
  for (int byte : {8, 3, 0, 0, 0}) header.push_back(std::uint8_t(byte));  // 8 bits, palette, deflate, adaptive filters, not interlaced
  std::vector<std::uint8_t> palette;
  for (const detail::picture_colour& c : {detail::empty_colour, detail::undecided_colour, detail::full_colour}) palette.insert(palette.end(), {c.r, c.g, c.b});
  detail::put_chunk(out, "IHDR", header);
  detail::put_chunk(out, "PLTE", palette);
  detail::put_chunk(out, "IDAT", detail::stored_zlib(pixels));
  detail::put_chunk(out, "IEND", {});
  return out;
}

}  // namespace samite
