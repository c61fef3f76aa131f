// samite/emit/tile_map_impl.hpp: a mask's steps as the device reads them.
#pragma once
#include <bit>
#include <cstring>
#include <map>

#include <samite/emit/attention.hpp>
#include <samite/emit/tile_map.hpp>

namespace samite {

namespace detail {

/// Orders the steps that the mask needs, operands first, values and predicates together.
class device_map_encoder {
 public:
  explicit device_map_encoder(const box_steps& source) : source_(source) {
    ensure(source.root_predicate >= 0, "a tile map is of a predicate");
    predicate(source.root_predicate);
    for (int axis : {0, 1}) {
      thresholds[axis] = std::int32_t(words.size());
      words.insert(words.end(), source.thresholds[axis].begin(), source.thresholds[axis].end());
      grains[axis] = std::int32_t(words.size());
      for (const box_steps::grain& g : source.grains[axis]) {
        const auto divisor = std::uint64_t(g.divisor);
        words.insert(words.end(), {g.divisor, g.offset, std::has_single_bit(divisor) ? std::countr_zero(divisor) : -1});
      }
    }
  }

  std::vector<device_map_step> steps;
  std::vector<index_t> words;
  std::int32_t thresholds[2] = {}, grains[2] = {};

 private:
  using value_code = box_steps::value_code;
  using predicate_code = box_steps::predicate_code;

  std::int32_t push(const device_map_step& step) {
    steps.push_back(step);
    return std::int32_t(steps.size()) - 1;
  }
  std::int32_t begin_words(device_map_step& step, std::size_t count) const {
    step.count = std::int32_t(count);
    return step.first = std::int32_t(words.size());
  }

  std::int32_t value(int id) {
    if (const auto found = values_.find(id); found != values_.end()) return found->second;
    const box_steps::value_step& from = source_.values[std::size_t(id)];
    device_map_step to;
    to.imm = from.imm, to.shift = from.shift;
    const auto operands = [&] {
      to.a = value(from.a);
      if (from.b >= 0) to.b = value(from.b);
      if (from.c >= 0) to.c = value(from.c);
    };
    switch (from.code) {
      case value_code::constant: to.code = device_step_code::constant; break;
      case value_code::symbol: to.code = device_step_code::symbol; break;
      case value_code::sum: {
        std::vector<index_t> terms;
        for (int i = from.a; i < from.b; ++i) {
          const box_steps::term& t = source_.terms[std::size_t(i)];
          terms.push_back(value(t.atom)), terms.push_back(t.factor);
        }
        to.code = device_step_code::sum;
        begin_words(to, terms.size() / 2);
        words.insert(words.end(), terms.begin(), terms.end());
        break;
      }
      case value_code::quotient: to.code = device_step_code::quotient, to.a = value(from.a); break;
      case value_code::remainder: to.code = device_step_code::remainder, to.a = value(from.a); break;
      case value_code::gather: to.code = device_step_code::gather, operands(); break;
      case value_code::select:
        to.code = device_step_code::select;
        to.a = predicate(from.a), to.b = value(from.b), to.c = value(from.c);
        break;
      case value_code::binary: to.code = code_of(from.operation), operands(); break;
    }
    return values_[id] = push(to);
  }

  static device_step_code code_of(op operation) {
    switch (operation) {
      case op::mul: return device_step_code::multiply;
      case op::min: return device_step_code::minimum;
      case op::max: return device_step_code::maximum;
      case op::abs: return device_step_code::absolute;
      case op::add: return device_step_code::addition;
      case op::sub: return device_step_code::difference;
      case op::neg: return device_step_code::negation;
      case op::shift_left: return device_step_code::left_shift;
      case op::shift_right: return device_step_code::right_shift;
      default: return device_step_code::anything;
    }
  }

  std::int32_t predicate(int id) {
    if (const auto found = predicates_.find(id); found != predicates_.end()) return found->second;
    const box_steps::predicate_step& from = source_.predicates[std::size_t(id)];
    device_map_step to;
    switch (from.code) {
      case predicate_code::constant: to.code = device_step_code::known, to.imm = from.constant; break;
      case predicate_code::opaque: break;
      case predicate_code::leaf:
        to.code = device_step_code::leaf, to.a = value(from.form);
        if (from.first_gather >= 0) to.b = value(from.first_gather), to.c = value(from.second_gather);
        begin_words(to, from.set.size());
        words.insert(words.end(), {from.residues.modulus, from.residues.start, from.residues.count});
        for (const interval& part : from.set) words.push_back(part.low), words.push_back(part.high);
        break;
      case predicate_code::select:
        to.code = device_step_code::choice;
        to.a = predicate(from.parts[0]), to.b = predicate(from.parts[1]), to.c = predicate(from.parts[2]);
        break;
      case predicate_code::all: case predicate_code::any: {
        std::vector<index_t> parts;
        for (int part : from.parts) parts.push_back(predicate(part));
        to.code = from.code == predicate_code::all ? device_step_code::all : device_step_code::any;
        begin_words(to, parts.size());
        words.insert(words.end(), parts.begin(), parts.end());
        break;
      }
    }
    return predicates_[id] = push(to);
  }

  const box_steps& source_;
  std::map<int, std::int32_t> values_, predicates_;
};

}  // namespace detail

SAMITE_IMPL device_map_table describe_table(const table_contents& contents, std::uint64_t values, std::uint64_t pyramid, std::uint64_t sorted) {
  return {values, pyramid, sorted, contents.dims(), contents.pyramid_leaves(), contents.whole()};
}

SAMITE_IMPL device_map_counts count_device_map(const detail::bound_steps& steps) {
  const detail::device_map_encoder encoded(*steps.steps);
  const std::size_t bytes = sizeof(detail::device_map_header) + steps.tables.size() * sizeof(device_map_table) + encoded.steps.size() * sizeof(detail::device_map_step);
  return {std::int32_t(encoded.steps.size()), std::int32_t(bytes / 8 + encoded.words.size())};
}

SAMITE_IMPL std::size_t device_map_shared_bytes(index_t block_words, index_t most_steps, index_t most_tiles, index_t most_budget) {
  return std::size_t(block_words * 8 + most_steps * 3 * 8 * 128 + 4 * most_budget * 16 + most_tiles * 3);
}

SAMITE_IMPL bool serves_device_map(const detail::bound_steps& steps, const device_map_sizes& sizes, std::size_t shared_limit) {
  const index_t q_tiles = (sizes.Q + sizes.tile_q - 1) / sizes.tile_q, k_tiles = (sizes.K + sizes.tile_k - 1) / sizes.tile_k, longest = std::max(q_tiles, k_tiles);
  constexpr index_t most_lists = 128 * 1024;  // the groups of map_counters
  if (longest > 65534 || sizes.B * sizes.H * longest > most_lists || sizes.budget < 0 || sizes.budget > 1024 || std::max(sizes.tile_q, sizes.tile_k) > index_t(1) << 30) return false;
  const device_map_counts counts = count_device_map(steps);
  return device_map_shared_bytes(counts.words, counts.steps, longest + longest % 2, std::max(sizes.budget, 2)) <= shared_limit;
}

SAMITE_IMPL std::vector<std::uint64_t> pack_device_map(const detail::bound_steps& steps, const std::vector<device_map_table>& tables, const device_map_sizes& sizes, std::array<bool, 2> tells_apart) {
  static_assert(sizeof(detail::device_map_header) % 8 == 0 && sizeof(device_map_table) % 8 == 0 && sizeof(detail::device_map_step) % 8 == 0);
  const detail::device_map_encoder encoded(*steps.steps);
  detail::device_map_header header;
  header.queries = sizes.Q, header.keys = sizes.K, header.last_batch = sizes.B - 1, header.last_head = sizes.H - 1;
  header.batches = tells_apart[0] ? std::int32_t(sizes.B) : 1, header.heads = tells_apart[1] ? std::int32_t(sizes.H) : 1;
  header.tiles[0] = detail::map_tiles(sizes.Q, sizes.tile_q), header.tiles[1] = detail::map_tiles(sizes.K, sizes.tile_k);
  header.tile[0] = std::int32_t(sizes.tile_q), header.tile[1] = std::int32_t(sizes.tile_k);
  header.budget = sizes.budget, header.steps = std::int32_t(encoded.steps.size()), header.tables = std::int32_t(tables.size()), header.words = std::int32_t(encoded.words.size());
  for (int axis : {0, 1}) {
    header.thresholds[axis] = encoded.thresholds[axis], header.threshold_count[axis] = std::int32_t(steps.steps->thresholds[axis].size());
    header.grains[axis] = encoded.grains[axis], header.grain_count[axis] = std::int32_t(steps.steps->grains[axis].size());
  }
  std::vector<std::uint64_t> block;
  const auto put = [&](const void* from, std::size_t bytes) {
    const std::size_t at = block.size();
    block.resize(at + bytes / 8);
    if (bytes > 0) std::memcpy(block.data() + at, from, bytes);
  };
  put(&header, sizeof header);
  put(tables.data(), tables.size() * sizeof(device_map_table));
  put(encoded.steps.data(), encoded.steps.size() * sizeof(detail::device_map_step));
  put(encoded.words.data(), encoded.words.size() * sizeof(index_t));
  return block;
}

SAMITE_IMPL kernel_text emit_tile_map() {
  std::string out = "// tile lists of any mask\n#include \"tile_map.cuh\"\n\nnamespace samite {\n\n";
  for (const char* kernel : {"classify", "pack"})
    out += concat_text("extern \"C\" __global__ void __launch_bounds__(map_threads, 1) tile_map_", kernel, "(const __grid_constant__ map_parameters p) {\n  ", kernel, "_tiles(p);\n}\n\n");
  return {"tile_map_classify", out + "}  // namespace samite\n"};
}

SAMITE_IMPL kernel_text emit_tile_map_bits(const program& mask, index_t rows, index_t keys) {
  std::string out = "// bit tiles of a mask whose tile lists were made on the device:\n" + detail::pair_comment(mask);
  out += concat_text("//   keep = %", mask.roots[0], "\n#include \"tile_map.cuh\"\n\nnamespace samite {\n\n", detail::mask_text(&mask));
  out += concat_text("extern \"C\" __global__ void __launch_bounds__(", 2 * rows, ") tile_map_bits(const __grid_constant__ map_parameters p, const keep_mask* mask, uint2* bits) {\n  fill_map_bits<", rows, ", ", keys,
                     ">(p, mask, bits);\n}\n\n}  // namespace samite\n");
  return {"tile_map_bits", out};
}

}  // namespace samite
