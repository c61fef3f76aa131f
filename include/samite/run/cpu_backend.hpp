// samite/run/cpu_backend.hpp: runs plans on the host.
#pragma once
#include <memory>

#include <samite/run/backend.hpp>

namespace samite {

/// A backend that runs each node with all threads of the pool. Results don't depend on the number of threads.
std::unique_ptr<backend> make_cpu_backend();

/// Totals of this process since it started.
cpu_counters read_cpu_counters();

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/run/cpu_backend_impl.hpp>
#endif
