// samite/runtime/cuda_driver.hpp: devices, memory, streams, events, kernels and graphs of the CUDA driver, as owning types.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <samite/core/dtype.hpp>
#include <samite/runtime/cuda_api.hpp>
#include <samite/runtime/nvtx.hpp>

namespace samite {

/// Whether a driver and at least one device are there. Never raises.
inline bool cuda_available() { return detail::cuda_driver().api != nullptr; }

/// Why there is no device; empty if there is one.
inline const std::string& cuda_missing_reason() { return detail::cuda_driver().reason; }

/// 0 without a driver.
inline int cuda_device_count() { return cuda_available() ? detail::cuda_driver().device_count : 0; }

/// A device's primary context, shared with every other user of the device in this process (PyTorch included) and retained until the
/// process ends: giving it back at exit may meet a driver that is gone.
///
/// threads  copies may be used from any thread; every call makes the context current in the calling thread
class cuda_device {
 public:
  /// errors  E-GPU-NONE without a driver, E-GPU-INDEX if there are fewer devices
  static cuda_device open(int index = 0);

  int index() const { return state_->index; }
  const std::string& name() const { return state_->name; }
  /// Compute capability as one number: 90 for 9.0.
  int arch() const { return state_->arch; }
  /// The target for cubins: "sm_90a" where there are architecture-specific instructions, else "sm_86".
  std::string arch_name() const { return "sm_" + std::to_string(arch()) + (arch() >= 90 ? "a" : ""); }
  int sm_count() const { return state_->sm_count; }
  std::size_t shared_limit_bytes() const { return state_->shared_limit_bytes; }
  std::size_t memory_bytes() const { return state_->memory_bytes; }

  std::size_t free_bytes() const {
    std::size_t free = 0, total = 0;
    make_current();
    detail::check_cuda(detail::cuda().memory_info(&free, &total), "asking for the free device memory");
    return free;
  }

  void make_current() const { detail::check_cuda(detail::cuda().context_set(state_->context), "making the device current"); }
  /// Blocks until everything on the device is done.
  void synchronize() const {
    make_current();
    detail::check_cuda(detail::cuda().context_synchronize(), "waiting for the device");
  }
  detail::cuda_handle context() const { return state_->context; }

  friend bool operator==(const cuda_device& left, const cuda_device& right) { return left.index() == right.index(); }

 private:
  struct state {
    int index = 0, id = 0, arch = 0, sm_count = 0;
    std::size_t shared_limit_bytes = 0, memory_bytes = 0;
    std::string name;
    detail::cuda_handle context = nullptr;
  };
  static std::shared_ptr<const state> make_state(int index);
  explicit cuda_device(std::shared_ptr<const state> s) : state_(std::move(s)) {}

  std::shared_ptr<const state> state_;
};

namespace detail {

/// Owns one driver object; destroys it in its device's context. What the driver answers then is ignored: at exit it may be gone.
template <class Handle>
class cuda_owned {
 public:
  using destroyer = int (*)(Handle);
  cuda_owned(cuda_device device, Handle handle, destroyer destroy)
      : device_(std::move(device)), handle_(handle), destroy_(destroy) {}
  cuda_owned(cuda_owned&& other) noexcept
      : device_(other.device_), handle_(std::exchange(other.handle_, Handle{})), destroy_(other.destroy_) {}
  cuda_owned& operator=(cuda_owned&& other) noexcept {
    std::swap(device_, other.device_), std::swap(handle_, other.handle_), std::swap(destroy_, other.destroy_);
    return *this;
  }
  ~cuda_owned() {
    if (handle_ == Handle{} || destroy_ == nullptr) return;
    cuda_driver().api->context_set(device_.context());
    destroy_(handle_);
  }
  const cuda_device& device() const { return device_; }
  Handle handle() const { return handle_; }

 private:
  cuda_device device_;
  Handle handle_;
  destroyer destroy_;
};

}  // namespace detail

/// An ordered queue of work; does not wait for the default stream.
class cuda_stream {
 public:
  explicit cuda_stream(const cuda_device& device) : owned_(device, create(device), detail::cuda().stream_destroy) {}
  const cuda_device& device() const { return owned_.device(); }
  detail::cuda_handle handle() const { return owned_.handle(); }
  /// Blocks until the stream's work is done; a fault in it is raised here.
  void synchronize() const {
    device().make_current();
    detail::check_cuda(detail::cuda().stream_synchronize(handle()), "waiting for a stream");
  }
  bool is_capturing() const {
    int status = 0;
    detail::check_cuda(detail::cuda().stream_is_capturing(handle(), &status), "asking whether a stream is captured");
    return status != 0;
  }

 private:
  static detail::cuda_handle create(const cuda_device& device) {
    detail::cuda_handle stream = nullptr;
    device.make_current();
    detail::check_cuda(detail::cuda().stream_create(&stream, 1), "creating a stream");
    return stream;
  }
  detail::cuda_owned<detail::cuda_handle> owned_;
};

/// A point in a stream, for timing and for ordering streams.
class cuda_event {
 public:
  explicit cuda_event(const cuda_device& device, bool timing = true)
      : owned_(device, create(device, timing), detail::cuda().event_destroy) {}
  void record(const cuda_stream& stream) {
    stream.device().make_current();
    detail::check_cuda(detail::cuda().event_record(owned_.handle(), stream.handle()), "recording an event");
  }
  void synchronize() const { detail::check_cuda(detail::cuda().event_synchronize(owned_.handle()), "waiting for an event"); }
  /// True if the work before the event is done; does not block.
  bool is_done() const {
    const int result = detail::cuda().event_query(owned_.handle());
    if (result == 600) return false;  // CUDA_ERROR_NOT_READY
    detail::check_cuda(result, "asking for an event");
    return true;
  }
  /// Lets the stream wait for the event, on the device.
  void wait_in(const cuda_stream& stream) const {
    detail::check_cuda(detail::cuda().stream_wait_event(stream.handle(), owned_.handle(), 0), "letting a stream wait for an event");
  }
  /// Milliseconds from `start` to this event; both must be done.
  float elapsed_ms(const cuda_event& start) const {
    float ms = 0;
    detail::check_cuda(detail::cuda().event_elapsed(&ms, start.owned_.handle(), owned_.handle()), "measuring between two events");
    return ms;
  }

 private:
  static detail::cuda_handle create(const cuda_device& device, bool timing) {
    detail::cuda_handle event = nullptr;
    device.make_current();
    detail::check_cuda(detail::cuda().event_create(&event, timing ? 0u : 2u), "creating an event");
    return event;
  }
  detail::cuda_owned<detail::cuda_handle> owned_;
};

/// Device memory, at least 256-byte aligned, not initialised. Zero bytes have address 0.
///
/// errors  E-CUDA-MEMORY when the device is full
class cuda_buffer {
 public:
  cuda_buffer(const cuda_device& device, std::size_t bytes)
      : owned_(device, allocate(device, bytes), detail::cuda().memory_free), bytes_(bytes) {}

  const cuda_device& device() const { return owned_.device(); }
  device_address address() const { return owned_.handle(); }
  std::size_t bytes() const { return bytes_; }

  /// Blocks until copied.
  void upload(const void* from, std::size_t bytes, std::size_t offset = 0) {
    if (!ready(bytes, offset)) return;
    detail::check_cuda(detail::cuda().copy_to_device(address() + offset, from, bytes), "copying to the device");
  }
  /// Blocks until the default stream's work is done and copied; other streams are the caller's to wait for.
  void download(void* to, std::size_t bytes, std::size_t offset = 0) const {
    if (!ready(bytes, offset)) return;
    detail::check_cuda(detail::cuda().copy_to_host(to, address() + offset, bytes), "copying from the device");
  }
  /// Blocks for pageable memory; `from` must live until the stream has passed.
  void upload(const cuda_stream& stream, const void* from, std::size_t bytes, std::size_t offset = 0) {
    if (!ready(bytes, offset)) return;
    detail::check_cuda(detail::cuda().copy_to_device_async(address() + offset, from, bytes, stream.handle()), "copying to the device");
  }
  void download(const cuda_stream& stream, void* to, std::size_t bytes, std::size_t offset = 0) const {
    if (!ready(bytes, offset)) return;
    detail::check_cuda(detail::cuda().copy_to_host_async(to, address() + offset, bytes, stream.handle()), "copying from the device");
  }
  void fill_zero() {
    if (!ready(bytes_, 0)) return;
    detail::check_cuda(detail::cuda().fill_bytes(address(), 0, bytes_), "zeroing device memory");
  }
  void fill_zero(const cuda_stream& stream) {
    if (!ready(bytes_, 0)) return;
    detail::check_cuda(detail::cuda().fill_bytes_async(address(), 0, bytes_, stream.handle()), "zeroing device memory");
  }

 private:
  static device_address allocate(const cuda_device& device, std::size_t bytes) {
    device_address address = 0;
    if (bytes == 0) return address;
    device.make_current();
    const int result = detail::cuda().memory_alloc(&address, bytes);
    if (result != 0) detail::raise_cuda(result, concat_text("allocating ", bytes, " bytes on ", device.name()));
    return address;
  }
  bool ready(std::size_t bytes, std::size_t offset) const {
    ensure(offset <= bytes_ && bytes <= bytes_ - offset, "a device copy stays inside its buffer");
    if (bytes == 0) return false;
    device().make_current();
    return true;
  }
  detail::cuda_owned<device_address> owned_;
  std::size_t bytes_;
};

/// Page-locked host memory: asynchronous copies from and to it do not block.
class pinned_buffer {
 public:
  pinned_buffer(const cuda_device& device, std::size_t bytes)
      : owned_(device, allocate(device, bytes), detail::cuda().host_free), bytes_(bytes) {}
  void* data() const { return owned_.handle(); }
  std::size_t bytes() const { return bytes_; }

 private:
  static void* allocate(const cuda_device& device, std::size_t bytes) {
    void* memory = nullptr;
    if (bytes == 0) return memory;
    device.make_current();
    const int result = detail::cuda().host_alloc(&memory, bytes, 1);  // portable: every context may use it
    if (result != 0) detail::raise_cuda(result, concat_text("allocating ", bytes, " bytes of page-locked host memory"));
    return memory;
  }
  detail::cuda_owned<void*> owned_;
  std::size_t bytes_;
};

/// Grid, block and what else a launch says beside its arguments.
struct launch_shape {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;  // dynamic shared memory
  unsigned cluster_x = 1;     // blocks a cluster, sm_90 and newer
  bool programmatic = false;  // may start before the kernel before it has ended; it waits by griddepcontrol.wait
};

/// A kernel in one device's context. Its module must live as long.
class cuda_function {
 public:
  cuda_function(detail::cuda_handle handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  detail::cuda_handle handle() const { return handle_; }
  const std::string& name() const { return name_; }
  int register_count() const { return attribute(4); }
  int local_bytes() const { return attribute(3); }  // a thread's spills and arrays
  int static_shared_bytes() const { return attribute(1); }
  int max_threads() const { return attribute(0); }

  /// Needed once a device before a launch with more than 48 KiB of dynamic shared memory.
  void allow_shared_bytes(std::size_t bytes) const {
    const int result = detail::cuda().function_set_attribute(handle_, 8, int(bytes));
    if (result != 0) detail::raise_cuda(result, concat_text("allowing ", bytes, " bytes of shared memory for kernel \"", name_, "\""));
  }

  /// Blocks of this kernel that fit on one multiprocessor at once.
  int blocks_per_sm(int block_threads, std::size_t shared_bytes) const {
    int blocks = 0;
    detail::check_cuda(detail::cuda().occupancy(&blocks, handle_, block_threads, shared_bytes), "asking for a kernel's occupancy");
    return blocks;
  }

  /// Starts the kernel; `arguments` points to one pointer for each parameter. Does not block.
  void launch(const cuda_stream& stream, const launch_shape& shape, void** arguments) const {
    const detail::cuda_api& api = detail::cuda();
    const nvtx_range range(name_.c_str());
    int result = 0;
    if (shape.cluster_x == 1 && !shape.programmatic) {
      result = api.launch(handle_, shape.grid_x, shape.grid_y, shape.grid_z, shape.block_x, shape.block_y, shape.block_z,
                          shape.shared_bytes, stream.handle(), arguments, nullptr);
    } else {
      if (api.launch_extended == nullptr)
        raise("E-CUDA-CALL", "kernel \"", name_, "\" needs cuLaunchKernelEx; the driver is older than CUDA 11.8");
      detail::launch_attribute attributes[2];
      unsigned count = 0;
      if (shape.cluster_x > 1) attributes[count++] = {detail::launch_attribute_cluster, 0, {shape.cluster_x, 1, 1}};
      if (shape.programmatic) attributes[count++] = {detail::launch_attribute_programmatic, 0, {1}};
      const detail::launch_config config{{shape.grid_x, shape.grid_y, shape.grid_z}, {shape.block_x, shape.block_y, shape.block_z},
                                         shape.shared_bytes, stream.handle(), attributes, count};
      result = api.launch_extended(&config, handle_, arguments, nullptr);
    }
    if (result != 0) [[unlikely]]
      detail::raise_cuda(result, concat_text("launching kernel \"", name_, "\" with grid ", shape.grid_x, "x", shape.grid_y, "x",
                                             shape.grid_z, ", block ", shape.block_x, "x", shape.block_y, "x", shape.block_z, ", ",
                                             shape.shared_bytes, " bytes of shared memory"));
  }

 private:
  int attribute(int which) const {
    int value = 0;
    detail::check_cuda(detail::cuda().function_attribute(&value, which, handle_), "asking for a kernel's attributes");
    return value;
  }
  detail::cuda_handle handle_;
  std::string name_;
};

/// A cubin loaded into one device's context.
///
/// errors  E-CUDA-IMAGE if it was made for another device. The driver is given no length: check a file's checksum before this
class cuda_module {
 public:
  cuda_module(const cuda_device& device, const void* cubin)
      : uses_library_(detail::cuda().library_load != nullptr && detail::cuda().library_kernel != nullptr &&
                      detail::cuda().kernel_function != nullptr && detail::cuda().library_unload != nullptr),
        owned_(device, load(device, cubin), uses_library_ ? detail::cuda().library_unload : detail::cuda().module_unload) {}
  const cuda_device& device() const { return owned_.device(); }

  /// errors  E-CUDA-CALL if the cubin has no kernel of that name
  cuda_function function(const std::string& name) const {
    const detail::cuda_api& api = detail::cuda();
    detail::cuda_handle kernel = nullptr, function = nullptr;
    device().make_current();
    int result = 0;
    if (uses_library_) {
      result = api.library_kernel(&kernel, owned_.handle(), name.c_str());
      if (result == 0) result = api.kernel_function(&function, kernel);
      // Loads now and not at the first launch, which may be inside a capture or while device memory is full.
      if (result == 0 && api.function_load != nullptr) result = api.function_load(function);
    } else {
      result = api.module_function(&function, owned_.handle(), name.c_str());
    }
    if (result != 0) detail::raise_cuda(result, concat_text("looking up kernel \"", name, "\""));
    return cuda_function(function, name);
  }

 private:
  detail::cuda_handle load(const cuda_device& device, const void* cubin) const {
    detail::cuda_handle handle = nullptr;
    device.make_current();
    const detail::cuda_api& api = detail::cuda();
    const int result = uses_library_ ? api.library_load(&handle, cubin, nullptr, nullptr, 0, nullptr, nullptr, 0)
                                     : api.module_load(&handle, cubin);
    if (result != 0) detail::raise_cuda(result, concat_text("loading a cubin on ", device.name(), " (", device.arch_name(), ")"));
    return handle;
  }
  bool uses_library_;
  detail::cuda_owned<detail::cuda_handle> owned_;
};

/// While it lives, this thread may load and allocate although one of its streams is captured; the capture stays valid.
class relaxed_capture {
 public:
  relaxed_capture() {
    if (detail::cuda().capture_mode != nullptr) detail::cuda().capture_mode(&mode_);
  }
  relaxed_capture(const relaxed_capture&) = delete;
  relaxed_capture& operator=(const relaxed_capture&) = delete;
  ~relaxed_capture() {
    if (detail::cuda().capture_mode != nullptr) detail::cuda().capture_mode(&mode_);
  }

 private:
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; afterwards what it was before
};

/// A recorded sequence of launches that one call replays.
class cuda_graph {
 public:
  /// Records what `work()` puts on the stream; nothing runs yet. `work` must neither allocate, load, synchronise nor read back.
  template <class Work>
  static cuda_graph capture(const cuda_stream& stream, Work&& work) {
    const detail::cuda_api& api = detail::cuda();
    stream.device().make_current();
    // Thread-local: other threads of the process may allocate and compile meanwhile.
    detail::check_cuda(api.stream_begin_capture(stream.handle(), 1), "starting to capture a stream");
    detail::cuda_handle recorded = nullptr;
    try {
      work();
    } catch (...) {
      api.stream_end_capture(stream.handle(), &recorded);
      if (recorded != nullptr) api.graph_destroy(recorded);
      throw;
    }
    detail::check_cuda(api.stream_end_capture(stream.handle(), &recorded), "ending the capture of a stream");
    detail::cuda_handle executable = nullptr;
    const int result = api.graph_instantiate(&executable, recorded, 0);
    api.graph_destroy(recorded);
    detail::check_cuda(result, "instantiating a captured graph");
    return cuda_graph(stream.device(), executable);
  }

  /// Replays the recording; does not block.
  void launch(const cuda_stream& stream) const {
    stream.device().make_current();
    detail::check_cuda(detail::cuda().graph_launch(owned_.handle(), stream.handle()), "launching a captured graph");
  }

 private:
  cuda_graph(const cuda_device& device, detail::cuda_handle handle) : owned_(device, handle, detail::cuda().graph_exec_destroy) {}
  detail::cuda_owned<detail::cuda_handle> owned_;
};

inline std::shared_ptr<const cuda_device::state> cuda_device::make_state(int index) {
  const detail::cuda_api& api = detail::cuda();
  state s;
  s.index = index;
  detail::check_cuda(api.device_get(&s.id, index), "opening a device");
  char name[256] = {};
  detail::check_cuda(api.device_name(name, int(sizeof name) - 1, s.id), "asking for a device's name");
  s.name = name;
  const auto attribute = [&](int which) {
    int value = 0;
    detail::check_cuda(api.device_attribute(&value, which, s.id), "asking for a device's attributes");
    return value;
  };
  s.arch = attribute(75) * 10 + attribute(76);
  s.sm_count = attribute(16);
  s.shared_limit_bytes = std::size_t(attribute(97));
  detail::check_cuda(api.device_memory(&s.memory_bytes, s.id), "asking for a device's memory");
  detail::check_cuda(api.context_retain(&s.context, s.id), "opening a device's primary context");
  return std::make_shared<const state>(std::move(s));
}

inline cuda_device cuda_device::open(int index) {
  static std::mutex mutex;
  static std::vector<std::shared_ptr<const state>>& states = *new std::vector<std::shared_ptr<const state>>;
  detail::cuda();  // E-GPU-NONE comes first
  if (index < 0 || index >= cuda_device_count())
    raise("E-GPU-INDEX", "cuda device ", index, ": this process sees ", cuda_device_count(), " device(s), numbered from 0; see ",
          "nvidia-smi and CUDA_VISIBLE_DEVICES");
  const std::lock_guard lock(mutex);
  states.resize(std::size_t(cuda_device_count()));
  auto& found = states[std::size_t(index)];
  if (!found) found = make_state(index);
  return cuda_device(found);
}

}  // namespace samite
