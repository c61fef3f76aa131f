// samite/io/file.hpp: files, with every result checked: whole reads, reads at a place, mappings, and writes that are all or nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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
  ~descriptor();
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

/// What errno's number means.
std::string errno_text(int number);

}  // namespace detail

/// A regular file open for reading at any place.
///
/// errors   E-FILE-OPEN if it can't be opened or is not a regular file; E-FILE-READ on a failed or short read. Both name the path
/// threads  read_at may be called from several threads
class file_reader {
 public:
  explicit file_reader(const std::string& path);

  const std::string& path() const { return path_; }
  /// Length when opened.
  std::uint64_t bytes() const { return bytes_; }
  int descriptor() const { return file_.get(); }

  /// Reads exactly `bytes` bytes from `offset`.
  void read_at(std::uint64_t offset, void* to, std::size_t bytes) const;

 private:
  std::string path_;
  detail::descriptor file_;
  std::uint64_t bytes_ = 0;
};

/// The whole file. Raises E-FILE-READ if it is longer than `limit_bytes`, before anything is allocated.
std::string read_file(const std::string& path, std::uint64_t limit_bytes = std::uint64_t(1) << 32);

/// Whether anything of that name is there.
bool file_exists(const std::string& path);

/// Removes a file, and what killed writers of it left; one that is not there is fine. Raises E-FILE-WRITE.
void remove_file(const std::string& path);

/// A file's bytes as memory, read only. Pages come in when they are touched.
///
/// A file that another process shortens while it is mapped raises SIGBUS at the access: map only files that nobody rewrites in place.
class mapped_file {
 public:
  explicit mapped_file(const std::string& path);
  mapped_file(mapped_file&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  mapped_file& operator=(mapped_file&& other) noexcept {
    std::swap(memory_, other.memory_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~mapped_file();
  std::span<const std::byte> data() const { return {static_cast<const std::byte*>(memory_), bytes_}; }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Writes a file that appears under its name only when it is complete: a temporary file in the same folder, flushed to the disk and
/// renamed by commit(). Without commit(), or after an error, the temporary file is removed and an older file stays as it was.
/// A device or pipe (/dev/stdout) is written directly: a rename would replace it.
/// What a killed writer of the same file left behind is removed by the next one.
///
/// errors  E-FILE-WRITE, naming the path and the cause (a full disk included)
class atomic_file {
 public:
  explicit atomic_file(std::string path);
  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;
  ~atomic_file() { discard(); }

  void write(const void* from, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }

  void commit();

 private:
  void discard() noexcept;
  [[noreturn]] void fail(const char* step, int cause);

  std::string path_, temporary_;
  detail::descriptor file_;
};

/// Writes a whole file, all or nothing (see atomic_file).
void write_file(const std::string& path, std::string_view text);

/// Makes a folder and its parents; one that exists already is fine. Raises E-FILE-WRITE.
void make_folder(const std::string& path);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/io/file_impl.hpp>
#endif
