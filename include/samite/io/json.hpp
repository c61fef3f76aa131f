// samite/io/json.hpp: JSON values, read strictly.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <samite/core/error.hpp>

namespace samite {

namespace detail {
class json_builder;
}

/// What a file from outside may ask for before it is refused.
struct json_limits {
  std::size_t bytes = std::size_t(256) << 20;
  std::size_t values = 20000000;  // of any kind, nested ones included
  int depth = 64;
};

/// One JSON value. Objects keep the file's order; looking up a key takes O(log n).
///
/// errors  E-JSON-TYPE when another kind is asked for than is there; E-JSON-KEY for a missing key. Both say what was found,
///         and in which file if the value was parsed
class json_value {
 public:
  using array = std::vector<json_value>;
  using member = std::pair<std::string, json_value>;

  json_value() = default;
  json_value(bool value) : kind_(kind::boolean) { scalar_.boolean = value; }
  json_value(std::int64_t value) : kind_(kind::integer) { scalar_.integer = value; }
  json_value(int value) : json_value(std::int64_t(value)) {}
  json_value(double value) : kind_(kind::real) { scalar_.real = value; }
  json_value(std::string value);
  json_value(const char* value) : json_value(std::string(value)) {}
  json_value(array items);
  /// An object. Raises E-JSON-PARSE if a key is there twice.
  static json_value object(std::vector<member> members);

  bool is_null() const { return kind_ == kind::null; }
  bool is_boolean() const { return kind_ == kind::boolean; }
  bool is_integer() const { return kind_ == kind::integer; }
  bool is_number() const { return kind_ == kind::integer || kind_ == kind::real; }
  bool is_text() const { return kind_ == kind::text; }
  bool is_array() const { return kind_ == kind::array; }
  bool is_object() const { return kind_ == kind::object; }

  bool as_boolean() const;
  /// A whole number that fits 64 bits; 1.0 is none.
  std::int64_t as_integer() const;
  double as_number() const;
  const std::string& as_text() const;
  const array& items() const;
  const std::vector<member>& members() const;

  /// The key's value, or null if there is none.
  const json_value* find(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  const json_value& at(std::string_view key) const;

  // Fields of an object, checked; the messages name the key. With a default, a missing key and null give it.
  std::int64_t integer(std::string_view key, std::optional<std::int64_t> otherwise = {}) const;
  double number(std::string_view key, std::optional<double> otherwise = {}) const;
  bool boolean(std::string_view key, std::optional<bool> otherwise = {}) const;
  std::string text(std::string_view key, std::optional<std::string> otherwise = {}) const;
  const array& items(std::string_view key) const;
  /// The key's object; null if the key is missing or null.
  const json_value* find_object(std::string_view key) const;

  /// What it is, for messages: `text "abc"`, `array of 3`.
  std::string describe() const;

 private:
  enum class kind : std::uint8_t { null, boolean, integer, real, text, array, object };
  struct object_data;
  using source_name = std::shared_ptr<const std::string>;
  friend class detail::json_builder;

  static json_value make_object(std::vector<member> members, source_name source);
  /// Where the value comes from, to begin a message with.
  std::string origin() const;
  void expect(bool is, const char* expected, std::string_view key = {}) const;
  const object_data& as_object() const;
  template <class T, class Read>
  T field(std::string_view key, std::optional<T> otherwise, bool (json_value::*is)() const, const char* expected, Read read) const;

  // A value never changes, so copies share what it holds: a std::string, an array or object_data, as the kind says.
  kind kind_ = kind::null;
  union {
    bool boolean;
    std::int64_t integer;
    double real;
  } scalar_{};
  std::shared_ptr<const void> contents_;
  source_name source_;  // the parsed file's name, one for all its values; none for a value made in code
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
