// samite/jit/cache_impl.hpp: entries of the kernel cache and the rules for trusting them.
#pragma once
#include <pwd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include <samite/core/env.hpp>
#include <samite/core/say.hpp>
#include <samite/io/file.hpp>
#include <samite/jit/cache.hpp>
#include <samite/jit/file_calls.hpp>
#include <samite/jit/lock_files.hpp>

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

SAMITE_IMPL std::vector<std::string_view> key_parts(std::string_view key, std::size_t count) {
  std::vector<std::string_view> parts;
  while (parts.size() < count) {
    std::size_t bytes = 0;
    const auto number = std::from_chars(key.data(), key.data() + key.size(), bytes);
    const std::size_t begin = std::size_t(number.ptr - key.data()) + 1;
    if (number.ec != std::errc() || begin > key.size() || key[begin - 1] != ':' || bytes >= key.size() - begin) break;
    parts.push_back(key.substr(begin, bytes));
    key.remove_prefix(begin + bytes + 1);
  }
  return parts;
}

struct cache_entry_header {
  static constexpr char expected_magic[9] = "SAMITEJT";
  static constexpr std::uint32_t expected_version = 2;
  static constexpr std::uint64_t limit_bytes = std::uint64_t(64) << 20;  // of each part; more is damage and not a kernel

  char magic[8] = {};
  std::uint32_t version = 0, label_bytes = 0;
  std::uint64_t key_bytes = 0, cubin_bytes = 0, log_bytes = 0;
  std::uint64_t checksum[2] = {};  // over the fields before and all parts
};
static_assert(sizeof(cache_entry_header) == 56);

inline void set_checksum(cache_entry_header& header, std::string_view parts) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, &header, offsetof(cache_entry_header, checksum));
  XXH3_128bits_update(&state, parts.data(), parts.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  header.checksum[0] = hash.low64, header.checksum[1] = hash.high64;
}

inline std::string encode_entry(std::string_view key, const compiled_kernel& kernel) {
  cache_entry_header header;
  std::memcpy(header.magic, cache_entry_header::expected_magic, sizeof header.magic);
  header.version = cache_entry_header::expected_version;
  header.key_bytes = key.size(), header.cubin_bytes = kernel.cubin.size(), header.log_bytes = kernel.log.size();
  header.label_bytes = std::uint32_t(kernel.label.size());
  const std::string parts = concat_text(key, kernel.cubin, kernel.log, kernel.label);
  set_checksum(header, parts);
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + parts;
}

struct decoded_entry {
  std::string_view key, cubin, log, label;
  const char* fault = nullptr;  // why the bytes are no entry
};

inline decoded_entry decode_entry(std::string_view bytes) {
  decoded_entry out;
  cache_entry_header header;
  const auto is_no_entry = [&](const char* why) {
    out = {};
    out.fault = why;
    return out;
  };
  if (bytes.size() < sizeof header) return is_no_entry("it is shorter than a header");
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::string_view parts = bytes.substr(sizeof header);
  constexpr std::uint64_t limit = cache_entry_header::limit_bytes;
  if (std::memcmp(header.magic, cache_entry_header::expected_magic, sizeof header.magic) != 0) return is_no_entry("it is no kernel entry");
  if (header.version != cache_entry_header::expected_version) return is_no_entry("it has another format version");
  if (header.key_bytes > limit || header.cubin_bytes > limit || header.log_bytes > limit || header.label_bytes > limit ||
      header.key_bytes + header.cubin_bytes + header.log_bytes + header.label_bytes != parts.size())
    return is_no_entry("its lengths disagree with the file's");
  cache_entry_header expected = header;
  set_checksum(expected, parts);
  if (std::memcmp(&expected, &header, sizeof header) != 0) return is_no_entry("its checksum is wrong");
  if (header.cubin_bytes == 0) return is_no_entry("it holds no kernel");
  std::size_t at = 0;
  const auto take = [&](std::uint64_t count) {
    const std::string_view part = parts.substr(at, std::size_t(count));
    at += std::size_t(count);
    return part;
  };
  out.key = take(header.key_bytes), out.cubin = take(header.cubin_bytes), out.log = take(header.log_bytes), out.label = take(header.label_bytes);
  return out;
}

/// The kernel, or nothing if the bytes are not exactly an entry of this key.
inline std::optional<compiled_kernel> decode_entry(std::string_view bytes, std::string_view key) {
  const decoded_entry found = decode_entry(bytes);
  if (found.fault != nullptr || found.key != key) return {};
  return compiled_kernel{std::string(found.cubin), std::string(found.log), std::string(found.label)};
}

inline std::optional<std::string> absolute_folder(const char* variable) {
  auto text = env_text(variable);
  if (!text || text->front() != '/' || *text == "/") return {};
  while (text->size() > 1 && text->ends_with('/')) text->pop_back();
  if (*text == "/") return {};
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
  if (const auto megabytes = env_number("SAMITE_CACHE_MB", 1, 1'000'000)) setting.options.limit_bytes = std::uint64_t(*megabytes) << 20;
  setting.options.keeps_sources = env_number("SAMITE_CACHE_SOURCES", 0, 1).value_or(0) == 1;
  if (geteuid() != getuid()) setting.access = disk_cache::mode::off;  // another user's environment must not choose our code
  if (setting.access == disk_cache::mode::off) return setting;
  if (const auto folder = absolute_folder("SAMITE_CACHE_DIR")) {
    setting.folder = *folder;
    setting.options.is_named_by_user = true;
  } else if (env_text("SAMITE_CACHE_DIR")) {
    setting.reason = env_text("SAMITE_CACHE_DIR")->find_first_not_of('/') == std::string::npos ? "SAMITE_CACHE_DIR is the root of the file system" : "SAMITE_CACHE_DIR is no absolute path";
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

inline bool is_fan_out_name(const char* name) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return is_digit(name[0]) && is_digit(name[1]) && name[2] == '\0';
}

/// Names in an open folder, sorted; counts a folder that can't be listed to its end.
inline std::vector<std::string> names_in(int folder, std::atomic<int>& failures) {
  std::vector<std::string> names;
  const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = copy < 0 ? nullptr : ::fdopendir(copy);
  if (listing == nullptr) {
    if (copy >= 0) ::close(copy);
    ++failures;
    return names;
  }
  errno = 0;
  while (const dirent* found = ::readdir(listing))
    if (std::strcmp(found->d_name, ".") != 0 && std::strcmp(found->d_name, "..") != 0) names.emplace_back(found->d_name);
  if (errno != 0) ++failures;
  ::closedir(listing);
  std::sort(names.begin(), names.end());
  return names;
}

inline constexpr const char* entry_ending = ".kernel";
inline constexpr std::int64_t second_ns = 1'000'000'000, hour_ns = 3600 * second_ns;

/// The last use is the time of modification: an entry is never modified, and the time of reading is not kept on many disks.
inline std::int64_t time_used_ns(const struct stat& info) { return std::int64_t(info.st_mtim.tv_sec) * second_ns + info.st_mtim.tv_nsec; }
inline void mark_used(int file, std::int64_t now_ns) {
  const timespec times[2] = {{0, UTIME_OMIT}, {time_t(now_ns / second_ns), long(now_ns % second_ns)}};
  (void)::futimens(file, times);  // not ours to mark in a shared cache; then its owner's use decides
}

}  // namespace detail

SAMITE_IMPL disk_cache::disk_cache(std::string folder, mode access, disk_cache_options options)
    : folder_(std::move(folder)), options_(std::move(options)), access_(folder_.empty() ? mode::off : access),
      calls_(options_.calls != nullptr ? *options_.calls : detail::file_calls::system()) {}

SAMITE_IMPL disk_cache& disk_cache::instance() {
  static disk_cache& cache = []() -> disk_cache& {
    const detail::cache_setting setting = detail::find_cache_setting();
    auto* made = new disk_cache(setting.folder, setting.access, setting.options);  // never destroyed: threads may compile while the process ends
    if (!setting.reason.empty()) made->warn_once(setting.reason);
    if (setting.reason.empty() && setting.access != mode::read_write && env_text("SAMITE_COMPILE_FOR"))
      say("SAMITE_COMPILE_FOR has kernels compiled, but SAMITE_CACHE lets none be stored; set it to rw");
    return *made;
  }();
  return cache;
}

SAMITE_IMPL void disk_cache::warn_once(const std::string& reason, bool is_of_all) {
  if (warned_.exchange(true)) return;
  const std::string text = is_of_all ? "no kernel cache on disk: " + reason + "; kernels are compiled in each process (SAMITE_CACHE=off silences this)"
                                     : "the kernel cache on disk lacks a part: " + reason + "; its kernels are compiled in each process (SAMITE_CACHE=off silences this)";
  if (options_.warn) options_.warn(text);
  else say(text);
}

SAMITE_IMPL void disk_cache::close(detail::descriptor file) {
  if (file.get() >= 0) calls_.close(file.release());
}

SAMITE_IMPL bool disk_cache::is_owner_trusted(unsigned owner) const {
  // A folder that the user named and only reads may belong to whoever built it; its entries then belong to the same user.
  return owner == 0 || owner == geteuid() || (options_.is_named_by_user && access_ == mode::read_only && owner == folder_owner_);
}

// Whoever can write the folder can run code as us on the device: it must be ours (or root's) and nobody else may write it. What is
// asked is the open folder and not its name, which may change its meaning in between.
SAMITE_IMPL detail::descriptor disk_cache::open_folder(bool make_it) {
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (options_.is_named_by_user ? 0 : O_NOFOLLOW);
  detail::descriptor folder(calls_.open(AT_FDCWD, folder_.c_str(), flags, 0));
  if (folder.get() < 0 && errno == ENOENT && make_it) {
    for (std::size_t at = folder_.find('/', 1);; at = folder_.find('/', at + 1)) {
      const std::string part = folder_.substr(0, at);
      if (calls_.make_folder(AT_FDCWD, part.c_str(), options_.is_named_by_user ? 0755 : 0700) != 0 && errno != EEXIST && errno != EISDIR) return {};
      if (at == std::string::npos) break;
    }
    folder = detail::descriptor(calls_.open(AT_FDCWD, folder_.c_str(), flags, 0));
  }
  std::string reason;
  struct stat info;
  if (folder.get() < 0) {
    if (errno != ELOOP && errno != ENOTDIR) return {};
    struct stat link;
    if (::lstat(folder_.c_str(), &link) != 0) return {};  // a part of the path before it is no folder
    reason = "\"" + folder_ + "\" is no folder (a link is followed only if SAMITE_CACHE_DIR names it)";
  } else if (::fstat(folder.get(), &info) != 0) {
    return {};
  } else if (folder_owner_ = info.st_uid; !is_owner_trusted(info.st_uid)) {
    reason = "\"" + folder_ + "\" belongs to another user";
  } else if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    reason = "\"" + folder_ + "\" can be written by other users; chmod go-w it";
  }
  if (reason.empty()) return folder;
  warn_once(reason);
  access_ = mode::off;
  return {};
}

SAMITE_IMPL detail::descriptor disk_cache::open_part(const detail::descriptor& folder, const std::string& name, bool make_it) {
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
  detail::descriptor part(calls_.open(folder.get(), name.c_str(), flags, 0));
  if (part.get() < 0 && errno == ENOENT && make_it) {
    if (calls_.make_folder(folder.get(), name.c_str(), options_.is_named_by_user ? 0755 : 0700) != 0 && errno != EEXIST) return {};
    part = detail::descriptor(calls_.open(folder.get(), name.c_str(), flags, 0));
  }
  struct stat info;
  if (part.get() < 0 || ::fstat(part.get(), &info) != 0) {
    if (errno != ENOENT) ++parts_refused_;
    return {};
  }
  if (is_owner_trusted(info.st_uid) && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0) return part;
  ++parts_refused_;
  errno = EPERM;
  return {};
}

SAMITE_IMPL disk_cache::bytes_read disk_cache::read_entry(const detail::descriptor& part, const std::string& name, bool mark_used) {
  bytes_read out;
  detail::descriptor file(calls_.open(part.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0));
  if (file.get() < 0) {
    if (errno == ELOOP) out.fault = "it is a link";
    else if (errno == ENOENT) out.is_absent = true;
    else out.is_unreadable = true, out.fault = "it can't be read: " + detail::errno_text(errno);
    return out;
  }
  struct stat info;
  constexpr std::uint64_t limit = 4 * detail::cache_entry_header::limit_bytes;
  if (::fstat(file.get(), &info) != 0) out.fault = "it can't be examined";
  else if (!S_ISREG(info.st_mode)) out.fault = "it is no regular file";
  else if (!is_owner_trusted(info.st_uid)) out.fault = "it belongs to another user";
  else if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) out.fault = "it can be written by other users";
  else if (std::uint64_t(info.st_size) > limit) out.fault = "it is larger than any kernel";
  if (out.fault.empty()) {
    out.text.resize(std::size_t(info.st_size)), out.size_bytes = std::uint64_t(info.st_size), out.used_ns = detail::time_used_ns(info);
    // Read, not mapped: a file cut meanwhile by another process is a short read here and would be a signal there.
    std::size_t done = 0;
    while (done < out.text.size()) {
      const ssize_t got = calls_.read(file.get(), out.text.data() + done, out.text.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) out.is_unreadable = true, out.fault = "it can't be read: " + detail::errno_text(errno);  // the disk's or the network's fault: it stays
      if (got <= 0) break;
      done += std::size_t(got);
    }
    out.text.resize(done);
    // Once a minute is exact enough, and spares a network disk the writes. A time to come is from a clock that was wrong.
    const std::int64_t now = calls_.now_ns();
    if (mark_used && (now - out.used_ns > 60 * detail::second_ns || out.used_ns > now)) detail::mark_used(file.get(), now);
  }
  close(std::move(file));
  return out;
}

SAMITE_IMPL std::optional<compiled_kernel> disk_cache::find(std::string_view key) {
  if (access_ == mode::off) return {};
  const std::string hash = detail::hash_key(key);
  detail::descriptor folder = open_folder(false);
  // Who names a folder to be read expects it to be there.
  if (folder.get() < 0 && access_ == mode::read_only && options_.is_named_by_user) warn_once("\"" + folder_ + "\" is not there, or can't be read");
  if (folder.get() < 0) return {};
  const int refused_before = parts_refused_;
  detail::descriptor part = open_part(folder, hash.substr(0, 2), false);
  close(std::move(folder));
  if (part.get() < 0 && parts_refused_ != refused_before) warn_once("\"" + folder_ + "/" + hash.substr(0, 2) + "\" is another user's, can't be read, or others can write it", false);
  if (part.get() < 0) return {};
  const bytes_read found = read_entry(part, hash.substr(2) + detail::entry_ending, access_ == mode::read_write);
  close(std::move(part));
  if (found.is_absent || found.is_unreadable) return {};
  auto kernel = found.fault.empty() ? detail::decode_entry(found.text, key) : std::nullopt;
  if (!kernel) ++refused_, remove(key);
  return kernel;
}

SAMITE_IMPL void disk_cache::remove(std::string_view key) {
  if (access_ != mode::read_write) return;
  const std::string hash = detail::hash_key(key);
  detail::descriptor folder = open_folder(false);
  if (folder.get() < 0) return;
  detail::descriptor part = open_part(folder, hash.substr(0, 2), false);
  close(std::move(folder));
  if (part.get() >= 0) calls_.unlink(part.get(), (hash.substr(2) + detail::entry_ending).c_str());  // what can't be removed is refused again
  close(std::move(part));
}

// Gives 0 or the errno of the step that failed; then nothing is left behind. The entry is not looked at afterwards: a network file
// system may deny for a minute that it is there.
SAMITE_IMPL int disk_cache::write_entry(const detail::descriptor& part, const std::string& name, std::string_view bytes) {
  static std::atomic<unsigned> serial{0};
  if (!detail::is_within_file_limit(bytes.size())) return EFBIG;
  std::string temporary;
  detail::descriptor file;
  // Names that a killed process with our number left are passed over, never opened.
  for (int attempt = 0; attempt < 100 && file.get() < 0; ++attempt) {
    temporary = concat_text(".tmp-", ::getpid(), "-", serial.fetch_add(1), "-", std::random_device{}());
    file = detail::descriptor(calls_.open(part.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                                          options_.is_named_by_user ? 0644 : 0600));
    if (file.get() < 0 && errno != EEXIST) return errno;
  }
  if (file.get() < 0) return EEXIST;
  const auto give_up = [&](int cause) {
    close(std::move(file));
    calls_.unlink(part.get(), temporary.c_str());
    return cause != 0 ? cause : EIO;
  };
  while (!bytes.empty()) {
    const ssize_t done = calls_.write(file.get(), bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return give_up(done < 0 ? errno : ENOSPC);
    bytes.remove_prefix(std::size_t(done));
  }
  if (calls_.sync(file.get()) != 0) return give_up(errno);
  if (calls_.close(file.release()) != 0) return give_up(errno);  // network file systems report a full quota here
  if (calls_.rename(part.get(), temporary.c_str(), name.c_str()) != 0) return give_up(errno);
  (void)calls_.sync(part.get());  // the name outlives a power loss; some file systems can't, and the file stands
  return 0;
}

SAMITE_IMPL bool disk_cache::store_file(const std::string& part_name, const std::string& name, std::string_view bytes) {
  int cause = 0;
  bool is_of_part = false;  // the other parts may do
  for (int attempt = 0; attempt < 2; ++attempt) {  // a cleaner may take the folders away in between
    errno = 0;
    detail::descriptor folder = open_folder(true);
    if (access_ == mode::off) return false;  // not trusted: said already
    detail::descriptor part = folder.get() < 0 ? detail::descriptor() : open_part(folder, part_name, true);
    cause = part.get() < 0 ? (errno != 0 ? errno : EIO) : write_entry(part, name, bytes);
    is_of_part = folder.get() >= 0 && part.get() < 0 && (cause == EPERM || cause == ENOTDIR || cause == ELOOP);
    close(std::move(folder)), close(std::move(part));
    if (cause != ENOENT) break;
  }
  if (cause == 0) return true;
  ++store_failures_;
  if (is_of_part) {
    warn_once("\"" + folder_ + "/" + part_name + "\" is no folder of yours that others can't write: chmod go-w it, or remove it", false);
    return false;
  }
  if (cause == EISDIR || cause == EEXIST || cause == ENOTEMPTY) {  // by the rename alone
    warn_once("\"" + folder_ + "/" + part_name + "/" + name + "\" is a folder where a file is to be: remove it", false);
    return false;
  }
  warn_once("writing into \"" + folder_ + "\" failed: " + detail::errno_text(cause));
  access_ = mode::read_only;  // the same disk would answer the same again; the next process tries anew
  return false;
}

SAMITE_IMPL std::string disk_cache::writable_folder(const std::string& name) {
  if (access_ != mode::read_write) return "";
  detail::descriptor folder = open_folder(true);
  detail::descriptor part = folder.get() < 0 ? detail::descriptor() : open_part(folder, name, true);
  const bool there = part.get() >= 0;
  close(std::move(folder)), close(std::move(part));
  return there ? folder_ + "/" + name : "";
}

SAMITE_IMPL void disk_cache::store(std::string_view key, const compiled_kernel& kernel) {
  constexpr std::uint64_t limit = detail::cache_entry_header::limit_bytes;
  if (access_ != mode::read_write || key.size() > limit || kernel.cubin.size() > limit || kernel.log.size() > limit || kernel.cubin.empty()) return;
  const std::string hash = detail::hash_key(key), bytes = detail::encode_entry(key, kernel);
  if (!store_file(hash.substr(0, 2), hash.substr(2) + detail::entry_ending, bytes)) return;
  make_room(bytes.size());
}

SAMITE_IMPL std::string disk_cache::keep_source(std::string_view key, const kernel_source& source, std::string_view log) {
  if (!options_.keeps_sources || access_ != mode::read_write) return "";
  const std::string hash = detail::hash_key(key);
  if (!store_file("sources", hash + ".cu", source.text) || !store_file("sources", hash + ".log", log)) return "";
  return folder_ + "/sources/" + hash + ".cu";
}

SAMITE_IMPL disk_cache::compile_right::~compile_right() {
  if (cache_ == nullptr) return;
  // Removed while it is held: who waits for this file sees that it has no name any more, and takes a new one.
  detail::descriptor folder = cache_->open_folder(false);
  detail::descriptor part = folder.get() < 0 ? detail::descriptor() : cache_->open_part(folder, hash_.substr(0, 2), false);
  if (part.get() >= 0) cache_->calls_.unlink(part.get(), (hash_.substr(2) + ".lock").c_str());
  cache_->close(std::move(folder)), cache_->close(std::move(part));
  detail::lock_files::remove(file_.get());
  cache_->close(std::move(file_));
}

SAMITE_IMPL disk_cache::compile_right disk_cache::wait_for_right(std::string_view key, int wait_ms) {
  compile_right right;
  if (access_ != mode::read_write) return right;
  const std::string hash = detail::hash_key(key), name = hash.substr(2) + ".lock";
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
  auto pause = std::chrono::milliseconds(1);
  int orphans = 0;
  detail::descriptor folder = open_folder(true);
  detail::descriptor part = folder.get() < 0 ? detail::descriptor() : open_part(folder, hash.substr(0, 2), true);
  close(std::move(folder));
  detail::descriptor file;
  const auto let_go = [&] {
    detail::lock_files::remove(file.get());
    close(std::move(file));
  };
  while (part.get() >= 0) {
    if (file.get() < 0) {
      file = detail::descriptor(calls_.open(part.get(), name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
      if (file.get() < 0) break;  // the store will say why
      detail::lock_files::add(file.get());
    }
    if (calls_.lock(file.get()) == 0) {
      struct stat ours, named;
      if (::fstat(file.get(), &ours) == 0 && ::fstatat(part.get(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && ours.st_ino == named.st_ino) {
        right.cache_ = this, right.hash_ = hash, right.file_ = std::move(file);
        break;
      }
      let_go();  // its holder is done and has removed it
      if (++orphans == 100) break;  // or this file system gives every look another number
      continue;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) break;  // this file system has no locks
    if (std::chrono::steady_clock::now() >= end) {
      right.is_elsewhere_ = errno == EWOULDBLOCK;
      break;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(16));
  }
  if (file.get() >= 0) let_go();
  close(std::move(part));
  return right;
}

// The whole folder is listed when this process has filled an eighth of the limit, and once if nobody has for an hour.
SAMITE_IMPL void disk_cache::make_room(std::uint64_t stored_bytes) {
  const bool is_first = !has_looked_.exchange(true);
  const bool is_much = stored_bytes_.fetch_add(stored_bytes) + stored_bytes >= options_.limit_bytes / 8;
  if (!is_first && !is_much) return;
  detail::descriptor folder = open_folder(false);
  if (folder.get() < 0) return;
  detail::descriptor mark(calls_.open(folder.get(), "last_look", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  close(std::move(folder));
  struct stat info;
  const detail::lock_files::note note(mark.get());
  if (mark.get() < 0 || calls_.lock(mark.get()) != 0 || ::fstat(mark.get(), &info) != 0) return close(std::move(mark));  // another process looks
  const std::int64_t now = calls_.now_ns(), age_ns = now - detail::time_used_ns(info);
  if (is_much || info.st_size == 0 || age_ns > detail::hour_ns || age_ns < 0) {
    stored_bytes_ = 0;
    (void)::pwrite(mark.get(), "x", 1, 0);
    detail::mark_used(mark.get(), now);
    prune(options_.limit_bytes);
  }
  close(std::move(mark));
}

SAMITE_IMPL std::uint64_t disk_cache::prune(std::uint64_t limit_bytes) {
  struct file {
    std::string part, name;
    std::uint64_t bytes;
    std::int64_t used_ns;
  };
  std::vector<file> files;
  std::uint64_t total = 0;
  if (access_ != mode::read_write) return 0;
  detail::descriptor folder = open_folder(false);
  if (folder.get() < 0) return 0;
  const std::int64_t now = calls_.now_ns();
  for (const std::string& part_name : detail::names_in(folder.get(), parts_refused_)) {
    if (!detail::is_fan_out_name(part_name.c_str()) && part_name != "failed" && part_name != "sources") continue;
    detail::descriptor part = open_part(folder, part_name, false);
    if (part.get() < 0) continue;
    for (const std::string& name : detail::names_in(part.get(), parts_refused_)) {
      struct stat info;
      if (::fstatat(part.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) continue;
      const std::int64_t used = std::min(detail::time_used_ns(info), now);  // a time to come, from a clock that was wrong, counts as now
      const bool is_leftover = name.starts_with(".tmp-") || name.ends_with(".lock");
      if (is_leftover && now - used > detail::hour_ns) {
        calls_.unlink(part.get(), name.c_str());
      } else if (!is_leftover) {
        files.push_back({part_name, name, std::uint64_t(info.st_size), used});
        total += files.back().bytes;
      }
    }
    close(std::move(part));
  }
  if (total > limit_bytes) {
    std::stable_sort(files.begin(), files.end(), [](const file& a, const file& b) { return a.used_ns < b.used_ns; });
    const std::uint64_t goal = limit_bytes / 10 * 9;  // a tenth of room, so that the next store does not list everything again
    for (const file& oldest : files) {
      if (total <= goal) break;
      detail::descriptor part = open_part(folder, oldest.part, false);
      if (part.get() >= 0 && calls_.unlink(part.get(), oldest.name.c_str()) == 0) total -= oldest.bytes, ++evictions_;
      close(std::move(part));
    }
  }
  close(std::move(folder));
  return total;
}

SAMITE_IMPL void disk_cache::for_each(const std::function<void(const entry&)>& visit) {
  if (access_ == mode::off) return;
  detail::descriptor folder = open_folder(false);
  if (folder.get() < 0) return;
  for (const std::string& part_name : detail::names_in(folder.get(), parts_refused_)) {
    if (!detail::is_fan_out_name(part_name.c_str())) continue;
    detail::descriptor part = open_part(folder, part_name, false);
    if (part.get() < 0) continue;
    for (const std::string& name : detail::names_in(part.get(), parts_refused_)) {
      if (!name.ends_with(detail::entry_ending) || name.front() == '.') continue;
      const bytes_read read = read_entry(part, name, false);
      if (read.is_absent) continue;
      entry found{.path = folder_ + "/" + part_name + "/" + name, .key = {}, .fault = read.fault, .is_unreadable = read.is_unreadable, .kernel = {}, .bytes = read.size_bytes, .used_ns = read.used_ns};
      if (found.fault.empty()) {
        const detail::decoded_entry decoded = detail::decode_entry(read.text);
        if (decoded.fault != nullptr) found.fault = decoded.fault;
        else if (detail::hash_key(decoded.key) + detail::entry_ending != part_name + name) found.fault = "it has another key's name";
        found.key = decoded.key;
        found.kernel = {std::string(decoded.cubin), std::string(decoded.log), std::string(decoded.label)};
      }
      visit(found);
    }
    close(std::move(part));
  }
  close(std::move(folder));
}

}  // namespace samite
