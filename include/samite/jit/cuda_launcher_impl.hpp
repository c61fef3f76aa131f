// samite/jit/cuda_launcher_impl.hpp: buffers in turn, and the time between two events.
#pragma once
#include <algorithm>

#include <samite/jit/cuda_launcher.hpp>

namespace samite {

struct cuda_launcher::loaded {
  std::shared_ptr<const compiled_kernel> kernel;
  cuda_module module;
  cuda_function function;
  launch_shape shape;
  int launches = 1;  // between two events, so that they are long against the events' resolution
};

SAMITE_IMPL std::string device_class_of(const cuda_device& device) {
  return concat_text(device.name(), ", ", device.sm_count(), " SMs, ", device.arch_name(), ", ", device.memory_bytes() >> 30, " GiB");
}

SAMITE_IMPL cuda_launcher::cuda_launcher(kernel_cache& cache, const cuda_device& device, cuda_launcher_setting setting)
    : cache_(cache), device_(device), setting_(std::move(setting)), stream_(device) {}
SAMITE_IMPL cuda_launcher::~cuda_launcher() = default;

SAMITE_IMPL void cuda_launcher::prepare(const tuning_candidate& candidate) {
  const tuned_kernel wanted = setting_.kernel_of(candidate);
  auto kernel = cache_.get(wanted.source);
  cuda_module module(device_, kernel->cubin.data());
  cuda_function function = module.function(wanted.name);
  if (wanted.shape.shared_bytes > 48 * 1024) function.allow_shared_bytes(wanted.shape.shared_bytes);
  auto made = std::make_unique<loaded>(loaded{std::move(kernel), std::move(module), std::move(function), wanted.shape});
  const std::lock_guard lock(mutex_);
  kernels_[candidate.name] = std::move(made);
}

SAMITE_IMPL cuda_launcher::loaded& cuda_launcher::find(const tuning_candidate& candidate) {
  const std::lock_guard lock(mutex_);
  const auto found = kernels_.find(candidate.name);
  ensure(found != kernels_.end(), "a candidate is prepared before it is launched");
  return *found->second;
}

SAMITE_IMPL void cuda_launcher::make_buffers() {
  if (!inputs_.empty()) return;
  const std::uint64_t each = std::max<std::uint64_t>(setting_.input_bytes + setting_.output_bytes, 1);
  if (each > setting_.scratch_bytes)
    raise("E-CUDA-MEMORY", "tuning needs ", each, " bytes for one input and output, more than the ", setting_.scratch_bytes, " allowed (scratch_bytes)");
  const std::uint64_t copies = std::clamp<std::uint64_t>(setting_.rotated_bytes / each, 1, std::min<std::uint64_t>(setting_.scratch_bytes / each, 256));
  std::vector<char> bytes(std::size_t(setting_.input_bytes));
  if (setting_.fill) {
    setting_.fill(bytes);
  } else {
    std::uint32_t x = 1;
    for (char& c : bytes) x = x * 1664525u + 1013904223u, c = char(0x30 + (x >> 28));
  }
  try {
    for (std::uint64_t i = 0; i < copies; ++i) {
      inputs_.emplace_back(device_, bytes.size());
      outputs_.emplace_back(device_, std::size_t(setting_.output_bytes));
      inputs_.back().upload(bytes.data(), bytes.size());
    }
  } catch (...) {
    inputs_.clear(), outputs_.clear();  // a full device gets back what was taken before it was full
    throw;
  }
}

SAMITE_IMPL void cuda_launcher::launch(loaded& kernel, std::size_t copy) {
  std::vector<std::uint64_t> values = setting_.arguments_of(inputs_[copy].address(), outputs_[copy].address());
  std::vector<void*> arguments;
  for (std::uint64_t& value : values) arguments.push_back(&value);
  kernel.function.launch(stream_, kernel.shape, arguments.data());
}

SAMITE_IMPL bool cuda_launcher::is_right(const tuning_candidate& candidate) {
  make_buffers();
  loaded& kernel = find(candidate);
  outputs_[0].fill_zero(stream_);
  launch(kernel, 0);
  std::vector<char> found(std::size_t(setting_.output_bytes));
  outputs_[0].download(stream_, found.data(), found.size());
  stream_.synchronize();
  if (expected_.empty()) {
    expected_ = std::move(found);
    return true;
  }
  return setting_.agree ? setting_.agree(expected_, found) : expected_ == found;
}

SAMITE_IMPL double cuda_launcher::measure_us(const tuning_candidate& candidate) {
  make_buffers();
  loaded& kernel = find(candidate);
  cuda_event start(device_), end(device_);
  start.record(stream_);
  for (int i = 0; i < kernel.launches; ++i) launch(kernel, std::size_t(i) % inputs_.size());
  end.record(stream_);
  end.synchronize();
  const double us = double(end.elapsed_ms(start)) * 1000 / kernel.launches;
  if (us > 0) kernel.launches = int(std::clamp(100 / us, 1.0, 1000.0));
  return us;
}

}  // namespace samite
