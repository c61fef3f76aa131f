// samite/runtime/tensor.hpp: a contiguous array of numbers on the host or on a CUDA device.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <samite/core/dim.hpp>
#include <samite/core/dtype.hpp>

namespace samite {

class cuda_device;
class cuda_buffer;
/// An address in device memory.
using device_address = std::uint64_t;

/// C++ types that elements are read as; bf16 and f16 are read as their bits (core/dtype.hpp converts).
template <class T>
concept tensor_element = std::same_as<T, double> || std::same_as<T, float> || std::same_as<T, std::uint16_t> ||
                         std::same_as<T, std::int64_t> || std::same_as<T, std::int32_t> || std::same_as<T, std::uint8_t>;

/// Elements of a shape. Raises E-SHAPE-OVERFLOW if the count or its bytes pass 2^63 - 1, or if an extent is negative.
index_t checked_count(std::span<const index_t> shape, std::size_t element_bytes = 1);

/// Shared, contiguous, row-major storage with a dtype and extents. Copies share the storage, like a pointer; `clone()` does not.
///
/// Host memory is 64-byte aligned and zero-initialised; device memory is zeroed too.
/// errors   E-SHAPE-OVERFLOW, E-MEMORY-HOST, E-CUDA-MEMORY
/// threads  the storage is not guarded: writers and readers are the caller's to order
class tensor {
 public:
  /// No elements and no storage; `is_empty()` tells.
  tensor() = default;
  tensor(dtype type, extents shape);
  tensor(dtype type, std::initializer_list<index_t> shape) : tensor(type, extents(shape)) {}

  /// Zeroed memory on a device.
  static tensor on(const cuda_device& device, dtype type, extents shape);

  /// A host tensor with these values; their number must be the shape's.
  template <tensor_element T>
  static tensor from(dtype type, extents shape, std::span<const T> values) {
    tensor out(type, std::move(shape));
    out.check_count(index_t(values.size()), "tensor::from");
    T* to = out.data<T>();
    for (const T& value : values) *to++ = value;
    return out;
  }
  static tensor from(extents shape, const std::vector<float>& values) { return from<float>(f32, std::move(shape), values); }
  static tensor from(extents shape, const std::vector<index_t>& values) { return from<index_t>(i64, std::move(shape), values); }

  /// Memory that something else owns, e.g. a mapped file or another library's array; `owner` is kept as long as the tensor.
  static tensor over(dtype type, extents shape, void* memory, std::shared_ptr<void> owner);

  dtype type() const { return type_; }
  const extents& dims() const { return dims_; }
  index_t rank() const { return index_t(dims_.size()); }
  index_t elements() const { return count_; }
  std::size_t bytes() const { return std::size_t(count_) * size_of(type_); }
  bool is_empty() const { return host_ == nullptr && device_memory_ == nullptr; }
  bool is_host() const { return device_memory_ == nullptr; }
  bool on_device() const { return device_memory_ != nullptr; }
  /// The device that holds the elements; asks of a host tensor are a broken promise.
  const cuda_device& device() const;
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
  std::byte* raw() const { return on_device() ? device_raw() : host_.get(); }
  /// The device address of the first element. Raises E-TENSOR-DEVICE for a host tensor.
  device_address address() const;

  /// The same storage under another shape of as many elements. Raises E-TENSOR-SHAPE otherwise.
  tensor reshaped(extents shape) const;

  /// A copy in memory of its own, in the same place.
  tensor clone() const;

  /// The elements in host memory: this tensor itself if it is there, else a copy. Blocks until the device's earlier work is done.
  tensor to_host() const;

  /// The elements on a device: this tensor itself if it is there, else a copy. Blocks.
  tensor to(const cuda_device& device) const;

  /// Overwrites the elements with another tensor's, from wherever they are. Blocks until the devices' earlier work is done.
  ///
  /// errors  E-TENSOR-DTYPE or E-TENSOR-SHAPE unless dtype and number of elements agree
  void copy_from(const tensor& other);

  /// The elements as another dtype, in host memory. Reals round to nearest even; real to integer truncates towards zero and
  /// saturates, NaN gives 0; integers wrap to narrower ones.
  tensor to_dtype(dtype wanted) const;

 private:
  static std::shared_ptr<std::byte> allocate_host(std::size_t bytes);

  static tensor uninitialised_on(const cuda_device& device, dtype type, extents shape);

  void copy_between_devices(const tensor& other);
  std::byte* device_raw() const;

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
  [[noreturn]] void raise_type(const char* asked) const;
  void check_host() const {
    if (on_device()) raise_on_device();
  }
  [[noreturn]] void raise_on_device() const;
  void check_count(index_t count, const char* operation) const;

  dtype type_ = f32;
  extents dims_;
  index_t count_ = 0;
  std::shared_ptr<std::byte> host_;
  std::shared_ptr<cuda_buffer> device_memory_;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/runtime/tensor_impl.hpp>
#endif
