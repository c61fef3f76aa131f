#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <samite/core/random.hpp>
#include <samite/io/file.hpp>
#include <samite/train/baseline.hpp>
#include <samite/train/data.hpp>
#include <samite/train/schedule.hpp>

#include "support/raised.hpp"
#include "support/temporary_folder.hpp"

using namespace samite;
using samite_tests::temporary_folder;
using samite_tests::unlike;

namespace {

std::vector<std::uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string shown(const std::string& text) {
  std::vector<std::int32_t> tokens;
  for (const char c : text) tokens.push_back(std::int32_t(std::uint8_t(c)));
  return printable(tokens);
}

}  // namespace

TEST_CASE("a text is split into training and a held-out tenth, and too short a text is refused") {
  const temporary_folder folder;
  write_file(folder / "t", std::string(95, 'a') + std::string(10, 'b'));
  const byte_corpus corpus = load_corpus(folder / "t", 10);
  CHECK(corpus.training().size() == 95);
  CHECK(corpus.held_out().size() == 10);
  CHECK(corpus.held_out()[0] == 'b');
  CHECK(unlike("E-DATA-TEXT", {"105 bytes", "110"}, [&] { load_corpus(folder / "t", 11); }) == "");
  write_file(folder / "empty", "");
  CHECK(unlike("E-DATA-TEXT", {"0 bytes"}, [&] { load_corpus(folder / "empty", 1); }) == "");
  CHECK(unlike("E-FILE-OPEN", {}, [&] { load_corpus(folder / "none", 1); }) == "");
}

TEST_CASE("windows are a function of seed and step, inside the text, and reach both ends") {
  const std::vector<std::uint8_t> text = bytes("0123456789");
  const auto starts = [&](std::uint64_t seed, index_t step) {
    std::vector<index_t> s;
    for (const auto& w : choose_windows(text, 40, 7, seed, step)) {
      CHECK(w.size() == 7);
      s.push_back(w.data() - text.data());
    }
    return s;
  };
  CHECK(starts(1, 2) == starts(1, 2));
  CHECK(starts(1, 2) != starts(1, 3));
  CHECK(starts(1, 2) != starts(2, 2));
  const auto s = starts(1, 2);
  CHECK(*std::min_element(s.begin(), s.end()) == 0);
  CHECK(*std::max_element(s.begin(), s.end()) == 3);
  CHECK(unlike("E-DATA-TEXT", {"windows of 11", "10 bytes"}, [&] { choose_windows(text, 1, 11, 0, 0); }) == "");
}

TEST_CASE("packed windows are documents whose positions restart") {
  const std::vector<std::uint8_t> text = bytes("abcdef");
  const packed_row row = pack_windows({std::span(text).first(2), std::span(text).subspan(3, 3)});
  CHECK(row.ids == std::vector<std::int32_t>{'a', 'b', 'd', 'e', 'f'});
  CHECK(row.positions == std::vector<std::int32_t>{0, 1, 0, 1, 2});
  CHECK(row.documents == std::vector<std::int32_t>{0, 0, 1, 1, 1});
  CHECK(row.loss_mask == std::vector<std::uint8_t>(5, 1));
}

TEST_CASE("text for a terminal is valid UTF-8 whatever the tokens are") {
  const std::string bad = "\xef\xbf\xbd";
  CHECK(shown("plain\n\ttext") == "plain\n\ttext");
  CHECK(shown("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80") == "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
  CHECK(shown("\x1b[2J") == bad + "[2J");
  CHECK(shown("\x7f\xc2\x9b") == bad + bad + bad);      // DEL; the control character U+009B
  CHECK(shown("\xc3") == bad);                          // cut short
  CHECK(shown("\xc3(") == bad + "(");                   // wrong continuation
  CHECK(shown("\xc0\xaf") == bad + bad);                // overlong
  CHECK(shown("\xe0\x80\xaf") == bad + bad + bad);      // overlong
  CHECK(shown("\xed\xa0\x80") == bad + bad + bad);      // surrogate
  CHECK(shown("\xf4\x90\x80\x80") == bad + bad + bad + bad);  // beyond U+10FFFF
  CHECK(shown("\xff\x80") == bad + bad);
  CHECK(printable(std::vector<std::int32_t>{'a', 256, -1, 300, 'b'}) == "a" + bad + bad + bad + "b");
  CHECK(printable(std::vector<std::int32_t>{0xc3, 256}) == bad + bad);
  CHECK(printable({}) == "");
}

TEST_CASE("the byte model interpolates as Witten and Bell do, and its probabilities sum to one") {
  const auto unit = [](const byte_model& m, const std::string& context, int c) {
    const auto before = bytes(context);
    auto after = before;
    after.push_back(std::uint8_t(c));
    return std::exp2(m.bits_per_byte(before) * double(before.size()) - m.bits_per_byte(after) * double(after.size()));
  };
  const byte_model small(bytes("ab"), 1);
  const double p0 = (1 + 2.0 / 256) / 4;
  CHECK(unit(small, "", 'a') == doctest::Approx(p0));
  CHECK(unit(small, "", 'c') == doctest::Approx(2.0 / 256 / 4));
  CHECK(unit(small, "a", 'b') == doctest::Approx((1 + p0) / 2));
  CHECK(unit(small, "z", 'b') == doctest::Approx(p0));  // an unseen context falls back
  const byte_model larger(bytes("the cat sat on the mat; the rat ate the hat"), 4);
  for (const char* context : {"", "t", "the ", "q", "hat"}) {
    double sum = 0;
    for (int c = 0; c < 256; ++c) sum += unit(larger, context, c);
    CHECK(sum == doctest::Approx(1).epsilon(1e-9));
  }
  CHECK(byte_model({}, 3).bits_per_byte(bytes("any")) == doctest::Approx(8));
  CHECK(larger.bits_per_byte({}) == 0);
  for (const int order : {-1, -5, 9}) CHECK(unlike("E-DATA-TEXT", {"order", "0 to 8"}, [&] { byte_model(bytes("text"), order); }) == "");
}

TEST_CASE("the learning rate warms up to its peak, falls by half a cosine and stays defined beyond the end") {
  const cosine_schedule s{.peak = 2, .steps = 101, .warmup_steps = 20, .final_fraction = 0.1};
  CHECK(s.at(0) == doctest::Approx(0.1));
  CHECK(s.at(9) == doctest::Approx(1));
  CHECK(s.at(19) == doctest::Approx(2));
  CHECK(s.at(20) == doctest::Approx(2));
  CHECK(s.at(60) == doctest::Approx(2 * 0.55));  // halfway between peak and a tenth of it
  CHECK(s.at(100) == doctest::Approx(0.2));
  CHECK(s.at(500) == doctest::Approx(0.2));
  for (index_t i = 21; i < 101; ++i) CHECK(s.at(i) < s.at(i - 1));
  CHECK(cosine_schedule{.peak = 1, .steps = 1, .warmup_steps = 0}.at(0) == 1);
  CHECK(cosine_schedule{.peak = 1, .steps = 5, .warmup_steps = 10}.at(4) == doctest::Approx(0.5));
}

TEST_CASE("windows of no byte and a negative number of them are refused") {
  const auto text = bytes("some text");
  CHECK(unlike("E-DATA-TEXT", {"windows of 0 bytes"}, [&] { choose_windows(text, 1, 0, 1, 0); }) == "");
  CHECK(unlike("E-DATA-TEXT", {"windows of -5 bytes"}, [&] { choose_windows(text, 1, -5, 1, 0); }) == "");
  CHECK(unlike("E-DATA-TEXT", {"-1 windows"}, [&] { choose_windows(text, -1, 4, 1, 0); }) == "");
  CHECK(choose_windows(text, 0, 4, 1, 0).empty());
}
