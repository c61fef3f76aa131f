// samite/ir/autodiff.hpp: reverse mode, graph to graph. The result is more nodes of the same graph.
#pragma once
#include <vector>

#include <samite/ir/graph.hpp>

namespace samite {

/// Gradients of a scalar `loss` with respect to `wanted`, as new values of the same graph.
///
/// loss     one element, f32 or f64
/// returns  one value per wanted one, of its shape. fp32 where it is the sum of many 16-bit contributions; zeros where
///          the loss does not depend on it
/// errors   E-GRAPH-LOSS, E-GRAPH-GRADIENT, E-GRAPH-OWNER
/// source   Griewank and Walther 2008, section 3.2 (reverse accumulation)
std::vector<value> gradient(const value& loss, const std::vector<value>& wanted);

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/ir/autodiff_impl.hpp>
#endif
