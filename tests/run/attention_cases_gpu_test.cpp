// The cases on a GPU.
#define CASE_DEVICE device::cuda()
#define CASE_NEEDS SKIP_IF(!cuda_available(), cuda_missing_reason())
#include <samite/runtime/cuda_driver.hpp>

#include "attention_cases.hpp"
#include "attention_layout_cases.hpp"
