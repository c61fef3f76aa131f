// samite/nn/attention_impl.hpp: checks and shapes of attention.
#pragma once
#include <algorithm>
#include <cmath>

#include <samite/nn/attention.hpp>

namespace samite {

SAMITE_IMPL attention_result attention(const value& Q, const value& K, const value& V, attention_options options) {
  const std::string name = "attention" + (options.label.empty() ? std::string() : " \"" + options.label + "\"");
  const auto shapes = [&] { return concat_text("q is ", to_text(Q.dims()), ", k is ", to_text(K.dims()), " and v is ", to_text(V.dims())); };
  if (Q.rank() != 4 || K.rank() != 4 || V.rank() != 4)
    raise("E-ATTN-RANK", name, ": ", shapes(), "; each must have four axes [B,H,tokens,D], use reshape and transpose");
  if (Q.type() != K.type() || Q.type() != V.type() || !is_real(Q.type()))
    raise("E-DTYPE-OPERANDS", name, ": q is ", name_of(Q.type()), ", k is ", name_of(K.type()), " and v is ", name_of(V.type()), "; all three must have one real dtype");
  const dim &H = Q.extent(1), &G = K.extent(1);
  if (!H.is_constant() || !G.is_constant() || G.constant() < 1 || H.constant() % G.constant() != 0)
    raise("E-ATTN-HEADS", name, ": q is ", to_text(Q.dims()), " but k is ", to_text(K.dims()), ": ", to_text({H}), " query heads can't share ", to_text({G}),
          " key heads; the query count must be a multiple of the key count");
  if (!(Q.extent(0) == K.extent(0)) || !(Q.extent(0) == V.extent(0)) || !(K.extent(1) == V.extent(1)) || !(K.extent(2) == V.extent(2)) || !(Q.extent(3) == K.extent(3)) ||
      !Q.extent(3).is_constant() || !V.extent(3).is_constant() || Q.extent(3).constant() < 1 || V.extent(3).constant() < 1)
    raise("E-ATTN-SHAPE", name, ": ", shapes(), "; batches, key tokens, key heads and the head size of q and k must agree, and head sizes must be numbers of at least 1");
  if (options.scale && !std::isfinite(*options.scale)) raise("E-ATTN-SCALE", name, ": the scale is ", *options.scale, "; expected a finite number, or none for 1 / sqrt(D)");
  if (const index_t heads = options.score.heads(); heads != 0 && heads != H.constant())
    raise("E-SCORE-HEADS", name, ": the score \"", options.score.label(), "\" was made for ", heads, " heads but q has ", H.constant(), ", and its numbers follow from the count; write ", options.score.label(), "(", H.constant(), ")");
  value_info out = row_major(Q.type(), {Q.extent(0), Q.extent(1), Q.extent(2), V.extent(3)});
  out.order = {0, 2, 1, 3};
  const value_info lse = row_major(Q.type() == dtype::f64 ? dtype::f64 : dtype::f32, {Q.extent(0), Q.extent(1), Q.extent(2), 1});
  const double scale = options.scale.value_or(1.0 / std::sqrt(double(std::max<index_t>(1, Q.extent(3).constant()))));
  const std::shared_ptr<const program> mask = options.mask.is_full() ? nullptr : options.mask.shared_program();
  attention_terms terms{mask, scale, options.score.shared_program(), int(options.score.tensors().size()), bool(options.sink), options.mask.label()};
  std::vector<value> inputs = {Q, K, V};
  inputs.insert(inputs.end(), options.score.tensors().begin(), options.score.tensors().end());
  if (options.sink) {
    if (options.sink.rank() != 1 || !(options.sink.extent(0) == H) || !is_real(options.sink.type()))
      raise("E-ATTN-SINK", name, ": the sink is ", name_of(options.sink.type()), " ", to_text(options.sink.dims()), "; expected one real number for each of the ", to_text({H}), " query heads");
    inputs.push_back(options.sink);
  }
  const std::vector<value> made = Q.owner().add(attention_node{std::move(terms)}, inputs, {out, lse}, options.label);
  return {made[0], made[1]};
}

}  // namespace samite
