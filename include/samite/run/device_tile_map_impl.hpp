// samite/run/device_tile_map_impl.hpp: memory, parameters and launches of tile maps on the device.
#pragma once
#include <algorithm>
#include <cstring>

#include <samite/emit/device_headers.hpp>
#include <samite/emit/predicate.hpp>
#include <samite/ir/bounds.hpp>
#include <samite/jit/compiler.hpp>
#include <samite/mask/tile_map.hpp>
#include <samite/run/device_tile_map.hpp>

namespace samite::detail {

SAMITE_IMPL device_tile_map::device_tile_map(const cuda_device& device, std::shared_ptr<const program> mask, const device_tile_map_options& options)
    : mask_(std::move(mask)), options_(options), tells_apart_{mentions(symbol_id::b), mentions(symbol_id::h)}, Q_(options.Q), K_(options.K), block_(device, 0), bits_(device, 0) {
  check_sizes("device_tile_map", {.B = options.B, .H = options.H, .Q = options.Q, .K = options.K, .tile_q = options.tile_q, .tile_k = options.tile_k});
  const bound_steps steps = steps_of(*mask_, 0);
  const device_map_sizes sizes = sizes_of(options.Q, options.K);
  const std::int32_t q_tiles = map_tiles(sizes.Q, sizes.tile_q), k_tiles = map_tiles(sizes.K, sizes.tile_k), most_tiles = std::max(q_tiles, k_tiles);
  const device_map_counts counts = count_device_map(steps);
  device_map_parameters& p = parameters_;
  p.most_tiles = most_tiles + most_tiles % 2, p.most_budget = std::max(options.budget, 2);
  // Other numbers may make a few more steps: two constraints that merged are then two.
  const std::int32_t spare = 4 + counts.steps / 4;
  p.most_steps = counts.steps + spare, p.block_words = counts.words + 16 * spare;
  shared_bytes_ = device_map_shared_bytes(p.block_words, p.most_steps, p.most_tiles, p.most_budget);
  constexpr std::size_t of_kernel = 1024;  // more than the kernel's own shared memory
  const std::size_t most_shared = device.shared_limit_bytes() - of_kernel;
  if (!serves_device_map(steps, sizes, most_shared) || shared_bytes_ > most_shared)
    raise("E-MASK-DEVICE-MAP", "device_tile_map: a mask of ", counts.steps, " steps with lists of ", most_tiles, " tiles, B ", options.B, ", H ", options.H, " needs ", shared_bytes_,
          " bytes of shared memory and a block has ", most_shared, ", or has more than 131072 lists; use larger tiles, or make the map on the host");

  const index_t maps = (tells_apart_[0] ? options.B : 1) * (tells_apart_[1] ? options.H : 1);
  index_t run_limit = options.run_limit, undecided_limit = options.undecided_limit;
  if (run_limit <= 0 || (options.with_bits && undecided_limit <= 0)) {
    tile_map now(any_mask(*mask_), {.B = options.B, .H = options.H, .Q = options.Q, .K = options.K, .tile_q = options.tile_q, .tile_k = options.tile_k, .budget = options.budget});
    now.build_columns();
    const auto spacious = [&](index_t count) { return count + count / 2 + 64; };
    if (run_limit <= 0) run_limit = spacious(index_t(std::max(now.row_runs().size(), now.column_runs().size())));
    if (undecided_limit <= 0) undecided_limit = spacious(now.counts().undecided);
  }
  constexpr index_t most = index_t(1) << 28;
  if (run_limit > most || undecided_limit > most)
    raise("E-MASK-DEVICE-MAP", "device_tile_map: ", run_limit, " runs and ", undecided_limit, " undecided tiles are beyond the limit of ", most, " each; use larger tiles");

  std::size_t bytes = 0;
  const auto place = [&](std::size_t size) { return std::exchange(bytes, bytes + (size + 255) / 256 * 256); };
  std::size_t pool_at[2] = {}, counts_at[2] = {}, runs_at[2] = {}, begin_at[2] = {};
  for (int d = 0; d < (options.with_columns ? 2 : 1); ++d) {
    p.lists[d] = std::int32_t(maps * (d == 0 ? q_tiles : k_tiles)), p.run_limit[d] = std::int32_t(run_limit);
    pool_at[d] = place(std::size_t(run_limit) * sizeof(device_tile_run)), runs_at[d] = place(std::size_t(run_limit) * sizeof(device_tile_run));
    counts_at[d] = place(std::size_t(p.lists[d]) * 16), begin_at[d] = place((std::size_t(p.lists[d]) + 1) * sizeof(std::int64_t));
  }
  p.undecided_limit = options.with_bits ? std::int32_t(undecided_limit) : 0;
  const std::size_t undecided_at = place(std::size_t(p.undecided_limit) * sizeof(device_undecided_tile)), counters_at = place(sizeof(device_map_counters)), totals_at = place(sizeof(device_map_totals));
  memory_.emplace(device, bytes);
  memory_->fill_zero();
  const device_address at = memory_->address();
  for (int d = 0; d < (options.with_columns ? 2 : 1); ++d) p.pool[d] = at + pool_at[d], p.runs[d] = at + runs_at[d], p.counts[d] = at + counts_at[d], p.begin[d] = at + begin_at[d];
  p.undecided = options.with_bits ? at + undecided_at : 0, p.counters = at + counters_at, p.totals = at + totals_at;
  block_ = cuda_buffer(device, std::size_t(p.block_words) * 8 + mask_arguments_bytes(*mask_));
  p.block = block_.address();
  if (options.with_bits) bits_ = cuda_buffer(device, std::size_t(p.undecided_limit) * std::size_t(options.tile_q) * 16);
  check_cuda(cuda().stream_synchronize(nullptr), "zeroing the counters of a tile map");

  const auto load = [&](const kernel_text& text, const char* name) { return kernel_cache::instance().function(device, {text.name, text.text, device.arch_name(), {}, headers_of(text.text)}, name); };
  classify_ = load(emit_tile_map(), "tile_map_classify"), pack_ = load(emit_tile_map(), "tile_map_pack");
  classify_->allow_shared_bytes(most_shared);  // for every map alike: they share the kernel
  if (options.with_bits) fill_ = load(emit_tile_map_bits(*mask_, options.tile_q, options.tile_k), "tile_map_bits");
  tables_.resize(mask_->tables().size());
}

SAMITE_IMPL bool device_tile_map::mentions(symbol_id id) const {
  const std::vector<char> used = used_nodes(*mask_, mask_->roots);
  for (std::size_t i = 0; i < mask_->size(); ++i)
    if (used[i] && mask_->nodes()[i].code == op::symbol && mask_->nodes()[i].imm == index_t(id)) return true;
  return false;
}

SAMITE_IMPL void device_tile_map::copy_table(const cuda_stream& stream, table_copy& to, const std::shared_ptr<const table_contents>& contents) {
  if (to.contents == contents) return;
  const auto padded = [](std::size_t bytes) { return (bytes + 7) / 8 * 8; };
  const std::size_t values = padded(contents->values().size() * sizeof(std::int32_t)), pyramid = contents->pyramid().size() * sizeof(table_range), sorted = padded(contents->sorted_rows().size());
  if (!to.memory || to.memory->bytes() < values + pyramid + sorted) to.memory.emplace(stream.device(), values + pyramid + sorted + (values + pyramid) / 2);
  to.memory->upload(stream, contents->values().data(), contents->values().size() * sizeof(std::int32_t));
  to.memory->upload(stream, contents->pyramid().data(), pyramid, values);
  to.memory->upload(stream, contents->sorted_rows().data(), contents->sorted_rows().size(), values + pyramid);
  const device_address at = to.memory->address();
  to.described = describe_table(*contents, at, at + values, at + values + pyramid);
  to.contents = contents;
}

SAMITE_IMPL void device_tile_map::update(const cuda_stream& stream, index_t Q, index_t K) {
  if (Q < 0 || K < 0 || Q > options_.Q || K > options_.K)
    raise("E-MASK-DEVICE-MAP", "device_tile_map: Q ", Q, " and K ", K, " are beyond the capacity of ", options_.Q, " and ", options_.K, "; make the map for the largest lengths");
  const bound_steps steps = steps_of(*mask_, 0);
  if (Q > 0 && K > 0) box_judge(*mask_).check(index_box::whole(options_.B, options_.H, Q, K));
  std::vector<device_map_table> tables;
  std::vector<std::uint64_t> addresses;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    copy_table(stream, tables_[i], steps.tables[i]);
    tables.push_back(tables_[i].described), addresses.push_back(tables_[i].described.values);
  }
  std::vector<std::uint64_t> block = pack_device_map(steps, tables, sizes_of(Q, K), tells_apart_);
  const device_map_counts counts = count_device_map(steps);
  if (counts.steps > parameters_.most_steps || counts.words > parameters_.block_words)
    raise("E-MASK-DEVICE-MAP", "device_tile_map: with its numbers of now the mask has ", counts.steps, " steps in ", counts.words, " words, and the map was made for ", parameters_.most_steps, " in ",
          parameters_.block_words, "; make another map");
  // One copy: the block up to its capacity, then what the bits read.
  block.resize(std::size_t(parameters_.block_words));
  const std::vector<std::byte> arguments = pack_mask_arguments(*mask_, steps.tables, addresses);
  block.resize(block.size() + arguments.size() / 8);
  std::memcpy(block.data() + parameters_.block_words, arguments.data(), arguments.size());
  Q_ = Q, K_ = K;
  if (block == written_) return;
  written_ = std::move(block);
  block_.upload(stream, written_.data(), written_.size() * 8);
}

SAMITE_IMPL void device_tile_map::run(const cuda_stream& stream) const {
  ensure(!written_.empty(), "a tile map on the device is updated before it runs");
  const unsigned lists = unsigned(parameters_.lists[0] + parameters_.lists[1]);
  device_map_parameters p = parameters_;
  void* arguments[] = {&p};
  launch_shape shape{.grid_x = std::max(lists, 1u), .block_x = 128, .shared_bytes = unsigned(shared_bytes_)};
  if (lists > 0) classify_->launch(stream, shape, arguments);
  shape.shared_bytes = 0;
  pack_->launch(stream, shape, arguments);
  if (!options_.with_bits) return;
  device_address mask = block_.address() + std::size_t(p.block_words) * 8, bits = bits_.address();
  void* with_mask[] = {&p, &mask, &bits};
  shape.grid_x = unsigned(std::min<index_t>(p.undecided_limit, index_t(stream.device().sm_count()) * 4)), shape.block_x = unsigned(2 * options_.tile_q);
  fill_->launch(stream, shape, with_mask);
}

SAMITE_IMPL device_tile_lists device_tile_map::lists(int direction) const {
  const index_t tiles = direction == 0 ? map_tiles(Q_, options_.tile_q) : map_tiles(K_, options_.tile_k), heads = tells_apart_[1] ? options_.H : 1;
  return {parameters_.runs[direction], parameters_.begin[direction], tells_apart_[0] && options_.B > 1 ? heads * tiles : 0, heads > 1 ? tiles : 0};
}

SAMITE_IMPL device_map_totals device_tile_map::totals(const cuda_stream& stream) const {
  device_map_totals found;
  memory_->download(stream, &found, sizeof found, parameters_.totals - memory_->address());
  stream.synchronize();
  return found;
}

SAMITE_IMPL std::size_t device_tile_map::bytes() const {
  std::size_t total = memory_->bytes() + block_.bytes() + bits_.bytes();
  for (const table_copy& t : tables_) total += t.memory ? t.memory->bytes() : 0;
  return total;
}

}  // namespace samite::detail
