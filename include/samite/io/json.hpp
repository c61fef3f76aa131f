// samite/io/json.hpp: JSON values, read strictly.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <samite/core/error.hpp>

namespace samite {

/// What a file from outside may ask for before it is refused.
struct json_limits {
  std::size_t bytes = std::size_t(256) << 20;
  std::size_t values = 20000000;  // of any kind, nested ones included
  int depth = 64;
};

/// One JSON value. Objects keep the file's order; looking up a key takes O(log n).
///
/// errors  E-JSON-TYPE when another kind is asked for than is there; E-JSON-KEY for a missing key. Both say what was found
class json_value {
 public:
  using array = std::vector<json_value>;
  using member = std::pair<std::string, json_value>;

  json_value() = default;
  json_value(bool value) : value_(value) {}
  json_value(std::int64_t value) : value_(value) {}
  json_value(int value) : value_(std::int64_t(value)) {}
  json_value(double value) : value_(value) {}
  json_value(std::string value) : value_(std::move(value)) {}
  json_value(const char* value) : value_(std::string(value)) {}
  json_value(array items) : value_(std::move(items)) {}
  /// An object. Raises E-JSON-PARSE if a key is there twice.
  static json_value object(std::vector<member> members);

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_boolean() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_text() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<array>(value_); }
  bool is_object() const { return std::holds_alternative<object_data>(value_); }

  bool as_boolean() const { return get<bool>("true or false"); }
  /// A whole number that fits 64 bits; 1.0 is none.
  std::int64_t as_integer() const { return get<std::int64_t>("a whole number"); }
  double as_number() const { return is_integer() ? double(as_integer()) : get<double>("a number"); }
  const std::string& as_text() const { return get<std::string>("a text"); }
  const array& items() const { return get<array>("an array"); }
  const std::vector<member>& members() const { return get<object_data>("an object").members; }

  /// The key's value, or null if there is none.
  const json_value* find(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  const json_value& at(std::string_view key) const;

  // Fields of an object, checked; the messages name the key. With a default, a missing key and null give it.
  std::int64_t integer(std::string_view key, std::optional<std::int64_t> otherwise = {}) const {
    return field<std::int64_t>(key, otherwise, [](const json_value& v) { return v.as_integer(); });
  }
  double number(std::string_view key, std::optional<double> otherwise = {}) const {
    return field<double>(key, otherwise, [](const json_value& v) { return v.as_number(); });
  }
  bool boolean(std::string_view key, std::optional<bool> otherwise = {}) const {
    return field<bool>(key, otherwise, [](const json_value& v) { return v.as_boolean(); });
  }
  std::string text(std::string_view key, std::optional<std::string> otherwise = {}) const {
    return field<std::string>(key, otherwise, [](const json_value& v) { return v.as_text(); });
  }

  /// What it is, for messages: `text "abc"`, `array of 3`.
  std::string describe() const;

 private:
  struct object_data {
    std::vector<member> members;
    std::vector<std::uint32_t> by_key;  // places of the members, sorted by key
  };

  template <class T>
  const T& get(const char* expected) const {
    if (const T* value = std::get_if<T>(&value_)) return *value;
    raise("E-JSON-TYPE", "JSON: expected ", expected, ", found ", describe());
  }
  template <class T, class Read>
  T field(std::string_view key, const std::optional<T>& otherwise, Read read) const {
    const json_value* found = find(key);
    if (otherwise && (found == nullptr || found->is_null())) return *otherwise;
    const json_value& value = at(key);
    try {
      return read(value);
    } catch (const error& e) {
      raise("E-JSON-TYPE", "JSON key \"", key, "\": ", e.what());
    }
  }

  std::variant<std::monostate, bool, std::int64_t, double, std::string, array, object_data> value_;
};

/// Reads JSON as RFC 8259 has it: no comments, no trailing commas or text, valid UTF-8, finite numbers; and no key twice.
///
/// name    said in errors, e.g. the path
/// errors  E-JSON-PARSE with the name and the byte; E-JSON-LIMIT beyond the limits
json_value parse_json(std::string_view text, const std::string& name, const json_limits& limits = {});

/// Reads a file. Errors as parse_json and read_file.
json_value read_json(const std::string& path, const json_limits& limits = {});

/// The text in quotes, with escapes.
std::string json_quoted(std::string_view text);

/// Compact JSON text of a value. Numbers that are not finite become null.
std::string to_json(const json_value& value);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/io/json_impl.hpp>
#endif
