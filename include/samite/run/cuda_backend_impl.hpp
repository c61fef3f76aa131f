// samite/run/cuda_backend_impl.hpp: the CUDA backend's nodes.
#pragma once
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <samite/core/env.hpp>
#include <samite/emit/attention.hpp>
#include <samite/emit/row_kernel.hpp>
#include <samite/run/cuda_attention.hpp>
#include <samite/run/cuda_backend.hpp>
#include <samite/run/cuda_kernels.hpp>
#include <samite/run/cuda_strided.hpp>
#include <samite/run/score_ranges.hpp>
#include <samite/runtime/cublaslt.hpp>

namespace samite {
namespace detail {

class cuda_backend final : public backend {
 public:
  explicit cuda_backend(int index) : device_(cuda_device::open(index)), stream_(device_), kernels_(device_), report_(device_, sizeof(device_error_report)), scratch_(device_, 0), counter_(device_, 0) {
    report_.fill_zero(stream_);
    const std::string attention = env_text("SAMITE_ATTENTION").value_or("auto");
    if (attention != "auto" && attention != "portable") raise("E-ENV-VALUE", "environment variable SAMITE_ATTENTION=\"", attention, "\": expected auto or portable");
    portable_attention_ = attention == "portable";
  }
  ~cuda_backend() override {
    // Memory that kernels still use must not be freed; errors have nobody left to hear of them.
    if (const cuda_api* api = cuda_driver().api) api->context_set(device_.context()), api->stream_synchronize(stream_.handle());
  }

  tensor make_tensor(dtype type, extents dims) override {
    tensor made = tensor::on(device_, type, std::move(dims));
    wait_for_default_stream();  // it cleared the memory
    return made;
  }

  void begin_step() override {
    device_.make_current();
    step_.clear();
    wait_for_default_stream();  // tensors are copied there, and this backend's stream does not wait for it by itself
  }

  // From pageable memory: the driver has its own copy of the bytes when the call returns.
  void upload(const tensor& from, std::byte* to) override {
    device_.make_current();
    if (from.bytes() != 0) check_cuda(cuda().copy_to_device_async(address_of(to), from.raw(), from.bytes(), stream_.handle()), "copying an input to the device");
  }

  tensor to_host(const tensor_view& v) override {
    synchronize();
    tensor out(v.type, v.dims);
    if (out.bytes() != 0) check_cuda(cuda().copy_to_host(out.raw(), address_of(v.data), out.bytes()), "copying a result to the host");
    return out;
  }

  void synchronize() override {
    stream_.synchronize();
    device_error_report found;
    report_.download(&found, sizeof found);
    if (found.code == 0) return;
    report_.fill_zero(stream_);
    stream_.synchronize();
    raise("E-RUN-INDEX", "embedding \"", labels_[std::size_t(found.source)], "\": id ", found.position, " is ", found.value, "; the table has rows 0 to ", found.bound - 1);
  }

  void run(const launch& l) override {
    device_.make_current();
    const graph_node& n = l.node;
    if (const auto* a = n.as<fused_node>()) return fused(l, *a);
    if (const auto* a = n.as<matmul_node>()) return product(l, *a);
    if (const auto* a = n.as<attention_node>()) return attention_forward(l, *a);
    if (const auto* a = n.as<attention_gradient_node>()) return attention_backward(l, *a);
    if (n.as<embedding_node>()) return embed(l, l.inputs[1], l.inputs[0], l.outputs[0]);
    if (n.as<embedding_gradient_node>()) return embed_gradient(l, l.inputs[0], l.inputs[1], l.outputs[0]);
    if (const auto* a = n.as<concat_node>()) return concatenate(l, *a);
    if (const auto* a = n.as<pad_node>()) return padded(l, *a);
    if (n.as<sum_to_node>()) return sum(l.node.label, l.inputs[0], l.outputs[0]);
    if (n.as<copy_node>()) return copy(l.inputs[0], l.outputs[0]);
    if (n.as<assign_node>()) return copy(l.inputs[1], l.outputs[0]);
    if (const auto* a = n.as<append_node>()) {
      const index_t rows = l.inputs[1].dims[std::size_t(a->axis)], end = l.outputs[0].dims[std::size_t(a->axis)];
      return copy(l.inputs[1], part_of(l.outputs[0], a->axis, end - rows, rows));
    }
    ensure(false, "the CUDA backend runs every node type");
  }

 private:
  static device_address address_of(const void* pointer) { return reinterpret_cast<device_address>(pointer); }
  static void* pointer_of(device_address address) { return reinterpret_cast<void*>(address); }

  static tensor_view part_of(tensor_view v, int axis, index_t begin, index_t length) {
    v.data += begin * v.strides[std::size_t(axis)] * index_t(size_of(v.type));
    v.dims[std::size_t(axis)] = length;
    return v;
  }

  static tensor_view dense_view(void* data, dtype type, const extents& dims) { return {static_cast<std::byte*>(data), type, dims, row_major_strides(dims)}; }

  void wait_for_default_stream() { check_cuda(cuda().stream_synchronize(nullptr), "waiting for copies to the device"); }

  /// Memory until the end of the current node. Asking again invalidates what was given before.
  std::byte* scratch(std::size_t bytes) {
    if (scratch_.bytes() < bytes) scratch_ = cuda_buffer(device_, bytes + bytes / 2);  // freeing the old block waits for its users
    return static_cast<std::byte*>(pointer_of(scratch_.address()));
  }

  template <class Parameters>
  void start(const cuda_function& kernel, index_t blocks, unsigned threads, Parameters& parameters, unsigned shared_bytes = 0) {
    void* arguments[] = {&parameters};
    start_raw(kernel, blocks, 1, threads, arguments, shared_bytes);
  }
  void start_raw(const cuda_function& kernel, index_t blocks_x, index_t blocks_y, unsigned threads, void** arguments, unsigned shared_bytes) {
    if (blocks_x > std::numeric_limits<std::int32_t>::max())
      raise("E-SHAPE-OVERFLOW", "kernel \"", kernel.name(), "\" would need ", blocks_x, " blocks and a launch has at most 2^31 - 1; lower the batch or the length");
    launch_shape shape;
    shape.grid_x = unsigned(blocks_x), shape.grid_y = unsigned(blocks_y), shape.block_x = threads, shape.shared_bytes = shared_bytes;
    kernel.launch(stream_, shape, arguments);
  }
  /// Blocks for kernels that walk their work in strides.
  index_t stride_blocks(index_t wanted) const { return std::clamp<index_t>(wanted, 1, index_t(device_.sm_count()) * 32); }

  // ---- row kernels -------------------------------------------------------------------------------------------------------

  struct row_launch {
    std::shared_ptr<const program> fn;
    std::vector<row_tensor_type> operands, outputs;
    int team;
    const cuda_function* kernel;
  };

  void fused(const launch& l, const fused_node& a) {
    std::vector<row_tensor_type> operands, outputs;
    // What varies is a matter of the declared shapes: a run-time length of 1 is still a column axis.
    const bool one_column = a.domain.empty() || a.domain.back() == dim(1);
    const auto varies = [&](const shape& dims) { return !one_column && !dims.empty() && !(dims.back() == dim(1)); };
    for (std::size_t i = 0; i < l.inputs.size(); ++i) operands.push_back({l.inputs[i].type, varies(l.source.info(l.node.inputs[i]).dims)});
    for (std::size_t o = 0; o < l.outputs.size(); ++o) outputs.push_back({l.outputs[o].type, varies(l.node.outputs[o].dims)});
    const int team = row_team(a.domain.empty() ? 1 : a.domain.back().capacity());
    run_rows(a.fn, l.node.label, evaluate(a.domain, l.lengths), l.inputs, l.outputs, operands, outputs, team);
  }

  const row_launch& row_kernel_of(const std::shared_ptr<const program>& fn, const std::string& label, const std::vector<row_tensor_type>& operands,
                                  const std::vector<row_tensor_type>& outputs, int team) {
    std::vector<row_launch>& known = rows_[fn.get()];
    for (const row_launch& r : known)
      if (r.operands == operands && r.outputs == outputs && r.team == team) return r;
    // Equal programs are one kernel, whatever they are called: it keeps the first label.
    row_kernel_options options{"", operands, outputs, team};
    const std::string structure = emit_row_kernel(*fn, options).text;
    auto found = row_kernels_.find(structure);
    if (found == row_kernels_.end()) {
      options.label = label;
      const kernel_text text = emit_row_kernel(*fn, options);
      found = row_kernels_.emplace(structure, &kernels_.get(text.name, text.text)).first;
    }
    known.push_back({fn, operands, outputs, team, found->second});
    return known.back();
  }

  void run_rows(const std::shared_ptr<const program>& fn, const std::string& label, const extents& domain, std::span<const tensor_view> inputs,
                std::span<const tensor_view> outputs, const std::vector<row_tensor_type>& operands, const std::vector<row_tensor_type>& output_types, int team) {
    const row_launch& r = row_kernel_of(fn, label, operands, output_types, team);
    std::vector<tensor_view> all(inputs.begin(), inputs.end());
    all.insert(all.end(), outputs.begin(), outputs.end());
    std::vector<device_row_tensor> tensors;
    const device_row_space space = lay_out_rows(domain, all, tensors);
    if (space.rows == 0) return;
    alignas(16) std::byte parameters[kernel_parameter_limit];
    std::byte* at = parameters;
    const auto put = [&](const void* from, std::size_t bytes) { at = static_cast<std::byte*>(std::memcpy(at, from, bytes)) + bytes; };
    put(&space, sizeof space);
    put(tensors.data(), tensors.size() * sizeof(device_row_tensor));
    for (const auto& cell : fn->arguments()) {
      const double real = step_.read(cell).real;
      put(&real, sizeof real);
    }
    for (const auto& cell : fn->arguments()) {
      const index_t index = step_.read(cell).index;
      put(&index, sizeof index);
    }
    const index_t rows_a_block = 256 / team;
    void* arguments[] = {parameters};
    start_raw(*r.kernel, stride_blocks((space.rows + rows_a_block - 1) / rows_a_block), 1, 256, arguments, 0);
  }

  /// The same numbers in another dtype or order.
  void convert(const tensor_view& from, const tensor_view& to) {
    const row_tensor_type in{from.type, true}, out{to.type, true};
    run_rows(identity_, "convert", to.dims, {&from, 1}, {&to, 1}, {in}, {out}, row_team(to.dims.empty() ? 1 : to.dims.back()));
  }

  static std::shared_ptr<const program> make_identity() {
    program p;
    p.roots = {build_operand(p, 0, value_kind::real)};
    return std::make_shared<const program>(std::move(p));
  }

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
    if (m.k == 0) return clear(y);
    const bool half = x.type == dtype::bf16 || x.type == dtype::f16;
    const bool direct = y.type == x.type || (half && y.type == dtype::f32);
    m.output = direct ? y.type : half ? dtype::f32 : x.type;
    void* to = direct ? static_cast<void*>(y.data) : scratch(std::size_t(y.size()) * size_of(m.output));
    m.c = address_of(to);
    if (!cublas_) cublas_ = std::make_unique<cublas_lt>(device_);
    cublas_->matmul(stream_, m);
    if (!direct) convert(dense_view(to, m.output, y.dims), y);
  }

  // ---- moving and summing ------------------------------------------------------------------------------------------------

  void clear(const tensor_view& v) {  // outputs of nodes are dense
    if (v.size() != 0) check_cuda(cuda().fill_bytes_async(address_of(v.data), 0, std::size_t(v.size()) * size_of(v.type), stream_.handle()), "zeroing a tensor");
  }

  void copy(const tensor_view& from, const tensor_view& to) {
    if (to.size() == 0 || (from.data == to.data && from.strides == to.strides)) return;
    std::size_t element = 0;
    device_copy c = lay_out_copy(from, to, element);
    if (c.axes == 1 && (c.extents[0] == 1 || (c.to_strides[0] == 1 && c.from_strides[0] == 1))) {
      check_cuda(cuda().copy_device_async(address_of(c.to), address_of(c.from), std::size_t(c.size) * element, stream_.handle()), "copying on the device");
      return;
    }
    start(kernels_.get(concat_text("copy_", element), "#include \"copy.cuh\"\n"), stride_blocks((c.size + 255) / 256), 256, c);
  }

  void concatenate(const launch& l, const concat_node& a) {
    index_t begin = 0;
    for (const tensor_view& part : l.inputs) {
      const index_t length = part.dims[std::size_t(a.axis)];
      copy(part, part_of(l.outputs[0], a.axis, begin, length));
      begin += length;
    }
  }

  void padded(const launch& l, const pad_node& a) {
    clear(l.outputs[0]);
    copy(l.inputs[0], part_of(l.outputs[0], a.axis, evaluate(a.before, l.lengths), l.inputs[0].dims[std::size_t(a.axis)]));
  }

  void sum(const std::string& label, const tensor_view& from, const tensor_view& to) {
    if (!is_real(from.type) || !is_real(to.type))
      raise("E-RUN-DTYPE", "sum_to \"", label, "\": ", name_of(from.type), " to ", name_of(to.type), ": only real tensors are summed on a GPU; use cast(x, f32) first");
    if (to.size() == 0) return;
    device_sum s = lay_out_sum(from, to);
    const dtype total = from.type == dtype::f64 || to.type == dtype::f64 ? dtype::f64 : dtype::f32;
    const bool innermost_summed = s.summed_axes > 0 && s.summed_strides[s.summed_axes - 1] == 1;
    const bool by_block = s.terms >= 256 && (innermost_summed || s.outputs < 256);
    s.chunk_terms = by_block ? 4096 : 256;
    s.chunks = (s.terms + s.chunk_terms - 1) / s.chunk_terms;
    s.partials = scratch(std::size_t(s.chunks * s.outputs) * size_of(total));
    const std::string types = concat_text(name_of(from.type), ", ", name_of(total));
    const std::string text = concat_text("// sum_to: ", name_of(from.type), " to ", name_of(to.type), ", summed in ", name_of(total), "\n#include \"sum_to.cuh\"\n\nnamespace samite {\n\n",
                                         sum_entry("sum_by_thread", "sum_chunks_by_thread<" + types), sum_entry("sum_by_block", "sum_chunks_by_block<" + types),
                                         sum_entry("sum_partials", concat_text("sum_partials_in_order<", name_of(total), ", ", name_of(to.type))), "}  // namespace samite\n");
    void* arguments[] = {&s};
    if (s.chunks > 0)
      start_raw(kernels_.get(by_block ? "sum_by_block" : "sum_by_thread", text), by_block ? s.outputs : (s.outputs + 255) / 256, std::min<index_t>(s.chunks, 65535), 256, arguments, 0);
    start_raw(kernels_.get("sum_partials", text), (s.outputs + 255) / 256, 1, 256, arguments, 0);
  }
  static std::string sum_entry(const char* name, const std::string& function) {
    return concat_text("extern \"C\" __global__ void __launch_bounds__(sum_threads) ", name, "(const __grid_constant__ sum_parameters p) {\n  ", function, ">(p);\n}\n\n");
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

  static std::string embedding_text(const char* name, const std::string& types) {
    return concat_text("#include \"embedding.cuh\"\n\nnamespace samite {\n\nextern \"C\" __global__ void __launch_bounds__(embedding_threads) ", name,
                       "(const __grid_constant__ embedding_parameters p) {\n  ", name, "_rows<", types, ">(p);\n}\n\n}  // namespace samite\n");
  }

  void embed(const launch& l, const tensor_view& ids, const tensor_view& table, const tensor_view& out) {
    if (ids.size() == 0) return;
    device_embedding e = embedding_parameters(l, ids);
    e.from = table.data, e.to = out.data, e.rows = table.dims[0], e.width = table.dims[1];
    const char* bits = size_of(table.type) == 2 ? "u16" : size_of(table.type) == 4 ? "u32" : size_of(table.type) == 8 ? "u64" : "u8";
    const std::string text = embedding_text("embedding", concat_text(name_of(ids.type), ", ", bits));
    start(kernels_.get("embedding", text), std::min<index_t>(e.tokens, index_t(1) << 20), 256, e);
  }

  void embed_gradient(const launch& l, const tensor_view& ids, const tensor_view& d_out, const tensor_view& out) {
    clear(out);
    if (ids.size() == 0) return;
    device_embedding e = embedding_parameters(l, ids);
    e.from = d_out.data, e.to = out.data, e.rows = out.dims[0], e.width = out.dims[1];
    if (out.type != dtype::f32 && out.type != dtype::f64)
      raise("E-RUN-DTYPE", "embedding gradient \"", l.node.label, "\" in ", name_of(out.type), ": sums of many rows are kept in f32 or f64");
    const std::string text = embedding_text("embedding_gradient", concat_text(name_of(ids.type), ", ", name_of(d_out.type), ", ", name_of(out.type)));
    start(kernels_.get("embedding_gradient", text), std::min<index_t>(e.tokens, index_t(1) << 20), 256, e);
  }

  // ---- attention -----------------------------------------------------------------------------------------------------------

  device_attention attention_parameters(const launch& l, double scale) {
    device_attention p;
    const tensor_view &Q = l.inputs[0], &K = l.inputs[1], &V = l.inputs[2];
    p.Q = device_attention_tensor(Q), p.K = device_attention_tensor(K), p.V = device_attention_tensor(V);
    p.batch = Q.dims[0], p.heads = Q.dims[1], p.key_heads = K.dims[1], p.queries = Q.dims[2], p.keys = K.dims[2];
    p.head_dim = std::int32_t(Q.dims[3]), p.value_dim = std::int32_t(V.dims[3]), p.scale = scale;
    if (std::max(Q.dims[3], V.dims[3]) > attention_head_limit)
      raise("E-ATTN-HEAD-DIM", "attention \"", l.node.label, "\": heads of ", Q.dims[3], " (q, k) and ", V.dims[3], " (v) channels; the GPU kernels serve at most ",
            attention_head_limit, "; use more heads of fewer channels, or device::cpu()");
    return p;
  }

  /// The tables that a mask or score function reads, as they were when the step began, and their copies on the device.
  struct captured_tables {
    std::vector<std::shared_ptr<const table_contents>> contents;
    std::vector<std::uint64_t> addresses;
  };
  captured_tables tables_of(const program& p) {
    captured_tables found;
    for (const auto& table : p.tables()) {
      found.contents.push_back(step_.read(table));
      found.addresses.push_back(tables_.get(stream_, table, found.contents.back()));
    }
    return found;
  }

  /// The bytes of struct keep_mask.
  std::vector<std::byte> mask_parameters(const std::shared_ptr<const program>& mask, const std::string& label) {
    if (!mask) return std::vector<std::byte>(8);
    const std::size_t bytes = mask_arguments_bytes(*mask);
    if (bytes + sizeof(device_attention) + 16 > kernel_parameter_limit)
      raise("E-EMIT-PARAMETERS", "attention \"", label, "\": the mask's ", mask->arguments().size(), " numbers and ", mask->tables().size(), " tables need ", bytes,
            " bytes of parameters and a launch takes ", kernel_parameter_limit, "; put numbers that change together into one table");
    const captured_tables tables = tables_of(*mask);
    std::vector<std::byte> packed = pack_mask_arguments(*mask, tables.contents, tables.addresses);
    for (std::size_t i = 0; i < mask->arguments().size(); ++i) {  // numbers too are those of the step's start
      const index_t number = step_.read(mask->arguments()[i]).index;
      std::memcpy(packed.data() + 8 * i, &number, 8);
    }
    return packed;
  }

  struct element_sums {
    std::byte* words = nullptr;
    std::byte* direct = nullptr;
  };

  /// The bytes of struct score_function; with where the gradients of its tensors are summed, if they are.
  std::vector<std::byte> score_parameters(const launch& l, const attention_terms& a, std::span<const tensor_view> tensors, const device_attention& p,
                                          const std::vector<element_sums>& sums = {}) {
    if (!a.score) return std::vector<std::byte>(8);
    check_score_ranges(*a.score, {tensors.begin(), tensors.end()}, index_box::whole(p.batch, p.heads, std::max<index_t>(1, p.queries), std::max<index_t>(1, p.keys)));
    const std::size_t bytes = score_arguments_bytes(*a.score, tensors.size()) + (a.mask ? mask_arguments_bytes(*a.mask) : 8);
    if (bytes + sizeof(device_attention) + 32 > kernel_parameter_limit)
      raise("E-EMIT-PARAMETERS", "attention \"", l.node.label, "\": what its mask and its score function capture needs ", bytes, " bytes of parameters and a launch takes ",
            kernel_parameter_limit, "; put numbers that change together into one table or tensor");
    std::vector<score_number_argument> numbers;
    for (const auto& cell : a.score->arguments()) {
      const step_snapshot::number n = step_.read(cell);
      numbers.push_back({n.real, n.index});
    }
    std::vector<score_tensor_argument> elements;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const tensor_view& v = tensors[i];
      elements.push_back({address_of(v.data), v.dims, v.strides, 0, 0});
      if (!sums.empty()) elements.back().words = address_of(sums[i].words), elements.back().direct = address_of(sums[i].direct);
    }
    const captured_tables tables = tables_of(*a.score);
    return pack_score_arguments(*a.score, numbers, elements, tables.contents, tables.addresses);
  }

  attention_kernel_options attention_options_of(const launch& l, const attention_terms& a, const device_attention& p, std::span<const tensor_view> tensors) {
    hold(a.mask), hold(a.score);
    attention_kernel_options o{l.inputs[0].type, p.head_dim, p.value_dim, a.mask.get(), a.score.get()};
    for (const tensor_view& v : tensors) o.score_types.push_back(v.type);
    return o;
  }

  void start_attention(const attention_launch& kernel, const std::string& text, device_attention& p, std::vector<std::byte>& mask, std::vector<std::byte>& score, index_t rows, index_t heads) {
    // Rows are padded to whole 64-row tiles, so that a block's tile is a whole fraction of one.
    const index_t blocks = (rows + 63) / 64 * (64 / kernel.block_rows) * heads * p.batch;
    if (blocks == 0) return;
    void* arguments[] = {&p, mask.data(), score.data()};
    start_raw(kernels_.get(kernel.name, text, kernel.shared_bytes), blocks, 1, kernel.threads, arguments, kernel.shared_bytes);
  }

  const std::string& attention_text(const attention_kernel_options& o, bool gradient) {
    std::string key = concat_text(int(o.type), ",", o.head_dim, ",", o.value_dim, ",", gradient, ",", reinterpret_cast<std::uintptr_t>(o.mask), ",", reinterpret_cast<std::uintptr_t>(o.score));
    for (const dtype type : o.score_types) key += concat_text(",", int(type));
    auto found = attention_texts_.find(key);
    if (found == attention_texts_.end())
      found = attention_texts_.emplace(std::move(key), gradient ? emit_attention_gradient(o).text : emit_attention_forward(o).text).first;
    return found->second;
  }

  static dtype sums_of(const launch& l) { return l.inputs[0].type == dtype::f64 ? dtype::f64 : dtype::f32; }

  /// The sink's logits as the kernels read them; `memory` takes them if they come otherwise.
  void place_sink(const launch& l, const attention_terms& a, device_attention& p, std::byte* memory) {
    if (!a.has_sink) return;
    const tensor_view& sink = l.inputs.back();
    p.sink = sink.data;
    if (sink.type == sums_of(l) && (sink.strides[0] == 1 || sink.dims[0] == 1)) return;
    convert(sink, dense_view(memory, sums_of(l), sink.dims));
    p.sink = memory;
  }

  void attention_forward(const launch& l, const attention_node& a) {
    device_attention p = attention_parameters(l, a.scale);
    if (p.batch == 0 || p.queries == 0) return;
    p.out = device_attention_tensor(l.outputs[0]);
    p.lse = l.outputs[1].data;
    const std::span<const tensor_view> tensors = l.inputs.subspan(3, std::size_t(a.tensors));
    const attention_kernel_options o = attention_options_of(l, a, p, tensors);
    std::vector<std::byte> mask = mask_parameters(a.mask, l.node.label), score = score_parameters(l, a, tensors, p);
    place_sink(l, a, p, scratch(std::size_t(p.heads) * 8));
    if (attention_forward_sm90(l, a, p, o, mask)) return;
    if (a.mask && p.keys > 0) p.lists = maps_.get(stream_, a.mask, step_, p.batch, p.heads, p.queries, p.keys, false).rows;
    start_attention(attention_forward_launch(o), attention_text(o, false), p, mask, score, p.queries, p.heads);
  }

  /// A TMA descriptor of a [B,H,rows,D] operand with boxes of 64 columns of `rows` rows; false if TMA can't address it.
  static bool encode(tensor_map& map, const tensor_view& v, index_t rows) {
    if (cuda().encode_tensor_map == nullptr || v.strides[3] != 1) return false;
    std::uint64_t dims[4] = {std::uint64_t(v.dims[3]), std::uint64_t(v.dims[2]), std::uint64_t(v.dims[1]), std::uint64_t(v.dims[0])}, strides[3];
    for (int i = 0; i < 3; ++i) {  // the stride of an axis of one element is never used, but must be a fitting number
      strides[i] = v.dims[std::size_t(2 - i)] > 1 ? std::uint64_t(v.strides[std::size_t(2 - i)]) * 2 : 256;
      if (strides[i] == 0 || strides[i] % 16 != 0 || strides[i] >= std::uint64_t(1) << 40) return false;
    }
    for (const std::uint64_t d : dims)
      if (d < 1 || d > std::uint64_t(1) << 31) return false;
    if (address_of(v.data) % 16 != 0) return false;
    const std::uint32_t box[4] = {64, std::uint32_t(rows), 1, 1}, steps[4] = {1, 1, 1, 1};
    constexpr int swizzle_128 = 3, promote_256 = 3;
    return cuda().encode_tensor_map(&map, v.type == dtype::bf16 ? 9 : 6, 4, const_cast<std::byte*>(v.data), dims, strides, box, steps, 0, swizzle_128, promote_256, 0) == 0;
  }

  /// Runs the forward pass on the kernel for sm_90a if that serves it.
  bool attention_forward_sm90(const launch& l, const attention_node& a, const device_attention& p, const attention_kernel_options& o, std::vector<std::byte>& mask) {
    if (portable_attention_ || device_.arch() != 90 || !serves_sm90(o) || !(p.scale > 0) || p.keys == 0 || std::max(p.queries, p.keys) >= index_t(1) << 31) return false;
    const attention_launch kernel = attention_sm90_launch(o);
    const index_t rows = kernel.block_rows, keys = attention_sm90_keys(o), items = (p.queries + rows - 1) / rows * p.heads * p.batch;
    if (items >= index_t(1) << 31) return false;
    device_sm90_attention call;
    call.p = p;
    if (!encode(call.Q, l.inputs[0], rows) || !encode(call.K, l.inputs[1], keys) || !encode(call.V, l.inputs[2], keys)) return false;
    const device_tile_maps::bit_lists lists = maps_.get_bits(stream_, a.mask, step_, p.batch, p.heads, p.queries, p.keys, rows, keys);
    if (!lists.fits || lists.runs >= index_t(1) << 31) return false;
    call.lists = lists.rows;
    // Heads whose keys and values take 32 MB together, a large part of the L2.
    const index_t head_bytes = p.keys * (index_t(p.head_dim) + p.value_dim) * 2, fitting = std::max<index_t>(1, (index_t(32) << 20) / std::max<index_t>(1, head_bytes));
    call.lists.section = std::min(fitting * (p.heads / p.key_heads), p.heads * p.batch);
    if (lists.fresh > 0) {
      device_address undecided = lists.undecided, bits = lists.rows.bits;
      index_t queries = p.queries, key_count = p.keys;
      void* arguments[] = {&undecided, &bits, &queries, &key_count, mask.data()};
      start_raw(kernels_.get("attention_bits", bits_text(o, rows, keys)), lists.fresh, 1, unsigned(2 * rows), arguments, 0);
    }
    if (counter_.bytes() == 0) {
      counter_ = cuda_buffer(device_, 8);
      counter_.fill_zero(stream_);
    }
    call.lists.counter = counter_.address();
    start(kernels_.get(kernel.name, sm90_text(o), kernel.shared_bytes), std::min<index_t>(items, device_.sm_count()), kernel.threads, call, kernel.shared_bytes);
    return true;
  }

  const std::string& bits_text(const attention_kernel_options& o, index_t rows, index_t keys) {
    std::string& text = attention_texts_[concat_text("bits,", rows, ",", keys, ",", reinterpret_cast<std::uintptr_t>(o.mask))];
    if (text.empty()) text = emit_attention_bits(*o.mask, rows, keys).text;
    return text;
  }
  const std::string& sm90_text(const attention_kernel_options& o) {
    std::string& text = attention_texts_[concat_text("sm90,", int(o.type), ",", o.head_dim, ",", o.value_dim)];
    if (text.empty()) text = emit_attention_sm90(o).text;
    return text;
  }

  void attention_backward(const launch& l, const attention_gradient_node& a) {
    device_attention p = attention_parameters(l, a.scale);
    if (p.batch == 0) {
      for (const tensor_view& v : l.outputs) clear(v);
      return;
    }
    const dtype type = l.inputs[0].type, sums = sums_of(l);
    p.dQ = device_attention_tensor(l.outputs[0]), p.dK = device_attention_tensor(l.outputs[1]), p.dV = device_attention_tensor(l.outputs[2]);
    const index_t rows = p.batch * p.heads * p.queries;
    if (rows == 0 || (p.keys == 0 && !a.has_sink)) {  // nothing meets anything
      for (const tensor_view& v : l.outputs) clear(v);
      return;
    }
    const std::span<const tensor_view> tensors = l.inputs.subspan(a.has_lse_gradient ? 7 : 6, std::size_t(a.tensors)), tensor_gradients = l.outputs.subspan(3, std::size_t(a.tensors));
    // Scratch: row_lse, row_delta, copies of what arrives in another dtype, and the sums of the score tensors' gradients.
    std::size_t scratch_bytes = 0;
    const auto place = [&](std::size_t bytes) { return std::exchange(scratch_bytes, scratch_bytes + (bytes + 255) / 256 * 256); };
    const bool cast_d_out = l.inputs[5].type != type, has_d_lse = a.has_lse_gradient, cast_d_lse = has_d_lse && l.inputs[6].type != sums;
    const std::size_t row_bytes = std::size_t(rows) * size_of(sums), lse_at = place(row_bytes), delta_at = place(row_bytes);
    const std::size_t d_out_at = place(cast_d_out ? std::size_t(l.inputs[5].size()) * size_of(type) : 0), d_lse_at = place(cast_d_lse ? row_bytes : 0), sink_at = place(std::size_t(p.heads) * 8);
    constexpr std::size_t most_words = std::size_t(1) << 28;  // bytes a tensor; see ADR 7
    std::vector<std::size_t> words_at;
    const auto words_bytes = [&](const tensor_view& v) { return std::size_t(v.size()) * score_sum_words * 8; };
    for (const tensor_view& v : tensor_gradients) words_at.push_back(words_bytes(v) <= most_words ? place(words_bytes(v)) : std::size_t(-1));
    std::byte* memory = scratch(scratch_bytes);
    p.row_lse = memory + lse_at, p.row_delta = memory + delta_at;
    tensor_view d_out = l.inputs[5];
    if (cast_d_out) {
      d_out = dense_view(memory + d_out_at, type, d_out.dims);
      convert(l.inputs[5], d_out);
    }
    place_sink(l, a, p, memory + sink_at);
    std::vector<element_sums> element_places;
    for (std::size_t i = 0; i < words_at.size(); ++i) {
      const tensor_view& v = tensor_gradients[i];
      if (words_at[i] == std::size_t(-1)) element_places.push_back({nullptr, v.data}), clear(v);
      else element_places.push_back({memory + words_at[i], nullptr}), clear(dense_view(memory + words_at[i], dtype::u8, {index_t(words_bytes(v))}));
    }
    p.d_out = device_attention_tensor(d_out), p.out = device_attention_tensor(l.inputs[3]);
    p.lse = l.inputs[4].data;
    if (cast_d_lse) {
      const tensor_view d_lse = dense_view(memory + d_lse_at, sums, l.inputs[6].dims);
      convert(l.inputs[6], d_lse);
      p.d_lse = d_lse.data;
    } else if (has_d_lse) {
      p.d_lse = l.inputs[6].data;
    }
    const attention_kernel_options o = attention_options_of(l, a, p, tensors);
    const std::string& text = attention_text(o, true);
    std::vector<std::byte> mask = mask_parameters(a.mask, l.node.label), score = score_parameters(l, a, tensors, p, element_places);
    start(kernels_.get("attention_prepare", text), stride_blocks((rows + 7) / 8), 256, p);
    device_tile_maps::lists lists;
    if (a.mask && p.keys > 0) lists = maps_.get(stream_, a.mask, step_, p.batch, p.heads, p.queries, p.keys, true);
    p.lists = lists.columns;
    start_attention(attention_key_gradient_launch(o), text, p, mask, score, p.keys, p.key_heads);
    p.lists = lists.rows;
    start_attention(attention_query_gradient_launch(o), text, p, mask, score, p.queries, p.heads);
    for (std::size_t i = 0; i < words_at.size(); ++i) {
      if (element_places[i].words == nullptr) continue;
      std::byte *words = element_places[i].words, *out = tensor_gradients[i].data;
      index_t elements = tensor_gradients[i].size();
      void* arguments[] = {&words, &out, &elements};
      if (elements > 0) start_raw(kernels_.get("attention_sums", text), stride_blocks((elements + 255) / 256), 1, 256, arguments, 0);
    }
    if (a.has_sink) {
      std::byte* d_sink = l.outputs.back().data;
      void* arguments[] = {&p, &d_sink};
      start_raw(kernels_.get("attention_sink_gradient", text), p.heads, 1, 256, arguments, 0);
    }
  }

  /// Keeps a mask or score function, so that its address stays the key of its kernels.
  void hold(const std::shared_ptr<const program>& p) {
    if (p) held_.emplace(p.get(), p);
  }

  cuda_device device_;
  cuda_stream stream_;
  cuda_kernels kernels_;
  std::unique_ptr<cublas_lt> cublas_;
  cuda_buffer report_, scratch_, counter_;  // counter_: of the persistent kernels' items; 0 between launches
  step_snapshot step_;
  device_tables tables_;
  device_tile_maps maps_;
  std::map<const program*, std::vector<row_launch>> rows_;
  std::map<std::string, const cuda_function*> row_kernels_;
  std::map<std::string, std::string> attention_texts_;
  std::map<const program*, std::shared_ptr<const program>> held_;
  std::vector<std::string> labels_;
  bool portable_attention_ = false;
  std::shared_ptr<const program> identity_ = make_identity();
};

}  // namespace detail

SAMITE_IMPL std::unique_ptr<backend> make_cuda_backend(int index) { return std::make_unique<detail::cuda_backend>(index); }

}  // namespace samite
