# The headers samite includes from others. Looked for as files and not as packages, so that a folder of headers on
# CMAKE_INCLUDE_PATH or CMAKE_PREFIX_PATH serves as well as a distribution's package. Read at build time and by find_package(samite).
find_package(Threads REQUIRED)

function(samite_find_header variable header package need)
  find_path(${variable} ${header})
  mark_as_advanced(${variable})
  if(NOT ${variable} AND need STREQUAL "REQUIRED")
    message(FATAL_ERROR "samite: <${header}> was not found. On Debian or Ubuntu: apt install ${package}; "
                        "elsewhere add its folder to CMAKE_INCLUDE_PATH.")
  endif()
endfunction()

function(samite_link_dependencies target)
  samite_find_header(SAMITE_JSON_DIR nlohmann/json.hpp nlohmann-json3-dev REQUIRED)
  samite_find_header(SAMITE_XXHASH_DIR xxhash.h libxxhash-dev REQUIRED)
  samite_find_header(SAMITE_FMT_DIR fmt/format.h libfmt-dev OPTIONAL)
  samite_find_header(SAMITE_RANGES_DIR range/v3/all.hpp librange-v3-dev OPTIONAL)  # host code only, never required
  target_link_libraries(${target} INTERFACE ${CMAKE_DL_LIBS} Threads::Threads)
  target_compile_definitions(${target} INTERFACE FMT_HEADER_ONLY=1)
  foreach(variable IN ITEMS SAMITE_JSON_DIR SAMITE_XXHASH_DIR SAMITE_FMT_DIR SAMITE_RANGES_DIR)
    if(${variable} AND NOT ${variable} IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
      target_include_directories(${target} SYSTEM INTERFACE $<BUILD_INTERFACE:${${variable}}>)
    endif()
  endforeach()
endfunction()
