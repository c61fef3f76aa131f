// samite/run/row_tuning.hpp: how many threads share a row of a fused row program: the candidates, and how they are measured.
#pragma once
#include <memory>
#include <string>

#include <samite/ir/program.hpp>
#include <samite/jit/cuda_launcher.hpp>

namespace samite {

/// The tuning of row programs by their columns, in buckets, and by whether they reduce over a row. One choice serves every program alike.
///
/// columns  of the program's domain, at capacity
tuning_problem row_team_problem(index_t columns, bool reduces, const std::string& device_class);

/// Threads a row of a candidate of row_team_problem.
int row_team_of(const tuning_candidate& candidate);

/// Whether some value of the program is taken over a whole row.
bool reduces_rows(const program& p);

/// Measures the candidates by a norm, or by a product and a sum without a reduction, in bf16.
std::shared_ptr<tuning_launcher> make_row_team_launcher(kernel_cache& cache, const cuda_device& device, index_t columns, bool reduces);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/run/row_tuning_impl.hpp>
#endif
