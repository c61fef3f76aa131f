// samite/ir/tile_bits_impl.hpp: rows of bits from the open parts of a predicate.
#pragma once
#include <algorithm>

#include <samite/ir/tile_bits.hpp>

namespace samite {

SAMITE_IMPL tile_bits::tile_bits(const program& source) : judge_(source), rows_(source) {
  const std::size_t count = judge_.steps_->predicates.size();
  keys_.resize(count);
  for (std::size_t id = 0; id < count; ++id) splits_.push_back(can_split(int(id)));
}

// Parts precede what is made of them, so that theirs is known.
SAMITE_IMPL bool tile_bits::can_split(int id) const {
  const steps& all = *judge_.steps_;
  const steps::predicate_step& step = all.predicates[std::size_t(id)];
  switch (step.code) {
    case steps::predicate_code::constant: return true;
    case steps::predicate_code::all: case steps::predicate_code::any:
      return std::all_of(step.parts.begin(), step.parts.end(), [&](int part) { return can_split(part); });
    case steps::predicate_code::leaf: {
      const steps::value_step& form = all.values[std::size_t(step.form)];
      if (form.code != steps::value_code::sum) return steps::axis_of(form) != steps::pairs;
      return std::none_of(all.terms.begin() + form.a, all.terms.begin() + form.b, [&](const steps::term& t) { return steps::axis_of(all.values[std::size_t(t.atom)]) == steps::pairs; });
    }
    default: return false;
  }
}

SAMITE_IMPL void tile_bits::evaluate(const index_box& tile, std::uint64_t* words) {
  const index_t rows = tile.q.high - tile.q.low + 1;
  columns_ = tile.kv.high - tile.kv.low + 1;
  ensure(columns_ <= 64, "a tile of bits has at most 64 keys");
  every_ = columns_ == 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << columns_) - 1;
  const verdict found = judge_.enter(tile);
  const std::size_t first = judge_.frames_.back().first_open, last = judge_.open_.size();
  const int* open = judge_.open_.data();
  if (found != verdict::undecided) {
    std::fill_n(words, rows, found == verdict::full ? every_ : 0);
  } else if (std::all_of(open + first, open + last, [&](int id) { return splits_[std::size_t(id)] != 0; })) {
    for (std::size_t i = first; i < last; ++i) prepare(open[i], tile);
    const bool all = judge_.frames_.back().neutral == box_judge::finding::full;
    index_box row = tile;
    for (index_t r = 0; r < rows; ++r) {
      row.q = interval::point(tile.q.low + r);
      judge_.begin(row);
      words[r] = bits_of_parts(open + first, open + last, all);
    }
  } else {
    std::uint8_t keep[64];
    for (index_t r = 0; r < rows; ++r) {
      rows_.row(tile.b.low, tile.h.low, tile.q.low + r, tile.kv.low, tile.kv.high + 1, keep);
      words[r] = 0;
      for (index_t c = 0; c < columns_; ++c) words[r] |= std::uint64_t(keep[c] != 0) << c;
    }
  }
  judge_.leave();
}

SAMITE_IMPL void tile_bits::prepare(int id, const index_box& tile) {
  const steps& all = *judge_.steps_;
  const steps::predicate_step& step = all.predicates[std::size_t(id)];
  if (judge_.known_[std::size_t(id)] != box_judge::finding::undecided) return;
  for (int part : step.parts) prepare(part, tile);
  if (step.code != steps::predicate_code::leaf) return;
  const steps::value_step& form = all.values[std::size_t(step.form)];
  key_values& keys = keys_[std::size_t(id)];
  index_box column = tile;
  for (index_t c = 0; c < columns_; ++c) {
    column.kv = interval::point(tile.kv.low + c);
    judge_.begin(column);
    keys.at[c] = 0;
    if (form.code != steps::value_code::sum) {
      if (steps::axis_of(form) == steps::columns) keys.at[c] = judge_.value(step.form).low;
      continue;
    }
    for (int i = form.a; i < form.b; ++i) {
      const steps::term& t = all.terms[std::size_t(i)];
      if (steps::axis_of(all.values[std::size_t(t.atom)]) == steps::columns) keys.at[c] += t.factor * judge_.value(t.atom).low;
    }
  }
  keys.is_rising = std::is_sorted(keys.at, keys.at + columns_);
}

SAMITE_IMPL std::uint64_t tile_bits::bits_of(int id) {
  const box_judge::finding known = judge_.known_[std::size_t(id)];
  if (known == box_judge::finding::full) return every_;
  if (known == box_judge::finding::empty) return 0;
  const steps::predicate_step& step = judge_.steps_->predicates[std::size_t(id)];
  if (step.code == steps::predicate_code::leaf) return bits_of_leaf(id);
  if (step.code == steps::predicate_code::constant) return step.constant ? every_ : 0;
  return bits_of_parts(step.parts.data(), step.parts.data() + step.parts.size(), step.code == steps::predicate_code::all);
}

SAMITE_IMPL std::uint64_t tile_bits::bits_of_parts(const int* first, const int* last, bool all) {
  std::uint64_t bits = all ? every_ : 0;
  for (; first != last && bits != (all ? 0 : every_); ++first) bits = all ? bits & bits_of(*first) : bits | bits_of(*first);
  return bits;
}

SAMITE_IMPL std::uint64_t tile_bits::bits_of_leaf(int id) {
  const steps& all = *judge_.steps_;
  const steps::predicate_step& leaf = all.predicates[std::size_t(id)];
  const steps::value_step& form = all.values[std::size_t(leaf.form)];
  index_t query = 0;
  if (form.code != steps::value_code::sum) {
    if (steps::axis_of(form) == steps::rows) query = judge_.value(leaf.form).low;
  } else {
    query = form.imm;
    for (int i = form.a; i < form.b; ++i) {
      const steps::term& t = all.terms[std::size_t(i)];
      if (steps::axis_of(all.values[std::size_t(t.atom)]) == steps::rows) query += t.factor * judge_.value(t.atom).low;
    }
  }
  const key_values& keys = keys_[std::size_t(id)];
  std::uint64_t bits = 0;
  for (const interval& part : leaf.set) bits |= bits_within(keys, {part.low - query, part.high - query});
  if (leaf.residues.is_everything()) return bits;
  for (index_t c = 0; c < columns_; ++c)
    if (floor_mod(keys.at[c] + query - leaf.residues.start, leaf.residues.modulus) >= leaf.residues.count) bits &= ~(std::uint64_t(1) << c);
  return bits;
}

SAMITE_IMPL std::uint64_t tile_bits::bits_within(const key_values& keys, interval range) const {
  if (!keys.is_rising) {
    std::uint64_t bits = 0;
    for (index_t c = 0; c < columns_; ++c) bits |= std::uint64_t(range.contains(keys.at[c])) << c;
    return bits;
  }
  const index_t* const end = keys.at + columns_;
  const auto from = std::lower_bound(keys.at, end, range.low) - keys.at, to = std::upper_bound(keys.at, end, range.high) - keys.at;
  if (from >= to) return 0;
  const std::uint64_t below = to == 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << to) - 1;
  return below & ~((std::uint64_t(1) << from) - 1);
}

}  // namespace samite
