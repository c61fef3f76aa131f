# samite_define_split(<include folder>): the library samite::split, for programs that would rather link the bodies of functions than
# compile them in every unit. It is built only if something links it; SAMITE_SPLIT leaves *_impl.hpp out of every including file.
function(samite_define_split include_dir)
  if(TARGET samite_split)
    return()
  endif()
  file(GLOB_RECURSE impl_headers CONFIGURE_DEPENDS RELATIVE ${include_dir} ${include_dir}/samite/*_impl.hpp)
  set(sources)
  foreach(header IN LISTS impl_headers)  # one unit a header: they compile side by side
    string(MAKE_C_IDENTIFIER ${header} unit)
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/samite_split/${unit}.cpp CONTENT "#define SAMITE_IMPLEMENT 1\n#include <${header}>\n" @ONLY)
    list(APPEND sources ${CMAKE_CURRENT_BINARY_DIR}/samite_split/${unit}.cpp)
  endforeach()
  add_library(samite_split STATIC EXCLUDE_FROM_ALL ${sources})
  add_library(samite::split ALIAS samite_split)
  target_link_libraries(samite_split PUBLIC samite::samite)
  target_compile_definitions(samite_split PUBLIC SAMITE_SPLIT=1)
endfunction()
