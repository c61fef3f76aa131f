// samite/jit/nvrtc.hpp: CUDA C++ text to a cubin, through an NVRTC opened when first needed. No GPU is needed.
#pragma once
#include <string>

#include <samite/jit/kernel_source.hpp>

namespace samite {

/// Whether an NVRTC can be opened: SAMITE_NVRTC_PATH, or the library path and /usr/local/cuda. Never raises.
bool nvrtc_available();

/// Why not; empty if there is one.
std::string nvrtc_missing_reason();

/// Version and size of the library, e.g. "13.0 109432120": patch releases differ in code but not in the version they report.
std::string nvrtc_build();

/// Compiles; does not look into any cache.
///
/// errors   E-JIT-COMPILE with the label, the lines at fault and where the source was kept; E-JIT-NVRTC without the library or its
///          builtins; E-JIT-FORK in a child forked while its parent compiled
/// threads  safe; NVRTC's front end lets one thread at a time through
/// cost     30 ms and more; own time is nothing beside it
compiled_kernel compile_kernel(const kernel_source& source);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/jit/nvrtc_impl.hpp>
#endif
