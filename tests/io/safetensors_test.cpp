#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <samite/core/random.hpp>
#include <samite/io/file.hpp>
#include <samite/io/safetensors.hpp>

#include "support/temporary_folder.hpp"

using namespace samite;
using samite_tests::temporary_folder;

namespace {

std::string with_length(const std::string& header, const std::string& buffer = "") {
  std::string out;
  for (int i = 0; i < 8; ++i) out += char(header.size() >> (8 * i) & 255);
  return out + header + buffer;
}

// The code of the error that opening a file with these bytes gives, or "" if it opens and every tensor loads.
std::string refusal(const temporary_folder& folder, const std::string& bytes) {
  write_file(folder / "t.safetensors", bytes);
  try {
    const auto file = safetensors_file::open(folder / "t.safetensors");
    for (const std::string& name : file.names())
      if (file.find(name)->type) file.load(name);
    return "";
  } catch (const samite::error& e) {
    return e.code();
  }
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

}  // namespace

TEST_CASE("tensors of every dtype are written and read back, scalars and empty ones included") {
  const temporary_folder folder;
  std::vector<std::pair<std::string, tensor>> tensors;
  for (const dtype type : {u8, f64, bf16, f32, i64, f16, i32}) {
    tensor t(type, {3, 5});
    for (std::size_t i = 0; i < t.bytes(); ++i) t.raw()[i] = std::byte(i * 7 + std::size_t(type));
    tensors.emplace_back(std::string("layer.") + name_of(type), t);
  }
  tensors.emplace_back("scalar", tensor::from(extents{}, std::vector<float>{2.5f}));
  tensors.emplace_back("empty", tensor(f32, {0, 4}));
  write_safetensors(folder / "a.safetensors", tensors, {{"format", "pt"}});
  const auto file = safetensors_file::open(folder / "a.safetensors");
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.names().size() == tensors.size());
  for (const auto& [name, t] : tensors) {
    const tensor read = file.load(name);
    CHECK(read.type() == t.type());
    CHECK(read.dims() == t.dims());
    CHECK(std::memcmp(read.raw(), t.raw(), t.bytes()) == 0);
    CHECK((file.find(name)->begin % size_of(t.type())) == 0);
  }
  CHECK(file.total_bytes() == 15 * (1 + 8 + 2 + 4 + 8 + 2 + 4) + 4);
}

TEST_CASE("the same tensors give the same bytes in whatever order they are given") {
  const temporary_folder folder;
  const tensor x = tensor::from({2}, std::vector<float>{1, 2}), y = tensor::from({1}, std::vector<index_t>{3});
  write_safetensors(folder / "a", {{"x", x}, {"y", y}});
  write_safetensors(folder / "b", {{"y", y}, {"x", x}});
  CHECK(read_file(folder / "a") == read_file(folder / "b"));
}

TEST_CASE("names given twice, reserved or not UTF-8 are E-SAFETENSORS-NAME, and nothing is written") {
  const temporary_folder folder;
  const tensor x(f32, {1});
  CHECK_THROWS_WITH_AS(write_safetensors(folder / "a", {{"x", x}, {"x", x}}), doctest::Contains("E-SAFETENSORS-NAME"), samite::error);
  CHECK_THROWS_WITH_AS(write_safetensors(folder / "a", {{"__metadata__", x}}), doctest::Contains("E-SAFETENSORS-NAME"), samite::error);
  CHECK_THROWS_WITH_AS(write_safetensors(folder / "a", {{"\xff", x}}), doctest::Contains("E-SAFETENSORS-NAME"), samite::error);
  CHECK(folder.entry_count() == 0);
}

TEST_CASE("a missing tensor and an unserved element type say so by name") {
  const temporary_folder folder;
  write_file(folder / "a", with_length("{" + entry("w", "F8_E4M3", "[2]", "[0,2]") + "}", "ab"));
  const auto file = safetensors_file::open(folder / "a");
  CHECK_THROWS_WITH_AS(file.load("v"), doctest::Contains("no tensor \"v\"; it has 1, the first is \"w\""), samite::error);
  CHECK_THROWS_WITH_AS(file.load("w"), doctest::Contains("F8_E4M3"), samite::error);
  CHECK_THROWS_WITH_AS(file.load("w"), doctest::Contains("E-SAFETENSORS-DTYPE"), samite::error);
}

TEST_CASE("what readers must accept: trailing spaces, no tensors, any order, unaligned data, BOOL, sub-byte types") {
  const temporary_folder folder;
  CHECK(refusal(folder, with_length("{}")) == "");
  CHECK(refusal(folder, with_length("{}   ")) == "");
  CHECK(refusal(folder, with_length("{" + entry("b", "F32", "[1]", "[1,5]") + "," + entry("a", "BOOL", "[1]", "[0,1]") + "}", "12345")) == "");
  CHECK(refusal(folder, with_length("{" + entry("a", "F4", "[4]", "[0,2]") + "}", "12")) == "");
  CHECK(refusal(folder, with_length("{" + entry("a", "F32", "[0]", "[0,0]") + "," + entry("b", "F32", "[0,7]", "[0,0]") + "}")) == "");
  CHECK(refusal(folder, with_length("{\"__metadata__\":{\"a\":\"b\"}}")) == "");
}

TEST_CASE("lengths and headers that are wrong are E-SAFETENSORS-HEADER or E-JSON-PARSE") {
  const temporary_folder folder;
  CHECK(refusal(folder, "") == "E-SAFETENSORS-HEADER");
  CHECK(refusal(folder, "1234567") == "E-SAFETENSORS-HEADER");
  CHECK(refusal(folder, std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)) == "E-SAFETENSORS-HEADER");
  CHECK(refusal(folder, std::string("\x03\0\0\0\0\0\0\0{}", 10)) == "E-SAFETENSORS-HEADER");
  CHECK(refusal(folder, with_length("")) == "E-SAFETENSORS-HEADER");
  CHECK(refusal(folder, with_length(" {}")) == "E-SAFETENSORS-HEADER");
  CHECK(refusal(folder, with_length("[]")) == "E-SAFETENSORS-HEADER");
  CHECK(refusal(folder, with_length("{\"__metadata__\":[]}")) == "E-SAFETENSORS-HEADER");
  CHECK(refusal(folder, with_length("{\"__metadata__\":{\"a\":1}}")) == "E-SAFETENSORS-HEADER");
  CHECK(refusal(folder, with_length("{\"a\":}")) == "E-JSON-PARSE");
  CHECK(refusal(folder, with_length("{\"\xff\":1}")) == "E-JSON-PARSE");
  CHECK(refusal(folder, with_length("{}x")) == "E-JSON-PARSE");
  CHECK(refusal(folder, with_length("{" + std::string(50000, '[') + "}")) != "");
  const std::string twice = entry("a", "U8", "[1]", "[0,1]");
  CHECK(refusal(folder, with_length("{" + twice + "," + twice + "}", "1")) == "E-JSON-PARSE");
}

TEST_CASE("entries that are wrong are E-SAFETENSORS-ENTRY") {
  const temporary_folder folder;
  for (const char* text : {
           R"({"a":1})", R"({"a":{}})", R"({"a":{"dtype":"U8","shape":[1]}})", R"({"a":{"dtype":"U9","shape":[1],"data_offsets":[0,1]}})",
           R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})",
           R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})",
           R"({"a":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}})", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})",
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":["0","1"]}})", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})",
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551615]}})",
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}})"}) {
    CAPTURE(text);
    CHECK(refusal(folder, with_length(text, "1")) == "E-SAFETENSORS-ENTRY");
  }
}

TEST_CASE("holes, overlaps, wrong sizes and overflowing shapes are E-SAFETENSORS-OFFSETS") {
  const temporary_folder folder;
  const auto code = [&](const std::string& header, const std::string& buffer) { return refusal(folder, with_length("{" + header + "}", buffer)); };
  CHECK(code(entry("a", "U8", "[1]", "[1,2]"), "12") == "E-SAFETENSORS-OFFSETS");                                          // starts late
  CHECK(code(entry("a", "U8", "[1]", "[0,1]") + "," + entry("b", "U8", "[1]", "[2,3]"), "123") == "E-SAFETENSORS-OFFSETS");  // hole
  CHECK(code(entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[2]", "[1,3]"), "123") == "E-SAFETENSORS-OFFSETS");  // overlap
  CHECK(code(entry("a", "U8", "[1]", "[0,1]"), "12") == "E-SAFETENSORS-OFFSETS");                                          // bytes left
  CHECK(code(entry("a", "U8", "[2]", "[0,2]"), "1") == "E-SAFETENSORS-OFFSETS");                                           // cut
  CHECK(code(entry("a", "U8", "[2]", "[2,0]"), "12") == "E-SAFETENSORS-OFFSETS");
  CHECK(code(entry("a", "F32", "[2]", "[0,2]"), "12") == "E-SAFETENSORS-OFFSETS");
  CHECK(code(entry("a", "F4", "[3]", "[0,2]"), "12") == "E-SAFETENSORS-OFFSETS");
  CHECK(code(entry("a", "F32", "[4294967296,4294967296]", "[0,0]"), "") == "E-SAFETENSORS-OFFSETS");
  CHECK(code(entry("a", "F32", "[4294967296,4294967296,0]", "[0,0]"), "") == "E-SAFETENSORS-OFFSETS");
  CHECK(code(entry("a", "U8", "[9223372036854775807,2,8]", "[0,0]"), "") == "E-SAFETENSORS-OFFSETS");
}

TEST_CASE("a sharded model is read through its index, from the folder or the index's path") {
  const temporary_folder folder;
  write_safetensors(folder / "model-00001-of-00002.safetensors", {{"a", tensor::from({1}, std::vector<float>{1})}});
  write_safetensors(folder / "model-00002-of-00002.safetensors", {{"b", tensor::from({1}, std::vector<float>{2})}});
  write_file(folder / "model.safetensors.index.json",
             R"({"metadata":{"total_size":8},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
  for (const std::string& path : {folder.path(), folder / "model.safetensors.index.json"}) {
    const auto file = safetensors_file::open(path);
    CHECK(file.names() == std::vector<std::string>{"a", "b"});
    CHECK(file.load("b").data<float>()[0] == 2);
  }
}

TEST_CASE("a folder without an index is read as model.safetensors") {
  const temporary_folder folder;
  write_safetensors(folder / "model.safetensors", {{"a", tensor(f32, {1})}});
  CHECK(safetensors_file::open(folder.path()).names().size() == 1);
}

TEST_CASE("an index with paths, missing files, missing or doubled tensors is refused") {
  const temporary_folder folder;
  write_safetensors(folder / "1", {{"a", tensor(f32, {1})}});
  write_safetensors(folder / "2", {{"a", tensor(f32, {1})}, {"b", tensor(f32, {1})}});
  const auto code = [&](const std::string& text) {
    write_file(folder / "x.index.json", text);
    try {
      safetensors_file::open(folder / "x.index.json");
      return std::string();
    } catch (const samite::error& e) {
      return e.code();
    }
  };
  CHECK(code(R"({"weight_map":{"a":"1"}})") == "");
  CHECK(code(R"({})") == "E-SAFETENSORS-INDEX");
  CHECK(code(R"([])") == "E-SAFETENSORS-INDEX");
  CHECK(code(R"({"weight_map":[]})") == "E-SAFETENSORS-INDEX");
  CHECK(code(R"({"weight_map":{"a":1}})") == "E-SAFETENSORS-INDEX");
  for (const char* name : {"../1", "/etc/passwd", "..", ".", "", "sub/1", "1\\u0000"})
    CHECK(code(std::string(R"({"weight_map":{"a":")") + name + "\"}}") == "E-SAFETENSORS-INDEX");
  CHECK(code(R"({"weight_map":{"c":"1"}})") == "E-SAFETENSORS-INDEX");
  CHECK(code(R"({"weight_map":{"a":"1","b":"2"}})") == "E-SAFETENSORS-INDEX");
  CHECK(code(R"({"weight_map":{"a":"none"}})") == "E-FILE-OPEN");
  CHECK(code(R"({"weight_map":{"a":"1","a":"1"}})") == "E-JSON-PARSE");
}

TEST_CASE("a valid file cut at any byte is refused, and with any bit flipped is read or refused, never worse") {
  const temporary_folder folder;
  write_safetensors(folder / "v", {{"weight", tensor::from({2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6})}, {"ids", tensor(i64, {2})}},
                    {{"format", "pt"}});
  const std::string valid = read_file(folder / "v");
  for (std::size_t length = 0; length < valid.size(); ++length) {
    const std::string code = refusal(folder, valid.substr(0, length));
    CHECK((code.starts_with("E-SAFETENSORS-") || code.starts_with("E-JSON-")));
  }
  int read = 0, refused = 0;
  for (std::size_t byte = 0; byte < valid.size(); ++byte)
    for (int bit = 0; bit < 8; ++bit) {
      std::string text = valid;
      text[byte] = char(text[byte] ^ (1 << bit));
      const std::string code = refusal(folder, text);
      (code.empty() ? read : refused) += 1;
      CHECK((code.empty() || code.starts_with("E-SAFETENSORS-") || code.starts_with("E-JSON-")));
    }
  CHECK(read > 0);  // in tensor bytes and names
  CHECK(refused > 0);
}
