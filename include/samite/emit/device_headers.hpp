// samite/emit/device_headers.hpp: the embedded device sources that a kernel's text includes.
#pragma once
#include <string_view>
#include <vector>

#include <samite/jit/kernel_source.hpp>

namespace samite {

/// The device sources that `text` includes, directly or not: others are not in the key of its cubin.
std::vector<kernel_header> headers_of(std::string_view text);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/emit/device_headers_impl.hpp>
#endif
