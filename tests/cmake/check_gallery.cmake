# docs/masks.md is what codegen/gallery.cpp prints. Run: cmake -D program=... -D page=docs/masks.md -P tests/cmake/check_gallery.cmake
execute_process(COMMAND ${program} OUTPUT_VARIABLE printed RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${program} ended with ${status}")
endif()
file(READ ${page} committed)
if(NOT printed STREQUAL committed)
  message(FATAL_ERROR "${page} is not what the gallery prints now; build the target masks_page and commit the page")
endif()
