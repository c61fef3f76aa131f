// samite/ir/canonical.hpp: one spelling for equal meanings of index and boolean programs.
//
// Index arithmetic becomes sums of coefficient * atom + constant; comparisons bring everything that varies to one side
// and everything that is an argument or constant to the other; conjunctions are flattened, sorted and rid of duplicates.
// Nodes, arguments and tables are then numbered in the order of a walk from the roots, so that the hash depends neither
// on the order in which the user wrote the parts nor on nodes that nobody uses.
#pragma once
#include <samite/ir/program.hpp>

namespace samite {

/// The canonical form of a program. Real-valued nodes are copied as they stand.
///
/// bind_arguments  also replaces every argument by its value now: what bounds are computed from
program canonical(const program& source, bool bind_arguments = false);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/canonical_impl.hpp>
#endif
