// samite/jit/cache_impl.hpp: entries of the kernel cache and the rules for trusting them.
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <pwd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include <samite/core/env.hpp>
#include <samite/io/file.hpp>
#include <samite/jit/cache.hpp>

namespace samite {
namespace detail {

SAMITE_IMPL std::string hash_key(std::string_view key) {
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const std::uint64_t half : {std::uint64_t(hash.high64), std::uint64_t(hash.low64)})
    for (int shift = 60; shift >= 0; shift -= 4) out += digits[half >> shift & 15];
  return out;
}

struct cache_entry_header {
  static constexpr char expected_magic[9] = "SAMITEJT";
  static constexpr std::uint32_t expected_version = 1;
  static constexpr std::uint64_t limit_bytes = std::uint64_t(64) << 20;  // of each part; more is damage and not a kernel

  char magic[8] = {};
  std::uint32_t version = 0, reserved = 0;
  std::uint64_t key_bytes = 0, cubin_bytes = 0, log_bytes = 0;
  std::uint64_t checksum[2] = {};  // over the fields before and all parts
};
static_assert(sizeof(cache_entry_header) == 56);

inline void set_checksum(cache_entry_header& header, std::string_view parts) {
  std::string all(reinterpret_cast<const char*>(&header), offsetof(cache_entry_header, checksum));
  all += parts;
  const XXH128_hash_t hash = XXH3_128bits(all.data(), all.size());
  header.checksum[0] = hash.low64, header.checksum[1] = hash.high64;
}

inline std::string encode_entry(std::string_view key, const compiled_kernel& kernel) {
  cache_entry_header header;
  std::memcpy(header.magic, cache_entry_header::expected_magic, sizeof header.magic);
  header.version = cache_entry_header::expected_version;
  header.key_bytes = key.size(), header.cubin_bytes = kernel.cubin.size(), header.log_bytes = kernel.log.size();
  const std::string parts = concat_text(key, kernel.cubin, kernel.log);
  set_checksum(header, parts);
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + parts;
}

/// The kernel, or nothing if the bytes are not exactly an entry of this key.
inline std::optional<compiled_kernel> decode_entry(std::string_view bytes, std::string_view key) {
  cache_entry_header header;
  if (bytes.size() < sizeof header) return {};
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::string_view parts = bytes.substr(sizeof header);
  constexpr std::uint64_t limit = cache_entry_header::limit_bytes;
  if (std::memcmp(header.magic, cache_entry_header::expected_magic, sizeof header.magic) != 0 ||
      header.version != cache_entry_header::expected_version || header.key_bytes > limit || header.cubin_bytes > limit ||
      header.log_bytes > limit || header.key_bytes + header.cubin_bytes + header.log_bytes != parts.size())
    return {};
  cache_entry_header expected = header;
  set_checksum(expected, parts);
  if (std::memcmp(&expected, &header, sizeof header) != 0 || parts.substr(0, header.key_bytes) != key || header.cubin_bytes == 0) return {};
  return compiled_kernel{std::string(parts.substr(header.key_bytes, header.cubin_bytes)),
                         std::string(parts.substr(header.key_bytes + header.cubin_bytes))};
}

inline std::optional<std::string> absolute_folder(const char* variable) {
  auto text = env_text(variable);
  if (!text || text->front() != '/' || *text == "/") return {};
  while (text->ends_with('/')) text->pop_back();
  return text;
}

inline std::optional<std::string> home_of_user() {
  std::vector<char> buffer(1 << 14);
  passwd entry, *found = nullptr;
  if (getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr || found->pw_dir == nullptr) return {};
  const std::string home = found->pw_dir;
  if (home.size() < 2 || home.front() != '/') return {};
  return home;
}

SAMITE_IMPL cache_setting find_cache_setting() {
  cache_setting setting;
  const std::string wanted = env_text("SAMITE_CACHE").value_or("rw");
  if (wanted != "off" && wanted != "ro" && wanted != "rw")
    raise("E-ENV-VALUE", "environment variable SAMITE_CACHE=\"", wanted, "\": expected off, ro or rw");
  setting.access = wanted == "off" ? disk_cache::mode::off : wanted == "ro" ? disk_cache::mode::read_only : disk_cache::mode::read_write;
  if (geteuid() != getuid()) setting.access = disk_cache::mode::off;  // another user's environment must not choose our code
  if (setting.access == disk_cache::mode::off) return setting;
  if (const auto folder = absolute_folder("SAMITE_CACHE_DIR")) {
    setting.folder = *folder;
  } else if (env_text("SAMITE_CACHE_DIR")) {
    setting.reason = "SAMITE_CACHE_DIR is no absolute path";
  } else if (const auto cache_home = absolute_folder("XDG_CACHE_HOME")) {
    setting.folder = *cache_home + "/samite";
  } else if (const auto home = absolute_folder("HOME")) {
    setting.folder = *home + "/.cache/samite";
  } else if (const auto user_home = home_of_user()) {
    setting.folder = *user_home + "/.cache/samite";
  } else {
    setting.reason = "this user has no home folder and SAMITE_CACHE_DIR is not set";
  }
  return setting;
}

/// Makes a folder and its parents, for this user alone. False with errno on failure.
inline bool make_folders(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return true;
  if (errno != ENOENT) return false;
  const std::size_t slash = path.rfind('/');
  if (slash == 0 || slash == std::string::npos || !make_folders(path.substr(0, slash))) return false;
  return ::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST;
}

}  // namespace detail

SAMITE_IMPL disk_cache::disk_cache(std::string folder, mode access)
    : folder_(std::move(folder)), access_(folder_.empty() ? mode::off : access) {}

SAMITE_IMPL disk_cache& disk_cache::instance() {
  static disk_cache& cache = [&]() -> disk_cache& {
    const detail::cache_setting setting = detail::find_cache_setting();
    auto* made = new disk_cache(setting.folder, setting.access);  // never destroyed: threads may compile while the process ends
    made->follow_link_ = env_text("SAMITE_CACHE_DIR").has_value();
    if (!setting.reason.empty()) made->warn_once(setting.reason);
    return *made;
  }();
  return cache;
}

SAMITE_IMPL void disk_cache::warn_once(const std::string& reason) {
  if (warned_.exchange(true)) return;
  std::fprintf(stderr, "samite: no kernel cache on disk: %s; kernels are compiled in each process (SAMITE_CACHE=off silences this)\n",
               reason.c_str());
}

SAMITE_IMPL std::string disk_cache::entry_path(std::string_view key) const {
  const std::string hash = detail::hash_key(key);
  return folder_ + "/" + hash.substr(0, 2) + "/" + hash.substr(2) + ".kernel";
}

// Whoever can write the folder can run code as us on the device: it must be ours (or root's) and nobody else may write it.
SAMITE_IMPL bool disk_cache::is_trusted() {
  struct stat info;
  const int result = follow_link_ ? ::stat(folder_.c_str(), &info) : ::lstat(folder_.c_str(), &info);
  if (result != 0) return false;  // not there yet
  std::string reason;
  if (!S_ISDIR(info.st_mode))
    reason = "\"" + folder_ + "\" is no folder (a link is followed only if SAMITE_CACHE_DIR names it)";
  else if (info.st_uid != geteuid() && info.st_uid != 0)
    reason = "\"" + folder_ + "\" belongs to another user";
  else if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    reason = "\"" + folder_ + "\" can be written by other users; chmod go-w it";
  if (reason.empty()) return true;
  warn_once(reason);
  access_ = mode::off;
  return false;
}

SAMITE_IMPL std::optional<compiled_kernel> disk_cache::find(std::string_view key) {
  if (access_ == mode::off || !is_trusted()) return {};
  const std::string path = entry_path(key);
  const detail::descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno == ELOOP) ++refused_, remove(key);
    return {};
  }
  struct stat info;
  std::string bytes;
  constexpr std::uint64_t limit = 3 * detail::cache_entry_header::limit_bytes;
  if (::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_uid == geteuid() || info.st_uid == 0) &&
      std::uint64_t(info.st_size) <= limit) {
    bytes.resize(std::size_t(info.st_size));
    // Read, not mapped: a file cut meanwhile by another process is a short read here and would be a signal there.
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t got = ::pread(file.get(), bytes.data() + done, bytes.size() - done, off_t(done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      done += std::size_t(got);
    }
    bytes.resize(done);
  }
  auto kernel = detail::decode_entry(bytes, key);
  if (!kernel) ++refused_, remove(key);
  return kernel;
}

SAMITE_IMPL std::string disk_cache::writable_folder(const std::string& name) {
  if (access_ != mode::read_write) return "";
  const std::string folder = folder_ + "/" + name;
  if (!detail::make_folders(folder_) || !is_trusted()) return "";
  struct stat info;
  if (!detail::make_folders(folder) || ::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return "";
  return folder;
}

SAMITE_IMPL void disk_cache::store(std::string_view key, const compiled_kernel& kernel) {
  if (access_ != mode::read_write) return;
  const std::string path = entry_path(key);
  errno = 0;
  if (writable_folder(path.substr(folder_.size() + 1, 2)).empty()) {
    if (access_ == mode::off) return;  // not trusted: said already
    ++store_failures_;
    warn_once("\"" + folder_ + "\" can't be made: " + detail::errno_text(errno));
    access_ = mode::read_only;
    return;
  }
  try {
    write_file(path, detail::encode_entry(key, kernel));
  } catch (const error& e) {
    ++store_failures_;
    warn_once(e.what());
    access_ = mode::read_only;  // the same disk would answer the same again; the next process tries anew
  }
}

SAMITE_IMPL void disk_cache::remove(std::string_view key) {
  if (access_ == mode::read_write) ::unlink(entry_path(key).c_str());
}

}  // namespace samite
