// samite/jit/nvrtc_impl.hpp: opening and driving NVRTC.
#pragma once
#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string_view>

#include <samite/core/env.hpp>
#include <samite/io/file.hpp>
#include <samite/jit/cache.hpp>
#include <samite/jit/nvrtc.hpp>

namespace samite {
namespace detail {

struct nvrtc_api {
  const char* (*error_text)(int);
  int (*version)(int*, int*);
  int (*create)(void**, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(void**);
  int (*compile)(void*, int, const char* const*);
  int (*cubin_size)(void*, std::size_t*);
  int (*cubin)(void*, char*);
  int (*log_size)(void*, std::size_t*);
  int (*log)(void*, char*);
};

struct nvrtc_state {
  nvrtc_api api{};
  bool usable = false;
  std::string reason, build, path;  // path: of the library, as the system found it
};

/// Opens `path`, or looks under the usual names if it is empty.
inline nvrtc_state open_nvrtc(const std::string& path) {
  nvrtc_state state;
  void* library = nullptr;
  std::vector<std::string> names = {path};
  if (path.empty())
    names = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so.13",
             "/usr/local/cuda/lib64/libnvrtc.so.12"};
  for (const std::string& name : names) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    const char* text = dlerror();
    if (state.reason.empty()) state.reason = text != nullptr ? text : name;
  }
  if (library == nullptr) return state;
  const struct {
    void* slot;
    const char* name;
  } symbols[] = {
      {&state.api.error_text, "nvrtcGetErrorString"}, {&state.api.version, "nvrtcVersion"},
      {&state.api.create, "nvrtcCreateProgram"},      {&state.api.destroy, "nvrtcDestroyProgram"},
      {&state.api.compile, "nvrtcCompileProgram"},    {&state.api.cubin_size, "nvrtcGetCUBINSize"},
      {&state.api.cubin, "nvrtcGetCUBIN"},            {&state.api.log_size, "nvrtcGetProgramLogSize"},
      {&state.api.log, "nvrtcGetProgramLog"},
  };
  for (const auto& s : symbols) {
    void* const found = dlsym(library, s.name);
    if (found == nullptr) {
      state.reason = concat_text("\"", path.empty() ? "libnvrtc.so" : path, "\" has no ", s.name);
      return state;
    }
    *static_cast<void**>(s.slot) = found;
  }
  int major = 0, minor = 0;
  state.api.version(&major, &minor);
  long long bytes = 0;
  Dl_info where;
  struct stat info;
  if (dladdr(reinterpret_cast<void*>(state.api.create), &where) != 0 && where.dli_fname != nullptr) state.path = where.dli_fname;
  if (::stat(state.path.c_str(), &info) == 0) bytes = info.st_size;
  state.build = concat_text(major, ".", minor, " ", bytes);
  state.usable = true;
  state.reason.clear();
  return state;
}

inline const nvrtc_state& nvrtc() {
  static const nvrtc_state state = open_nvrtc(env_text("SAMITE_NVRTC_PATH").value_or(""));
  return state;
}

inline const nvrtc_api& require_nvrtc(const nvrtc_state& state) {
  if (!state.usable)
    raise("E-JIT-NVRTC", "NVRTC can't be opened: ", state.reason, "; install CUDA 12 or 13 or the wheel nvidia-cuda-nvrtc, or set ",
          "SAMITE_NVRTC_PATH to libnvrtc.so");
  return state.api;
}

/// Counts running compiles. A child forked while there is one would wait for a lock that nobody gives back, so it is told instead.
class nvrtc_activity {
 public:
  nvrtc_activity() {
    static const int installed = pthread_atfork(nullptr, nullptr, [] {
      if (active() > 0) lost() = true;
    });
    (void)installed;
    if (lost())
      raise("E-JIT-FORK", "this process was forked while its parent compiled a kernel; NVRTC would hang here: fork before the first compile, "
            "or start helpers with posix_spawn");
    ++active();
  }
  ~nvrtc_activity() { --active(); }
  nvrtc_activity(const nvrtc_activity&) = delete;
  nvrtc_activity& operator=(const nvrtc_activity&) = delete;

 private:
  static std::atomic<int>& active() {
    static std::atomic<int> count{0};
    return count;
  }
  static std::atomic<bool>& lost() {
    static std::atomic<bool> flag{false};
    return flag;
  }
};

/// A program that is destroyed with its scope.
class nvrtc_program {
 public:
  nvrtc_program(const nvrtc_api& api, const kernel_source& source, const std::string& file_name) : api_(api) {
    std::vector<const char*> texts, names;
    for (const kernel_header& header : source.headers) texts.push_back(header.text.c_str()), names.push_back(header.name.c_str());
    check(api_.create(&program_, source.text.c_str(), file_name.c_str(), int(texts.size()), texts.data(), names.data()),
          "handing over the source");
  }
  ~nvrtc_program() { api_.destroy(&program_); }
  nvrtc_program(const nvrtc_program&) = delete;
  nvrtc_program& operator=(const nvrtc_program&) = delete;

  int compile(const std::vector<std::string>& options) {
    std::vector<const char*> texts;
    for (const std::string& option : options) texts.push_back(option.c_str());
    return api_.compile(program_, int(texts.size()), texts.data());
  }
  std::string log() const { return read(api_.log_size, api_.log, "reading the log"); }
  std::string cubin() const { return read(api_.cubin_size, api_.cubin, "reading the cubin"); }

  void check(int result, const char* purpose) const {
    if (result != 0) raise("E-JIT-NVRTC", "NVRTC: ", purpose, " failed: ", api_.error_text(result));
  }

 private:
  std::string read(int (*size_of_part)(void*, std::size_t*), int (*part)(void*, char*), const char* purpose) const {
    std::size_t size = 0;
    check(size_of_part(program_, &size), purpose);
    std::string out(size, '\0');
    check(part(program_, out.data()), purpose);
    return out;
  }
  const nvrtc_api& api_;
  void* program_ = nullptr;
};

/// The label as a file name: a kept source and its messages are named after it.
inline std::string source_file_name(const std::string& label) {
  std::string name = label.empty() ? "kernel" : label.substr(0, 100);
  for (char& c : name)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.')) c = '_';
  return name + ".cu";
}

/// The log's lines that say what is wrong, at most six, each with the two lines that point into the text.
inline std::string error_lines(const std::string& log) {
  std::string out;
  int left = 0, errors = 0;
  constexpr int shown = 6;
  for (std::size_t start = 0; start < log.size();) {
    const std::size_t end = std::min(log.find('\n', start), log.size());
    const std::string_view line(log.data() + start, end - start);
    if (line.find("error") != line.npos && ++errors <= shown) left = 3;
    if (left-- > 0) out += concat_text("\n  ", line);
    start = end + 1;
  }
  if (errors > shown) out += concat_text("\n  and ", errors - shown, " more lines with errors");
  return out.empty() ? "\n  " + log : out;
}

inline std::string keep_failed_source(const kernel_source& source, const std::string& file_name) {
  try {
    const std::string folder = disk_cache::instance().writable_folder("failed");
    if (folder.empty()) return "the source was not kept, since there is no writable cache folder (SAMITE_CACHE_DIR)";
    // Labels may be alike in their first letters, or in all.
    const std::string path = concat_text(folder, "/", file_name.substr(0, file_name.size() - 3), "-", hash_key(source.text).substr(0, 8), ".cu");
    write_file(path, source.text);
    return "the source was kept at " + path;
  } catch (const error& e) {
    return std::string("the source was not kept: ") + e.what();
  }
}

inline compiled_kernel compile_with(const nvrtc_state& nvrtc, const kernel_source& source) {
  const nvrtc_api& api = require_nvrtc(nvrtc);
  const nvrtc_activity activity;
  const std::string file_name = source_file_name(source.label);
  nvrtc_program program(api, source, file_name);
  constexpr int out_of_memory = 1, invalid_option = 5, builtins_missing = 7;
  // What older NVRTCs don't know is left out, the newest first (12.8 lacks the last two). Without the first a stray file of the working folder
  // changes kernels; without the second a compile moves the process's stack limit; without the third names hold the process's number; without
  // the fourth a hit in the driver's own cache has no log.
  static constexpr const char* optional[] = {"-no-source-include", "-modify-stack-limit=false", "-frandom-seed=samite", "-no-cache"};
  static std::atomic<std::size_t> known{std::size(optional)};
  int result = invalid_option;
  for (std::size_t count = known;; --count) {
    std::vector<std::string> options = {"-std=c++20", "--ptxas-options=-v", "-arch=" + source.arch};
    options.insert(options.end(), source.options.begin(), source.options.end());
    options.insert(options.end(), optional, optional + count);
    result = program.compile(options);
    if (result == 0 && count < known) known = count;  // else the source's own option may be the unknown one
    if (result != invalid_option || count == 0) break;
  }
  if (result == out_of_memory) raise("E-MEMORY-HOST", "compile of \"", source.label, "\" ran out of host memory");
  if (result == builtins_missing)
    raise("E-JIT-NVRTC", "compile of \"", source.label, "\": libnvrtc-builtins.so was found neither beside \"", nvrtc.path, "\" nor in the library ",
          "path; both files belong together: install them so, or run on the CPU backend");
  compiled_kernel out;
  out.log = program.log();
  std::erase(out.log, '\0');  // the assembler's part of a log is joined on behind a zero
  while (!out.log.empty() && out.log.back() == '\n') out.log.pop_back();
  if (result != 0)
    raise("E-JIT-COMPILE", "compile of \"", source.label, "\" for ", source.arch, " failed (", api.error_text(result), "):",
          error_lines(out.log), "\n  ", keep_failed_source(source, file_name));
  out.cubin = program.cubin();
  if (out.cubin.empty())
    raise("E-JIT-COMPILE", "compile of \"", source.label, "\": NVRTC makes no cubin for \"", source.arch, "\"; name a real arch: sm_90a, not compute_90");
  return out;
}

}  // namespace detail

SAMITE_IMPL bool nvrtc_available() { return detail::nvrtc().usable; }
SAMITE_IMPL std::string nvrtc_missing_reason() { return detail::nvrtc().reason; }
SAMITE_IMPL std::string nvrtc_build() {
  detail::require_nvrtc(detail::nvrtc());
  return detail::nvrtc().build;
}
SAMITE_IMPL compiled_kernel compile_kernel(const kernel_source& source) { return detail::compile_with(detail::nvrtc(), source); }

}  // namespace samite
