// What a kernel's source may not hold, and that NVRTC would have read it.
#include <doctest/doctest.h>

#include <samite/jit/compiler.hpp>
#include <samite/jit/compiler_impl.hpp>
#include <samite/jit/nvrtc_impl.hpp>

#include "support/jit_faults.hpp"
#include "support/skip.hpp"
#include "support/temporary_folder.hpp"

using namespace samite;
using namespace samite_tests;
using mode = disk_cache::mode;

#define NEEDS_NVRTC SKIP_IF(!nvrtc_available(), nvrtc_missing_reason())

TEST_CASE("options that would make the result depend on more than the key are E-JIT-OPTION") {
  disk_cache disk("", mode::off);
  kernel_cache cache(disk, echo, one_build);
  for (const char* option : {" -I/usr/include", "\t--include-path=/usr/include", "-I/usr/include", "--include-path=/usr/include", "--pch", "-pch", "--use-pch=x", "--pre-include=x.h", "-arch=sm_80", "--ptxas-options=--options-file=/tmp/o", "-Xptxas=-optf=/tmp/o", "-Xptxas=/tmp/o.ptx", "--ptxas-options=o.ptx"}) {
    kernel_source source = source_of("x");
    source.options = {option};
    CHECK_THROWS_WITH_AS(cache.get(source), doctest::Contains("E-JIT-OPTION"), samite::error);
  }
  kernel_source source = source_of("x");
  source.options = {"-Xptxas", "/tmp/o.ptx"};
  CHECK_THROWS_WITH_AS(cache.get(source), doctest::Contains("E-JIT-OPTION"), samite::error);
  source.options = {"-DX=a/b.c", "-Xptxas", "--def-load-cache", "-Xptxas", "ca", "--ptxas-options=-v", "-D", "Y=/z"};
  CHECK_NOTHROW(cache.get(source));
}

TEST_CASE("a text that names a file by its path, or holds a zero byte, is E-JIT-OPTION: neither is wholly in the key") {
  disk_cache disk("", mode::off);
  kernel_cache cache(disk, echo, one_build);
  for (const char* text : {"#include \"/tmp/x.h\"\n", "int a;\n  #  include </usr/include/x.h>\n"}) CHECK_THROWS_WITH_AS(cache.get(source_of(text)), doctest::Contains("by its path"), samite::error);
  for (const char* text : {"#include \"x.h\"\n", "// #include in a sentence: \"/tmp\"\n", "include"}) CHECK_NOTHROW(cache.get(source_of(text)));
  kernel_source source = source_of("x");
  source.headers = {{"h", "#include \"/h\""}};
  CHECK_THROWS_WITH_AS(cache.get(source), doctest::Contains("header \"h\""), samite::error);
  CHECK_THROWS_WITH_AS(cache.get(source_of(std::string("x\0y", 3))), doctest::Contains("zero byte at 1"), samite::error);
  CHECK_THROWS_WITH_AS(cache.get(source_of("x", std::string("sm_90\0a", 7))), doctest::Contains("its arch"), samite::error);
}

TEST_CASE("whichever way a text names a file by its path, it is E-JIT-OPTION, while NVRTC reads the file") {
  const temporary_folder folder;
  const std::string path = folder / "v.h", quoted = '"' + path + '"';
  write_file(path, "#error was read\n");
  const std::string answer = ")\n#error was read\n#endif\n";
  const std::string texts[] = {
      "#include " + quoted, "#include <" + path + ">", "#include_next " + quoted, "%:include " + quoted, "%\\\n:include " + quoted,
      "#define H " + quoted + "\n#include H", "#define Q(x) #x\n#include Q(" + path + ")", "#define H <" + path + ">\n#include H",
      "#/* a */include " + quoted, "#/*\n*/include " + quoted, "/*\n*/ # include " + quoted, "/*/ */ #include " + quoted, "#include/*\n*/" + quoted,
      "#\\\ninclude " + quoted, "#inc\\\nlude " + quoted, "#inc\\\r\nlude " + quoted, "#include \"\\\n" + path + "\"", "/\\\n* x *\\\n/ #include " + quoted,
      "#\finclude " + quoted, "\v#\vinclude\f" + quoted, "const __device__ char* a = R\"(\n/*)\";\n#include " + quoted + "\n// */", "// \\\\\\\n\n#include " + quoted,
      "#if __has_include(" + quoted + answer, "#if __has_include ( <" + path + ">" + answer, "#if __has_include_next(" + quoted + answer, "#define H " + quoted + "\n#if __has_include(H" + answer,
      "#define HAS __has_include\n#if HAS(" + quoted + answer, "#define HAS(x) __has_include(x)\n#if HAS(" + quoted + answer, "#if __has_\\\ninclude(" + quoted + answer,
      "#define HAS(x) __has_include(x)\n#define MAY(X)  HAS( X )\n#if MAY(" + quoted + answer, "#if __has_include/**/(/**/" + quoted + answer, "#if 1 && '//' && __has_include(" + quoted + answer};
  disk_cache disk("", mode::off);
  kernel_cache cache(disk, echo, one_build);
  const auto check = [&](const kernel_source& source) {
    CAPTURE(source.text);
    CHECK_THROWS_WITH_AS(cache.get(source), doctest::Contains("E-JIT-OPTION"), samite::error);
    CHECK_THROWS_WITH_AS(cache.key_of(source), doctest::Contains("E-JIT-OPTION"), samite::error);
    if (nvrtc_available()) CHECK_THROWS_WITH_AS(compile_kernel(source), doctest::Contains("was read"), samite::error);
  };
  for (const std::string& text : texts) check(source_of(text + "\n"));
  kernel_source source = source_of("#include Q\n");
  source.options = {"-DQ=" + quoted};
  check(source);
  source = source_of("#if HAS" + answer.substr(1));
  source.options = {"-DHAS=__has_include(" + quoted + ")"};
  check(source);
  for (const char* text : {"?\?=include ", "#inc?\?/\nlude "}) {
    source = source_of(text + quoted + "\n");
    source.options = {"-std=c++14"};
    check(source);
  }
  source = source_of("#include \"a.h\"\n#if HAS(" + quoted + answer);  // used before the text that defines it is looked at
  source.headers = {{"a.h", "#define HAS(x) __has_include(x)\n"}};
  check(source);
}

TEST_CASE("texts that only speak of includes, and tests for headers in memory, are compiled") {
  NEEDS_NVRTC;
  disk_cache disk("", mode::off);
  kernel_cache cache(disk);
  kernel_source source = source_of(
      "// #include H, an include, __has_include and #include \"/x.h\"\n/* an #include \"/x.h\"\n * #include H in a comment\n */\n"
      "# include\t\"a.h\" // #include\n  #include <b/a.h>\n%:include \"a.h\"\n"
      "#if defined(__has_include) && defined __has_include\n#ifdef __has_include\n#if __has_include(\"a.h\") && __has_include ( <b/a.h> ) && !__has_include(\"c.h\") && A(<a.h>)\n"
      "__device__ int value = 1; const __device__ char* text = \"\\n#include H\\n\";\n#endif\n#endif\n#endif\n"
      "#define LONG(include, x) include + \\\n  x\n__global__ void k() { value = LONG(1, 2); }\n");
  source.headers = {{"a.h", "#pragma once\n#ifdef __has_include\n#  define A(_X) __has_include(_X)\n#else\n#  define A(_X) 0\n#endif\n"}, {"b/a.h", "\n"}};
  CHECK_NOTHROW(cache.get(source));
}
