// samite/mask/any_mask_impl.hpp: lowered masks.
#pragma once
#include <samite/ir/canonical.hpp>
#include <samite/mask/any_mask.hpp>

namespace samite {

SAMITE_IMPL any_mask::any_mask() {
  samite::program every;
  const node_id root = build_constant(every, true);
  share(std::move(every), root);
}

SAMITE_IMPL any_mask::any_mask(const any_mask&) = default;
SAMITE_IMPL any_mask& any_mask::operator=(const any_mask&) = default;
SAMITE_IMPL any_mask::~any_mask() = default;

SAMITE_IMPL any_mask::any_mask(const samite::program& lowered, std::string label) : label_(std::move(label)) {
  if (lowered.roots.empty() || lowered[lowered.roots[0]].kind != value_kind::boolean)
    raise("E-MASK-OPERAND", "any_mask(program): ", lowered.roots.empty() ? "the program has no root" : "the first root is a number", "; a mask is a program whose first root is a condition");
  share(lowered, lowered.roots[0]);
}

SAMITE_IMPL any_mask any_mask::labelled(std::string label) const {
  any_mask copy = *this;
  copy.label_ = std::move(label);
  return copy;
}

SAMITE_IMPL node_id any_mask::lower(samite::program& p) const { return lower_with(p, no_node, no_node); }

SAMITE_IMPL node_id any_mask::lower_with(samite::program& p, node_id q, node_id kv) const {
  std::vector<node_id> image;
  for (const node& n : program_->nodes()) {
    const node_id other = n.code != op::symbol ? no_node : n.imm == index_t(symbol_id::q) ? q : n.imm == index_t(symbol_id::kv) ? kv : no_node;
    if (other != no_node) {
      image.push_back(other);
      continue;
    }
    node copy = n;
    for (node_id& operand : copy.operands)
      if (operand != no_node) operand = image[std::size_t(operand)];
    if (n.code == op::argument) copy.imm = p.slot_of(program_->arguments()[std::size_t(n.imm)]);
    if (n.code == op::gather) copy.imm = p.slot_of(program_->tables()[std::size_t(n.imm)]);
    image.push_back(p.push(copy));
  }
  return image[std::size_t(program_->roots[0])];
}

SAMITE_IMPL bool any_mask::is_known(bool value) const { return detail::is_boolean(*program_, program_->roots[0], value); }

SAMITE_IMPL void any_mask::share(samite::program lowered, node_id root) {
  lowered.roots = {root};
  samite::program shared = canonical(lowered);
  for (const node& n : shared.nodes())
    if (n.code == op::symbol) uses_ |= 1u << unsigned(n.imm);
  hash_ = shared.hash();
  program_ = std::make_shared<const samite::program>(std::move(shared));
}

}  // namespace samite
