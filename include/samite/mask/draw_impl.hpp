// samite/mask/draw_impl.hpp: pictures of masks.
#pragma once
#include <algorithm>

#include <samite/core/renamed_error.hpp>
#include <samite/ir/bounds.hpp>
#include <samite/mask/draw.hpp>

namespace samite {

SAMITE_IMPL std::string draw(const any_mask& mask, index_t rows, index_t keys, const draw_options& options) {
  constexpr index_t limit = index_t(1) << 40, most_characters = index_t(1) << 26;
  const auto within = [](index_t x, index_t low) { return low <= x && x <= limit; };
  if (!within(rows, 1) || !within(keys, 1) || !within(options.first_q, 0) || !within(options.first_kv, 0))
    raise("E-MASK-DRAW", "draw: ", rows, " rows from ", options.first_q, " and ", keys, " keys from ", options.first_kv,
          "; the counts must be at least 1, the starts at least 0, and all at most 2^40");
  if (!within(options.b, 0) || !within(options.h, 0))
    raise("E-MASK-DRAW", "draw: batch b = ", options.b, ", head h = ", options.h, "; both must be from 0 to 2^40");
  if (options.columns < 1 || options.lines < 1)
    raise("E-MASK-DRAW", "draw: a picture of at most columns = ", options.columns, " and lines = ", options.lines, " characters; both must be at least 1");
  const index_t lines = std::min(options.lines, rows), columns = std::min(options.columns, keys);
  if (lines > most_characters / columns)
    raise("E-MASK-DRAW", "draw: a picture of ", lines, " lines x ", columns, " columns; at most 2^26 characters are drawn, so lower lines or columns, or show a smaller range");
  const index_t step_q = (rows + lines - 1) / lines, step_k = (keys + columns - 1) / columns;
  box_judge judge(mask.program());
  const index_t last_q = options.first_q + rows - 1, last_kv = options.first_kv + keys - 1;
  const interval b = interval::point(options.b), h = interval::point(options.h);
  detail::with_name("mask", detail::titled("mask", mask.label()), [&] { judge.check({b, h, {options.first_q, last_q}, {options.first_kv, last_kv}}); });
  std::string text;
  const std::size_t margin = options.with_scale ? concat_text(last_q).size() + 1 : 0;
  if (options.with_scale) {
    if (step_q > 1 || step_k > 1) text += concat_text(mask.label(), ": one character = ", step_q, " x ", step_k, " pairs; # all kept, + a part, . none\n");
    std::string scale(margin, ' ');
    for (index_t k = options.first_kv, at = 0; k <= last_kv; k += step_k, ++at)
      if (at % 10 == 0 && scale.size() <= margin + std::size_t(at)) scale.resize(margin + std::size_t(at), ' '), scale += concat_text(k);
    text += scale + '\n';
  }
  for (index_t q = options.first_q; q <= last_q; q += step_q) {
    if (options.with_scale) {
      const std::string number = concat_text(q);
      text.append(margin - 1 - number.size(), ' ').append(number).append(1, ' ');
    }
    for (index_t k = options.first_kv; k <= last_kv; k += step_k) {
      const index_box box{b, h, {q, std::min(q + step_q - 1, last_q)}, {k, std::min(k + step_k - 1, last_kv)}};
      const index_t pairs = (box.q.high - box.q.low + 1) * (box.kv.high - box.kv.low + 1);
      const verdict found = judge.judge_finely(box, pairs <= 1024 ? int(2 * pairs) + 96 : 96);  // small ones pair by pair if need be
      text += found == verdict::full ? '#' : found == verdict::empty ? '.' : '+';
    }
    text += '\n';
  }
  return text;
}

}  // namespace samite
