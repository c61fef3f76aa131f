// samite/jit/cuda_launcher.hpp: measures kernels for the tuner, on buffers of its own that end with it.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <samite/jit/compiler.hpp>
#include <samite/jit/tuner.hpp>

namespace samite {

/// How one candidate is compiled and launched.
struct tuned_kernel {
  kernel_source source;
  std::string name;
  launch_shape shape;
};

struct cuda_launcher_setting {
  std::function<tuned_kernel(const tuning_candidate&)> kernel_of;
  std::uint64_t input_bytes = 0, output_bytes = 0;
  /// The kernel's parameters, each in 8 bytes of which it reads its own size, given where input and output lie.
  std::function<std::vector<std::uint64_t>(device_address input, device_address output)> arguments_of;
  /// Fills the input. Default: small positive numbers in fp32, bf16 and fp16 alike; zeros would draw less power and run faster.
  std::function<void(std::vector<char>&)> fill = {};
  /// Whether an output agrees with the first candidate's. Default: the same bytes.
  std::function<bool(const std::vector<char>& expected, const std::vector<char>& found)> agree = {};
  std::uint64_t rotated_bytes = std::uint64_t(128) << 20;  // inputs and outputs in turn, beyond what an L2 cache holds
  std::uint64_t scratch_bytes = std::uint64_t(256) << 20;  // never more
};

/// Devices that run alike: name, multiprocessors, arch and memory.
std::string device_class_of(const cuda_device& device);

/// Compiles through a kernel_cache and loads each candidate for itself, so that nothing stays on the device when the launcher ends.
///
/// errors  E-CUDA-MEMORY when the buffers or a module don't fit; those of compiling, loading and launching
class cuda_launcher : public tuning_launcher {
 public:
  cuda_launcher(kernel_cache& cache, const cuda_device& device, cuda_launcher_setting setting);
  ~cuda_launcher() override;
  void prepare(const tuning_candidate& candidate) override;
  bool is_right(const tuning_candidate& candidate) override;
  double measure_us(const tuning_candidate& candidate) override;

 private:
  struct loaded;
  loaded& find(const tuning_candidate& candidate);
  void make_buffers();
  void launch(loaded& kernel, std::size_t copy);

  kernel_cache& cache_;
  cuda_device device_;
  cuda_launcher_setting setting_;
  cuda_stream stream_;
  std::mutex mutex_;  // guards the map: a candidate that was given up may still be preparing
  std::map<std::string, std::unique_ptr<loaded>> kernels_;
  std::vector<cuda_buffer> inputs_, outputs_;
  std::vector<char> expected_;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/jit/cuda_launcher_impl.hpp>
#endif
