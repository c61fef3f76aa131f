// samite/ir/tile_rows_impl.hpp: searching and joining the stretches of rows of tiles.
#pragma once
#include <algorithm>

#include <samite/ir/ops.hpp>
#include <samite/ir/tile_rows.hpp>

namespace samite {

namespace detail {

// The first place from which on a list that never falls is at least `least`, searched in growing steps from a guess.
inline std::int32_t first_at_least(const std::vector<index_t>& list, std::int32_t guess, index_t least) {
  const std::int32_t count = std::int32_t(list.size());
  const auto is_below = [&](std::int32_t at) { return list[std::size_t(at)] < least; };
  std::int32_t low = guess, high = guess, step = 1;
  if (guess < count && is_below(guess)) {
    for (++low; step <= count - low && is_below(low + step - 1); step *= 2) low += step;
    high = std::min(count, low + step - 1);
  } else {
    for (; step <= high && !is_below(high - step); step *= 2) high -= step;
    low = std::max(0, high - step + 1);
  }
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (is_below(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

}  // namespace detail

SAMITE_IMPL tile_rows::tile_rows(box_judge& judge, index_t keys, index_t tile_keys)
    : judge_(judge), keys_count_(keys), tile_keys_(tile_keys), tiles_(std::int32_t((keys + tile_keys - 1) / tile_keys)) {
  comparisons_.resize(judge.steps_->predicates.size());
  has_form_ = prepare(judge.steps_->root_predicate);
}

SAMITE_IMPL bool tile_rows::prepare(int id) {
  const steps::predicate_step& step = judge_.steps_->predicates[std::size_t(id)];
  switch (step.code) {
    case steps::predicate_code::constant: return true;
    case steps::predicate_code::leaf: return prepare_leaf(id);
    case steps::predicate_code::all: case steps::predicate_code::any: return std::all_of(step.parts.begin(), step.parts.end(), [&](int part) { return prepare(part); });
    default: return false;
  }
}

SAMITE_IMPL bool tile_rows::prepare_leaf(int id) {
  const steps& all = *judge_.steps_;
  const steps::predicate_step& leaf = all.predicates[std::size_t(id)];
  const steps::value_step& form = all.values[std::size_t(leaf.form)];
  if (steps::axis_of(form) == steps::rows) return true;
  if (leaf.set.size() != 1 || !leaf.residues.is_everything()) return false;
  steps::term key{-1, 0};
  if (form.code != steps::value_code::sum) {
    key = {leaf.form, 1};
  } else {
    for (int i = form.a; i < form.b; ++i) {
      const steps::term& t = all.terms[std::size_t(i)];
      if (steps::axis_of(all.values[std::size_t(t.atom)]) == steps::rows) continue;
      if (key.factor != 0) return false;
      key = t;
    }
  }
  const steps::value_step& atom = all.values[std::size_t(key.atom)];
  if (steps::axis_of(atom) != steps::columns || (key.factor != 1 && key.factor != -1)) return false;
  comparison& c = comparisons_[std::size_t(id)];
  c.minus = key.factor < 0;
  for (std::size_t i = 0; i < keys_.size(); ++i)
    if (keys_[i].id == key.atom) c.key = int(i);
  if (c.key < 0) {
    c.key = int(keys_.size());
    keys_.push_back({key.atom, {}, {}});
    follows_rows_ = follows_rows_ || atom.one_row;
  }
  return true;
}

SAMITE_IMPL bool tile_rows::serve(const index_box& box) {
  if (!has_form_) return false;
  const bool moved = !is_ready_ || box.b != b_ || box.h != h_;
  if (!is_ready_ || (follows_rows_ && moved)) look_at_keys(box);
  if (moved)
    for (comparison& c : comparisons_) c.is_solved = false;
  is_ready_ = true;
  b_ = box.b, h_ = box.h;
  return std::all_of(keys_.begin(), keys_.end(), [](const key_value& key) { return key.never_falls; });
}

SAMITE_IMPL void tile_rows::look_at_keys(const index_box& box) {
  index_box tile = box;
  for (key_value& key : keys_) key.low.resize(std::size_t(tiles_)), key.high.resize(std::size_t(tiles_));
  for (std::int32_t j = 0; j < tiles_; ++j) {
    tile.kv = {j * tile_keys_, std::min((j + 1) * tile_keys_, keys_count_) - 1};
    judge_.begin(tile);
    for (key_value& key : keys_) {
      const interval range = judge_.value(key.id);
      key.low[std::size_t(j)] = range.low, key.high[std::size_t(j)] = range.high;
    }
  }
  for (key_value& key : keys_) key.never_falls = std::is_sorted(key.low.begin(), key.low.end()) && std::is_sorted(key.high.begin(), key.high.end());
}

SAMITE_IMPL const std::vector<tile_rows::stretch>& tile_rows::row(const index_box& box, int budget) {
  index_box tile = box;
  judge_.begin(tile);
  pieces_.clear();
  solve(judge_.steps_->root_predicate);
  found_.clear();
  const auto list = [&](std::int32_t first, std::int32_t end, verdict found) {
    if (found == verdict::empty) return;
    if (!found_.empty() && found_.back().end == first && found_.back().found == found) found_.back().end = end;
    else found_.push_back({first, end, found});
  };
  std::int32_t first = 0;
  for (const piece& p : pieces_) {
    if (p.found == finding::empty || p.found == finding::full) {
      list(first, p.end, p.found == finding::full ? verdict::full : verdict::empty);
    } else {
      for (std::int32_t j = first; j < p.end; ++j) {
        if (p.leaf >= 0 && is_partial(p.leaf, j)) {
          list(j, j + 1, verdict::undecided);
          continue;
        }
        tile.kv = {j * tile_keys_, std::min((j + 1) * tile_keys_, keys_count_) - 1};
        list(j, j + 1, judge_.judge_finely(tile, budget));
        judge_.begin(tile);
      }
    }
    first = p.end;
  }
  return found_;
}

// Appends the pieces of one predicate step.
SAMITE_IMPL void tile_rows::solve(int id) {
  const steps::predicate_step& step = judge_.steps_->predicates[std::size_t(id)];
  const std::size_t first = pieces_.size();
  switch (step.code) {
    case steps::predicate_code::all: return join(first, step.parts, finding::full);
    case steps::predicate_code::any: return join(first, step.parts, finding::empty);
    case steps::predicate_code::leaf:
      if (comparisons_[std::size_t(id)].key >= 0) return solve_leaf(id);
      return push(first, {tiles_, judge_.finding_of_leaf(step), id});
    default: return push(first, {tiles_, step.constant ? finding::full : finding::empty, -1});
  }
}

SAMITE_IMPL void tile_rows::push(std::size_t first, piece next) {
  const bool decided = next.found == finding::empty || next.found == finding::full;
  if (pieces_.size() > first && pieces_.back().found == next.found && (decided || pieces_.back().leaf == next.leaf)) pieces_.back().end = next.end;
  else if (next.end > (pieces_.size() > first ? pieces_.back().end : 0)) pieces_.push_back(next);
}

// With x the key's value and g the others': x + g (or g - x) lies in one interval. Along the row the leaf is empty, undecided, full,
// undecided and empty, each of which may be missing.
SAMITE_IMPL void tile_rows::solve_leaf(int id) {
  const steps::predicate_step& leaf = judge_.steps_->predicates[std::size_t(id)];
  const steps::value_step& form = judge_.steps_->values[std::size_t(leaf.form)];
  comparison& c = comparisons_[std::size_t(id)];
  const key_value& key = keys_[std::size_t(c.key)];
  if (c.is_solved) return push_changes(id);
  c.others = form.code == steps::value_code::sum ? judge_.sum(form, key.id) : interval::point(0);
  const interval g = c.others, set = leaf.set[0];
  const bool open_below = c.minus ? set.high == interval::highest : set.low == interval::lowest;
  const bool open_above = c.minus ? set.low == interval::lowest : set.high == interval::highest;
  const interval below = c.minus ? interval{g.low - set.high, g.high - set.high} : interval{set.low - g.high, set.low - g.low};
  const interval above = c.minus ? interval{g.low - set.low, g.high - set.low} : interval{set.high - g.high, set.high - g.low};
  const auto find = [&](std::int32_t& place, const std::vector<index_t>& list, index_t least) { place = detail::first_at_least(list, place, least); };
  if (!open_below) find(c.seen, key.high, below.low), find(c.all_from, key.low, below.high);
  if (!open_above) find(c.all_to, key.high, above.low + 1), find(c.gone, key.low, above.high + 1);
  else c.all_to = c.gone = tiles_;
  c.is_solved = steps::axis_of(form) == steps::columns;  // the same in every row
  push_changes(id);
}

SAMITE_IMPL void tile_rows::push_changes(int id) {
  const comparison& c = comparisons_[std::size_t(id)];
  const std::size_t first = pieces_.size();
  push(first, {c.seen, finding::empty, -1});
  if (c.all_from < c.all_to) {
    push(first, {c.all_from, finding::undecided, id});
    push(first, {c.all_to, finding::full, -1});
  }
  push(first, {c.gone, finding::undecided, id});
  push(first, {tiles_, finding::empty, -1});
}

SAMITE_IMPL void tile_rows::join(std::size_t first, const std::vector<int>& parts, finding neutral) {
  const finding opposite = neutral == finding::full ? finding::empty : finding::full;
  const std::size_t first_start = starts_.size();
  for (int part : parts) {
    starts_.push_back(pieces_.size());
    solve(part);
  }
  const std::size_t solved = pieces_.size();
  for (std::int32_t at = 0; at < tiles_;) {
    std::int32_t end = tiles_, opposite_end = 0;
    piece joined{0, neutral, -1};
    for (std::size_t s = first_start; s < starts_.size(); ++s) {
      while (pieces_[starts_[s]].end <= at) ++starts_[s];
      const piece& p = pieces_[starts_[s]];
      if (p.found == opposite) opposite_end = std::max(opposite_end, p.end);
      end = std::min(end, p.end);
      if (p.found == neutral) continue;
      joined = {0, finding::undecided, joined.found == neutral ? p.leaf : -1};
    }
    if (opposite_end > 0) joined = {opposite_end, opposite, -1};
    else joined.end = end;
    push(solved, joined);
    at = joined.end;
  }
  starts_.resize(first_start);
  pieces_.erase(pieces_.begin() + std::ptrdiff_t(first), pieces_.begin() + std::ptrdiff_t(solved));
}

SAMITE_IMPL bool tile_rows::is_partial(int leaf, std::int32_t tile) {
  const steps::predicate_step& step = judge_.steps_->predicates[std::size_t(leaf)];
  const comparison& c = comparisons_[std::size_t(leaf)];
  if (!step.is_tight) return false;
  if (c.key < 0) return judge_.is_partial(step, judge_.value(step.form), judge_.reach_of(step, -1));
  const key_value& key = keys_[std::size_t(c.key)];
  const interval x{key.low[std::size_t(tile)], key.high[std::size_t(tile)]};
  const interval range = c.minus ? rules::sub::bounds(c.others, x) : rules::add::bounds(c.others, x);
  const bool is_gapless = judge_.steps_->values[std::size_t(key.id)].gapless;
  return judge_.is_partial(step, range, judge_.reach_of(step, key.id) + (is_gapless ? x.high - x.low : 0));
}

}  // namespace samite
