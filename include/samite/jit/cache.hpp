// samite/jit/cache.hpp: cubins on disk. A damaged, foreign or unreachable cache costs a compile and never more.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <samite/io/file.hpp>
#include <samite/jit/kernel_source.hpp>

namespace samite {

namespace detail {
class file_calls;
}

/// How a disk_cache behaves.
struct disk_cache_options {
  std::uint64_t limit_bytes = std::uint64_t(2) << 30;  // of all files; the least recently used go first
  int lock_wait_ms = 10'000;     // how long to wait for another process that compiles the same kernel
  bool is_named_by_user = false;  // a link to the folder is followed, the umask decides who may read it, and read-only it may be another user's
  bool keeps_sources = false;    // also <folder>/sources/<hash>.cu and .log
  std::function<void(const std::string&)> warn = {};  // takes the one warning; default: a line on standard error
  detail::file_calls* calls = nullptr;                // tests give calls that fail
};

/// One folder of entries, one file each, named by the hash of the key.
///
/// An entry holds the whole key, the cubin, the log, their lengths and a checksum; all are verified before a byte is used, and any
/// doubt is a miss. Entries appear by rename, so readers need no lock and a killed writer leaves nothing half-written under a name.
/// Nothing is created before the first store. Folders and entries of other users, folders that others can write, and links, are not used.
/// errors   none: what fails is said once on standard error, and the cache is left alone from then on
/// threads  safe, also between processes
class disk_cache {
 public:
  enum class mode { off, read_only, read_write };

  /// `folder` is absolute; an empty one means off.
  disk_cache(std::string folder, mode access, disk_cache_options options = {});

  /// The process's cache: SAMITE_CACHE_DIR, else $XDG_CACHE_HOME/samite, else ~/.cache/samite; SAMITE_CACHE = off, ro or rw (default).
  ///
  /// errors  E-ENV-VALUE if a variable has a value that it can't have
  static disk_cache& instance();

  std::optional<compiled_kernel> find(std::string_view key);
  void store(std::string_view key, const compiled_kernel& kernel);
  /// Writes <folder>/sources/<hash>.cu and .log if the options ask for it. Gives the path, or nothing.
  std::string keep_source(std::string_view key, const kernel_source& source, std::string_view log);
  /// Forgets an entry, e.g. after the driver refused it.
  void remove(std::string_view key);

  /// The right to compile a key: held by one process at a time, given back by the destructor. An empty one means that there is no
  /// working lock or that the holder took too long; then two processes do the same work, and nothing else is lost.
  class compile_right {
   public:
    compile_right() = default;
    compile_right(compile_right&& other) noexcept
        : cache_(std::exchange(other.cache_, nullptr)), hash_(std::move(other.hash_)), file_(std::move(other.file_)), is_elsewhere_(other.is_elsewhere_) {}
    compile_right& operator=(compile_right&& other) noexcept {
      std::swap(cache_, other.cache_), std::swap(hash_, other.hash_), std::swap(file_, other.file_), std::swap(is_elsewhere_, other.is_elsewhere_);
      return *this;
    }
    ~compile_right();
    bool is_held() const { return cache_ != nullptr; }
    /// Not held because another process, which lives, still holds it.
    bool is_elsewhere() const { return is_elsewhere_; }

   private:
    friend class disk_cache;
    disk_cache* cache_ = nullptr;
    std::string hash_;
    detail::descriptor file_;
    bool is_elsewhere_ = false;
  };
  /// Waits for another process that holds the key's right, at most options.lock_wait_ms, or as long as is said. Look into the cache again after it.
  compile_right wait_for_right(std::string_view key) { return wait_for_right(key, options_.lock_wait_ms); }
  compile_right wait_for_right(std::string_view key, int wait_ms);

  const std::string& folder() const { return folder_; }
  /// What the cache still does: less than asked for after a failure.
  mode access() const { return access_; }
  /// A folder inside the cache, made if needed; empty if the cache can't be written.
  std::string writable_folder(const std::string& name);
  /// Entries found damaged or not ours, stores that failed, and files that were removed for room, since the start.
  int refused() const { return refused_; }
  int store_failures() const { return store_failures_; }
  int evictions() const { return evictions_; }
  /// Folders inside the cache that were found and not used: another user's, writable by others, or not readable (or listable).
  int parts_refused() const { return parts_refused_; }

  /// One file of the cache, verified.
  struct entry {
    std::string path, key, fault;  // fault: why it would be a miss; empty for a good entry
    bool is_unreadable = false;    // at the moment: nobody knows whether it is good
    compiled_kernel kernel;
    std::uint64_t bytes = 0;
    std::int64_t used_ns = 0;  // of the last use, since 1970
  };
  /// Calls `visit` for every entry, in the order of their names. Reads each whole file.
  void for_each(const std::function<void(const entry&)>& visit);
  /// Removes the least recently used files until at most `limit_bytes` are left, and what killed writers left behind.
  ///
  /// returns  the bytes that are left
  std::uint64_t prune(std::uint64_t limit_bytes);

 private:
  struct bytes_read {
    std::string text;
    std::string fault;
    bool is_absent = false, is_unreadable = false;
    std::uint64_t size_bytes = 0;
    std::int64_t used_ns = 0;
  };
  detail::descriptor open_folder(bool make_it);
  detail::descriptor open_part(const detail::descriptor& folder, const std::string& name, bool make_it);
  bytes_read read_entry(const detail::descriptor& part, const std::string& name, bool mark_used);
  int write_entry(const detail::descriptor& part, const std::string& name, std::string_view bytes);
  bool store_file(const std::string& part, const std::string& name, std::string_view bytes);
  void make_room(std::uint64_t stored_bytes);
  void warn_once(const std::string& reason, bool is_of_all = true);
  void close(detail::descriptor file);
  bool is_owner_trusted(unsigned owner) const;

  std::string folder_;
  disk_cache_options options_;
  std::atomic<mode> access_;
  std::atomic<unsigned> folder_owner_{unsigned(-1)};
  detail::file_calls& calls_;
  std::atomic<bool> warned_{false};
  std::atomic<int> refused_{0}, store_failures_{0}, evictions_{0}, parts_refused_{0};
  std::atomic<std::uint64_t> stored_bytes_{0};  // since the last look at the whole folder
  std::atomic<bool> has_looked_{false};
};

namespace detail {

/// Where the cache lives and how it is used, from the environment; `reason` says why there is none.
struct cache_setting {
  std::string folder;
  disk_cache::mode access = disk_cache::mode::read_write;
  std::string reason;
  disk_cache_options options = {};
};
cache_setting find_cache_setting();

/// 32 hex digits of a 128-bit hash.
std::string hash_key(std::string_view key);

/// A key is made of parts: each its length, a colon, its text and a line's end. Gives the first ones, or fewer if it is no such key.
std::vector<std::string_view> key_parts(std::string_view key, std::size_t count);

}  // namespace detail
}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/jit/cache_impl.hpp>
#endif
