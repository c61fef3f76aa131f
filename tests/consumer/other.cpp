#include "headers.hpp"

samite::index_t other_unit() { return samite::thread_count(); }
