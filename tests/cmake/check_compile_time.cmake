# Bounds the time that an including file pays (docs/adr/0001). Run:
#   cmake -D compiler=g++ -D include=include -D work=/tmp/compile_time -P tests/cmake/check_compile_time.cmake
#
# A bound holds for an idle machine that compiles the reference (three standard headers) in 0.55 s; on a slower or busier one
# all bounds grow by the same factor. The best of eight runs counts, each beside a run of the reference; one within the bound ends them.
cmake_minimum_required(VERSION 3.25)
set(reference_ms 550)
file(MAKE_DIRECTORY ${work})
file(WRITE ${work}/reference.cpp "#include <memory>\n#include <string>\n#include <vector>\nint main() {}\n")
file(WRITE ${work}/mask.cpp "#include <samite/mask.hpp>\nint main() {}\n")
file(WRITE ${work}/draw.cpp
     "#include <cstdio>\n#include <samite/mask.hpp>\nint main() {\n  using namespace samite;\n"
     "  std::puts(draw(causal() && window(5) && document(table({0, 0, 0, 1, 1, 1})), 6, 6).c_str());\n}\n")

function(time_of result source)  # the rest are compiler options; milliseconds
  string(TIMESTAMP begin "%s%f")
  execute_process(COMMAND ${compiler} -std=c++20 ${ARGN} -I ${include} -c ${work}/${source}.cpp -o ${work}/${source}.o
                  RESULT_VARIABLE status ERROR_VARIABLE said OUTPUT_VARIABLE said)
  string(TIMESTAMP end "%s%f")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${source}.cpp does not compile:\n${said}")
  endif()
  math(EXPR elapsed "(${end} - ${begin}) / 1000")
  set(${result} ${elapsed} PARENT_SCOPE)
endfunction()

set(faults "")
# source, bound in milliseconds, compiler options
function(check source bound)
  set(best 1000000)
  set(best_reference 1000000)
  foreach(attempt RANGE 1 8)
    time_of(own reference -O0)
    time_of(elapsed ${source} ${ARGN})
    if(own LESS best_reference)
      set(best_reference ${own})
    endif()
    if(elapsed LESS best)
      set(best ${elapsed})
    endif()
    set(allowed ${bound})
    if(best_reference GREATER reference_ms)
      math(EXPR allowed "${bound} * ${best_reference} / ${reference_ms}")
    endif()
    if(best LESS_EQUAL bound)  # whatever the reference takes
      break()
    endif()
  endforeach()
  list(JOIN ARGN " " options)
  message(STATUS "${source}.cpp ${options}: ${best} ms, allowed ${allowed} ms (${bound} ms where the reference takes ${reference_ms}; here it takes ${best_reference})")
  if(best GREATER allowed)
    set(faults ${faults} "${source}.cpp ${options}: ${best} ms is more than ${allowed} ms" PARENT_SCOPE)
  endif()
endfunction()

check(mask 1000 -O0 -DSAMITE_SPLIT=1)
check(mask 1000 -O2 -DSAMITE_SPLIT=1)
check(draw 2000 -O2 -DSAMITE_SPLIT=1)
# Header-only, the canonical form, bounds and tile judge are compiled with it: 4.7 s where the reference takes 0.55 s (the goal is 2 s).
# This bound only keeps it from growing.
check(draw 5500 -O0)
if(EXISTS ${include}/samite/samite.hpp)
  file(WRITE ${work}/samite.cpp "#include <samite/samite.hpp>\nint main() {}\n")
  check(samite 3000 -O0 -DSAMITE_SPLIT=1)
elseif(EXISTS ${include}/samite.hpp)
  file(WRITE ${work}/samite.cpp "#include <samite.hpp>\nint main() {}\n")
  check(samite 3000 -O0 -DSAMITE_SPLIT=1)
endif()
if(faults)
  list(JOIN faults "\n  " text)
  message(FATAL_ERROR "compile times beyond their bounds:\n  ${text}")
endif()
