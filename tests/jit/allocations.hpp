// tests/jit/allocations.hpp: how often this thread asked for memory by `new`. A binary that uses it has its own `new`.
#pragma once

namespace samite_tests {

long long allocations_of_thread();

}  // namespace samite_tests
