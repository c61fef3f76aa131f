# What tests and examples share: warnings and ccache.
find_program(SAMITE_CCACHE ccache)
mark_as_advanced(SAMITE_CCACHE)
if(SAMITE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SAMITE_CCACHE})
endif()

add_library(samite_warnings INTERFACE)
target_compile_options(samite_warnings INTERFACE -Wall -Wextra -Wconversion -Werror)

