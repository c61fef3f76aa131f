#pragma once
#if __has_include(<samite/samite.hpp>)
#include <samite/samite.hpp>
#endif
#include <samite/io/json.hpp>
#include <samite/io/safetensors.hpp>
#include <samite/jit/compiler.hpp>
#include <samite/runtime/blas.hpp>
#include <samite/runtime/cublaslt.hpp>
#include <samite/runtime/tensor.hpp>
#include <samite/runtime/thread_pool.hpp>
