// samite/jit/kernel_source.hpp: what goes into a kernel's compile and what comes out.
#pragma once
#include <string>
#include <vector>

namespace samite {

/// A header that lives in memory; kernels include it under its full name.
struct kernel_header {
  std::string name, text;
};

/// What is compiled. Everything here decides about the result and is in the cache's key; the label, which is the file name of the text, where
/// code may show it: `__FILE__`, assertions, line information.
struct kernel_source {
  std::string label;  // for messages, e.g. "attn_fwd.causal_d128"
  std::string text;
  std::string arch;   // with its suffix: "sm_80", "sm_90a"
  std::vector<std::string> options = {};  // beside the fixed ones: C++20, no file of the working folder, reproducible names
  std::vector<kernel_header> headers = {};
};

/// A cubin and what the compiler said: warnings, and the registers and spills of each kernel.
struct compiled_kernel {
  std::string cubin, log;
  std::string label = {};  // of the source that was compiled first; the cache's listing shows it
};

}  // namespace samite
