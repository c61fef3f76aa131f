// samite/expr/score_impl.hpp: the bodies behind expr/score.hpp.
#pragma once
#include <samite/expr/score.hpp>
#include <samite/ir/build.hpp>
#include <samite/ir/tensor_ops.hpp>

namespace samite {

SAMITE_IMPL node_id score_builder::real(node_id id) { return p[id].kind == value_kind::index ? build(p, op::to_real, id) : id; }

SAMITE_IMPL index_t score_builder::slot_of(const value& tensor) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i] == tensor) return index_t(i);
  tensors.push_back(tensor);
  return index_t(tensors.size() - 1);
}

SAMITE_IMPL void tensor_table::check_rank(int indices) const {
  if (tensor_.rank() == indices && is_real(tensor_.type())) return;
  if (!is_real(tensor_.type()))
    raise("E-SCORE-TYPE", "table(value): the tensor is ", name_of(tensor_.type()), ", but scores read real tensors; integers come from table(std::vector)");
  raise("E-SCORE-RANK", "score lookup: the tensor has shape ", to_text(tensor_.dims()), " but ", indices,
        " index(es) were given; give one index for each axis, e.g. bias(h, q - kv + fixed(n))");
}

SAMITE_IMPL index_t tensor_table::second_extent() const {
  if (!tensor_.extent(1).is_constant())
    raise("E-SCORE-RANK", "score lookup with four indices: the second extent of ", to_text(tensor_.dims()), " is a run-time length; it must be a number, like a count of heads");
  return tensor_.extent(1).constant();
}

SAMITE_IMPL value tensor_table::merged() const {
  return reshape(tensor_, {tensor_.extent(0) * second_extent(), tensor_.extent(2), tensor_.extent(3)});
}

}  // namespace samite
