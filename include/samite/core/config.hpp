// samite/core/config.hpp: version and the few macros of the library.
#pragma once

#if defined(__cplusplus) && __cplusplus < 202002L
#error "samite needs C++20: compile with -std=c++20 (CMake: target_compile_features(your_target PRIVATE cxx_std_20)), with g++ 12, clang 14 or later"
#endif

#define SAMITE_VERSION_MAJOR 0
#define SAMITE_VERSION_MINOR 1
#define SAMITE_VERSION_PATCH 0
#define SAMITE_VERSION "0.1.0"

// SAMITE_DEVICE_CODE is 1 while a device compiler (nvcc or NVRTC) reads the text; SAMITE_HD marks functions both sides run.
#if defined(__CUDACC__)
#define SAMITE_HD __host__ __device__
#else
#define SAMITE_HD
#endif

#if defined(__GNUC__) || defined(__clang__)
#define SAMITE_RESTRICT __restrict__
#define SAMITE_INLINE inline __attribute__((always_inline))
#else
#define SAMITE_RESTRICT
#define SAMITE_INLINE inline
#endif

// Functions in *_impl.hpp headers: inline where a program includes them, ordinary in the one unit that compiles them for a
// program built with SAMITE_SPLIT.
#ifdef SAMITE_IMPLEMENT
#define SAMITE_IMPL
#else
#define SAMITE_IMPL inline
#endif
