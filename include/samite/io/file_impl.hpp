// samite/io/file_impl.hpp: the system calls behind io/file.hpp.
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include <samite/io/file.hpp>

namespace samite {

SAMITE_IMPL detail::descriptor::~descriptor() {
  if (number_ >= 0) ::close(number_);
}

SAMITE_IMPL std::string detail::errno_text(int number) { return std::generic_category().message(number); }

SAMITE_IMPL file_reader::file_reader(const std::string& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (file_.get() < 0) {
    const int cause = errno;
    raise("E-FILE-OPEN", "opening \"", path, "\" for reading: ", detail::errno_text(cause),
          cause == ENOENT || cause == ENOTDIR ? "; check the path, and that the file was downloaded or written there"
          : cause == EACCES                   ? "; allow this user to read the file and to enter its folders"
          : cause == EMFILE || cause == ENFILE ? "; close other files or raise the limit (ulimit -n)"
                                              : "; give the path of a file that can be read");
  }
  struct stat info;
  if (::fstat(file_.get(), &info) != 0) raise("E-FILE-OPEN", "\"", path, "\": ", detail::errno_text(errno), "; give the path of a file that can be read");
  if (!S_ISREG(info.st_mode)) raise("E-FILE-OPEN", "\"", path, "\" is not a regular file; give the path of a file");
  bytes_ = std::uint64_t(info.st_size);
}

SAMITE_IMPL void file_reader::read_at(std::uint64_t offset, void* to, std::size_t bytes) const {
  char* out = static_cast<char*>(to);
  while (bytes > 0) {
    const std::size_t part = bytes < (std::size_t(1) << 30) ? bytes : std::size_t(1) << 30;
    const ssize_t got = ::pread(file_.get(), out, part, off_t(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) raise("E-FILE-READ", "reading \"", path_, "\" at byte ", offset, ": ", detail::errno_text(errno));
    if (got == 0)
      raise("E-FILE-READ", "reading \"", path_, "\": it ends at byte ", offset, ", ", bytes, " bytes early; was it cut while being copied?");
    out += got, offset += std::uint64_t(got), bytes -= std::size_t(got);
  }
}

SAMITE_IMPL std::string read_file(const std::string& path, std::uint64_t limit_bytes) {
  const file_reader file(path);
  if (file.bytes() > limit_bytes)
    raise("E-FILE-READ", "\"", path, "\" has ", file.bytes(), " bytes, but at most ", limit_bytes, " are expected of such a file");
  std::string text(std::size_t(file.bytes()), '\0');
  file.read_at(0, text.data(), text.size());
  return text;
}

SAMITE_IMPL bool file_exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

namespace detail {

inline std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

/// Whether `name` is `base`.tmp-<process>-<number>, what an atomic_file writes.
inline bool is_temporary_name(std::string_view name, std::string_view base) {
  constexpr std::string_view mark = ".tmp-";
  if (!name.starts_with(base) || !name.substr(base.size()).starts_with(mark)) return false;
  const std::string_view numbers = name.substr(base.size() + mark.size());
  const std::size_t dash = numbers.find('-');
  return dash != std::string_view::npos && dash > 0 && dash + 1 < numbers.size() && numbers.find_first_not_of("0123456789-") == std::string_view::npos && numbers.find('-', dash + 1) == std::string_view::npos;
}

/// Removes the temporary files of `path` whose writers were killed. A writer holds a lock on its file while it lives: a process number
/// alone says nothing about a process of another container or machine that writes into the same folder. What can't be locked or removed stays.
inline void remove_leftovers(const std::string& path) noexcept {
  try {
    const std::string folder = folder_of(path), base = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
    std::vector<std::string> found;
    if (entries != nullptr)
      while (const dirent* entry = ::readdir(entries.get()))
        if (is_temporary_name(entry->d_name, base)) found.push_back(folder + "/" + entry->d_name);
    for (const std::string& name : found) {
      const descriptor file(::open(name.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
      struct stat info;
      if (file.get() < 0 || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
      if (::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink > 0) ::unlink(name.c_str());
    }
  } catch (const std::exception&) {  // they cost room on the disk, and no work
  }
}

}  // namespace detail

SAMITE_IMPL void remove_file(const std::string& path) {
  detail::remove_leftovers(path);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) raise("E-FILE-WRITE", "removing \"", path, "\": ", detail::errno_text(errno));
}

SAMITE_IMPL mapped_file::mapped_file(const std::string& path) {
  const file_reader file(path);
  bytes_ = std::size_t(file.bytes());
  if (bytes_ == 0) return;
  memory_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (memory_ == MAP_FAILED) {
    memory_ = nullptr;
    raise("E-FILE-READ", "mapping \"", path, "\" (", bytes_, " bytes): ", detail::errno_text(errno));
  }
}

SAMITE_IMPL mapped_file::~mapped_file() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

SAMITE_IMPL atomic_file::atomic_file(std::string path) : path_(std::move(path)) {
  struct stat there;
  if (::stat(path_.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode)) {
    file_ = detail::descriptor(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    if (file_.get() < 0) fail("opening", errno);
    return;
  }
  static std::atomic<unsigned> serial{0};
  // Left over names of a dead process with our number are passed over, never opened.
  for (int attempt = 0; attempt < 100 && file_.get() < 0; ++attempt) {
    temporary_ = concat_text(path_, ".tmp-", ::getpid(), "-", serial.fetch_add(1));
    file_ = detail::descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (file_.get() < 0 && errno != EEXIST) break;
    if (file_.get() < 0) continue;
    // Says that its writer lives. Where there are no locks nobody gets one, and nothing is removed.
    const bool is_held_by_another = ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat info;
    if (is_held_by_another || (::fstat(file_.get(), &info) == 0 && info.st_nlink == 0)) file_ = detail::descriptor();  // taken for a leftover before it was locked
  }
  if (file_.get() < 0) {
    const int cause = errno;
    temporary_.clear();
    fail("creating a temporary file beside it", cause);
  }
  detail::remove_leftovers(path_);
}

SAMITE_IMPL void atomic_file::write(const void* from, std::size_t bytes) {
  const char* in = static_cast<const char*>(from);
  while (bytes > 0) {
    const std::size_t part = bytes < (std::size_t(1) << 30) ? bytes : std::size_t(1) << 30;
    const ssize_t done = ::write(file_.get(), in, part);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail("writing", done < 0 ? errno : ENOSPC);
    in += done, bytes -= std::size_t(done);
  }
}

SAMITE_IMPL void atomic_file::commit() {
  const bool direct = temporary_.empty();
  if (!direct && ::fsync(file_.get()) != 0) fail("flushing to the disk", errno);
  if (::close(file_.release()) != 0) fail("closing", errno);  // network file systems report a full quota here
  if (direct) return;
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("renaming the temporary file", errno);
  temporary_.clear();
  // The name itself lasts through a power loss only when its folder is flushed too. Some file systems can't; the file stands.
  const detail::descriptor directory(::open(detail::folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) ::fsync(directory.get());
}

SAMITE_IMPL void atomic_file::discard() noexcept {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

SAMITE_IMPL void atomic_file::fail(const char* step, int cause) {
  discard();
  raise("E-FILE-WRITE", "writing \"", path_, "\": ", step, ": ", detail::errno_text(cause), "; what stood there before is unchanged");
}

SAMITE_IMPL void write_file(const std::string& path, std::string_view text) {
  atomic_file file(path);
  file.write(text);
  file.commit();
}

SAMITE_IMPL void make_folder(const std::string& path) {
  for (std::size_t at = 0; at <= path.size(); ++at) {
    if (at != path.size() && (path[at] != '/' || at == 0)) continue;
    const std::string part = path.substr(0, at);
    if (::mkdir(part.c_str(), 0777) == 0 || errno == EEXIST || errno == EISDIR) continue;
    raise("E-FILE-WRITE", "making folder \"", path, "\": \"", part, "\": ", detail::errno_text(errno), "; choose a place that can be written");
  }
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode))
    raise("E-FILE-WRITE", "making folder \"", path, "\": there is a file of that name; choose another place");
}

}  // namespace samite
