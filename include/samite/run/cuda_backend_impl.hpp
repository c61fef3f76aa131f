// samite/run/cuda_backend_impl.hpp: the CUDA backend's nodes.
#pragma once
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <samite/jit/cuda_launcher.hpp>
#include <samite/run/cuda_attention_nodes.hpp>
#include <samite/run/cuda_backend.hpp>
#include <samite/run/cuda_row_nodes.hpp>
#include <samite/run/cuda_strided.hpp>
#include <samite/run/cuda_work.hpp>
#include <samite/runtime/cublaslt.hpp>

namespace samite {
namespace detail {

class cuda_backend final : public backend {
 public:
  explicit cuda_backend(int index) : work_(index), report_(work_.device, sizeof(device_error_report)) { report_.fill_zero(work_.stream); }
  ~cuda_backend() override {
    // Memory that kernels still use must not be freed; errors have nobody left to hear of them.
    if (const cuda_api* api = cuda_driver().api) api->context_set(work_.device.context()), api->stream_synchronize(work_.stream.handle());
  }

  tensor make_tensor(dtype type, extents dims) override {
    tensor made = tensor::on(work_.device, type, std::move(dims));
    wait_for_default_stream();  // it cleared the memory
    return made;
  }

  std::vector<std::unique_ptr<node_memory>> prepare(const plan& p) override {
    const auto kernels = std::make_shared<const plan_kernels>(p, work_.device.arch_name(), device_class_of(work_.device));
    std::vector<std::unique_ptr<node_memory>> nodes(p.source().nodes().size());
    for (const int id : p.steps()) nodes[std::size_t(id)] = std::make_unique<cuda_node>(kernels, id);
    work_.kernels.compile_ahead(kernels->sources(false));
    return nodes;
  }

  void begin_step() override {
    work_.device.make_current();
    work_.step.clear();
    wait_for_default_stream();  // tensors are copied there, and this backend's stream does not wait for it by itself
  }

  // From pageable memory: the driver has its own copy of the bytes when the call returns.
  void upload(const tensor& from, std::byte* to) override {
    work_.device.make_current();
    if (from.bytes() != 0) check_cuda(cuda().copy_to_device_async(address_of(to), from.raw(), from.bytes(), work_.stream.handle()), "copying an input to the device");
  }

  tensor to_host(const tensor_view& v) override {
    synchronize();
    tensor out(v.type, v.dims);
    if (out.bytes() != 0) check_cuda(cuda().copy_to_host(out.raw(), address_of(v.data), out.bytes()), "copying a result to the host");
    return out;
  }

  void synchronize() override {
    work_.stream.synchronize();
    device_error_report found;
    report_.download(&found, sizeof found);
    if (found.code == 0) return;
    report_.fill_zero(work_.stream);
    work_.stream.synchronize();
    raise("E-RUN-INDEX", "embedding \"", labels_[std::size_t(found.source)], "\": id ", found.position, " is ", found.value, "; the table has rows 0 to ", found.bound - 1);
  }

  void run(const launch& l) override {
    work_.device.make_current();
    const graph_node& n = l.node;
    if (const auto* a = n.as<fused_node>()) return rows_.fused(l, *a);
    if (const auto* a = n.as<matmul_node>()) return product(l, *a);
    if (const auto* a = n.as<attention_node>()) return attention_.forward(l, *a);
    if (const auto* a = n.as<attention_gradient_node>()) return attention_.backward(l, *a);
    if (n.as<embedding_node>()) return embed(l, l.inputs[1], l.inputs[0], l.outputs[0]);
    if (n.as<embedding_gradient_node>()) return embed_gradient(l, l.inputs[0], l.inputs[1], l.outputs[0]);
    if (const auto* a = n.as<concat_node>()) return concatenate(l, *a);
    if (const auto* a = n.as<pad_node>()) return padded(l, *a);
    if (n.as<sum_to_node>()) return sum(l, l.inputs[0], l.outputs[0]);
    if (n.as<copy_node>()) return copy(l, l.inputs[0], l.outputs[0]);
    if (n.as<assign_node>()) return copy(l, l.inputs[1], l.outputs[0]);
    if (const auto* a = n.as<append_node>()) return append(l, *a);
    ensure(false, "the CUDA backend runs every node type");
  }

 private:
  static tensor_view part_of(tensor_view v, int axis, index_t begin, index_t length) {
    v.data += begin * v.strides[std::size_t(axis)] * index_t(size_of(v.type));
    v.dims[std::size_t(axis)] = length;
    return v;
  }

  void wait_for_default_stream() { check_cuda(cuda().stream_synchronize(nullptr), "waiting for copies to the device"); }

  // ---- products ----------------------------------------------------------------------------------------------------------

  void product(const launch& l, const matmul_node& a) {
    const tensor_view &x = l.inputs[0], &w = l.inputs[1], &y = l.outputs[0];
    const index_t x_columns = x.dims.back(), w_columns = w.dims.back();
    const auto rows_of = [](const tensor_view& v) { return count(std::span(v.dims).first(v.dims.size() - 1)); };
    device_matmul m;
    m.type = x.type, m.trans_a = a.trans_a, m.trans_b = a.trans_b;
    m.m = a.trans_a ? x_columns : rows_of(x), m.k = a.trans_a ? rows_of(x) : x_columns, m.n = a.trans_b ? rows_of(w) : w_columns;
    m.a = address_of(x.data), m.b = address_of(w.data);
    m.lda = std::max<index_t>(1, x_columns), m.ldb = std::max<index_t>(1, w_columns), m.ldc = std::max<index_t>(1, m.n);
    if (y.size() == 0) return;
    if (m.k == 0) return work_.clear(y);
    const bool half = x.type == dtype::bf16 || x.type == dtype::f16;
    const bool direct = y.type == x.type || (half && y.type == dtype::f32);
    m.output = direct ? y.type : half ? dtype::f32 : x.type;
    void* to = direct ? static_cast<void*>(y.data) : work_.scratch(std::size_t(y.size()) * size_of(m.output));
    m.c = address_of(to);
    if (!cublas_) cublas_ = std::make_unique<cublas_lt>(work_.device);
    cublas_->matmul(work_.stream, m);
    if (!direct) rows_.convert(l, kernel_role::convert, dense_view(to, m.output, y.dims), y);
  }

  // ---- moving and summing ------------------------------------------------------------------------------------------------

  /// Copies that are laid out when the views are new: `lay_out` names them, two views each.
  template <class LayOut>
  void copies(const launch& l, LayOut lay_out) {
    cuda_node& node = work_.node_of(l);
    if (node.laid_views != l.views) {
      node.copies.clear();
      lay_out([&](const tensor_view& from, const tensor_view& to) {
        if (to.size() == 0 || (from.data == to.data && from.strides == to.strides)) return;
        laid_copy c;
        c.parameters = lay_out_copy(from, to, c.element_bytes);
        const device_copy& p = c.parameters;
        if (p.axes == 1 && (p.extents[0] == 1 || (p.to_strides[0] == 1 && p.from_strides[0] == 1))) c.parameters.size *= index_t(std::exchange(c.element_bytes, 0));
        node.copies.push_back(c);
      });
      node.laid_views = l.views;
    }
    for (laid_copy& c : node.copies) {
      device_copy& p = c.parameters;
      if (c.element_bytes == 0) check_cuda(cuda().copy_device_async(address_of(p.to), address_of(p.from), std::size_t(p.size), work_.stream.handle()), "copying on the device");
      else work_.start(work_.kernel(l, kernel_role(int(kernel_role::copy_1) + std::countr_zero(c.element_bytes))), work_.stride_blocks((p.size + 255) / 256), p);
    }
  }
  void copy(const launch& l, const tensor_view& from, const tensor_view& to) {
    copies(l, [&](const auto& add) { add(from, to); });
  }

  void append(const launch& l, const append_node& a) {
    copies(l, [&](const auto& add) {
      const index_t rows = l.inputs[1].dims[std::size_t(a.axis)], end = l.outputs[0].dims[std::size_t(a.axis)];
      add(l.inputs[1], part_of(l.outputs[0], a.axis, end - rows, rows));
    });
  }

  void concatenate(const launch& l, const concat_node& a) {
    copies(l, [&](const auto& add) {
      index_t begin = 0;
      for (const tensor_view& part : l.inputs) {
        const index_t length = part.dims[std::size_t(a.axis)];
        add(part, part_of(l.outputs[0], a.axis, begin, length));
        begin += length;
      }
    });
  }

  void padded(const launch& l, const pad_node& a) {
    work_.clear(l.outputs[0]);
    copies(l, [&](const auto& add) { add(l.inputs[0], part_of(l.outputs[0], a.axis, evaluate(a.before, l.lengths), l.inputs[0].dims[std::size_t(a.axis)])); });
  }

  void sum(const launch& l, const tensor_view& from, const tensor_view& to) {
    if (!is_real(from.type) || !is_real(to.type))
      raise("E-RUN-DTYPE", "sum_to \"", l.node.label, "\": ", name_of(from.type), " to ", name_of(to.type), ": only real tensors are summed on a GPU; use cast(x, f32) first");
    if (to.size() == 0) return;
    cuda_node& node = work_.node_of(l);
    device_sum& s = node.sum;
    if (node.laid_views != l.views) s = lay_out_sum(from, to), node.laid_views = l.views;
    const dtype total = from.type == dtype::f64 || to.type == dtype::f64 ? dtype::f64 : dtype::f32;
    const bool innermost_summed = s.summed_axes > 0 && s.summed_strides[s.summed_axes - 1] == 1;
    const bool by_block = s.terms >= 256 && (innermost_summed || s.outputs < 256);
    s.chunk_terms = by_block ? 4096 : 256;
    s.chunks = (s.terms + s.chunk_terms - 1) / s.chunk_terms;
    s.partials = work_.scratch(std::size_t(s.chunks * s.outputs) * size_of(total));
    if (s.chunks > 0)
      work_.start(work_.kernel(l, by_block ? kernel_role::sum_by_block : kernel_role::sum_by_thread), by_block ? s.outputs : (s.outputs + 255) / 256, std::min<index_t>(s.chunks, 65535), s);
    work_.start(work_.kernel(l, kernel_role::sum_partials), (s.outputs + 255) / 256, s);
  }

  // ---- embedding -----------------------------------------------------------------------------------------------------------

  device_embedding embedding_parameters(const launch& l, const tensor_view& ids) {
    device_embedding e;
    e.ids = ids.data, e.tokens = ids.size(), e.report = pointer_of(report_.address());
    std::size_t label = 0;
    while (label < labels_.size() && labels_[label] != l.node.label) ++label;
    if (label == labels_.size()) labels_.push_back(l.node.label);
    e.source = std::int32_t(label);
    return e;
  }

  void embed(const launch& l, const tensor_view& ids, const tensor_view& table, const tensor_view& out) {
    if (ids.size() == 0) return;
    device_embedding e = embedding_parameters(l, ids);
    e.from = table.data, e.to = out.data, e.rows = table.dims[0], e.width = table.dims[1];
    work_.start(work_.kernel(l, kernel_role::embedding), std::min<index_t>(e.tokens, index_t(1) << 20), e);
  }

  void embed_gradient(const launch& l, const tensor_view& ids, const tensor_view& d_out, const tensor_view& out) {
    work_.clear(out);
    if (ids.size() == 0) return;
    device_embedding e = embedding_parameters(l, ids);
    e.from = d_out.data, e.to = out.data, e.rows = out.dims[0], e.width = out.dims[1];
    if (out.type != dtype::f32 && out.type != dtype::f64)
      raise("E-RUN-DTYPE", "embedding gradient \"", l.node.label, "\" in ", name_of(out.type), ": sums of many rows are kept in f32 or f64");
    work_.start(work_.kernel(l, kernel_role::embedding), std::min<index_t>(e.tokens, index_t(1) << 20), e);
  }

  cuda_work work_;
  cuda_row_nodes rows_{work_};
  cuda_attention_nodes attention_{work_, rows_};
  std::unique_ptr<cublas_lt> cublas_;
  cuda_buffer report_;
  std::vector<std::string> labels_;
};

}  // namespace detail

SAMITE_IMPL std::unique_ptr<backend> make_cuda_backend(int index) { return std::make_unique<detail::cuda_backend>(index); }

}  // namespace samite
