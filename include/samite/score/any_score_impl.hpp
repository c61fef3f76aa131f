// samite/score/any_score_impl.hpp: the bodies behind score/any_score.hpp.
#pragma once
#include <samite/ir/canonical.hpp>
#include <samite/score/any_score.hpp>

namespace samite {

SAMITE_IMPL void any_score::finish(score_builder b, node_id root) {
  if (b.p[root].code == op::symbol) return;  // the score itself
  b.p.roots = {root};
  program_ = std::make_shared<const samite::program>(std::move(b.p));
  tensors_ = std::move(b.tensors);
}

}  // namespace samite
