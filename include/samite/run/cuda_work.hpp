// samite/run/cuda_work.hpp: what the nodes of one CUDA backend share: the device, its stream, kernels, scratch memory, the step.
#pragma once
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <samite/run/cuda_attention.hpp>
#include <samite/run/cuda_kernels.hpp>
#include <samite/run/cuda_strided.hpp>

namespace samite::detail {

inline device_address address_of(const void* pointer) { return reinterpret_cast<device_address>(pointer); }
inline void* pointer_of(device_address address) { return reinterpret_cast<void*>(address); }
inline tensor_view dense_view(void* data, dtype type, const extents& dims) { return {static_cast<std::byte*>(data), type, dims, row_major_strides(dims)}; }

/// A kernel of a node: loaded, and the numbers of its launch.
struct cuda_kernel {
  const cuda_function* function = nullptr;  // null until it is asked for
  const kernel_use* use = nullptr;          // null if the node has none of this role
};

/// A copy, and the bytes of its elements: 0 for one that the driver does.
struct laid_copy {
  device_copy parameters;
  std::size_t element_bytes = 0;
};

/// A TMA descriptor, and what it was made of, so that a step does not have the driver encode the same one anew.
struct encoded_boxes {
  const std::byte* data = nullptr;
  extents dims, strides;
  index_t rows = 0, pack = 0;
  bool served = false;  // TMA can address it
  tensor_map map{};

  bool is_of(const tensor_view& v, index_t box_rows, index_t heads) const { return data == v.data && rows == box_rows && pack == heads && dims == v.dims && strides == v.strides && data != nullptr; }
};

/// Where the gradients of a score function's tensor are summed.
struct element_sums {
  std::byte* words = nullptr;
  std::byte* direct = nullptr;
  friend bool operator==(const element_sums&, const element_sums&) = default;
};

/// What the CUDA backend keeps of a node, so that a step builds no text, looks nothing up and lays nothing out twice.
struct cuda_node final : node_memory {
  cuda_node(std::shared_ptr<const plan_kernels> all, int id) : of_plan(std::move(all)), id(id) {}

  std::shared_ptr<const plan_kernels> of_plan;
  const int id;
  bool has_uses = false;
  std::array<cuda_kernel, kernel_role_count> kernels{};
  // What was laid out when the executor's views were last new.
  std::uint64_t laid_views = 0;
  index_t rows = 0;                   // of row kernels
  std::vector<std::byte> parameters;  // of row kernels: the bytes of a launch, but for the captured numbers at their end
  std::vector<laid_copy> copies;
  device_sum sum;
  // Of attention: the bytes of the mask and of the score function, and what they hold.
  captured_values mask_values, score_values;
  std::vector<std::byte> mask_bytes, score_bytes;
  std::vector<element_sums> score_sums;
  std::uint64_t score_views = 0;
  std::array<encoded_boxes, 10> boxes;  // by the place in a launch
  bool score_is_narrow = true;  // 32 bits hold its indices: the kernels for sm_90a serve it
};

/// One stream of a device, and what is launched on it.
class cuda_work {
 public:
  explicit cuda_work(int index) : device(cuda_device::open(index)), stream(device), kernels(device), scratch_(device, 0) {}

  /// Memory until the end of the current node. Asking again invalidates what was given before.
  std::byte* scratch(std::size_t bytes) {
    if (scratch_.bytes() < bytes) scratch_ = cuda_buffer(device, bytes + std::min(bytes / 2, std::size_t(64) << 20));  // freeing the old block waits for its users
    return static_cast<std::byte*>(pointer_of(scratch_.address()));
  }

  static cuda_node& node_of(const launch& l) { return static_cast<cuda_node&>(*l.memory); }

  /// A kernel of the node, loaded at its first use, and whether it has one of this role. Its addresses stay.
  ///
  /// errors  those of making the node's kernels, E-JIT-*, E-CUDA-*
  const cuda_kernel& kernel(const launch& l, kernel_role role) {
    const cuda_kernel& found = known(l, role);
    if (found.function != nullptr) [[likely]]
      return found;
    ensure(found.use != nullptr, "plan_kernels knows every kernel that a node launches");
    node_of(l).kernels[std::size_t(role)].function = &kernels.get(*found.use);
    return found;
  }
  bool has(const launch& l, kernel_role role) { return known(l, role).use != nullptr; }

  void start(const cuda_kernel& kernel, index_t blocks_x, index_t blocks_y, void** arguments) {
    if (blocks_x > std::numeric_limits<std::int32_t>::max())
      raise("E-SHAPE-OVERFLOW", "kernel \"", kernel.use->name, "\" would need ", blocks_x, " blocks and a launch has at most 2^31 - 1; lower the batch or the length");
    launch_shape shape;
    shape.grid_x = unsigned(blocks_x), shape.grid_y = unsigned(blocks_y), shape.block_x = kernel.use->threads, shape.shared_bytes = kernel.use->shared_bytes;
    kernel.function->launch(stream, shape, arguments);
  }
  /// A kernel whose one parameter is a struct.
  template <class Parameters>
  void start(const cuda_kernel& kernel, index_t blocks, Parameters& parameters) {
    start(kernel, blocks, 1, parameters);
  }
  template <class Parameters>
    requires(!std::is_pointer_v<Parameters> && !std::is_array_v<Parameters>)
  void start(const cuda_kernel& kernel, index_t blocks_x, index_t blocks_y, Parameters& parameters) {
    void* arguments[] = {&parameters};
    start(kernel, blocks_x, blocks_y, arguments);
  }
  /// Blocks for kernels that walk their work in strides.
  index_t stride_blocks(index_t wanted) const { return std::clamp<index_t>(wanted, 1, index_t(device.sm_count()) * 32); }

  void clear(const tensor_view& v) {  // outputs of nodes are dense
    if (v.size() != 0) check_cuda(cuda().fill_bytes_async(address_of(v.data), 0, std::size_t(v.size()) * size_of(v.type), stream.handle()), "zeroing a tensor");
  }

  cuda_device device;
  cuda_stream stream;
  cuda_kernels kernels;
  step_snapshot step;

 private:
  static const cuda_kernel& known(const launch& l, kernel_role role) {
    cuda_node& node = node_of(l);
    if (!node.has_uses) {
      for (const kernel_use& use : node.of_plan->of(node.id)) node.kernels[std::size_t(use.role)].use = &use;
      node.has_uses = true;
    }
    return node.kernels[std::size_t(role)];
  }

  cuda_buffer scratch_;
};

}  // namespace samite::detail
