// samite/run/cpu_backend_impl.hpp: the CPU backend's nodes.
#pragma once
#include <unordered_map>
#include <variant>

#include <samite/run/cpu_attention.hpp>
#include <samite/run/cpu_backend.hpp>
#include <samite/run/row_kernel.hpp>
#include <samite/run/strided.hpp>
#include <samite/runtime/blas.hpp>

namespace samite {
namespace detail {

class cpu_backend final : public backend {
 public:
  tensor make_tensor(dtype type, extents dims) override { return tensor(type, std::move(dims)); }

  void upload(const tensor& from, std::byte* to) override {
    if (from.bytes() != 0) std::memcpy(to, from.raw(), from.bytes());
  }

  tensor to_host(const tensor_view& v) override {
    tensor copy(v.type, v.dims);
    if (v.size() != 0) std::memcpy(copy.raw(), v.data, std::size_t(v.size()) * size_of(v.type));
    return copy;
  }

  // Captured numbers and tables may have changed since the last step.
  void begin_step() override { maps_.clear(); }

  void run(const launch& l) override {
    const graph_node& n = l.node;
    if (const auto* a = n.as<fused_node>()) return fused(l, *a);
    if (const auto* a = n.as<matmul_node>()) return product(l, *a);
    if (const auto* a = n.as<attention_node>()) return attention_forward(l, *a, maps_);
    if (const auto* a = n.as<attention_gradient_node>()) return attention_backward(l, *a, maps_);
    if (n.as<embedding_node>()) return embed(l);
    if (n.as<embedding_gradient_node>()) return embed_gradient(l);
    if (const auto* a = n.as<concat_node>()) return concatenate(l, *a);
    if (const auto* a = n.as<pad_node>()) return padded(l, *a);
    if (n.as<sum_to_node>()) return sum_strided(l.inputs[0], l.outputs[0]);
    if (n.as<copy_node>()) return copy_strided(l.inputs[0], l.outputs[0]);
    if (n.as<assign_node>()) return copy_strided(l.inputs[1], l.outputs[0]);
    if (const auto* a = n.as<append_node>()) {
      const index_t rows = l.inputs[1].dims[std::size_t(a->axis)], end = l.outputs[0].dims[std::size_t(a->axis)];
      return copy_strided(l.inputs[1], narrowed(l.outputs[0], a->axis, end - rows, rows));
    }
    ensure(false, "the CPU backend runs every node type");
  }

 private:
  void fused(const launch& l, const fused_node& a) {
    const extents domain = evaluate(a.domain, l.lengths);
    std::visit([&](const auto& kernel) { kernel.run(l.inputs, l.outputs, domain); }, kernel_of(l, a));
  }

  using any_kernel = std::variant<row_kernel<float>, row_kernel<double>>;
  struct known_kernel {
    std::vector<char> varies;
    bool in_double;
    any_kernel kernel;  // keeps its program alive, so that no other program gets the address by which it is found
  };

  const any_kernel& kernel_of(const launch& l, const fused_node& a) {
    // What varies is a matter of the declared shapes: a run-time length of 1 is still a column axis.
    std::vector<char> varies;
    bool in_double = false;
    const bool one_column = a.domain.empty() || a.domain.back() == dim(1);
    for (std::size_t i = 0; i < l.inputs.size(); ++i) {
      const shape& dims = l.source.info(l.node.inputs[i]).dims;
      varies.push_back(!one_column && !dims.empty() && !(dims.back() == dim(1)));
      in_double = in_double || l.inputs[i].type == dtype::f64;
    }
    for (const value_info& out : l.node.outputs) in_double = in_double || out.type == dtype::f64;
    std::vector<std::unique_ptr<known_kernel>>& known = kernels_[a.fn.get()];
    for (const auto& k : known)
      if (k->in_double == in_double && k->varies == varies) return k->kernel;
    any_kernel made = in_double ? any_kernel(row_kernel<double>(a.fn, varies)) : any_kernel(row_kernel<float>(a.fn, varies));
    known.push_back(std::make_unique<known_kernel>(known_kernel{std::move(varies), in_double, std::move(made)}));
    return known.back()->kernel;
  }

  /// A matrix operand in the dtype that the product is computed in.
  template <class T>
  static const T* as_real(const tensor_view& v, std::vector<T>& converted) {
    if (v.type == (sizeof(T) == 8 ? dtype::f64 : dtype::f32)) return v.as<const T>();
    converted.resize(std::size_t(v.size()));
    constexpr index_t block = 65536;
    parallel_for((v.size() + block - 1) / block, [&](index_t i) {
      load_row(converted.data() + i * block, v.data + i * block * index_t(size_of(v.type)), v.type, 1, std::min(block, v.size() - i * block));
    });
    return converted.data();
  }

  template <class T>
  static void product_in(const launch& l, const matmul_node& a) {
    const tensor_view &x = l.inputs[0], &w = l.inputs[1], &y = l.outputs[0];
    const index_t x_columns = x.dims.back(), w_columns = w.dims.back();
    // Not size / columns: a product over no elements is zero at every one of its rows.
    const auto rows_of = [](const tensor_view& v) { return count(std::span(v.dims).first(v.dims.size() - 1)); };
    const index_t x_rows = rows_of(x), w_rows = rows_of(w);
    const index_t m = a.trans_a ? x_columns : x_rows, k = a.trans_a ? x_rows : x_columns, n = a.trans_b ? w_rows : w_columns;
    std::vector<T> x_store, w_store, y_store;
    const T *xd = as_real(x, x_store), *wd = as_real(w, w_store);
    const bool direct = y.type == (sizeof(T) == 8 ? dtype::f64 : dtype::f32);
    if (!direct) y_store.resize(std::size_t(m * n));
    T* yd = direct ? y.as<T>() : y_store.data();
    gemm<T>(a.trans_a, a.trans_b, m, n, k, T(1), xd, std::max<index_t>(1, x_columns), wd, std::max<index_t>(1, w_columns), T(0), yd, std::max<index_t>(1, n));
    if (!direct) store_row(y.data, y.type, yd, m * n);
  }

  void product(const launch& l, const matmul_node& a) {
    const bool in_double = l.inputs[0].type == dtype::f64 || l.outputs[0].type == dtype::f64;
    if (in_double) product_in<double>(l, a);
    else product_in<float>(l, a);
  }

  static index_t id_at(const tensor_view& ids, index_t i) { return ids.type == dtype::i32 ? index_t(ids.as<std::int32_t>()[i]) : ids.as<std::int64_t>()[i]; }

  static void check_ids(const launch& l, const tensor_view& ids, index_t vocabulary) {
    for (index_t i = 0; i < ids.size(); ++i)
      if (const index_t id = id_at(ids, i); id < 0 || id >= vocabulary)
        raise("E-RUN-INDEX", "embedding \"", l.node.label, "\": id ", i, " is ", id, "; the table has rows 0 to ", vocabulary - 1);
  }

  static void embed(const launch& l) {
    const tensor_view &table = l.inputs[0], &ids = l.inputs[1], &out = l.outputs[0];
    check_ids(l, ids, table.dims[0]);
    const std::size_t bytes = std::size_t(table.dims[1]) * size_of(table.type);
    parallel_for((ids.size() + 63) / 64, [&](index_t block) {
      for (index_t i = block * 64; i < std::min(ids.size(), block * 64 + 64); ++i)
        std::memcpy(out.data + std::size_t(i) * bytes, table.data + std::size_t(id_at(ids, i)) * bytes, bytes);
    });
  }

  // Each thread owns a range of columns and walks the ids in order, so that sums have one order.
  static void embed_gradient(const launch& l) {
    const tensor_view &ids = l.inputs[0], &d = l.inputs[1], &out = l.outputs[0];
    check_ids(l, ids, out.dims[0]);
    const index_t width = out.dims[1];
    std::vector<double> sums(std::size_t(out.size()), 0.0);
    parallel_for((width + 31) / 32, [&](index_t part) {
      const index_t first = part * 32, n = std::min<index_t>(32, width - first);
      double row[32];
      for (index_t i = 0; i < ids.size(); ++i) {
        load_row(row, d.data + (i * width + first) * index_t(size_of(d.type)), d.type, 1, n);
        double* sum = sums.data() + id_at(ids, i) * width + first;
        for (index_t c = 0; c < n; ++c) sum[c] += row[c];
      }
    });
    store_row(out.data, out.type, sums.data(), out.size());
  }

  static void concatenate(const launch& l, const concat_node& a) {
    index_t begin = 0;
    for (const tensor_view& part : l.inputs) {
      const index_t length = part.dims[std::size_t(a.axis)];
      copy_strided(part, narrowed(l.outputs[0], a.axis, begin, length));
      begin += length;
    }
  }

  static void padded(const launch& l, const pad_node& a) {
    fill_zero(l.outputs[0]);
    copy_strided(l.inputs[0], narrowed(l.outputs[0], a.axis, evaluate(a.before, l.lengths), l.inputs[0].dims[std::size_t(a.axis)]));
  }

  std::unordered_map<const program*, std::vector<std::unique_ptr<known_kernel>>> kernels_;
  attention_maps maps_;
};

}  // namespace detail

SAMITE_IMPL std::unique_ptr<backend> make_cpu_backend() { return std::make_unique<detail::cpu_backend>(); }

SAMITE_IMPL cpu_counters read_cpu_counters() { return detail::attention_totals(); }

}  // namespace samite
