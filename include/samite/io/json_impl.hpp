// samite/io/json_impl.hpp: the reader behind io/json.hpp.
#pragma once
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <nlohmann/json.hpp>

#include <samite/io/file.hpp>
#include <samite/io/json.hpp>

namespace samite {

struct json_value::object_data {
  std::vector<member> members;
  std::vector<std::uint32_t> by_key;  // places of the members, sorted by key
};

SAMITE_IMPL json_value::json_value(std::string value) : kind_(kind::text), contents_(std::make_shared<const std::string>(std::move(value))) {}

SAMITE_IMPL json_value::json_value(array items) : kind_(kind::array), contents_(std::make_shared<const array>(std::move(items))) {}

SAMITE_IMPL json_value json_value::object(std::vector<member> members) { return make_object(std::move(members), nullptr); }

SAMITE_IMPL json_value json_value::make_object(std::vector<member> members, source_name source) {
  object_data data{std::move(members), {}};
  data.by_key.resize(data.members.size());
  std::iota(data.by_key.begin(), data.by_key.end(), 0u);
  const auto key = [&](std::uint32_t place) -> const std::string& { return data.members[place].first; };
  std::ranges::sort(data.by_key, {}, key);
  const auto twice = std::ranges::adjacent_find(data.by_key, {}, key);
  if (twice != data.by_key.end())
    raise("E-JSON-PARSE", source ? *source + ": " : "", "the key ", json_quoted(key(*twice)), " appears twice in one object; keep one of them");
  json_value out;
  out.source_ = std::move(source);
  out.kind_ = kind::object;
  out.contents_ = std::make_shared<const object_data>(std::move(data));
  return out;
}

SAMITE_IMPL std::string json_value::origin() const { return source_ ? *source_ + ": " : "JSON: "; }

SAMITE_IMPL void json_value::expect(bool is, const char* expected, std::string_view key) const {
  if (is) return;
  if (key.empty()) raise("E-JSON-TYPE", origin(), "expected ", expected, ", found ", describe());
  raise("E-JSON-TYPE", source_ ? *source_ + ": " : "", "JSON key \"", key, "\": expected ", expected, ", found ", describe());
}

SAMITE_IMPL bool json_value::as_boolean() const {
  expect(is_boolean(), "true or false");
  return scalar_.boolean;
}

SAMITE_IMPL std::int64_t json_value::as_integer() const {
  expect(is_integer(), "a whole number");
  return scalar_.integer;
}

SAMITE_IMPL double json_value::as_number() const {
  expect(is_number(), "a number");
  return is_integer() ? double(scalar_.integer) : scalar_.real;
}

SAMITE_IMPL const std::string& json_value::as_text() const {
  expect(is_text(), "a text");
  return *static_cast<const std::string*>(contents_.get());
}

SAMITE_IMPL const json_value::array& json_value::items() const {
  expect(is_array(), "an array");
  return *static_cast<const array*>(contents_.get());
}

SAMITE_IMPL const json_value::object_data& json_value::as_object() const {
  expect(is_object(), "an object");
  return *static_cast<const object_data*>(contents_.get());
}

SAMITE_IMPL const std::vector<json_value::member>& json_value::members() const { return as_object().members; }

SAMITE_IMPL const json_value* json_value::find(std::string_view key) const {
  const object_data& data = as_object();
  const auto place = std::ranges::lower_bound(data.by_key, key, {}, [&](std::uint32_t i) { return std::string_view(data.members[i].first); });
  if (place == data.by_key.end() || data.members[*place].first != key) return nullptr;
  return &data.members[*place].second;
}

template <class T, class Read>
T json_value::field(std::string_view key, std::optional<T> otherwise, bool (json_value::*is)() const, const char* expected, Read read) const {
  const json_value* found = find(key);
  if (otherwise && (found == nullptr || found->is_null())) return *std::move(otherwise);
  const json_value& value = at(key);
  value.expect((value.*is)(), expected, key);
  return read(value);
}

SAMITE_IMPL std::int64_t json_value::integer(std::string_view key, std::optional<std::int64_t> otherwise) const {
  return field<std::int64_t>(key, otherwise, &json_value::is_integer, "a whole number", [](const json_value& v) { return v.as_integer(); });
}

SAMITE_IMPL double json_value::number(std::string_view key, std::optional<double> otherwise) const {
  return field<double>(key, otherwise, &json_value::is_number, "a number", [](const json_value& v) { return v.as_number(); });
}

SAMITE_IMPL bool json_value::boolean(std::string_view key, std::optional<bool> otherwise) const {
  return field<bool>(key, otherwise, &json_value::is_boolean, "true or false", [](const json_value& v) { return v.as_boolean(); });
}

SAMITE_IMPL std::string json_value::text(std::string_view key, std::optional<std::string> otherwise) const {
  return field<std::string>(key, std::move(otherwise), &json_value::is_text, "a text", [](const json_value& v) { return v.as_text(); });
}

SAMITE_IMPL const json_value::array& json_value::items(std::string_view key) const {
  const json_value& value = at(key);
  value.expect(value.is_array(), "an array", key);
  return value.items();
}

SAMITE_IMPL const json_value* json_value::find_object(std::string_view key) const {
  const json_value* found = find(key);
  if (found == nullptr || found->is_null()) return nullptr;
  found->expect(found->is_object(), "an object", key);
  return found;
}

SAMITE_IMPL const json_value& json_value::at(std::string_view key) const {
  if (const json_value* found = find(key)) return *found;
  std::string known;
  for (const member& m : members())
    if (known.size() < 200) known += (known.empty() ? "" : ", ") + m.first;
  raise("E-JSON-KEY", origin(), "the key \"", key, "\" is missing; the object has ", known.empty() ? "no keys" : known);
}

SAMITE_IMPL std::string json_value::describe() const {
  if (is_text()) return "text " + json_quoted(std::string_view(as_text()).substr(0, 60));
  if (is_array()) return concat_text("an array of ", items().size());
  if (is_object()) return concat_text("an object of ", members().size(), " keys");
  return to_json(*this);
}

namespace detail {

// Builds json_values from nlohmann's parser, which checks grammar and UTF-8 without recursion. A limit ends the parse.
class json_builder {
 public:
  json_builder(const std::string& name, const json_limits& limits) : source_(std::make_shared<const std::string>(name)), name_(*source_), limits_(limits) {}

  bool null() { return add(json_value()); }
  bool boolean(bool value) { return add(json_value(value)); }
  bool number_integer(std::int64_t value) { return add(json_value(value)); }
  bool number_unsigned(std::uint64_t value) {
    if (value <= std::uint64_t(std::numeric_limits<std::int64_t>::max())) return add(json_value(std::int64_t(value)));
    return add(json_value(double(value)));  // too large for a whole number: as_integer() will refuse it
  }
  bool number_float(double value, const std::string&) { return add(json_value(value)); }
  bool string(std::string& value) { return add(json_value(std::move(value))); }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(true); }
  bool start_array(std::size_t) { return open(false); }
  bool key(std::string& text) {
    open_.back().key = std::move(text);
    return true;
  }
  bool end_object() {
    container done = std::move(open_.back());
    open_.pop_back();
    return place(json_value::make_object(std::move(done.members), source_));
  }
  bool end_array() {
    container done = std::move(open_.back());
    open_.pop_back();
    return place(json_value(std::move(done.items)));
  }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::json::exception& e) {
    // nlohmann's sentence starts with its own code in brackets.
    std::string_view text = e.what();
    if (const auto end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
    raise("E-JSON-PARSE", name_, ": not valid JSON at byte ", byte, ": ", text);
  }

  json_value result;

 private:
  struct container {
    bool is_object;
    std::string key;
    json_value::array items;
    std::vector<json_value::member> members;
  };

  bool add(json_value value) {
    count();
    return place(std::move(value));
  }
  bool open(bool is_object) {
    count();
    if (int(open_.size()) >= limits_.depth) raise("E-JSON-LIMIT", name_, ": nested deeper than ", limits_.depth, " levels");
    open_.push_back({is_object, {}, {}, {}});
    return true;
  }
  void count() {
    if (++values_ > limits_.values) raise("E-JSON-LIMIT", name_, ": more than ", limits_.values, " values");
  }
  bool place(json_value value) {
    value.source_ = source_;
    if (open_.empty())
      result = std::move(value);
    else if (open_.back().is_object)
      open_.back().members.emplace_back(std::move(open_.back().key), std::move(value));
    else
      open_.back().items.push_back(std::move(value));
    return true;
  }

  const std::shared_ptr<const std::string> source_;
  const std::string& name_;
  const json_limits& limits_;
  std::size_t values_ = 0;
  std::vector<container> open_;
};

inline void append_json(std::string& out, const json_value& value) {
  if (value.is_null()) {
    out += "null";
  } else if (value.is_boolean()) {
    out += value.as_boolean() ? "true" : "false";
  } else if (value.is_integer()) {
    append_text(out, value.as_integer());
  } else if (value.is_number()) {
    const double number = value.as_number();
    if (!std::isfinite(number)) {
      out += "null";
    } else {
      const std::size_t start = out.size();
      append_text(out, number);
      if (out.find_first_of(".e", start) == std::string::npos) out += ".0";  // read back, it stays no whole number
    }
  } else if (value.is_text()) {
    out += json_quoted(value.as_text());
  } else if (value.is_array()) {
    out += '[';
    bool first = true;
    for (const json_value& item : value.items()) {
      if (!first) out += ',';
      first = false;
      append_json(out, item);
    }
    out += ']';
  } else {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : value.members()) {
      if (!first) out += ',';
      first = false;
      out += json_quoted(key) + ":";
      append_json(out, item);
    }
    out += '}';
  }
}

}  // namespace detail

SAMITE_IMPL json_value parse_json(std::string_view text, const std::string& name, const json_limits& limits) {
  if (text.size() > limits.bytes) raise("E-JSON-LIMIT", name, ": ", text.size(), " bytes, at most ", limits.bytes, " are read");
  detail::json_builder builder(name, limits);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder.result);
}

SAMITE_IMPL json_value read_json(const std::string& path, const json_limits& limits) {
  return parse_json(read_file(path, limits.bytes), path, limits);
}

SAMITE_IMPL std::string json_quoted(std::string_view text) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\', out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00", out += digits[c >> 4], out += digits[c & 15];
    } else {
      out += c;
    }
  }
  return out += '"';
}

SAMITE_IMPL std::string to_json(const json_value& value) {
  std::string out;
  detail::append_json(out, value);
  return out;
}

}  // namespace samite
