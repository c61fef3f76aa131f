// box_judge.cuh: what a mask is over a whole box of (b, h, q, kv): the rules of include/samite/ir/bounds.hpp and ir/table.hpp, step by
// step, so that host and device give the same verdict on every box.
//
// A mask is a list of steps that the host made for the numbers of this run (emit/tile_map.hpp); each step leaves an interval, or a
// verdict, in a slot of its own, and the last step is the mask. Compiles for the host too, with __device__ defined away.
#pragma once
#include "integers.cuh"

namespace samite {

constexpr index lowest_bound = -(index(1) << 61), highest_bound = (index(1) << 61) - 1;  // bounds saturate here

enum verdict : i32 { keeps_none, keeps_all, is_undecided };

struct bounds {
  index low, high;
};

struct map_box {
  bounds of[4];  // b, h, q, kv
};

enum class step_code : i32 {
  symbol, constant, sum, quotient, remainder, multiply, minimum, maximum, absolute, addition, difference, negation, left_shift, right_shift, anything, gather, select,
  // verdicts
  leaf, all, any, choice, known, opaque
};

struct map_step {
  step_code code;
  i32 a, b, c;       // slots of operands, -1: none; of a leaf: its form, and two table values whose difference the form is
  i32 first, count;  // its part of the words: (slot, factor) of a sum's terms; modulus, start, count and intervals of a leaf; slots of parts
  i32 shift;         // of a quotient or remainder: log2 of the divisor, or -1
  i32 padding;
  index imm;         // symbol, constant, divisor, table
};

struct map_cell {  // of a table's pyramid, and of the whole table
  index low, high;
  u64 residues;
};

struct map_table {
  const i32* values;
  const map_cell* pyramid;  // of rows that are not sorted
  const u8* sorted;         // for each row: its values never fall
  index dims[3];
  index leaves;
  map_cell whole;
};

/// What the host writes for one run, in front of the tables, the steps and the words.
struct map_header {
  index queries, keys;
  index last_batch, last_head;   // B - 1, H - 1
  i32 batches, heads;            // maps that differ; 1 where all share one
  i32 tiles[2], tile[2];         // of queries and of keys: how many, and how long one is
  i32 budget, steps, tables, words;
  i32 thresholds[2], threshold_count[2];  // in the words: where comparisons of q and of kv change
  i32 grains[2], grain_count[2];          // in the words: divisor, offset and shift of each quotient of q and of kv
};

struct map_program {
  const map_header* header;
  const map_table* tables;
  const map_step* steps;
  const index* words;
  __device__ explicit map_program(const void* block) : header(static_cast<const map_header*>(block)) {
    tables = reinterpret_cast<const map_table*>(header + 1);
    steps = reinterpret_cast<const map_step*>(tables + header->tables);
    words = reinterpret_cast<const index*>(steps + header->steps);
  }
};

// One thread's slots: three words each, `stride` words apart.
struct map_slots {
  index* at;
  int stride;
  __device__ bounds range(int slot) const { return {at[(3 * slot) * stride], at[(3 * slot + 1) * stride]}; }
  __device__ u64 residues(int slot) const { return u64(at[(3 * slot + 2) * stride]); }
  __device__ verdict found(int slot) const { return verdict(at[(3 * slot) * stride]); }
  __device__ void put(int slot, bounds x) const { at[(3 * slot) * stride] = x.low, at[(3 * slot + 1) * stride] = x.high; }
  __device__ void put(int slot, verdict v) const { at[(3 * slot) * stride] = v; }
  __device__ void put_residues(int slot, u64 bits) const { at[(3 * slot + 2) * stride] = index(bits); }
};

// ---- intervals --------------------------------------------------------------------------------------------------------------

__device__ inline index saturated(index x) { return clamp(x, lowest_bound, highest_bound); }

__device__ inline index saturated_product(index a, index b) {
  const index low = index(u64(a) * u64(b)), high = __mul64hi(a, b);
  if (high == (low >> 63)) return saturated(low);
  return high < 0 ? lowest_bound : highest_bound;
}

__device__ inline bounds product(bounds x, bounds y) {
  const index p = saturated_product(x.low, y.low), q = saturated_product(x.low, y.high), r = saturated_product(x.high, y.low), s = saturated_product(x.high, y.high);
  return {index_min(index_min(p, q), index_min(r, s)), index_max(index_max(p, q), index_max(r, s))};
}

__device__ inline bounds times(bounds x, index factor) {
  if (factor == 1) return x;
  if (factor == -1) return {-x.high, -x.low};
  const index p = saturated_product(x.low, factor), q = saturated_product(x.high, factor);
  return {index_min(p, q), index_max(p, q)};
}

// shift: log2 of the divisor, or -1
__device__ inline index divided(index x, index divisor, int shift) { return shift >= 0 ? x >> shift : floor_div(x, divisor); }

// ---- tables -------------------------------------------------------------------------------------------------------------------

__device__ inline u64 residue_bit(index value) { return u64(1) << (u64(value) & 63u); }

// Residues modulo 64 of every integer of a range.
__device__ inline u64 residues_of(bounds x) {
  const index count = x.high - x.low + 1;
  if (count >= 64) return ~u64(0);
  const u64 ones = (u64(1) << count) - 1;
  const int turn = int(u64(x.low) & 63u);
  return turn == 0 ? ones : ones << turn | ones >> (64 - turn);
}

__device__ inline void merge(map_cell& into, const map_cell& other) {
  into.low = index_min(into.low, other.low), into.high = index_max(into.high, other.high), into.residues |= other.residues;
}

__device__ inline map_cell range_of_row(const map_table& t, index row, index low, index high) {
  constexpr index leaf_values = 16;
  const i32* values = t.values + row * t.dims[2];
  if (low == high) return {values[low], values[low], residue_bit(values[low])};
  if (t.sorted[row] != 0) {
    const bounds range{values[low], values[high]};
    return {range.low, range.high, residues_of(range)};
  }
  map_cell found{values[low], values[low], residue_bit(values[low])};
  index first = low / leaf_values + 1, last = high / leaf_values;  // leaves [first, last) lie wholly inside
  const index before = first >= last ? high + 1 : first * leaf_values, after = first >= last ? high + 1 : last * leaf_values;
  for (index x = low; x <= high; x = x + 1 == before ? after : x + 1) merge(found, {values[x], values[x], residue_bit(values[x])});
  const map_cell* tree = t.pyramid + row * 2 * t.leaves;
  for (first += t.leaves, last += t.leaves; first < last; first >>= 1, last >>= 1) {
    if (first & 1) merge(found, tree[first++]);
    if (last & 1) merge(found, tree[--last]);
  }
  return found;
}

__device__ inline bounds clamped_into(bounds x, index count) { return {clamp(x.low, 0, count - 1), clamp(x.high, 0, count - 1)}; }

__device__ inline map_cell range_of(const map_table& t, bounds i, bounds j, bounds k) {
  if (t.dims[0] * t.dims[1] * t.dims[2] == 0) return {0, 0, 1};
  i = clamped_into(i, t.dims[0]), j = clamped_into(j, t.dims[1]), k = clamped_into(k, t.dims[2]);
  if ((i.high - i.low + 1) * (j.high - j.low + 1) > 32) return t.whole;
  map_cell found{highest_bound, lowest_bound, 0};
  for (index a = i.low, c = j.low; a <= i.high; c == j.high ? (++a, c = j.low) : ++c) merge(found, range_of_row(t, a * t.dims[1] + c, k.low, k.high));
  return found;
}

// ---- steps --------------------------------------------------------------------------------------------------------------------

// Whether all, none or some of a stretch of integers are in the intervals and the residue class of a leaf.
__device__ inline verdict verdict_of_stretch(const index* words, int parts, bounds range) {
  const index modulus = words[0], start = words[1], count = words[2];
  bool some = false;
  for (int i = 0; i < parts; ++i) {
    const bounds inside{index_max(range.low, words[3 + 2 * i]), index_min(range.high, words[4 + 2 * i])};
    if (inside.low > inside.high) continue;
    const bool whole = inside.low == range.low && inside.high == range.high;
    if (count >= modulus) {
      if (whole) return keeps_all;
      some = true;
      continue;
    }
    const index offset = floor_mod(inside.low - start, modulus), extent = inside.high - inside.low;
    if (whole && offset + extent < count) return keeps_all;
    some = some || offset < count || offset + extent >= modulus;
  }
  return some ? is_undecided : keeps_none;
}

__device__ inline verdict verdict_of_leaf(const map_program& p, const map_step& s, const map_slots& slots) {
  const bounds range = slots.range(s.a);
  const index* words = p.words + s.first;
  const verdict found = verdict_of_stretch(words, s.count, range);
  if (found != is_undecided || s.b < 0 || (slots.residues(s.b) & slots.residues(s.c)) != 0) return found;
  // The two tables hold no common value here: only the difference 0 is ruled out.
  if (s.count == 1 && words[3] == 0 && words[4] == 0) return keeps_none;
  const bool all_but_zero = s.count == 2 && words[4] == -1 && words[5] == 1 && words[3] <= range.low && range.high <= words[6];
  return all_but_zero && words[2] >= words[0] ? keeps_all : found;
}

__device__ inline verdict verdict_of_parts(const map_program& p, const map_step& s, const map_slots& slots, verdict neutral) {
  bool open = false;
  for (int i = 0; i < s.count; ++i) {
    const verdict next = slots.found(int(p.words[s.first + i]));
    if (next == is_undecided) open = true;
    else if (next != neutral) return next;
  }
  return open ? is_undecided : neutral;
}

__device__ inline verdict verdict_of_choice(const map_step& s, const map_slots& slots) {
  const verdict condition = slots.found(s.a);
  if (condition == keeps_all) return slots.found(s.b);
  if (condition == keeps_none) return slots.found(s.c);
  return slots.found(s.b) == slots.found(s.c) ? slots.found(s.b) : is_undecided;
}

__device__ inline bounds bounds_of_step(const map_program& p, const map_step& s, const map_slots& slots, const map_box& box) {
  constexpr bounds everything{lowest_bound, highest_bound};
  switch (s.code) {
    case step_code::symbol: return box.of[s.imm];
    case step_code::constant: return {s.imm, s.imm};
    case step_code::sum: {
      bounds total{s.imm, s.imm};
      for (int i = 0; i < s.count; ++i) {
        const bounds x = times(slots.range(int(p.words[s.first + 2 * i])), p.words[s.first + 2 * i + 1]);
        total = {saturated(total.low + x.low), saturated(total.high + x.high)};
      }
      return total;
    }
    case step_code::select: {
      const verdict condition = slots.found(s.a);
      if (condition == keeps_all) return slots.range(s.b);
      const bounds otherwise = slots.range(s.c);
      if (condition == keeps_none) return otherwise;
      const bounds x = slots.range(s.b);
      return {index_min(x.low, otherwise.low), index_max(x.high, otherwise.high)};
    }
    default: break;
  }
  const bounds x = s.a < 0 ? everything : slots.range(s.a), y = s.b < 0 ? x : slots.range(s.b);
  switch (s.code) {
    case step_code::quotient: return {divided(x.low, s.imm, s.shift), divided(x.high, s.imm, s.shift)};
    case step_code::remainder: {
      const index whole = divided(x.low, s.imm, s.shift);
      if (whole != divided(x.high, s.imm, s.shift)) return {0, s.imm - 1};
      return {x.low - whole * s.imm, x.high - whole * s.imm};
    }
    case step_code::minimum: return {index_min(x.low, y.low), index_min(x.high, y.high)};
    case step_code::maximum: return {index_max(x.low, y.low), index_max(x.high, y.high)};
    case step_code::absolute: return x.low >= 0 ? x : x.high <= 0 ? bounds{-x.high, -x.low} : bounds{0, index_max(-x.low, x.high)};
    case step_code::addition: return {saturated(x.low + y.low), saturated(x.high + y.high)};
    case step_code::difference: return {saturated(x.low - y.high), saturated(x.high - y.low)};
    case step_code::negation: return {-x.high, -x.low};
    case step_code::multiply: return product(x, y);
    case step_code::left_shift: return y.low == y.high ? times(x, index(1) << y.low) : everything;
    case step_code::right_shift: return y.low == y.high ? bounds{x.low >> y.low, x.high >> y.low} : everything;
    default: return everything;
  }
}

/// The mask's verdict on a box: sound, and the one that box_judge::judge gives on the host.
__device__ inline verdict judge(const map_program& p, const map_slots& slots, const map_box& box) {
  const int steps = p.header->steps;
  for (int i = 0; i < steps; ++i) {
    const map_step& s = p.steps[i];
    switch (s.code) {
      case step_code::leaf: slots.put(i, verdict_of_leaf(p, s, slots)); break;
      case step_code::all: slots.put(i, verdict_of_parts(p, s, slots, keeps_all)); break;
      case step_code::any: slots.put(i, verdict_of_parts(p, s, slots, keeps_none)); break;
      case step_code::choice: slots.put(i, verdict_of_choice(s, slots)); break;
      case step_code::known: slots.put(i, s.imm != 0 ? keeps_all : keeps_none); break;
      case step_code::opaque: slots.put(i, is_undecided); break;
      case step_code::gather: {
        // Indices of fewer than three dimensions are the last ones.
        bounds x{0, 0}, y{0, 0}, z = slots.range(s.a);
        if (s.b >= 0) y = z, z = slots.range(s.b);
        if (s.c >= 0) x = y, y = z, z = slots.range(s.c);
        const map_cell found = range_of(p.tables[s.imm], x, y, z);
        slots.put(i, bounds{found.low, found.high});
        slots.put_residues(i, found.residues);
        break;
      }
      default: slots.put(i, bounds_of_step(p, s, slots, box)); break;
    }
  }
  return slots.found(steps - 1);
}

/// Where a box is cut in two: the second part begins at `at` of the axis.
struct map_cut {
  int axis;  // 2: q, 3: kv, 0: a single pair, which is not cut
  index at;
  __device__ map_box part(const map_box& box, bool second) const {
    map_box out = box;
    if (second) (axis == 2 ? out.of[2] : out.of[3]).low = at;
    else (axis == 2 ? out.of[2] : out.of[3]).high = at - 1;
    return out;
  }
};

/// The place at which box_judge cuts a box: where a part of the mask changes, else in the middle.
__device__ inline map_cut cut_of(const map_program& p, const bounds q, const bounds kv) {
  const map_header& h = *p.header;
  for (int a = 0; a < 2; ++a) {
    const bounds range = a == 0 ? q : kv;
    for (int i = 0; i < h.threshold_count[a]; ++i) {
      const index at = p.words[h.thresholds[a] + i];
      if (range.low < at && at <= range.high) return {2 + a, at};
    }
  }
  const index rows = q.high - q.low, columns = kv.high - kv.low;
  if (rows == 0 && columns == 0) return {0, 0};
  for (int a = 0; a < 2; ++a) {
    const bounds range = a == 0 ? q : kv;
    for (int i = 0; i < h.grain_count[a]; ++i) {
      const index* grain = p.words + h.grains[a] + 3 * i;
      const index divisor = grain[0], offset = grain[1], shift = grain[2];
      const index low = divided(range.low + offset, divisor, int(shift)), high = divided(range.high + offset, divisor, int(shift));
      if (low != high) return {2 + a, (low + (high - low + 1) / 2) * divisor - offset};
    }
  }
  const bounds range = rows >= columns ? q : kv;
  return {rows >= columns ? 2 : 3, range.low + (range.high - range.low + 1) / 2};
}

}  // namespace samite
