// A user's program of two translation units.
#include "headers.hpp"

samite::index_t other_unit();

int main() { return samite::thread_count() == other_unit() ? 0 : 1; }
