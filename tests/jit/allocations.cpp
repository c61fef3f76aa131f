// tests/jit/allocations.cpp: a `new` that counts.
#include "allocations.hpp"

#include <cstdlib>
#include <new>

namespace {
thread_local long long count = 0;
}

long long samite_tests::allocations_of_thread() { return count; }

void* operator new(std::size_t bytes) {
  ++count;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++count;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
