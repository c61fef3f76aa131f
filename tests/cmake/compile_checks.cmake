# Checks whose subject is the text itself: ranks, headers that compile alone, mistakes that must not compile, consumers.
set(script_dir ${CMAKE_CURRENT_LIST_DIR})

add_test(NAME ranks COMMAND ${CMAKE_COMMAND} -D root=${PROJECT_SOURCE_DIR} -P ${script_dir}/check_ranks.cmake)
add_test(NAME error_codes COMMAND ${CMAKE_COMMAND} -D root=${PROJECT_SOURCE_DIR} -P ${script_dir}/check_errors.cmake)

add_test(NAME gallery COMMAND ${CMAKE_COMMAND} -D program=$<TARGET_FILE:gallery> -D page=${PROJECT_SOURCE_DIR}/docs/masks.md -P ${script_dir}/check_gallery.cmake)

# Every public header in a translation unit of its own, without bodies: each *_impl.hpp is a unit of its own in samite_split. What a user
# without SAMITE_SPLIT compiles are these two texts one after the other; the consumers and the README's program do so.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/include/*.hpp)
set(units)
list(FILTER headers EXCLUDE REGEX "_impl\\.hpp$")
foreach(header IN LISTS headers)
  string(MAKE_C_IDENTIFIER ${header} unit)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/alone/${unit}.cpp
       CONTENT "#include <${header}>\n#include <${header}>  // twice: the guard works\n" @ONLY)
  list(APPEND units ${PROJECT_BINARY_DIR}/generated/alone/${unit}.cpp)
endforeach()
if(units)
  add_library(header_checks OBJECT EXCLUDE_FROM_ALL ${units})
  target_link_libraries(header_checks PRIVATE samite::samite samite_warnings)
  target_compile_definitions(header_checks PRIVATE SAMITE_SPLIT=1)
  target_compile_options(header_checks PRIVATE -O0)
  add_test(NAME header_checks COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target header_checks)
  set_tests_properties(header_checks PROPERTIES LABELS compile TIMEOUT 1200 RUN_SERIAL ON)
endif()

file(GLOB mistakes CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/*.cpp)
foreach(source IN LISTS mistakes)
  cmake_path(GET source STEM name)
  add_test(NAME compile_fail_${name}
           COMMAND ${CMAKE_COMMAND} -D compiler=${CMAKE_CXX_COMPILER} -D source=${source} -D include=${PROJECT_SOURCE_DIR}/include
                   -P ${script_dir}/check_mistakes.cmake)
  set_tests_properties(compile_fail_${name} PROPERTIES LABELS compile)
endforeach()

foreach(way IN ITEMS find_package add_subdirectory include_only)
  add_test(NAME consumer_${way}
           COMMAND ${CMAKE_COMMAND} -D way=${way} -D root=${PROJECT_SOURCE_DIR} -D work=${PROJECT_BINARY_DIR}/consumer/${way}
                   -D compiler=${CMAKE_CXX_COMPILER} -D build=${PROJECT_BINARY_DIR} -P ${script_dir}/check_consumer.cmake)
  set_tests_properties(consumer_${way} PROPERTIES LABELS compile TIMEOUT 600)
endforeach()

add_test(NAME readme COMMAND ${CMAKE_COMMAND} -D compiler=${CMAKE_CXX_COMPILER} -D root=${PROJECT_SOURCE_DIR} -D work=${PROJECT_BINARY_DIR}/readme
                             -P ${script_dir}/check_readme.cmake)
set_tests_properties(readme PROPERTIES LABELS compile)

find_program(SAMITE_NVCC nvcc HINTS /usr/local/cuda/bin)
mark_as_advanced(SAMITE_NVCC)
find_program(SAMITE_BASH bash)
mark_as_advanced(SAMITE_BASH)
add_test(NAME masks_in_device_source COMMAND ${SAMITE_BASH} ${script_dir}/check_nvcc.sh ${PROJECT_SOURCE_DIR} ${SAMITE_NVCC})
set_tests_properties(masks_in_device_source PROPERTIES LABELS compile SKIP_RETURN_CODE 77)

add_test(NAME compile_time COMMAND ${CMAKE_COMMAND} -D compiler=${CMAKE_CXX_COMPILER} -D include=${PROJECT_SOURCE_DIR}/include
                                   -D work=${PROJECT_BINARY_DIR}/compile_time -P ${script_dir}/check_compile_time.cmake)
set_tests_properties(compile_time PROPERTIES LABELS compile RUN_SERIAL ON TIMEOUT 300)
