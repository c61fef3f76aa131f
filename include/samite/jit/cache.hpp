// samite/jit/cache.hpp: cubins on disk. A damaged, foreign or unreachable cache costs a compile and never more.
#pragma once
#include <atomic>
#include <optional>
#include <string>
#include <string_view>

#include <samite/jit/kernel_source.hpp>

namespace samite {

/// One folder of entries, one file each, named by the hash of the key.
///
/// An entry holds the whole key, the cubin, the log, their lengths and a checksum; all are verified before a byte is used, and any
/// doubt is a miss. Entries appear by rename, so readers need no lock and a killed writer leaves nothing half-written under a name.
/// Nothing is created before the first store. Folders and entries of other users, and links, are not used.
/// errors   none: what fails is said once on standard error, and the cache is left alone from then on
/// threads  safe, also between processes
class disk_cache {
 public:
  enum class mode { off, read_only, read_write };

  /// `folder` is absolute; an empty one means off.
  disk_cache(std::string folder, mode access);

  /// The process's cache: SAMITE_CACHE_DIR, else $XDG_CACHE_HOME/samite, else ~/.cache/samite; SAMITE_CACHE = off, ro or rw (default).
  static disk_cache& instance();

  std::optional<compiled_kernel> find(std::string_view key);
  void store(std::string_view key, const compiled_kernel& kernel);
  /// Forgets an entry, e.g. after the driver refused it.
  void remove(std::string_view key);

  const std::string& folder() const { return folder_; }
  /// A folder inside the cache, made if needed; empty if the cache can't be written.
  std::string writable_folder(const std::string& name);
  /// Entries found damaged or not ours, and stores that failed, since the start.
  int refused() const { return refused_; }
  int store_failures() const { return store_failures_; }

 private:
  std::string entry_path(std::string_view key) const;
  bool is_trusted();
  void warn_once(const std::string& reason);

  std::string folder_;
  std::atomic<mode> access_;
  bool follow_link_ = false;
  std::atomic<bool> warned_{false};
  std::atomic<int> refused_{0}, store_failures_{0};
};

namespace detail {

/// Where the cache lives and how it is used, from the environment; `reason` says why there is none.
struct cache_setting {
  std::string folder;
  disk_cache::mode access = disk_cache::mode::read_write;
  std::string reason;
};
cache_setting find_cache_setting();

/// 32 hex digits of a 128-bit hash.
std::string hash_key(std::string_view key);

}  // namespace detail
}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/jit/cache_impl.hpp>
#endif
