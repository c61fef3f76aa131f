# codegen/embed.cmake: writes include/samite/generated/device_sources.hpp from codegen/device/*.cuh.
#   cmake -P codegen/embed.cmake
# Literals stay below 16 KB each, the limit of the strictest compiler; neighbours are joined by the compiler.
cmake_minimum_required(VERSION 3.25)
set(device_dir ${CMAKE_CURRENT_LIST_DIR}/device)
set(header ${CMAKE_CURRENT_LIST_DIR}/../include/samite/generated/device_sources.hpp)
set(limit 15000)

file(GLOB names RELATIVE ${device_dir} ${device_dir}/*.cuh)
list(SORT names)
set(text "// samite/generated/device_sources.hpp: codegen/device/*.cuh as text, made by the embed target. Change those files, not this one.
#pragma once
#include <string_view>

namespace samite::detail {

struct device_source {
  std::string_view name, text;
};

inline constexpr device_source device_sources[] = {
")
foreach(name IN LISTS names)
  file(READ ${device_dir}/${name} rest)
  string(APPEND text "    {\"${name}\",")
  string(LENGTH "${rest}" length)
  while(length GREATER 0)
    string(SUBSTRING "${rest}" 0 ${limit} part)
    if(length GREATER limit)  # ends at a line's end
      string(FIND "${part}" "\n" cut REVERSE)
      math(EXPR cut "${cut} + 1")
      string(SUBSTRING "${part}" 0 ${cut} part)
    else()
      set(cut ${length})
    endif()
    string(APPEND text "\n     R\"cuh(${part})cuh\"")
    string(SUBSTRING "${rest}" ${cut} -1 rest)
    string(LENGTH "${rest}" length)
  endwhile()
  string(APPEND text "},\n")
endforeach()
string(APPEND text "};

}  // namespace samite::detail
")
file(CONFIGURE OUTPUT ${header} CONTENT "@text@" @ONLY NEWLINE_STYLE UNIX)
