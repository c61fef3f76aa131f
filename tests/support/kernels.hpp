// tests/support/kernels.hpp: compiles emitted text without a GPU and reads what the assembler says of registers.
#pragma once
#include <string>
#include <vector>

#include <samite/emit/device_headers.hpp>
#include <samite/emit/kernel_text.hpp>
#include <samite/jit/nvrtc.hpp>

namespace samite_tests {

inline constexpr const char* served_archs[] = {"sm_80", "sm_86", "sm_90", "sm_100", "sm_120"};

/// Kernels of the unit that spill registers, as "name: n bytes, ..". Raises E-JIT-COMPILE if it does not compile.
std::string spills_of(const samite::kernel_text& kernel, const std::string& arch);

}  // namespace samite_tests
