// samite/io/file.hpp: files, with every result checked: whole reads, reads at a place, mappings, and writes that are all or nothing.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <samite/core/error.hpp>

namespace samite {

namespace detail {

/// An open file descriptor.
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int number) : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

inline std::string errno_text(int number) { return std::generic_category().message(number); }

}  // namespace detail

/// A regular file open for reading at any place.
///
/// errors   E-FILE-OPEN if it can't be opened or is not a regular file; E-FILE-READ on a failed or short read. Both name the path
/// threads  read_at may be called from several threads
class file_reader {
 public:
  explicit file_reader(const std::string& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (file_.get() < 0) raise("E-FILE-OPEN", "opening \"", path, "\" for reading: ", detail::errno_text(errno));
    struct stat info;
    if (::fstat(file_.get(), &info) != 0) raise("E-FILE-OPEN", "\"", path, "\": ", detail::errno_text(errno));
    if (!S_ISREG(info.st_mode)) raise("E-FILE-OPEN", "\"", path, "\" is not a regular file; give the path of a file");
    bytes_ = std::uint64_t(info.st_size);
  }

  const std::string& path() const { return path_; }
  /// Length when opened.
  std::uint64_t bytes() const { return bytes_; }
  int descriptor() const { return file_.get(); }

  /// Reads exactly `bytes` bytes from `offset`.
  void read_at(std::uint64_t offset, void* to, std::size_t bytes) const {
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

 private:
  std::string path_;
  detail::descriptor file_;
  std::uint64_t bytes_ = 0;
};

/// The whole file. Raises E-FILE-READ if it is longer than `limit_bytes`, before anything is allocated.
inline std::string read_file(const std::string& path, std::uint64_t limit_bytes = std::uint64_t(1) << 32) {
  const file_reader file(path);
  if (file.bytes() > limit_bytes)
    raise("E-FILE-READ", "\"", path, "\" has ", file.bytes(), " bytes, but at most ", limit_bytes, " are expected of such a file");
  std::string text(std::size_t(file.bytes()), '\0');
  file.read_at(0, text.data(), text.size());
  return text;
}

/// A file's bytes as memory, read only. Pages come in when they are touched.
///
/// A file that another process shortens while it is mapped raises SIGBUS at the access: map only files that nobody rewrites in place.
class mapped_file {
 public:
  explicit mapped_file(const std::string& path) {
    const file_reader file(path);
    bytes_ = std::size_t(file.bytes());
    if (bytes_ == 0) return;
    memory_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (memory_ == MAP_FAILED) {
      memory_ = nullptr;
      raise("E-FILE-READ", "mapping \"", path, "\" (", bytes_, " bytes): ", detail::errno_text(errno));
    }
  }
  mapped_file(mapped_file&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  mapped_file& operator=(mapped_file&& other) noexcept {
    std::swap(memory_, other.memory_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~mapped_file() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }
  std::span<const std::byte> data() const { return {static_cast<const std::byte*>(memory_), bytes_}; }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Writes a file that appears under its name only when it is complete: a temporary file in the same folder, flushed to the disk and
/// renamed by commit(). Without commit(), or after an error, the temporary file is removed and an older file stays as it was.
///
/// errors  E-FILE-WRITE, naming the path and the cause (a full disk included)
class atomic_file {
 public:
  explicit atomic_file(std::string path) : path_(std::move(path)) {
    static std::atomic<unsigned> serial{0};
    // Left over names of a dead process with our number are passed over, never opened.
    for (int attempt = 0; attempt < 100 && file_.get() < 0; ++attempt) {
      temporary_ = concat_text(path_, ".tmp-", ::getpid(), "-", serial.fetch_add(1));
      file_ = detail::descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
      if (file_.get() < 0 && errno != EEXIST) break;
    }
    if (file_.get() < 0) {
      const int cause = errno;
      temporary_.clear();
      fail("creating a temporary file beside it", cause);
    }
  }
  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;
  ~atomic_file() { discard(); }

  void write(const void* from, std::size_t bytes) {
    const char* in = static_cast<const char*>(from);
    while (bytes > 0) {
      const std::size_t part = bytes < (std::size_t(1) << 30) ? bytes : std::size_t(1) << 30;
      const ssize_t done = ::write(file_.get(), in, part);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail("writing", done < 0 ? errno : ENOSPC);
      in += done, bytes -= std::size_t(done);
    }
  }
  void write(std::string_view text) { write(text.data(), text.size()); }

  void commit() {
    if (::fsync(file_.get()) != 0) fail("flushing to the disk", errno);
    if (::close(file_.release()) != 0) fail("closing", errno);  // network file systems report a full quota here
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("renaming the temporary file", errno);
    temporary_.clear();
    // The name itself lasts through a power loss only when its folder is flushed too. Some file systems can't; the file stands.
    const std::size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
    const detail::descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory.get() >= 0) ::fsync(directory.get());
  }

 private:
  void discard() noexcept {
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    temporary_.clear();
  }
  [[noreturn]] void fail(const char* step, int cause) {
    discard();
    raise("E-FILE-WRITE", "writing \"", path_, "\": ", step, ": ", detail::errno_text(cause), "; what stood there before is unchanged");
  }

  std::string path_, temporary_;
  detail::descriptor file_;
};

/// Writes a whole file, all or nothing (see atomic_file).
inline void write_file(const std::string& path, std::string_view text) {
  atomic_file file(path);
  file.write(text);
  file.commit();
}

/// Makes a folder and its parents; one that exists already is fine. Raises E-FILE-WRITE.
inline void make_folder(const std::string& path) {
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
