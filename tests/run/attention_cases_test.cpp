// The cases on the CPU backend.
#define CASE_DEVICE device::cpu()
#define CASE_NEEDS static_cast<void>(0)
#include "attention_cases.hpp"
#include "attention_layout_cases.hpp"
