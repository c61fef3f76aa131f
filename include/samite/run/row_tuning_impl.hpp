// samite/run/row_tuning_impl.hpp: the rule table of row teams, and a launcher for them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include <samite/emit/device_headers.hpp>
#include <samite/emit/row_kernel.hpp>
#include <samite/ir/build.hpp>
#include <samite/run/cuda_strided.hpp>
#include <samite/run/row_tuning.hpp>

namespace samite {
namespace detail {

/// The rule's own team first, then the others; a thread alone only where rows are short.
inline std::vector<tuning_rule> row_team_rules(index_t columns) {
  std::vector<tuning_candidate> candidates{{concat_text("team=", row_team(columns))}};
  for (const int team : {1, 32, 256})
    if (team != row_team(columns) && (team > 1 || columns <= 64)) candidates.push_back({concat_text("team=", team)});
  return {{.first_arch = 80, .candidates = std::move(candidates)}};
}

/// y = x * rsqrt(sum of the row's x * x), or y = x * x + x.
inline program row_team_program(bool reduces) {
  program p;
  const node_id x = build_operand(p, 0, value_kind::real), square = build(p, op::mul, x, x);
  if (!reduces) {
    p.roots = {build(p, op::add, square, x)};
    return p;
  }
  const node_id sum = build(p, op::row_sum, square);
  p.roots = {build(p, op::mul, x, build(p, op::rsqrt, sum))};
  return p;
}

inline float bf16_at(const std::vector<char>& bytes, std::size_t i) {
  std::uint16_t half = 0;
  std::memcpy(&half, bytes.data() + 2 * i, 2);
  const std::uint32_t word = std::uint32_t(half) << 16;
  float x = 0;
  std::memcpy(&x, &word, 4);
  return x;
}

}  // namespace detail

SAMITE_IMPL int row_team_of(const tuning_candidate& candidate) { return candidate.name == "team=1" ? 1 : candidate.name == "team=32" ? 32 : 256; }

SAMITE_IMPL tuning_problem row_team_problem(index_t columns, bool reduces, const std::string& device_class) {
  return {.family = "row team 1", .shape = concat_text("columns<=", length_bucket(columns), reduces ? " reduced" : ""), .device_class = device_class,
          .candidates = candidates_for(detail::row_team_rules(columns), 80)};
}

SAMITE_IMPL bool reduces_rows(const program& p) {
  for (const node& n : p.nodes())
    if (n.code == op::row_sum || n.code == op::row_max || n.code == op::row_min) return true;
  return false;
}

SAMITE_IMPL std::shared_ptr<tuning_launcher> make_row_team_launcher(kernel_cache& cache, const cuda_device& device, index_t columns, bool reduces) {
  const index_t rows = std::max<index_t>(1, (index_t(4) << 20) / columns);  // 8 MB in and out
  cuda_launcher_setting setting;
  setting.input_bytes = setting.output_bytes = std::uint64_t(rows * columns) * 2;
  setting.kernel_of = [device, rows, reduces](const tuning_candidate& candidate) {
    const int team = row_team_of(candidate);
    const kernel_text text = emit_row_kernel(detail::row_team_program(reduces), {"tuned", {{dtype::bf16, true}}, {{dtype::bf16, true}}, team});
    const index_t row_blocks = (rows + 256 / team - 1) / (256 / team);
    return tuned_kernel{{text.name, text.text, device.arch_name(), {}, headers_of(text.text)}, text.name, {.grid_x = unsigned(std::min<index_t>(row_blocks, index_t(device.sm_count()) * 32)), .block_x = 256}};
  };
  setting.arguments_of = [rows, columns](device_address input, device_address output) {
    detail::device_row_space space;
    space.rows = rows, space.columns = columns, space.extents[0] = rows;
    detail::device_row_tensor tensors[2];
    tensors[0].data = reinterpret_cast<const void*>(input), tensors[1].data = reinterpret_cast<const void*>(output);
    for (detail::device_row_tensor& t : tensors) t.row_strides[0] = columns, t.column_stride = 1;
    std::vector<std::uint64_t> words((sizeof space + sizeof tensors) / 8);  // one parameter, which the driver reads from its first word on
    std::memcpy(words.data(), &space, sizeof space);
    std::memcpy(words.data() + sizeof space / 8, tensors, sizeof tensors);
    return words;
  };
  setting.agree = [](const std::vector<char>& expected, const std::vector<char>& found) {  // sums in another order, rounded to 8 bits
    for (std::size_t i = 0; i < expected.size() / 2; ++i) {
      const float a = detail::bf16_at(expected, i), b = detail::bf16_at(found, i);
      if (!(std::abs(a - b) <= 0.02f * std::abs(a))) return false;
    }
    return true;
  };
  return std::make_shared<cuda_launcher>(cache, device, std::move(setting));
}

}  // namespace samite
