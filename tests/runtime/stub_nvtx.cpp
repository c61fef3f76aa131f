// NVTX without a profiler behind it: writes down what is opened and closed.
#include <cstring>

extern "C" {
char stub_nvtx_ranges[4096] = "";
int nvtxRangePushA(const char* name) { return std::strcat(std::strcat(stub_nvtx_ranges, name), "("), 0; }
int nvtxRangePop() { return std::strcat(stub_nvtx_ranges, ")"), 0; }
}
