// The faults of kernel caches and tuners that need a device; numbers are those of the faults that users of others met.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include <samite/core/env.hpp>
#include <samite/jit/crash_report.hpp>
#include <samite/jit/cuda_launcher.hpp>

#include "support/jit_faults.hpp"
#include "support/skip.hpp"

using namespace samite;
using namespace samite_tests;
using mode = disk_cache::mode;
using std::chrono::steady_clock;

#define NEEDS_GPU                                    \
  SKIP_IF(!cuda_available(), cuda_missing_reason()); \
  SKIP_IF(!nvrtc_available(), nvrtc_missing_reason())

namespace {

double ms_since(steady_clock::time_point start) { return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count(); }

/// Adds `step` to one number.
kernel_source adding(const cuda_device& device, int step) {
  return {.label = "add " + std::to_string(step),
          .text = "extern \"C\" __global__ void add(int* x) { *x += " + std::to_string(step) + "; }\n", .arch = device.arch_name()};
}

int result_of(const cuda_stream& stream, const cuda_function& function, int before) {
  cuda_buffer x(stream.device(), sizeof before);
  x.upload(&before, sizeof before);
  device_address address = x.address();
  void* arguments[] = {&address};
  function.launch(stream, {}, arguments);
  int after = 0;
  x.download(stream, &after, sizeof after);
  stream.synchronize();
  return after;
}

/// y[i] = x[i] + 1 for 4096 numbers, by candidates that differ in their block; "trap" faults the device.
cuda_launcher_setting increment_setting(const cuda_device& device) {
  return {.kernel_of = [device](const tuning_candidate& candidate) {
            const std::string text = candidate.name == "trap" ? "asm volatile(\"trap;\");" : "const int i = blockIdx.x * blockDim.x + threadIdx.x; y[i] = x[i] + 1;";
            const unsigned block = candidate.name == "trap" ? 32 : unsigned(std::stoi(candidate.name));
            return tuned_kernel{{.label = candidate.name, .text = "extern \"C\" __global__ void increment(const float* x, float* y) { " + text + " }\n//" + candidate.name + "\n",
                                 .arch = device.arch_name()}, "increment", {.grid_x = 4096 / block, .block_x = block}};
          },
          .input_bytes = 4 * 4096, .output_bytes = 4 * 4096,
          .arguments_of = [](device_address input, device_address output) { return std::vector<std::uint64_t>{input, output}; }};
}

tuning_problem increment_problem(const cuda_device& device, std::vector<tuning_candidate> candidates) {
  return {.family = "increment 1", .shape = "4096", .device_class = device_class_of(device), .candidates = std::move(candidates)};
}

}  // namespace

TEST_CASE("case 21: an entry damaged at any place is compiled anew, and the kernel runs") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  const std::string path = entry_path(disk, kernel_cache(disk).key_of(adding(device, 1)));
  kernel_cache(disk).get(adding(device, 1));
  const std::string valid = read_file(path);
  for (const std::size_t bytes : {std::size_t(0), std::size_t(1), std::size_t(56), valid.size() / 2, valid.size() - 1}) {
    write_file(path, valid.substr(0, bytes));
    kernel_cache cache(disk);
    CHECK(result_of(stream, cache.function(device, adding(device, 1), "add"), 41) == 42);
    CHECK(cache.counters().compiles == 1);
  }
  // Whole by its checksum, and no kernel: the driver refuses it, it is compiled once, and the entry is replaced.
  disk.store(kernel_cache(disk).key_of(adding(device, 1)), {.cubin = std::string(5000, 'x'), .log = ""});
  kernel_cache cache(disk), next(disk);
  CHECK(result_of(stream, cache.function(device, adding(device, 1), "add"), 41) == 42);
  CHECK(cache.counters().compiles == 1);
  CHECK(result_of(stream, next.function(device, adding(device, 1), "add"), 41) == 42);
  CHECK(next.counters().disk_hits == 1);
}

TEST_CASE("case 46: threads, spread over all devices, that ask for 12 new keys each: every kernel right, each compiled once") {
  NEEDS_GPU;
  for (int round = 0; round < 5; ++round) {
    disk_cache none("", mode::off);
    kernel_cache cache(none);
    std::atomic<int> ready = 0, wrong = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&, i] {
        const cuda_device device = cuda_device::open(i % cuda_device_count());
        const cuda_stream stream(device);
        ++ready;
        while (ready < 4) std::this_thread::yield();
        for (int key = 0; key < 12; ++key) {
          const int step = 100 * round + key;
          wrong += result_of(stream, cache.function(device, adding(device, step), "add"), 5) != 5 + step;
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(cache.counters().compiles == 12);
  }
}

TEST_CASE("two devices, a thread each, that use the same kernels without pause get right values") {
  NEEDS_GPU;
  SKIP_IF(cuda_device_count() < 2, "two devices are needed");
  const double seconds = double(env_number("SAMITE_HAMMER_S", 1, 3600).value_or(5));
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  std::atomic<long long> wrong = 0, uses = 0;
  std::vector<std::thread> threads;
  for (int index = 0; index < 2; ++index)
    threads.emplace_back([&, index] {
      const cuda_device device = cuda_device::open(index);
      const cuda_stream stream(device);
      const auto start = steady_clock::now();
      for (int i = 0; ms_since(start) < 1000 * seconds; ++i, ++uses)
        wrong += result_of(stream, cache.function(device, adding(device, i % 20), "add"), i) != i + i % 20;
    });
  for (std::thread& thread : threads) thread.join();
  MESSAGE(uses.load(), " uses");
  CHECK(wrong == 0);
  CHECK(cache.counters().compiles == 20);
}

TEST_CASE("helper: loads a kernel through the process's own cache and ends by SAMITE_END" * doctest::skip()) {
  NEEDS_GPU;
  static disk_cache disk("", mode::off);
  static kernel_cache cache(disk);  // destroyed when the driver may be gone
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  CHECK(result_of(stream, cache.function(device, adding(device, 1), "add"), 41) == 42);
  const std::string end = env_text("SAMITE_END").value_or("");
  if (end == "thread") std::thread([] { std::exit(7); }).join();
  if (end == "quick") std::quick_exit(7);
  if (end == "exit") std::exit(7);
}

TEST_CASE("case 58: the driver's own cache stays empty") {
  NEEDS_GPU;
  const temporary_folder folder;
  CHECK(run_alone("helper: loads a kernel*", "CUDA_CACHE_PATH=" + (folder / "driver")).first == 0);
  // The driver makes the folder when it starts (580.159, 2026-11-30), and puts nothing into it: what it gets is machine code.
  int entries = 0;
  std::error_code ignored;
  for (auto it = std::filesystem::recursive_directory_iterator(folder / "driver", ignored); it != std::filesystem::recursive_directory_iterator(); it.increment(ignored)) ++entries;
  CHECK(entries == 0);
}

TEST_CASE("case 61: a process that ends while kernels are loaded keeps its status and says nothing") {
  NEEDS_GPU;
  for (const char* end : {"thread", "quick", "exit"}) {
    const auto [status, text] = run_alone("helper: loads a kernel*", std::string("SAMITE_END=") + end);
    CHECK(status == 7);
    CHECK(text.find("samite:") == std::string::npos);
    CHECK(text.find("terminate") == std::string::npos);
  }
}

TEST_CASE("case 63: a kernel first met inside a capture, while another thread compiles, is loaded, and the capture stays valid") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  cuda_buffer x(device, sizeof(int));
  x.fill_zero();
  device_address address = x.address();
  void* arguments[] = {&address};
  std::atomic<bool> stop = false;
  std::thread other([&] {
    for (int i = 100; !stop; ++i) cache.function(device, adding(device, i), "add");
  });
  const cuda_graph graph = cuda_graph::capture(stream, [&] {
    for (int step = 1; step <= 3; ++step) cache.function(device, adding(device, step), "add").launch(stream, {}, arguments);
  });
  stop = true;
  other.join();
  for (int i = 0; i < 2; ++i) graph.launch(stream);
  stream.synchronize();
  int found = 0;
  x.download(&found, sizeof found);
  CHECK(found == 2 * (1 + 2 + 3));
}

TEST_CASE("case 64: a kernel loaded before runs beside one that does not end") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream spinning(device), stream(device);
  const kernel_source source{.label = "spin", .text = "extern \"C\" __global__ void spin(volatile int* flag) { while (*flag == 0) {} }\n", .arch = device.arch_name()};
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  const cuda_function spin = cache.function(device, source, "spin"), add = cache.function(device, adding(device, 1), "add");
  pinned_buffer flag(device, sizeof(int));
  auto* const word = static_cast<volatile int*>(flag.data());
  *word = 0;
  cuda_buffer x(device, sizeof(int));
  x.fill_zero();
  device.synchronize();
  device_address flag_address = reinterpret_cast<device_address>(flag.data()), address = x.address();
  void *flag_arguments[] = {&flag_address}, *arguments[] = {&address};
  spin.launch(spinning, {}, flag_arguments);
  add.launch(stream, {}, arguments);  // its first launch
  cuda_event done(device);
  done.record(stream);
  const auto start = steady_clock::now();
  while (!done.is_done() && ms_since(start) < 5000) std::this_thread::yield();
  const bool was_done = done.is_done();
  *word = 1;
  device.synchronize();
  CHECK(was_done);
}

TEST_CASE("case 67: on a device with 32 MB left the first candidate is used, with one line, and later tunings work") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  warning_list lines;
  tuner t(none, {.say = lines.take()});
  cuda_launcher_setting setting = increment_setting(device);
  setting.input_bytes = setting.output_bytes = std::uint64_t(32) << 20;
  const auto candidates = std::vector<tuning_candidate>{{"64"}, {"128"}};
  const cuda_stream warm(device);
  const std::size_t before = device.free_bytes();
  {
    std::vector<cuda_buffer> balloon;
    for (std::size_t bytes = device.free_bytes(); bytes >= (std::size_t(1) << 20);) {
      if (device.free_bytes() <= (std::size_t(32) << 20)) break;
      try {
        balloon.emplace_back(device, std::min(bytes, device.free_bytes() - (std::size_t(24) << 20)));
      } catch (const samite::error&) {
        bytes /= 2;
      }
    }
    CHECK(t.tune(increment_problem(device, candidates), std::make_shared<cuda_launcher>(cache, device, setting)) == 0);
    CHECK(lines.texts.size() == 1);
  }
  tuning_problem later = increment_problem(device, candidates);
  later.shape = "later";
  const int chosen = t.tune(later, std::make_shared<cuda_launcher>(cache, device, increment_setting(device)));
  CHECK((chosen == 0 || chosen == 1));
  CHECK(t.explain().find("later") != std::string::npos);
  CHECK(before - std::min(before, device.free_bytes()) <= (std::size_t(4) << 20));
}

TEST_CASE("case 68: an argument of 40 % of the device's memory is never copied: tuning takes no more than its scratch memory") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  tuner t(none, {.say = [](const std::string&) {}});
  cuda_launcher_setting setting = increment_setting(device);
  setting.input_bytes = device.memory_bytes() / 10 * 4;
  CHECK(t.tune(increment_problem(device, {{"64"}, {"128"}}), std::make_shared<cuda_launcher>(cache, device, setting)) == 0);
  CHECK(t.explain().find("more than the 268435456 allowed") != std::string::npos);
}

TEST_CASE("helper: tunes with a candidate that faults the device, over the cache in SAMITE_FOLDER" * doctest::skip()) {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  disk_cache disk(env_text("SAMITE_FOLDER").value_or(""), mode::read_write);
  kernel_cache cache(disk);
  tuner t(disk, {.problem_ms = 5000});
  int status = 0;
  try {
    t.tune(increment_problem(device, {{"64"}, {"trap"}, {"128"}}), std::make_shared<cuda_launcher>(cache, device, increment_setting(device)));
  } catch (const samite::error& e) {
    std::printf("%s\n%s", e.what(), recent_activities().c_str());
    status = e.code() == "E-CUDA-FAULT" ? 40 : 41;
  }
  std::printf("%s", t.explain().c_str());
  std::fflush(stdout);
  ::_exit(status);  // the context is lost
}

TEST_CASE("case 69: a candidate that faults the device ends that process by its name, and the next one skips it") {
  NEEDS_GPU;
  const temporary_folder folder;
  const std::string title = "helper: tunes with a candidate*", variables = "SAMITE_FOLDER=" + (folder / "c");
  const auto [first, said] = run_alone(title, variables);
  CHECK(first == 40);
  CHECK(said.find("tune increment 1 4096: trap") != std::string::npos);
  const auto [second, explained] = run_alone(title, variables);
  CHECK(second == 0);
  CHECK(explained.find("trap: dropped: a process died while it ran") != std::string::npos);
}

TEST_CASE("case 72: with an empty cache kernels are right in any order") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  for (const bool reversed : {true, false}) {
    const temporary_folder folder;
    disk_cache disk(folder / "c", mode::read_write);
    kernel_cache cache(disk);
    for (int i = 0; i < 4; ++i) {
      const int step = reversed ? 3 - i : i;
      CHECK(result_of(stream, cache.function(device, adding(device, step), "add"), 10) == 10 + step);
    }
  }
}

TEST_CASE("case 75: tuning an in-place kernel over 50 candidates leaves the caller's memory alone") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  std::vector<tuning_candidate> candidates;
  for (int i = 0; i < 50; ++i) candidates.push_back({std::to_string(i)});
  const cuda_launcher_setting setting{
      .kernel_of = [&](const tuning_candidate& candidate) {
        kernel_source source = adding(device, 1);
        source.text += "// candidate " + candidate.name + "\n";
        return tuned_kernel{source, "add", {}};
      },
      .input_bytes = 4, .output_bytes = 4,
      .arguments_of = [](device_address, device_address output) { return std::vector<std::uint64_t>{output}; }};
  tuner t(none, {.problem_ms = 60'000, .total_ms = 60'000});
  const auto problem = increment_problem(device, candidates);
  cuda_buffer x(device, sizeof(int));
  x.fill_zero();
  const int chosen = t.tune(problem, std::make_shared<cuda_launcher>(cache, device, setting));
  const tuned_kernel best = setting.kernel_of(problem.candidates[std::size_t(chosen)]);
  device_address address = x.address();
  void* arguments[] = {&address};
  cache.function(device, best.source, best.name).launch(stream, best.shape, arguments);
  stream.synchronize();
  int found = 0;
  x.download(&found, sizeof found);
  CHECK(found == 1);
  CHECK(t.explain().find("dropped") == std::string::npos);
}

TEST_CASE("case 84: after a tuning the device has as much free memory as before") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  tuner t(none, {.problem_ms = 5000});
  std::size_t before = 0;
  for (const char* shape : {"first, which also makes what the driver keeps for itself", "second"}) {
    before = device.free_bytes();
    tuning_problem problem = increment_problem(device, {{"64"}, {"128"}, {"256"}});
    problem.shape = shape;
    t.tune(problem, std::make_shared<cuda_launcher>(cache, device, increment_setting(device)));
  }
  CHECK(device.free_bytes() == before);
}

TEST_CASE("case 87: with choices frozen two runs give the same bits") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  const kernel_source source{.label = "sum", .text = R"(extern "C" __global__ void sum(const float* x, float* y) {
  __shared__ float part[WIDTH];
  float s = 0;
  for (int i = threadIdx.x; i < 4096; i += WIDTH) s += x[i];
  part[threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.x == 0) { s = 0; for (int i = 0; i < WIDTH; ++i) s += part[i]; *y = s; }
})", .arch = device.arch_name()};
  const auto kernel_of = [&](const tuning_candidate& candidate) {
    kernel_source own = source;
    own.options = {"-DWIDTH=" + candidate.name};
    return tuned_kernel{own, "sum", {.block_x = unsigned(std::stoi(candidate.name))}};
  };
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  const auto problem = increment_problem(device, {{"32"}, {"256"}});  // which sum in different orders
  tuner t(none, {});
  tuned_choice choice(t, problem);
  t.freeze();
  std::vector<float> x(4096);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1.f / float(i + 1);
  cuda_buffer input(device, 4 * 4096), output(device, 4);
  input.upload(x.data(), 4 * 4096);
  device_address in = input.address(), out = output.address();
  void* arguments[] = {&in, &out};
  float found[2] = {};
  for (float& each : found) {
    t.tune(problem, nullptr);  // does nothing
    const tuned_kernel kernel = kernel_of(problem.candidates[std::size_t(choice.index())]);
    cache.function(device, kernel.source, kernel.name).launch(stream, kernel.shape, arguments);
    stream.synchronize();
    output.download(&each, sizeof each);
  }
  CHECK(found[0] == found[1]);
}

TEST_CASE("a kernel from disk takes at most 0.1 ms before the driver and 1.5 ms with its load") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const temporary_folder folder;
  disk_cache disk(folder / "c", mode::read_write);
  kernel_cache cold(disk);
  for (int i = 0; i < 20; ++i) cold.function(device, adding(device, i), "add");
  std::vector<double> found_ms, loaded_ms;
  kernel_cache warm(disk), loading(disk);
  for (int i = 0; i < 20; ++i) {
    auto start = steady_clock::now();
    warm.get(adding(device, i));
    found_ms.push_back(ms_since(start));
    start = steady_clock::now();
    loading.function(device, adding(device, i), "add");
    loaded_ms.push_back(ms_since(start));
  }
  std::sort(found_ms.begin(), found_ms.end()), std::sort(loaded_ms.begin(), loaded_ms.end());
  MESSAGE("found in ", found_ms[10], " ms, loaded in ", loaded_ms[10], " ms (medians)");
  CHECK(found_ms[10] <= 0.1);
  CHECK(loaded_ms[10] <= 1.5);
}

TEST_CASE("explain() for a device tells registers as the driver does, and how many blocks fit") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  const std::string text = cache.explain(device, adding(device, 1), "add", {.block_x = 128});
  const int registers = cache.function(device, adding(device, 1), "add").register_count();
  CHECK(text.find("add: " + std::to_string(registers) + " registers") != std::string::npos);
  CHECK(text.find(": 0 blocks") == std::string::npos);
}

TEST_CASE("a launch costs at most 0.3 us more than the driver's own call") {
  NEEDS_GPU;
  const cuda_device device = cuda_device::open();
  const cuda_stream stream(device);
  disk_cache none("", mode::off);
  kernel_cache cache(none);
  const cuda_function add = cache.function(device, adding(device, 1), "add");
  cuda_buffer x(device, sizeof(int));
  device_address address = x.address();
  void* arguments[] = {&address};
  double raw_us = 1e9, own_us = 1e9;
  for (int round = 0; round < 50; ++round) {  // few at a time: the stream's queue must not be full
    auto start = steady_clock::now();
    for (int i = 0; i < 100; ++i) detail::cuda().launch(add.handle(), 1, 1, 1, 1, 1, 1, 0, stream.handle(), arguments, nullptr);
    raw_us = std::min(raw_us, ms_since(start) * 10);
    stream.synchronize();
    start = steady_clock::now();
    for (int i = 0; i < 100; ++i) add.launch(stream, {}, arguments);
    own_us = std::min(own_us, ms_since(start) * 10);
    stream.synchronize();
  }
  MESSAGE("the driver's call ", raw_us, " us, ours ", own_us, " us");
  CHECK(own_us <= raw_us + 0.3);
}
