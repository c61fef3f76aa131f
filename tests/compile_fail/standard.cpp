// An older standard than C++20.
// mistake 1 with -std=c++17: samite needs C++20: compile with -std=c++20
#include <samite/mask.hpp>
samite::any_mask mask() { return samite::causal(); }
