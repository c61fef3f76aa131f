// samite/runtime/tensor_impl.hpp: memory, copies and conversions behind runtime/tensor.hpp.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>

#include <samite/core/math.hpp>
#include <samite/runtime/cuda_driver.hpp>
#include <samite/runtime/tensor.hpp>
#include <samite/runtime/thread_pool.hpp>

namespace samite {

SAMITE_IMPL index_t checked_count(std::span<const index_t> shape, std::size_t element_bytes) {
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

SAMITE_IMPL tensor::tensor(dtype type, extents shape) : type_(type), dims_(std::move(shape)), count_(checked_count(dims_, size_of(type))) {
  host_ = allocate_host(bytes());
}

SAMITE_IMPL tensor tensor::on(const cuda_device& device, dtype type, extents shape) {
  tensor out = uninitialised_on(device, type, std::move(shape));
  out.device_memory_->fill_zero();
  return out;
}

SAMITE_IMPL tensor tensor::over(dtype type, extents shape, void* memory, std::shared_ptr<void> owner) {
  tensor out;
  out.type_ = type;
  out.dims_ = std::move(shape);
  out.count_ = checked_count(out.dims_, size_of(type));
  if (memory == nullptr && out.count_ > 0) raise("E-TENSOR-SHAPE", "tensor::over: no memory for a tensor ", out.dims_, "; give the address of ", out.count_, " elements");
  out.host_ = std::shared_ptr<std::byte>(std::move(owner), static_cast<std::byte*>(memory));
  return out;
}

SAMITE_IMPL const cuda_device& tensor::device() const {
  ensure(on_device(), "tensor::device() is asked of device tensors only");
  return device_memory_->device();
}

SAMITE_IMPL std::byte* tensor::device_raw() const { return reinterpret_cast<std::byte*>(device_memory_->address()); }

SAMITE_IMPL device_address tensor::address() const {
  if (!on_device())
    raise("E-TENSOR-DEVICE", "tensor ", name_of(type_), " ", dims_, ": a device address was asked of host memory; use to(device)");
  return device_memory_->address();
}

SAMITE_IMPL tensor tensor::reshaped(extents shape) const {
  tensor out = *this;
  out.dims_ = std::move(shape);
  check_count(checked_count(out.dims_), "reshaped");
  return out;
}

SAMITE_IMPL tensor tensor::clone() const {
  if (is_empty()) return {};
  tensor out = on_device() ? uninitialised_on(device(), type_, dims_) : tensor(type_, dims_);
  out.copy_from(*this);
  return out;
}

SAMITE_IMPL tensor tensor::to_host() const {
  if (!on_device()) return *this;
  tensor out(type_, dims_);
  out.copy_from(*this);
  return out;
}

SAMITE_IMPL tensor tensor::to(const cuda_device& device) const {
  if (on_device() && this->device() == device) return *this;
  tensor out = uninitialised_on(device, type_, dims_);
  out.copy_from(*this);
  return out;
}

SAMITE_IMPL void tensor::copy_from(const tensor& other) {
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

SAMITE_IMPL std::shared_ptr<std::byte> tensor::allocate_host(std::size_t bytes) {
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

SAMITE_IMPL tensor tensor::uninitialised_on(const cuda_device& device, dtype type, extents shape) {
  tensor out;
  out.type_ = type;
  out.dims_ = std::move(shape);
  out.count_ = checked_count(out.dims_, size_of(type));
  out.device_memory_ = std::make_shared<cuda_buffer>(device, out.bytes());
  return out;
}

SAMITE_IMPL void tensor::copy_between_devices(const tensor& other) {
  const detail::cuda_api& api = detail::cuda();
  const cuda_stream stream(device());
  detail::check_cuda(api.copy_peer_async(address(), device().context(), other.address(), other.device().context(), bytes(),
                                         stream.handle()),
                     "copying between device tensors");
  stream.synchronize();
}

SAMITE_IMPL void tensor::raise_type(const char* asked) const {
  raise("E-TENSOR-DTYPE", "data<", asked, ">() of a tensor ", name_of(type_), " ", dims_, ": another C++ type holds ",
        name_of(type_), " elements (bf16 and f16: std::uint16_t); use to_dtype() to convert");
}

SAMITE_IMPL void tensor::raise_on_device() const {
  raise("E-TENSOR-DEVICE", "tensor ", name_of(type_), " ", dims_, " on ", device().name(), ": the host can't read it; use to_host()");
}

SAMITE_IMPL void tensor::check_count(index_t count, const char* operation) const {
  if (count != count_)
    raise("E-TENSOR-SHAPE", operation, ": a tensor ", name_of(type_), " ", dims_, " has ", count_, " elements, but ", count,
          " were given; the numbers must agree");
}

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
    case dtype::i64: static_cast<std::int64_t*>(memory)[i] = saturated<std::int64_t>(value); break;
    case dtype::i32: static_cast<std::int32_t*>(memory)[i] = saturated<std::int32_t>(value); break;
    case dtype::u8: static_cast<std::uint8_t*>(memory)[i] = saturated<std::uint8_t>(value); break;
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

SAMITE_IMPL tensor tensor::to_dtype(dtype wanted) const {
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
