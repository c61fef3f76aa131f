# What tests and examples share: warnings, ccache, and the one translation unit that holds the heavy *_impl.hpp headers.
find_program(SAMITE_CCACHE ccache)
mark_as_advanced(SAMITE_CCACHE)
if(SAMITE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SAMITE_CCACHE})
endif()

add_library(samite_warnings INTERFACE)
target_compile_options(samite_warnings INTERFACE -Wall -Wextra -Wconversion -Werror)

# SAMITE_SPLIT leaves the *_impl.hpp headers out of every including file; here they are compiled once.
file(GLOB_RECURSE impl_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/include/*_impl.hpp)
set(split_sources)
foreach(header IN LISTS impl_headers)  # one unit a header: they compile side by side
  string(MAKE_C_IDENTIFIER ${header} unit)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/${unit}.cpp CONTENT "#define SAMITE_IMPLEMENT 1\n#include <${header}>\n" @ONLY)
  list(APPEND split_sources ${PROJECT_BINARY_DIR}/generated/${unit}.cpp)
endforeach()
add_library(samite_split STATIC ${split_sources})
target_link_libraries(samite_split PUBLIC samite::samite PRIVATE samite_warnings)
target_compile_definitions(samite_split PUBLIC SAMITE_SPLIT=1)
