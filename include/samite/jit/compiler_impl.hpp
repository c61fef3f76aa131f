// samite/jit/compiler_impl.hpp: single flight, the table of the process, and what is remembered about each kernel.
#pragma once
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>

#include <samite/core/env.hpp>
#include <samite/core/say.hpp>
#include <samite/jit/compiler.hpp>
#include <samite/jit/crash_report.hpp>
#include <samite/jit/kernel_checks.hpp>

namespace samite {
namespace detail {

/// Guards what changes when a kernel is added; held for moments and never during a compile, a load or a file. One for all caches, so
/// that a fork can hold it: a child must not be born with it locked by a thread that it doesn't have.
inline std::mutex& jit_mutex() {
  static std::mutex& mutex = []() -> std::mutex& {
    static std::mutex& made = *new std::mutex;
    pthread_atfork([] { made.lock(); }, [] { made.unlock(); }, [] { made.unlock(); });
    return made;
  }();
  return mutex;
}

/// One compile under way, and those who wait for it.
struct kernel_flight {
  pid_t process = ::getpid();
  std::condition_variable landed;
  bool is_done = false;
  std::shared_ptr<const compiled_kernel> kernel;
  std::exception_ptr failure;
};

/// What is loaded on one device.
struct device_kernel {
  std::mutex loading;
  std::shared_ptr<cuda_module> module;
};

/// A key of this process. Never removed before its cache.
class kernel_slot {
 public:
  kernel_slot(std::string key, std::string hash, kernel_slot* next) : key(std::move(key)), hash(std::move(hash)), next(next) {}

  const std::string key, hash;
  kernel_slot* const next;  // of the same bucket
  std::atomic<const std::shared_ptr<const compiled_kernel>*> ready{nullptr};  // one of `kept`
  // Guarded by jit_mutex():
  std::shared_ptr<kernel_flight> flight;
  std::deque<std::shared_ptr<const compiled_kernel>> kept;  // earlier ones may still be read
  bool is_from_disk = false;
  std::map<int, device_kernel> devices;
};

/// Slots by key. Readers take no lock: a bucket is a list that only grows, at its head.
class kernel_table {
 public:
  ~kernel_table() {
    for (auto& bucket : buckets_)
      for (kernel_slot* slot = bucket.load(); slot != nullptr;) delete std::exchange(slot, slot->next);
  }
  kernel_slot* find(const std::string& key, const std::string& hash) const {
    for (kernel_slot* slot = bucket(hash).load(std::memory_order_acquire); slot != nullptr; slot = slot->next)
      if (slot->hash == hash && slot->key == key) return slot;
    return nullptr;
  }
  kernel_slot& find_or_add(std::string key, std::string hash) {
    if (kernel_slot* found = find(key, hash)) return *found;
    const std::lock_guard lock(jit_mutex());
    if (kernel_slot* found = find(key, hash)) return *found;
    auto& head = bucket(hash);
    auto* slot = new kernel_slot(std::move(key), hash, head.load(std::memory_order_relaxed));
    head.store(slot, std::memory_order_release);
    return *slot;
  }

 private:
  std::atomic<kernel_slot*>& bucket(const std::string& hash) const {
    return buckets_[std::strtoull(hash.substr(0, 3).c_str(), nullptr, 16) % buckets_.size()];
  }
  mutable std::array<std::atomic<kernel_slot*>, 4096> buckets_{};
};

inline double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

inline std::string format_ms(double ms) {
  char text[32];
  // Not printf's %f alone: a locale may have a decimal comma.
  const long long tenths = (long long)(ms * 10 + 0.5);
  std::snprintf(text, sizeof text, "%lld.%lld ms", tenths / 10, tenths % 10);
  return text;
}

}  // namespace detail

SAMITE_IMPL const compiled_kernel* kernel_handle::if_ready() const noexcept {
  const auto* ready = slot_->ready.load(std::memory_order_acquire);
  return ready != nullptr ? ready->get() : nullptr;
}
SAMITE_IMPL const std::string& kernel_handle::hash() const { return slot_->hash; }

SAMITE_IMPL std::vector<kernel_resources> resources_of(const std::string& log) {
  std::vector<kernel_resources> out;
  // The number before `what`, e.g. 8 of "Used 8 registers, used 0 barriers, 1024 bytes smem".
  const auto number_before = [](std::string_view line, std::string_view what) {
    const std::size_t end = line.find(what);
    if (end == line.npos || end == 0) return 0;
    std::size_t begin = end;
    while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
    int value = 0;
    for (const char c : line.substr(begin, std::min<std::size_t>(end - begin, 9))) value = value * 10 + (c - '0');
    return value;
  };
  for (std::size_t start = 0; start < log.size();) {
    const std::size_t end = std::min(log.find('\n', start), log.size());
    const std::string_view line(log.data() + start, end - start);
    start = end + 1;
    if (constexpr std::string_view entry = "Compiling entry function '"; line.find(entry) != line.npos) {
      const std::size_t from = line.find(entry) + entry.size();
      out.push_back({.name = std::string(line.substr(from, line.find('\'', from) - from))});
    } else if (out.empty()) {
      continue;
    } else if (line.find("bytes stack frame") != line.npos) {
      out.back().stack_bytes = number_before(line, " bytes stack frame");
      out.back().spill_store_bytes = number_before(line, " bytes spill stores");
      out.back().spill_load_bytes = number_before(line, " bytes spill loads");
    } else if (line.find(" registers") != line.npos) {
      out.back().registers = number_before(line, " registers");
      out.back().shared_bytes = number_before(line, " bytes smem");
    }
  }
  return out;
}

SAMITE_IMPL kernel_cache::kernel_cache(disk_cache& disk) : kernel_cache(disk, compile_kernel, nvrtc_build) {}
SAMITE_IMPL kernel_cache::kernel_cache(disk_cache& disk, compile_function compile, std::function<std::string()> build, std::string library_version)
    : disk_(disk), compile_(std::move(compile)), build_(std::move(build)), library_version_(std::move(library_version)),
      logs_(env_number("SAMITE_JIT_LOG", 0, 1).value_or(0) == 1), table_(std::make_unique<detail::kernel_table>()) {
  (void)env_number("SAMITE_NVTX", 0, 1);  // refused here rather than in the middle of a load
}
SAMITE_IMPL kernel_cache::~kernel_cache() = default;

SAMITE_IMPL kernel_cache& kernel_cache::instance() {
  static kernel_cache& cache = *new kernel_cache(disk_cache::instance());
  return cache;
}

SAMITE_IMPL std::string kernel_cache::build() const {
  try {
    return build_();
  } catch (const error& e) {
    if (e.code() != "E-JIT-NVRTC") throw;
    std::call_once(looked_for_build_, [&] {
      std::map<std::string, int> builds;
      disk_.for_each([&](const disk_cache::entry& entry) {
        const auto parts = detail::key_parts(entry.key, 3);
        if (entry.fault.empty() && parts.size() == 3 && parts[1] == library_version_) ++builds[std::string(parts[2])];
      });
      int most = 0;
      for (const auto& [name, count] : builds)
        if (count >= most) build_on_disk_ = name, most = count;
    });
    if (build_on_disk_.empty()) throw;
    return build_on_disk_;
  }
}

SAMITE_IMPL std::string kernel_cache::key_of(const kernel_source& source) const {
  detail::check_kernel_options(source), detail::check_kernel_text(source);
  return unchecked_key_of(source);
}

SAMITE_IMPL std::string kernel_cache::unchecked_key_of(const kernel_source& source) const {
  std::string key;
  std::size_t bytes = source.text.size() + 1000;
  for (const kernel_header& header : source.headers) bytes += header.text.size() + 100;
  key.reserve(bytes);
  const auto add = [&](std::string_view part) {  // "ab","c" differs from "a","bc"
    key += concat_text(part.size(), ":");
    key += part;
    key += '\n';
  };
  add("samite kernel 1");
  add(library_version_);
  add(build());
  add(source.arch);
  key += concat_text(source.options.size(), " options\n");
  for (const std::string& option : source.options) add(option);
  for (const char* variable : {"NVRTC_APPEND_FLAGS", "NVRTC_PREPEND_FLAGS", "NV_NVVM_VERSION"}) add(env_text(variable).value_or(""));
  key += concat_text(source.headers.size(), " headers\n");
  for (const kernel_header& header : source.headers) add(header.name), add(header.text);
  add(source.text);
  if (detail::shows_label(source)) add(source.label);
  return key;
}

SAMITE_IMPL kernel_cache::made kernel_cache::make(const kernel_source& source, const std::string& key, const std::string& hash) {
  const auto start = std::chrono::steady_clock::now();
  made out{.kernel = {}, .right = {}, .record = {.label = source.label, .arch = source.arch, .hash = hash}};
  auto found = disk_.find(key);
  if (!found && disk_.access() == disk_cache::mode::read_write) {
    out.right = disk_.wait_for_right(key);
    out.record.wait_ms = detail::ms_since(start);
    found = disk_.find(key);
  }
  if (found) {
    ++disk_hits_;
    out.record.origin = kernel_origin::disk;
    out.kernel = std::make_shared<const compiled_kernel>(std::move(*found));
  } else {
    ++compiles_;
    const auto compile_start = std::chrono::steady_clock::now();
    const activity note("compile", concat_text(source.label, " for ", source.arch, ", key ", hash));
    compiled_kernel kernel = compile_(source);
    kernel.label = source.label;
    out.record.compile_ms = detail::ms_since(compile_start);
    out.kernel = std::make_shared<const compiled_kernel>(std::move(kernel));
  }
  out.record.ms = detail::ms_since(start);
  out.record.cubin_bytes = out.kernel->cubin.size();
  return out;
}

SAMITE_IMPL std::shared_ptr<const compiled_kernel> kernel_cache::get(detail::kernel_slot& slot, const kernel_source& source) {
  const auto hit = [&](const std::shared_ptr<const compiled_kernel>& kernel) {
    ++hits_;
    return kernel;
  };
  if (const auto* ready = slot.ready.load(std::memory_order_acquire)) return hit(*ready);
  std::unique_lock lock(detail::jit_mutex());
  if (const auto* ready = slot.ready.load(std::memory_order_relaxed)) return hit(*ready);
  if (slot.flight != nullptr) {
    const auto flight = slot.flight;
    if (flight->process != ::getpid())
      raise("E-JIT-FORK", "kernel \"", source.label, "\": this process was forked while its parent compiled it; fork before the first compile, ",
            "or start helpers with posix_spawn");
    flight->landed.wait(lock, [&] { return flight->is_done; });
    if (flight->failure) std::rethrow_exception(flight->failure);
    return hit(flight->kernel);
  }
  const auto flight = slot.flight = std::make_shared<detail::kernel_flight>();
  lock.unlock();
  made out;
  try {
    out = make(source, slot.key, slot.hash);
  } catch (...) {
    ++failures_;
    lock.lock();
    flight->failure = std::current_exception(), flight->is_done = true;
    slot.flight = nullptr;  // before the waiters wake: a failure is not remembered
    flight->landed.notify_all();
    throw;
  }
  // Those who wait get it before it is stored: a slow disk must not hold them.
  lock.lock();
  slot.kept.push_back(out.kernel);
  slot.is_from_disk = out.record.origin == kernel_origin::disk;
  slot.ready.store(&slot.kept.back(), std::memory_order_release);
  flight->kernel = out.kernel, flight->is_done = true;
  slot.flight = nullptr;
  flight->landed.notify_all();
  lock.unlock();
  if (out.record.origin == kernel_origin::compiled) {
    disk_.store(slot.key, *out.kernel);
    out.record.source_path = disk_.keep_source(slot.key, source, out.kernel->log);
  }
  if (logs_)
    say(concat_text("kernel ", source.label, " (", source.arch, ") ", slot.hash, ": ", out.record.origin == kernel_origin::disk ? "found on disk" : "compiled", " in ",
                    detail::format_ms(out.record.ms), ", ", out.record.cubin_bytes, " bytes"));
  lock.lock();
  history_.push_back(std::move(out.record));
  return flight->kernel;
}

SAMITE_IMPL kernel_handle kernel_cache::prepare(const kernel_source& source) {
  std::string key = unchecked_key_of(source), hash = detail::hash_key(key);
  if (detail::kernel_slot* known = table_->find(key, hash)) return kernel_handle(*known);  // checked when it was added
  detail::check_kernel_options(source), detail::check_kernel_text(source);
  return kernel_handle(table_->find_or_add(std::move(key), std::move(hash)));
}

SAMITE_IMPL std::shared_ptr<const compiled_kernel> kernel_cache::get(kernel_handle handle, const kernel_source& source) {
  return get(*handle.slot_, source);
}

SAMITE_IMPL std::shared_ptr<const compiled_kernel> kernel_cache::get(const kernel_source& source) { return get(prepare(source), source); }

SAMITE_IMPL cuda_function kernel_cache::function(const cuda_device& device, const kernel_source& source, const std::string& name) {
  static const pid_t loader = ::getpid();
  if (loader != ::getpid())
    raise("E-JIT-FORK", "kernel \"", source.label, "\": this process was forked after its parent loaded kernels, and a device's context does not ",
          "pass a fork; fork before the first use of the device, or start helpers with posix_spawn");
  detail::kernel_slot& slot = *prepare(source).slot_;
  detail::device_kernel* place = nullptr;
  {
    const std::lock_guard lock(detail::jit_mutex());
    place = &slot.devices[device.index()];
  }
  const std::lock_guard loading(place->loading);  // of this kernel on this device alone
  const relaxed_capture during_load;  // a kernel first met inside a capture is loaded all the same
  const auto load_and_find = [&] {
    if (place->module == nullptr) {
      const activity note("load", concat_text(source.label, " on device ", device.index(), ", key ", slot.hash));
      place->module = std::make_shared<cuda_module>(device, get(slot, source)->cubin.data());
    }
    return place->module->function(name);
  };
  try {
    return load_and_find();
  } catch (const error& e) {
    // What the driver refuses, now or when it looks inside for the kernel, may have come damaged from the disk in spite of its checksum:
    // compile it once and try again.
    const bool is_loaded = place->module != nullptr;
    {
      const std::lock_guard lock(detail::jit_mutex());
      if (!slot.is_from_disk || e.code() == "E-CUDA-MEMORY" || e.code() == "E-CUDA-FAULT" || (is_loaded && e.code() != "E-CUDA-IMAGE")) throw;
      slot.ready = nullptr;
    }
    place->module = nullptr;
    disk_.remove(slot.key);
    return load_and_find();
  }
}

SAMITE_IMPL std::vector<kernel_record> kernel_cache::history() const {
  const std::lock_guard lock(detail::jit_mutex());
  return history_;
}

SAMITE_IMPL double kernel_cache::compile_ms() const {
  double sum = 0;
  for (const kernel_record& record : history()) sum += record.compile_ms;
  return sum;
}

SAMITE_IMPL std::string kernel_cache::explain(const kernel_source& source) const {
  const std::string key = key_of(source), hash = detail::hash_key(key);
  std::string out = concat_text("kernel \"", source.label, "\" for ", source.arch, "\n  key ", hash, ": ", key.size(), " bytes, samite ",
                                library_version_, ", NVRTC ", build(), "\n");
  const detail::kernel_slot* slot = table_->find(key, hash);
  const auto* ready = slot != nullptr ? slot->ready.load(std::memory_order_acquire) : nullptr;
  if (ready == nullptr) return out + "  not compiled in this process\n";
  for (const kernel_record& record : history()) {
    if (record.hash != hash) continue;
    out += record.origin == kernel_origin::disk ? concat_text("  found in ", disk_.folder(), " in ", detail::format_ms(record.ms))
                                                : concat_text("  compiled in ", detail::format_ms(record.compile_ms));
    if (record.wait_ms > 1) out += concat_text(" after ", detail::format_ms(record.wait_ms), " for another process");
    out += concat_text(", ", record.cubin_bytes, " bytes, first asked for by \"", (*ready)->label, "\"\n");
    out += record.source_path.empty() ? "  source not kept (SAMITE_CACHE_SOURCES=1 keeps what is compiled)\n" : "  source " + record.source_path + "\n";
  }
  for (const kernel_resources& r : resources_of((*ready)->log))
    out += concat_text("  ", r.name, ": ", r.registers, " registers, ", r.shared_bytes, " bytes of shared memory, ", r.stack_bytes,
                       " bytes of stack, spills ", r.spill_store_bytes, " bytes stored and ", r.spill_load_bytes, " loaded\n");
  return out;
}

SAMITE_IMPL std::string kernel_cache::explain(const cuda_device& device, const kernel_source& source, const std::string& name, const launch_shape& shape) {
  const cuda_function loaded = function(device, source, name);
  const int threads = int(shape.block_x * shape.block_y * shape.block_z);
  return concat_text(explain(source), "  on ", device.name(), ": ", loaded.blocks_per_sm(threads, shape.shared_bytes), " blocks of ", threads,
                     " threads with ", shape.shared_bytes, " bytes of dynamic shared memory fit on a multiprocessor\n");
}

SAMITE_IMPL std::vector<kernel_header> read_kernel_headers(const std::string& folder) {
  std::vector<kernel_header> headers;
  std::error_code failure;
  const std::filesystem::path root(folder);
  for (auto it = std::filesystem::recursive_directory_iterator(root, failure); !failure && it != std::filesystem::recursive_directory_iterator(); it.increment(failure))
    if (it->is_regular_file(failure)) headers.push_back({it->path().lexically_relative(root).string(), read_file(it->path().string())});
  if (failure) raise("E-FILE-OPEN", "reading the headers below \"", folder, "\": ", failure.message(), "; give a folder that can be read");
  std::sort(headers.begin(), headers.end(), [](const kernel_header& a, const kernel_header& b) { return a.name < b.name; });  // the order is part of the key
  return headers;
}

}  // namespace samite
