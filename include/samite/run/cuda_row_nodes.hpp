// samite/run/cuda_row_nodes.hpp: fused row programs on a GPU, and conversions of tensors by them.
#pragma once
#include <cstring>
#include <span>
#include <vector>

#include <samite/emit/kernel_text.hpp>
#include <samite/run/cuda_strided.hpp>
#include <samite/run/cuda_work.hpp>

namespace samite::detail {

class cuda_row_nodes {
 public:
  explicit cuda_row_nodes(cuda_work& work) : work_(work) {}

  void fused(const launch& l, const fused_node& a) {
    cuda_node& node = work_.node_of(l);
    const cuda_kernel& kernel = work_.kernel(l, kernel_role::rows);
    if (node.laid_views != l.views) {
      std::vector<tensor_view> all(l.inputs.begin(), l.inputs.end());
      all.insert(all.end(), l.outputs.begin(), l.outputs.end());
      node.rows = lay_out(evaluate(a.domain, l.lengths), all, node.parameters);
      node.laid_views = l.views;
    }
    if (node.rows == 0) return;
    alignas(16) std::byte parameters[kernel_parameter_limit];
    std::byte* at = parameters;
    const auto put = [&](const void* from, std::size_t bytes) { at = static_cast<std::byte*>(std::memcpy(at, from, bytes)) + bytes; };
    put(node.parameters.data(), node.parameters.size());
    for (const auto& cell : a.fn->arguments()) {
      const double real = work_.step.read(cell).real;
      put(&real, sizeof real);
    }
    for (const auto& cell : a.fn->arguments()) {
      const index_t index = work_.step.read(cell).index;
      put(&index, sizeof index);
    }
    start(kernel, node.rows, parameters);
  }

  /// The same numbers in another dtype or order, by the node's kernel of that role.
  void convert(const launch& l, kernel_role role, const tensor_view& from, const tensor_view& to) {
    std::vector<std::byte> parameters;
    const tensor_view both[] = {from, to};
    const index_t rows = lay_out(to.dims, both, parameters);
    if (rows > 0) start(work_.kernel(l, role), rows, parameters.data());
  }

 private:
  /// The bytes of a row kernel's parameters before the captured numbers. Gives the rows.
  static index_t lay_out(const extents& domain, std::span<const tensor_view> all, std::vector<std::byte>& parameters) {
    std::vector<device_row_tensor> tensors;
    const device_row_space space = lay_out_rows(domain, all, tensors);
    const std::size_t tensor_bytes = tensors.size() * sizeof(device_row_tensor);
    parameters.resize(sizeof space + tensor_bytes);
    std::memcpy(parameters.data(), &space, sizeof space);
    std::memcpy(parameters.data() + sizeof space, tensors.data(), tensor_bytes);
    return space.rows;
  }

  void start(const cuda_kernel& kernel, index_t rows, std::byte* parameters) {
    void* arguments[] = {parameters};
    work_.start(kernel, work_.stride_blocks((rows + kernel.use->block_rows - 1) / kernel.use->block_rows), 1, arguments);
  }

  cuda_work& work_;
};

}  // namespace samite::detail
