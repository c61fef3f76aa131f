#include <doctest/doctest.h>

#include <cstdlib>
#include <limits>
#include <vector>

#include <samite/core/env.hpp>

#include "support/raised.hpp"

using namespace samite;
using samite_tests::unlike;

TEST_CASE("an error says what happened and ends with its code") {
  try {
    raise("E-MASK-WINDOW", "window(", 0, "): expected ", 1.5, " of ", std::vector<int>{2, 3}, ", ", true, '!');
  } catch (const error& e) {
    CHECK(std::string(e.what()) == "samite: window(0): expected 1.5 of [2,3], true! [E-MASK-WINDOW]");
    CHECK(e.code() == "E-MASK-WINDOW");
  }
}

TEST_CASE("exit statuses follow from the code's family") {
  const auto status = [](const char* code) { return error(code, "").exit_status(); };
  CHECK(status("E-INTERNAL") == 1);
  CHECK(status("E-MASK-WINDOW") == 2);
  CHECK(status("E-SHAPE-INNER") == 2);
  CHECK(status("E-BLAS-SHAPE") == 2);
  CHECK(status("E-FILE-OPEN") == 3);
  CHECK(status("E-MODEL-CONFIG") == 3);
  CHECK(status("E-DATA-TEXT") == 3);
  CHECK(status("E-SAFETENSORS-HEADER") == 3);
  CHECK(status("E-CHECKPOINT-CONTRACT") == 3);
  CHECK(status("E-JSON-PARSE") == 3);
  CHECK(status("E-CUDA-CALL") == 4);
  CHECK(status("E-CUBLAS-OPEN") == 4);
  CHECK(status("E-GPU-NONE") == 4);
  CHECK(status("E-JIT-NVRTC") == 4);
  CHECK(status("E-ENV-VALUE") == 2);
  CHECK(status("E-BLAS-OPEN") == 4);
  CHECK(status("E-CUDA-MEMORY") == 5);
  CHECK(status("E-MEMORY-HOST") == 5);
  CHECK(status("E-DIVERGED") == 6);
  CHECK(status("E-PEER-LOST") == 7);
  CHECK(status("E-FILE-WRITE") == 8);
}

TEST_CASE("texts are joined without regard to the locale") {
  CHECK(concat_text(1234567, " ", 0.1, " ", std::numeric_limits<long long>::min()) == "1234567 0.1 -9223372036854775808");
  CHECK(concat_text() == "");
}

TEST_CASE("a broken promise inside the library is reported as such") {
  CHECK(unlike("E-INTERNAL", {"two and two are five", "report"}, [] { ensure(false, "two and two are five"); }) == "");
  ensure(true, "");
}

TEST_CASE("environment variables are whole numbers in their range, or an error") {
  const auto read = [](const char* text) {
    ::setenv("SAMITE_TEST_NUMBER", text, 1);
    return env_number("SAMITE_TEST_NUMBER", 1, 8);
  };
  CHECK(read("8") == 8);
  CHECK_FALSE(read("").has_value());
  for (const char* bad : {"0", "9", "x", "3x", " 3", "1e3", "99999999999999999999"})
    CHECK(unlike("E-ENV-VALUE", {"SAMITE_TEST_NUMBER", bad, "1 to 8"}, [&] { read(bad); }) == "");
  ::unsetenv("SAMITE_TEST_NUMBER");
  CHECK_FALSE(env_number("SAMITE_TEST_NUMBER", 1, 8).has_value());
}
