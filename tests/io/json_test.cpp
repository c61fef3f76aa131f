#include <doctest/doctest.h>

#include <string>

#include <samite/core/random.hpp>
#include <samite/io/file.hpp>
#include <samite/io/json.hpp>

#include "support/temporary_folder.hpp"

using namespace samite;

namespace {
json_value parse(const std::string& text) { return parse_json(text, "test.json"); }
}  // namespace

TEST_CASE("JSON values are read with their kinds, keys in the file's order") {
  const json_value v = parse(R"({"b": [1, 2.5, "x\n\u00e9", true, null], "a": {"deep": -7}})");
  CHECK(v.members()[0].first == "b");
  const auto& items = v.at("b").items();
  CHECK(items[0].as_integer() == 1);
  CHECK(items[1].as_number() == 2.5);
  CHECK(items[2].as_text() == "x\n\xc3\xa9");
  CHECK(items[3].as_boolean());
  CHECK(items[4].is_null());
  CHECK(v.at("a").integer("deep") == -7);
  CHECK(v.find("c") == nullptr);
}

TEST_CASE("fields have defaults, and a wrong kind names key and value") {
  const json_value v = parse(R"({"width": 8, "theta": 1e6, "name": "llama", "tie": false, "none": null})");
  CHECK(v.integer("width") == 8);
  CHECK(v.number("width") == 8.0);
  CHECK(v.number("theta") == 1e6);
  CHECK(v.text("name") == "llama");
  CHECK_FALSE(v.boolean("tie"));
  CHECK(v.integer("depth", 3) == 3);
  CHECK(v.integer("none", 3) == 3);
  CHECK_THROWS_WITH_AS(v.integer("name"), doctest::Contains("JSON key \"name\""), samite::error);
  CHECK_THROWS_WITH_AS(v.integer("theta"), doctest::Contains("E-JSON-TYPE"), samite::error);
  CHECK_THROWS_WITH_AS(v.integer("depth"), doctest::Contains("\"depth\" is missing; the object has width, theta"), samite::error);
  CHECK_THROWS_WITH_AS(v.at("x"), doctest::Contains("E-JSON-KEY"), samite::error);
  CHECK_THROWS_WITH_AS(v.items(), doctest::Contains("found an object of 5 keys"), samite::error);
}

TEST_CASE("what RFC 8259 does not allow is E-JSON-PARSE with the file's name and the byte") {
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\":1,}", "[1] 2", "// x\n1", "'a'", "[NaN]", "[Infinity]", "01", "[1e999]", "\"\\x\"",
                           "\"\xff\"", "\"\xc3\"", "\"\x01\"", "{a:1}", "tru", "[-]", "\"\\ud800\""}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse(text), doctest::Contains("test.json: not valid JSON at byte"), samite::error);
  }
}

TEST_CASE("a key that appears twice is refused, whatever stands between") {
  CHECK_THROWS_WITH_AS(parse(R"({"a":1,"b":{},"a":2})"), doctest::Contains("\"a\" appears twice"), samite::error);
  CHECK(parse(R"({"a":{"a":1}})").at("a").integer("a") == 1);
}

TEST_CASE("depth, values and bytes have limits") {
  const auto nested = [](int depth) { return std::string(std::size_t(depth), '[') + std::string(std::size_t(depth), ']'); };
  CHECK(parse(nested(64)).is_array());
  CHECK_THROWS_WITH_AS(parse(nested(65)), doctest::Contains("E-JSON-LIMIT"), samite::error);
  CHECK_THROWS_AS(parse(std::string(1000000, '[')), samite::error);
  CHECK_THROWS_WITH_AS(parse_json("[1,2,3]", "t", {.values = 3}), doctest::Contains("more than 3 values"), samite::error);
  CHECK_THROWS_WITH_AS(parse_json("[1,2,3]", "t", {.bytes = 6}), doctest::Contains("7 bytes"), samite::error);
}

TEST_CASE("a number past 64 bits is a number but no whole number") {
  const json_value v = parse("[9223372036854775807, 18446744073709551615]");
  CHECK(v.items()[0].as_integer() == 9223372036854775807);
  CHECK_FALSE(v.items()[1].is_integer());
  CHECK(v.items()[1].as_number() == 18446744073709551616.0);
}

TEST_CASE("to_json writes what parse_json reads back") {
  const std::string text = R"({"a":[1,2.5,3.0,null,true,[],{}],"q\"\\\n\u0001":"\u00e9"})";
  const std::string once = to_json(parse(text));
  CHECK(once == "{\"a\":[1,2.5,3.0,null,true,[],{}],\"q\\\"\\\\\\n\\u0001\":\"\xc3\xa9\"}");
  CHECK(to_json(parse(once)) == once);
}

TEST_CASE("read_json names the file") {
  const samite_tests::temporary_folder folder;
  write_file(folder / "config.json", "{\"x\": }");
  CHECK_THROWS_WITH_AS(read_json(folder / "config.json"), doctest::Contains("config.json: not valid JSON at byte 7"), samite::error);
}

TEST_CASE("JSON with any byte changed or cut is read or refused, never worse") {
  const std::string valid = R"({"a":[1,-2.5e3,"x\u00e9\n",true,false,null],"b":{"c":{"d":[]}},"e":""})";
  counted_random random(20261130, 1);
  int refused = 0;
  for (std::size_t length = 0; length < valid.size(); ++length) {
    CHECK_THROWS_AS(parse(valid.substr(0, length)), samite::error);
  }
  for (std::size_t i = 0; i < valid.size(); ++i)
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::string text = valid;
      text[i] = char(random.below(256));
      try {
        parse(text);
      } catch (const samite::error& e) {
        ++refused;
        CHECK(e.code().starts_with("E-JSON-"));
      }
    }
  CHECK(refused > 100);
}

TEST_CASE("a message about a parsed value is one sentence with the file, the key, what was found and what was expected") {
  const json_value v = parse(R"({"width": "8", "list": "x", "nested": [1], "null": null})");
  const auto message = [](auto call) -> std::string {
    try {
      call();
    } catch (const samite::error& e) {
      return e.what();
    }
    return "nothing was raised";
  };
  CHECK(message([&] { v.integer("width"); }) == "samite: test.json: JSON key \"width\": expected a whole number, found text \"8\" [E-JSON-TYPE]");
  CHECK(message([&] { v.items("list"); }) == "samite: test.json: JSON key \"list\": expected an array, found text \"x\" [E-JSON-TYPE]");
  CHECK(message([&] { v.find_object("nested"); }) == "samite: test.json: JSON key \"nested\": expected an object, found an array of 1 [E-JSON-TYPE]");
  CHECK(message([&] { v.at("nested").at("x"); }) == "samite: test.json: expected an object, found an array of 1 [E-JSON-TYPE]");
  CHECK(message([&] { parse("{\"a\":{\"b\":1,\"b\":2}}"); }) == "samite: test.json: the key \"b\" appears twice in one object; keep one of them [E-JSON-PARSE]");
  CHECK(message([] { json_value("x").as_integer(); }) == "samite: JSON: expected a whole number, found text \"x\" [E-JSON-TYPE]");
  CHECK(v.find_object("null") == nullptr);
  CHECK(v.find_object("none") == nullptr);
}
