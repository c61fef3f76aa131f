// samite/run/cuda_attention.hpp: parameters of the attention kernels, and the tables they read on the device.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <samite/ir/table.hpp>
#include <samite/run/backend.hpp>
#include <samite/runtime/cuda_driver.hpp>

namespace samite::detail {

// Mirrors of codegen/device/attention.cuh.

struct device_attention_tensor {
  const void* data = nullptr;
  index_t batch_stride = 0, head_stride = 0, row_stride = 0, column_stride = 0;
  std::int32_t vectors = 0, padding = 0;

  device_attention_tensor() = default;
  explicit device_attention_tensor(const tensor_view& v)
      : data(v.data), batch_stride(v.strides[0]), head_stride(v.strides[1]), row_stride(v.strides[2]), column_stride(v.strides[3]) {
    const index_t unit = index_t(16 / size_of(v.type));
    const auto steps = [&](int axis) { return v.dims[std::size_t(axis)] <= 1 || v.strides[std::size_t(axis)] % unit == 0; };
    vectors = v.strides[3] == 1 && v.dims[3] % unit == 0 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && steps(0) && steps(1) && steps(2);
  }
};

struct device_tile_run {
  std::int32_t first, last, full, bits;  // bits: the bit tile of the first, -1 if full
};

struct device_tile_lists {
  device_address runs = 0, begin = 0;
  index_t batch_lists = 0, head_lists = 0;
};

struct device_attention {
  device_attention_tensor Q, K, V, out, d_out, dQ, dK, dV;
  const void* lse = nullptr;
  const void* d_lse = nullptr;
  void* row_lse = nullptr;
  void* row_delta = nullptr;
  const void* sink = nullptr;
  index_t batch = 0, heads = 0, key_heads = 0, queries = 0, keys = 0;
  std::int32_t head_dim = 0, value_dim = 0;
  double scale = 1;
  device_tile_lists lists;
};

/// Captured numbers and tables as they were when the step began: read at their first use in it.
class step_snapshot {
 public:
  struct number {
    double real;
    index_t index;
    friend bool operator==(const number&, const number&) = default;
  };

  void clear() {
    tables_.clear();
    if (numbers_.size() > 4096) numbers_.clear();  // of graphs that are gone; else the places stay, and a step allocates none
    ++step_;
  }
  number read(const std::shared_ptr<scalar_cell>& cell) {
    // A cell that died and another at its address differ in the step, so that the old number is never taken for the new one's.
    const auto [found, fresh] = numbers_.try_emplace(cell.get());
    if (auto& [value, step] = found->second; fresh || step != step_) {
      value = cell->kind() == value_kind::real ? number{cell->real(), index_t(cell->real())} : number{double(cell->index()), cell->index()};
      step = step_;
    }
    return found->second.first;
  }
  const std::shared_ptr<const table_contents>& read(const std::shared_ptr<const index_table>& table) {
    auto& held = tables_[table.get()];
    if (!held) held = table->contents();
    return held;
  }

 private:
  std::unordered_map<const scalar_cell*, std::pair<number, std::uint64_t>> numbers_;  // and the step that they are of
  std::map<const index_table*, std::shared_ptr<const table_contents>> tables_;
  std::uint64_t step_ = 1;
};

/// The numbers and tables that a mask or score function captures, as they were when something was made of them.
class captured_values {
 public:
  /// Whether they are others now, or were never looked at; from now on these are the ones.
  bool update(const program& p, step_snapshot& step) {
    bool same = known_;
    for (std::size_t i = 0; same && i < p.arguments().size(); ++i) same = numbers_[i] == step.read(p.arguments()[i]);
    for (std::size_t i = 0; same && i < p.tables().size(); ++i) same = tables_[i] == step.read(p.tables()[i]);
    if (same) return false;
    numbers_.clear(), tables_.clear();
    for (const auto& cell : p.arguments()) numbers_.push_back(step.read(cell));
    for (const auto& table : p.tables()) tables_.push_back(step.read(table));
    return known_ = true;
  }
  void forget() { known_ = false; }

 private:
  bool known_ = false;
  std::vector<step_snapshot::number> numbers_;
  std::vector<std::shared_ptr<const table_contents>> tables_;  // held, so that another never has the address of one of them
};

/// Device copies of tables' values; a new version is copied over the old one, in stream order.
class device_tables {
 public:
  device_address get(const cuda_stream& stream, const std::shared_ptr<const index_table>& table, const std::shared_ptr<const table_contents>& contents) {
    auto found = copies_.find(table.get());
    const std::size_t bytes = contents->values().size() * sizeof(std::int32_t);
    if (found == copies_.end() || found->second.memory.bytes() < bytes) {
      const std::size_t reserved = std::max(bytes, std::size_t(table->capacity()) * sizeof(std::int32_t));
      if (found != copies_.end()) copies_.erase(found);
      found = copies_.emplace(table.get(), copy{table, nullptr, cuda_buffer(stream.device(), reserved)}).first;
    }
    copy& here = found->second;
    if (here.contents != contents) {
      here.memory.upload(stream, contents->values().data(), bytes);
      here.contents = contents;
    }
    return here.memory.address();
  }

 private:
  struct copy {
    std::shared_ptr<const index_table> owner;  // keeps the key unique
    std::shared_ptr<const table_contents> contents;
    cuda_buffer memory;
  };
  std::map<const index_table*, copy> copies_;
};

struct device_sm90_lists {
  device_address runs = 0, begin = 0;
  index_t batch_lists = 0, head_lists = 0;
  device_address bits = 0;
  index_t section = 1;
  device_address counter = 0, order = 0;
  index_t pack = 1;
  device_address needs = 0;
};

struct device_sm90_attention {
  tensor_map Q, K, V, narrow_K, narrow_V, out;
  index_t boxes_out = 0;
  device_attention p;
  device_sm90_lists lists;
};

struct device_sm90_gradient {
  tensor_map Q, K, V, d_out, narrow_K, narrow_V;
  device_attention p;
  device_sm90_lists lists;
  index_t row_stride = 0;
  void* dQ_sums = nullptr;
};

struct device_undecided_tile {
  std::int32_t b, h, query_tile, key_tile;
};

}  // namespace samite::detail
