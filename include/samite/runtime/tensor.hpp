// samite/runtime/tensor.hpp: a contiguous array of numbers on the host or on a CUDA device.
#pragma once
#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <samite/core/dim.hpp>
#include <samite/runtime/cuda_driver.hpp>
#include <samite/runtime/thread_pool.hpp>

namespace samite {

/// C++ types that elements are read as; bf16 and f16 are read as their bits (core/dtype.hpp converts).
template <class T>
concept tensor_element = std::same_as<T, double> || std::same_as<T, float> || std::same_as<T, std::uint16_t> ||
                         std::same_as<T, std::int64_t> || std::same_as<T, std::int32_t> || std::same_as<T, std::uint8_t>;

/// Elements of a shape. Raises E-SHAPE-OVERFLOW if the count or its bytes pass 2^63 - 1, or if an extent is negative.
inline index_t checked_count(std::span<const index_t> shape, std::size_t element_bytes = 1) {
  index_t count = 1;
  bool overflow = false, empty = false;
  for (const index_t extent : shape) {
    if (extent < 0) raise("E-SHAPE-OVERFLOW", "shape ", shape, ": extents can't be negative");
    if (extent == 0) empty = true;
    else overflow |= __builtin_mul_overflow(count, extent, &count);
  }
  index_t bytes = 0;
  overflow |= __builtin_mul_overflow(count, index_t(element_bytes), &bytes);
  if (empty) return 0;
  if (overflow) raise("E-SHAPE-OVERFLOW", "shape ", shape, " of ", element_bytes, "-byte elements is larger than any memory");
  return count;
}

/// Shared, contiguous, row-major storage with a dtype and extents. Copies share the storage, like a pointer; `clone()` does not.
///
/// Host memory is 64-byte aligned and zero-initialised; device memory is zeroed too.
/// errors   E-SHAPE-OVERFLOW, E-MEMORY-HOST, E-CUDA-MEMORY
/// threads  the storage is not guarded: writers and readers are the caller's to order
class tensor {
 public:
  /// No elements and no storage; `is_empty()` tells.
  tensor() = default;
  tensor(dtype type, extents shape) : type_(type), dims_(std::move(shape)), count_(checked_count(dims_, size_of(type))) {
    host_ = allocate_host(bytes());
  }
  tensor(dtype type, std::initializer_list<index_t> shape) : tensor(type, extents(shape)) {}

  /// Zeroed memory on a device.
  static tensor on(const cuda_device& device, dtype type, extents shape) {
    tensor out = uninitialised_on(device, type, std::move(shape));
    out.device_memory_->fill_zero();
    return out;
  }

  /// A host tensor with these values; their number must be the shape's.
  template <tensor_element T>
  static tensor from(dtype type, extents shape, std::span<const T> values) {
    tensor out(type, std::move(shape));
    out.check_count(index_t(values.size()), "tensor::from");
    std::ranges::copy(values, out.data<T>());
    return out;
  }
  static tensor from(extents shape, const std::vector<float>& values) { return from<float>(f32, std::move(shape), values); }
  static tensor from(extents shape, const std::vector<index_t>& values) { return from<index_t>(i64, std::move(shape), values); }

  /// Memory that something else owns, e.g. a mapped file or another library's array; `owner` is kept as long as the tensor.
  static tensor over(dtype type, extents shape, void* memory, std::shared_ptr<void> owner) {
    tensor out;
    out.type_ = type;
    out.dims_ = std::move(shape);
    out.count_ = checked_count(out.dims_, size_of(type));
    out.host_ = std::shared_ptr<std::byte>(std::move(owner), static_cast<std::byte*>(memory));
    return out;
  }

  dtype type() const { return type_; }
  const extents& dims() const { return dims_; }
  index_t rank() const { return index_t(dims_.size()); }
  index_t elements() const { return count_; }
  std::size_t bytes() const { return std::size_t(count_) * size_of(type_); }
  bool is_empty() const { return host_ == nullptr && device_memory_ == nullptr; }
  bool is_host() const { return device_memory_ == nullptr; }
  bool on_device() const { return device_memory_ != nullptr; }
  /// The device that holds the elements; asks of a host tensor are a broken promise.
  const cuda_device& device() const {
    ensure(on_device(), "tensor::device() is asked of device tensors only");
    return device_memory_->device();
  }
  bool shares_storage_with(const tensor& other) const {
    return !is_empty() && host_ == other.host_ && device_memory_ == other.device_memory_;
  }

  /// The first element. T is double, float, std::uint16_t (bf16, f16), std::int64_t, std::int32_t or std::uint8_t, as the dtype is.
  /// A const tensor is a const handle of storage that may be written, like a pointer.
  ///
  /// errors  E-TENSOR-DTYPE if T is not the dtype's type, E-TENSOR-DEVICE if the elements are on a device
  template <tensor_element T>
  T* data() const {
    check_type<T>();
    check_host();
    return reinterpret_cast<T*>(host_.get());
  }
  /// The elements as a span; errors as data().
  template <tensor_element T>
  std::span<T> values() const {
    return {data<T>(), std::size_t(count_)};
  }
  /// The first byte, in host or device memory: ask `on_device()` before reading it.
  std::byte* raw() const { return on_device() ? reinterpret_cast<std::byte*>(device_memory_->address()) : host_.get(); }
  /// The device address of the first element. Raises E-TENSOR-DEVICE for a host tensor.
  device_address address() const {
    if (!on_device())
      raise("E-TENSOR-DEVICE", "tensor ", name_of(type_), " ", dims_, ": a device address was asked of host memory; use to(device)");
    return device_memory_->address();
  }

  /// The same storage under another shape of as many elements. Raises E-TENSOR-SHAPE otherwise.
  tensor reshaped(extents shape) const {
    tensor out = *this;
    out.dims_ = std::move(shape);
    check_count(checked_count(out.dims_), "reshaped");
    return out;
  }

  /// A copy in memory of its own, in the same place.
  tensor clone() const {
    if (is_empty()) return {};
    tensor out = on_device() ? uninitialised_on(device(), type_, dims_) : tensor(type_, dims_);
    out.copy_from(*this);
    return out;
  }

  /// The elements in host memory: this tensor itself if it is there, else a copy. Blocks until the device's earlier work is done.
  tensor to_host() const {
    if (!on_device()) return *this;
    tensor out(type_, dims_);
    out.copy_from(*this);
    return out;
  }

  /// The elements on a device: this tensor itself if it is there, else a copy. Blocks.
  tensor to(const cuda_device& device) const {
    if (on_device() && this->device() == device) return *this;
    tensor out = uninitialised_on(device, type_, dims_);
    out.copy_from(*this);
    return out;
  }

  /// Overwrites the elements with another tensor's, from wherever they are. Blocks until the devices' earlier work is done.
  ///
  /// errors  E-TENSOR-DTYPE or E-TENSOR-SHAPE unless dtype and number of elements agree
  void copy_from(const tensor& other) {
    if (type_ != other.type_)
      raise("E-TENSOR-DTYPE", "copy_from: ", name_of(other.type_), " ", other.dims_, " can't be copied into ", name_of(type_), " ",
            dims_, "; use to_dtype(", name_of(type_), ") first");
    check_count(other.count_, "copy_from");
    if (count_ == 0) return;
    if (other.on_device()) other.device().synchronize();
    if (on_device()) device().synchronize();
    if (!on_device() && !other.on_device()) {
      std::memmove(host_.get(), other.host_.get(), bytes());
    } else if (!on_device()) {
      other.device_memory_->download(host_.get(), bytes());
    } else if (!other.on_device()) {
      device_memory_->upload(other.host_.get(), bytes());
    } else {
      copy_between_devices(other);
    }
  }

  /// The elements as another dtype, in host memory. Reals round to nearest even; real to integer truncates towards zero and
  /// saturates, NaN gives 0; integers wrap to narrower ones.
  tensor to_dtype(dtype wanted) const;

 private:
  static std::shared_ptr<std::byte> allocate_host(std::size_t bytes) {
    const std::size_t reserved = std::max<std::size_t>(bytes, 1);
    void* memory = nullptr;
    if (bytes <= std::size_t(std::numeric_limits<std::ptrdiff_t>::max()) - 64) {
      // calloc and not new + memset: the system hands out zeroed pages that cost nothing until they are touched.
      memory = std::calloc(reserved + 64 + sizeof(void*), 1);
    }
    if (memory == nullptr)
      raise("E-MEMORY-HOST", "a tensor of ", bytes, " bytes can't be allocated in host memory; lower a capacity or use a machine with more");
    const std::uintptr_t start = (reinterpret_cast<std::uintptr_t>(memory) + 63) / 64 * 64;
    return {reinterpret_cast<std::byte*>(start), [memory](std::byte*) { std::free(memory); }};
  }

  static tensor uninitialised_on(const cuda_device& device, dtype type, extents shape) {
    tensor out;
    out.type_ = type;
    out.dims_ = std::move(shape);
    out.count_ = checked_count(out.dims_, size_of(type));
    out.device_memory_ = std::make_shared<cuda_buffer>(device, out.bytes());
    return out;
  }

  void copy_between_devices(const tensor& other) {
    const detail::cuda_api& api = detail::cuda();
    const cuda_stream stream(device());
    detail::check_cuda(api.copy_peer_async(address(), device().context(), other.address(), other.device().context(), bytes(),
                                           stream.handle()),
                       "copying between device tensors");
    stream.synchronize();
  }

  template <tensor_element T>
  void check_type() const {
    const bool fits = std::same_as<T, double>         ? type_ == f64
                      : std::same_as<T, float>        ? type_ == f32
                      : std::same_as<T, std::int64_t> ? type_ == i64
                      : std::same_as<T, std::int32_t> ? type_ == i32
                      : std::same_as<T, std::uint8_t> ? type_ == u8
                                                      : type_ == bf16 || type_ == f16;
    if (!fits) raise_type(std::same_as<T, double> ? "double" : std::same_as<T, float> ? "float" : std::same_as<T, std::int64_t> ? "std::int64_t"
                          : std::same_as<T, std::int32_t> ? "std::int32_t" : std::same_as<T, std::uint8_t> ? "std::uint8_t" : "std::uint16_t");
  }
  [[noreturn]] void raise_type(const char* asked) const {
    raise("E-TENSOR-DTYPE", "data<", asked, ">() of a tensor ", name_of(type_), " ", dims_, ": another C++ type holds ",
          name_of(type_), " elements (bf16 and f16: std::uint16_t); use to_dtype() to convert");
  }
  void check_host() const {
    if (on_device())
      raise("E-TENSOR-DEVICE", "tensor ", name_of(type_), " ", dims_, " on ", device().name(), ": the host can't read it; use to_host()");
  }
  void check_count(index_t count, const char* operation) const {
    if (count != count_)
      raise("E-TENSOR-SHAPE", operation, ": a tensor ", name_of(type_), " ", dims_, " has ", count_, " elements, but ", count,
            " were given; the numbers must agree");
  }

  dtype type_ = f32;
  extents dims_;
  index_t count_ = 0;
  std::shared_ptr<std::byte> host_;
  std::shared_ptr<cuda_buffer> device_memory_;
};

namespace detail {

inline double element_as_double(dtype type, const void* memory, index_t i) {
  switch (type) {
    case dtype::f64: return static_cast<const double*>(memory)[i];
    case dtype::f32: return double(static_cast<const float*>(memory)[i]);
    case dtype::bf16: return double(from_bf16(static_cast<const std::uint16_t*>(memory)[i]));
    case dtype::f16: return double(from_f16(static_cast<const std::uint16_t*>(memory)[i]));
    case dtype::i64: return double(static_cast<const std::int64_t*>(memory)[i]);
    case dtype::i32: return double(static_cast<const std::int32_t*>(memory)[i]);
    case dtype::u8: return double(static_cast<const std::uint8_t*>(memory)[i]);
  }
  return 0;
}

inline std::int64_t element_as_integer(dtype type, const void* memory, index_t i) {
  switch (type) {
    case dtype::i64: return static_cast<const std::int64_t*>(memory)[i];
    case dtype::i32: return static_cast<const std::int32_t*>(memory)[i];
    case dtype::u8: return static_cast<const std::uint8_t*>(memory)[i];
    default: break;
  }
  return 0;
}

template <class Integer>
Integer saturate(double value) {
  if (!(value == value)) return 0;
  if (value <= double(std::numeric_limits<Integer>::min())) return std::numeric_limits<Integer>::min();
  if (value >= double(std::numeric_limits<Integer>::max())) return std::numeric_limits<Integer>::max();
  return static_cast<Integer>(value);
}

// double to a 16-bit type in one rounding: going through the nearest float could round twice, so the float keeps a sticky last bit.
inline float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (double(nearest) == value || !(value == value) || nearest - nearest != 0) return nearest;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  const bool too_far = (double(nearest) > value) == (value > 0);  // rounded away from zero
  const std::uint32_t truncated = too_far ? bits - 1 : bits;
  return std::bit_cast<float>(truncated | 1u);
}

inline void store_element(dtype type, void* memory, index_t i, double value) {
  switch (type) {
    case dtype::f64: static_cast<double*>(memory)[i] = value; break;
    case dtype::f32: static_cast<float*>(memory)[i] = static_cast<float>(value); break;
    case dtype::bf16: static_cast<std::uint16_t*>(memory)[i] = to_bf16(round_to_odd(value)); break;
    case dtype::f16: static_cast<std::uint16_t*>(memory)[i] = to_f16(round_to_odd(value)); break;
    case dtype::i64: static_cast<std::int64_t*>(memory)[i] = saturate<std::int64_t>(value); break;
    case dtype::i32: static_cast<std::int32_t*>(memory)[i] = saturate<std::int32_t>(value); break;
    case dtype::u8: static_cast<std::uint8_t*>(memory)[i] = saturate<std::uint8_t>(value); break;
  }
}

inline void store_element(dtype type, void* memory, index_t i, std::int64_t value) {
  switch (type) {
    case dtype::i64: static_cast<std::int64_t*>(memory)[i] = value; break;
    case dtype::i32: static_cast<std::int32_t*>(memory)[i] = static_cast<std::int32_t>(value); break;
    case dtype::u8: static_cast<std::uint8_t*>(memory)[i] = static_cast<std::uint8_t>(value); break;
    default: break;
  }
}

// The pairs that loading and saving weights live on, as loops a compiler can vectorise.
inline bool convert_block(dtype from, const void* in, dtype to, void* out, index_t begin, index_t end) {
  if (from == bf16 && to == f32) {
    for (index_t i = begin; i < end; ++i) static_cast<float*>(out)[i] = from_bf16(static_cast<const std::uint16_t*>(in)[i]);
  } else if (from == f32 && to == bf16) {
    for (index_t i = begin; i < end; ++i) static_cast<std::uint16_t*>(out)[i] = to_bf16(static_cast<const float*>(in)[i]);
  } else if (from == f16 && to == f32) {
    for (index_t i = begin; i < end; ++i) static_cast<float*>(out)[i] = from_f16(static_cast<const std::uint16_t*>(in)[i]);
  } else if (from == f32 && to == f16) {
    for (index_t i = begin; i < end; ++i) static_cast<std::uint16_t*>(out)[i] = to_f16(static_cast<const float*>(in)[i]);
  } else {
    return false;
  }
  return true;
}

}  // namespace detail

inline tensor tensor::to_dtype(dtype wanted) const {
  const tensor source = to_host();
  if (wanted == type_) return source;
  tensor out(wanted, dims_);
  const void* const in = source.raw();
  void* const to = out.raw();
  parallel_blocks(count_, index_t(1) << 16, [&](index_t begin, index_t end) {
    if (detail::convert_block(type_, in, wanted, to, begin, end)) return;
    if (!is_real(type_) && !is_real(wanted)) {  // integers keep all 64 bits, which a double does not
      for (index_t i = begin; i < end; ++i) detail::store_element(wanted, to, i, detail::element_as_integer(type_, in, i));
    } else {
      for (index_t i = begin; i < end; ++i) detail::store_element(wanted, to, i, detail::element_as_double(type_, in, i));
    }
  });
  return out;
}

}  // namespace samite
