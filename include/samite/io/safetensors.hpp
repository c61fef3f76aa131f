// samite/io/safetensors.hpp: tensors in safetensors files, single or sharded.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <samite/runtime/tensor.hpp>

namespace samite {

class file_reader;

/// Where a tensor's bytes lie, as the header says.
struct safetensors_entry {
  std::string name;
  std::string type_name;         // as in the file: "BF16", "F8_E4M3" ...
  std::optional<dtype> type;     // nothing if samite can't hold it; BOOL is u8
  extents dims;
  std::uint64_t begin = 0, end = 0;  // bytes from the start of the file
  std::shared_ptr<const file_reader> file;
};

/// Tensors by name, from one file or from all shards of an index.
///
/// Every header is checked in full when opened (lengths, JSON, shapes, no hole and no overlap), so that a damaged or hostile file is
/// refused before anything is allocated for it. Elements are read, not mapped, when asked for: a file that shrinks meanwhile is
/// E-FILE-READ and not a signal.
/// errors   E-SAFETENSORS-HEADER, -ENTRY, -OFFSETS, -INDEX, -NAME, -DTYPE; E-JSON-*; E-FILE-OPEN, E-FILE-READ
/// threads  const and safe to share
/// source   the safetensors format description, version 0.x (8-byte length, JSON header, byte buffer)
class safetensors_file {
 public:
  /// A .safetensors file, an index (*.index.json), or a folder with model.safetensors.index.json or model.safetensors.
  static safetensors_file open(const std::string& path);

  /// Sorted.
  std::vector<std::string> names() const;
  /// The entry, or null.
  const safetensors_entry* find(std::string_view name) const;
  /// Reads one tensor into host memory. Raises E-SAFETENSORS-NAME if it is missing, E-SAFETENSORS-DTYPE if its type isn't served.
  tensor load(std::string_view name) const;
  /// The header's __metadata__; of an index, the first shard's.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::uint64_t total_bytes() const;

 private:
  void add_file(const std::string& path);
  static safetensors_file open_index(const std::string& path);

  std::string path_;
  std::map<std::string, safetensors_entry, std::less<>> entries_;
  std::map<std::string, std::string> metadata_;
};

/// Writes tensors, all or nothing, with the same bytes for the same input on any machine. In the file they lie by falling element
/// size, then name, which keeps every one aligned.
///
/// errors  E-SAFETENSORS-NAME for a name given twice, not UTF-8 or reserved; E-FILE-WRITE
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

namespace detail {

/// Checks a header against the length of the byte buffer behind it; offsets in the result are relative to the buffer.
std::vector<safetensors_entry> parse_safetensors_header(std::string_view header, std::uint64_t buffer_bytes, const std::string& path,
                                                        std::map<std::string, std::string>& metadata);

}  // namespace detail
}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/io/safetensors_impl.hpp>
#endif
