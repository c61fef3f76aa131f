// samite/io/safetensors_impl.hpp: the rules behind io/safetensors.hpp.
#pragma once
#include <sys/stat.h>

#include <algorithm>

#include <samite/core/say.hpp>
#include <samite/io/file.hpp>
#include <samite/io/json.hpp>
#include <samite/io/safetensors.hpp>

namespace samite {
namespace detail {

struct safetensors_type {
  std::string_view name;
  unsigned bits;
  std::optional<dtype> type;
};

inline const safetensors_type* find_safetensors_type(std::string_view name) {
  static constexpr safetensors_type types[] = {
      {"F64", 64, dtype::f64},   {"F32", 32, dtype::f32}, {"BF16", 16, dtype::bf16}, {"F16", 16, dtype::f16},
      {"I64", 64, dtype::i64},   {"I32", 32, dtype::i32}, {"U8", 8, dtype::u8},      {"BOOL", 8, dtype::u8},
      {"I8", 8, {}},             {"I16", 16, {}},         {"U16", 16, {}},           {"U32", 32, {}},
      {"U64", 64, {}},           {"C64", 64, {}},         {"F8_E5M2", 8, {}},        {"F8_E4M3", 8, {}},
      {"F8_E8M0", 8, {}},        {"F8_E4M3FNUZ", 8, {}},  {"F8_E5M2FNUZ", 8, {}},    {"F4", 4, {}},
      {"F6_E2M3", 6, {}},        {"F6_E3M2", 6, {}},
  };
  for (const safetensors_type& type : types)
    if (type.name == name) return &type;
  return nullptr;
}

inline std::uint64_t non_negative(const json_value& value, const std::string& where, const char* what) {
  if (!value.is_integer() || value.as_integer() < 0)
    raise("E-SAFETENSORS-ENTRY", where, ": ", what, " must be whole numbers of 0 or more, found ", value.describe());
  return std::uint64_t(value.as_integer());
}

inline const json_value& entry_field(const json_value& value, const char* key, const std::string& where) {
  const json_value* found = value.find(key);
  if (found == nullptr) raise("E-SAFETENSORS-ENTRY", where, ": the field \"", key, "\" is missing");
  return *found;
}

inline safetensors_entry parse_safetensors_entry(const std::string& name, const json_value& value, const std::string& path) {
  const std::string where = concat_text("\"", path, "\", tensor ", json_quoted(name));
  if (!value.is_object()) raise("E-SAFETENSORS-ENTRY", where, ": expected an object, found ", value.describe());
  for (const auto& [key, ignored] : value.members())
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      raise("E-SAFETENSORS-ENTRY", where, ": unknown field ", json_quoted(key), "; there are dtype, shape and data_offsets");
  const json_value &type_name = entry_field(value, "dtype", where), &shape = entry_field(value, "shape", where),
                   &offsets = entry_field(value, "data_offsets", where);
  if (!type_name.is_text()) raise("E-SAFETENSORS-ENTRY", where, ": dtype must be a text, found ", type_name.describe());
  if (!shape.is_array()) raise("E-SAFETENSORS-ENTRY", where, ": shape must be an array, found ", shape.describe());
  if (!offsets.is_array() || offsets.items().size() != 2)
    raise("E-SAFETENSORS-ENTRY", where, ": data_offsets must be two numbers, found ", offsets.describe());
  const safetensors_type* type = find_safetensors_type(type_name.as_text());
  if (type == nullptr) raise("E-SAFETENSORS-ENTRY", where, ": unknown dtype ", json_quoted(type_name.as_text()),
                              "; the format has F64, F32, BF16, F16, I64 to I8, U64 to U8, BOOL and narrower floats: write the file again with one of them");

  safetensors_entry entry{name, type_name.as_text(), type->type, {}, non_negative(offsets.items()[0], where, "data_offsets"),
                          non_negative(offsets.items()[1], where, "data_offsets"), nullptr};
  std::uint64_t bits = type->bits;
  bool overflow = false, empty = false;
  for (const json_value& extent : shape.items()) {
    entry.dims.push_back(index_t(non_negative(extent, where, "extents")));
    if (entry.dims.back() == 0)
      empty = true;
    else
      overflow |= __builtin_mul_overflow(bits, std::uint64_t(entry.dims.back()), &bits);
  }
  // Even with a zero extent: the other extents' product is what later code multiplies.
  if (overflow) raise("E-SAFETENSORS-OFFSETS", where, ": shape ", entry.dims, " overflows");
  if (empty) bits = 0;
  if (bits % 8 != 0) raise("E-SAFETENSORS-OFFSETS", where, ": shape ", entry.dims, " of ", type->bits, "-bit elements is no whole number of bytes");
  if (entry.end < entry.begin || entry.end - entry.begin != bits / 8)
    raise("E-SAFETENSORS-OFFSETS", where, ": data_offsets [", entry.begin, ",", entry.end, "] must span the ", bits / 8, " bytes of shape ",
          entry.dims, " ", entry.type_name);
  return entry;
}

SAMITE_IMPL std::vector<safetensors_entry> parse_safetensors_header(std::string_view header, std::uint64_t buffer_bytes,
                                                                    const std::string& path, std::map<std::string, std::string>& metadata) {
  if (header.empty() || header.front() != '{')
    raise("E-SAFETENSORS-HEADER", "\"", path, "\": the header must begin with '{'; this is no safetensors file or it is damaged");
  const json_value root =
      parse_json(header, path + " (safetensors header)", {.bytes = 100000000, .values = 8000000, .depth = 8});
  if (!root.is_object()) raise("E-SAFETENSORS-HEADER", "\"", path, "\": the header must be an object, found ", root.describe());
  std::vector<safetensors_entry> entries;
  entries.reserve(root.members().size());
  for (const auto& [name, value] : root.members()) {
    if (name != "__metadata__") {
      entries.push_back(parse_safetensors_entry(name, value, path));
      continue;
    }
    if (!value.is_object()) raise("E-SAFETENSORS-HEADER", "\"", path, "\": __metadata__ must be an object, found ", value.describe());
    for (const auto& [key, text] : value.members()) {
      if (!text.is_text())
        raise("E-SAFETENSORS-HEADER", "\"", path, "\": __metadata__ ", json_quoted(key), " must be a text, found ", text.describe());
      metadata[key] = text.as_text();
    }
  }
  std::ranges::sort(entries, {}, [](const safetensors_entry& e) { return std::pair(e.begin, e.end); });
  std::uint64_t expected = 0;
  for (const safetensors_entry& entry : entries) {
    if (entry.begin != expected)
      raise("E-SAFETENSORS-OFFSETS", "\"", path, "\", tensor ", json_quoted(entry.name), " begins at byte ", entry.begin,
            " of the buffer, but the bytes before it end at ", expected, ": tensors may neither overlap nor leave holes");
    expected = entry.end;
  }
  if (expected != buffer_bytes)
    raise("E-SAFETENSORS-OFFSETS", "\"", path, "\": the tensors take ", expected, " bytes, but ", buffer_bytes,
          " follow the header; ", expected > buffer_bytes ? "the file was cut, e.g. while being copied: get it anew" : "something was appended to the file: get it anew, or cut it");
  return entries;
}

}  // namespace detail

SAMITE_IMPL void safetensors_file::add_file(const std::string& path) {
  const auto file = std::make_shared<const file_reader>(path);
  unsigned char length[8];
  if (file->bytes() < sizeof length)
    raise("E-SAFETENSORS-HEADER", "\"", path, "\" has ", file->bytes(), " bytes; a safetensors file has at least 8");
  file->read_at(0, length, sizeof length);
  std::uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | length[i];
  if (header_bytes > 100000000 || header_bytes > file->bytes() - 8)
    raise("E-SAFETENSORS-HEADER", "\"", path, "\": the header claims ", header_bytes, " bytes, but ", file->bytes() - 8,
          " follow and 100000000 is the most allowed; this is no safetensors file or it was cut");
  std::string header(std::size_t(header_bytes), '\0');
  file->read_at(8, header.data(), header.size());
  std::map<std::string, std::string> metadata;
  auto entries = detail::parse_safetensors_header(header, file->bytes() - 8 - header_bytes, path, metadata);
  for (safetensors_entry& entry : entries) {
    entry.begin += 8 + header_bytes, entry.end += 8 + header_bytes;
    entry.file = file;
    if (const auto other = entries_.find(entry.name); other != entries_.end())
      raise("E-SAFETENSORS-INDEX", "tensor ", json_quoted(entry.name), " is in \"", other->second.file->path(), "\" and in \"", path, "\"");
    std::string name = entry.name;
    entries_.emplace(std::move(name), std::move(entry));
  }
  metadata_.merge(metadata);
}

SAMITE_IMPL safetensors_file safetensors_file::open_index(const std::string& path) {
  const json_value index = read_json(path);
  const json_value* map = index.is_object() ? index.find("weight_map") : nullptr;
  if (map == nullptr || !map->is_object())
    raise("E-SAFETENSORS-INDEX", "\"", path, "\" must have an object \"weight_map\" from tensor names to file names");
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  std::vector<std::string> files;
  for (const auto& [name, file] : map->members()) {
    const std::string text = file.is_text() ? file.as_text() : "";
    if (text.empty() || text == "." || text == ".." || text.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      raise("E-SAFETENSORS-INDEX", "\"", path, "\", tensor ", json_quoted(name), ": expected the name of a file in the same folder, found ",
            file.describe());
    files.push_back(text);
  }
  std::ranges::sort(files);
  files.erase(std::unique(files.begin(), files.end()), files.end());
  safetensors_file all;
  all.path_ = path;
  for (const std::string& file : files) all.add_file(folder + file);
  std::map<std::string, safetensors_entry, std::less<>> mapped;
  for (const auto& [name, file] : map->members()) {
    const auto found = all.entries_.find(name);
    if (found == all.entries_.end() || found->second.file->path() != folder + file.as_text())
      raise("E-SAFETENSORS-INDEX", "\"", path, "\" says that tensor ", json_quoted(name), " is in ", json_quoted(file.as_text()), ", but ",
            found == all.entries_.end() ? std::string("no file has it") : "it is in \"" + found->second.file->path() + "\"");
    mapped.insert(all.entries_.extract(found));
  }
  all.entries_ = std::move(mapped);
  const json_value* about = index.find("metadata");
  const json_value* total = about != nullptr && about->is_object() ? about->find("total_size") : nullptr;
  if (total != nullptr && (!total->is_integer() || std::uint64_t(total->as_integer()) != all.total_bytes()))
    say(concat_text("\"", path, "\" says total_size ", total->describe(), ", its tensors have ", all.total_bytes(), " bytes; going on"));
  return all;
}

SAMITE_IMPL safetensors_file safetensors_file::open(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    const std::string index = path + "/model.safetensors.index.json";
    return open(file_exists(index) ? index : path + "/model.safetensors");
  }
  if (path.ends_with(".index.json")) return open_index(path);
  safetensors_file file;
  file.path_ = path;
  file.add_file(path);
  return file;
}

SAMITE_IMPL std::vector<std::string> safetensors_file::names() const {
  std::vector<std::string> out;
  out.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) out.push_back(name);
  return out;
}

SAMITE_IMPL const safetensors_entry* safetensors_file::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

SAMITE_IMPL std::uint64_t safetensors_file::total_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [name, entry] : entries_) total += entry.end - entry.begin;
  return total;
}

SAMITE_IMPL tensor safetensors_file::load(std::string_view name) const {
  const safetensors_entry* entry = find(name);
  if (entry == nullptr)
    raise("E-SAFETENSORS-NAME", "\"", path_, "\" has no tensor \"", name, "\"; it has ", entries_.size(), ", the first is ",
          entries_.empty() ? std::string("none") : json_quoted(entries_.begin()->first));
  if (!entry->type)
    raise("E-SAFETENSORS-DTYPE", "\"", path_, "\", tensor \"", name, "\" holds ", entry->type_name,
          " elements; F64, F32, F16, BF16, I64, I32, U8 and BOOL can be loaded: convert the file");
  tensor out(*entry->type, entry->dims);
  entry->file->read_at(entry->begin, out.raw(), out.bytes());
  return out;
}

SAMITE_IMPL void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, tensor>>& tensors,
                                   const std::map<std::string, std::string>& metadata) {
  static constexpr std::string_view type_names[] = {"F64", "F32", "BF16", "F16", "I64", "I32", "U8"};
  std::vector<const std::pair<std::string, tensor>*> order;
  for (const auto& item : tensors) order.push_back(&item);
  std::ranges::sort(order, [](const auto* left, const auto* right) {
    const std::size_t l = size_of(left->second.type()), r = size_of(right->second.type());
    return l != r ? l > r : left->first < right->first;
  });
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, text] : metadata) header += (header.back() == '{' ? "" : ",") + json_quoted(key) + ":" + json_quoted(text);
    header += "}";
  }
  std::uint64_t offset = 0;
  for (const auto* item : order) {
    const tensor& t = item->second;
    if (item->first == "__metadata__") raise("E-SAFETENSORS-NAME", "\"", path, "\": a tensor can't be named __metadata__");
    header += header.size() == 1 ? "" : ",";
    header += concat_text(json_quoted(item->first), ":{\"dtype\":\"", type_names[std::size_t(t.type())], "\",\"shape\":", t.dims(),
                          ",\"data_offsets\":[", offset, ",", offset + t.bytes(), "]}");
    offset += t.bytes();
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::map<std::string, std::string> read_back;
  try {
    detail::parse_safetensors_header(header, offset, path, read_back);
  } catch (const error& e) {  // all that can be wrong here comes from the names: given twice, or not UTF-8
    raise("E-SAFETENSORS-NAME", "writing \"", path, "\": the names don't make a valid header: ", e.what());
  }
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(std::uint64_t(header.size()) >> (8 * i));
  atomic_file file(path);
  file.write(length, sizeof length);
  file.write(header);
  for (const auto* item : order) {
    const tensor host = item->second.to_host();
    file.write(host.raw(), host.bytes());
  }
  file.commit();
}

}  // namespace samite
