// samite/mask/any_mask.hpp: a mask of any type, lowered: what attention, tile maps and kernels take.
#pragma once
#include <string>

#include <samite/expr/table.hpp>

namespace samite {

/// A predicate over (b, h, q, kv), lowered to a canonical program that nobody changes any more.
///
/// A default-made mask keeps every pair. Copies share the program. It is a predicate itself and combines with others.
/// threads  free-threaded, like the arguments and tables it reads
class any_mask : public predicate_tag {
 public:
  any_mask();
  any_mask(const any_mask&);
  any_mask(any_mask&&) noexcept;
  any_mask& operator=(const any_mask&);
  any_mask& operator=(any_mask&&) noexcept;
  ~any_mask();


  /// Lowers the expression. errors: E-EXPR-DIVISOR, E-MASK-TABLE-RANK
  template <predicate_expr E>
    requires(!std::same_as<E, any_mask>)
  any_mask(const E& expression, std::string label = "mask") : label_(std::move(label)) {
    samite::program lowered;
    const node_id root = expression.lower(lowered);
    share(std::move(lowered), root);
  }
  template <class E>
    requires(std::derived_from<E, index_tag> || std::derived_from<E, score_tag> || std::derived_from<E, score_condition_tag> || std::derived_from<E, table_tag>)
  any_mask(const E&, std::string = "mask") {
    static_assert(detail::never<E>, "a mask was expected, but this is no condition over b, h, q and kv: compare it with something, e.g. `x != 0`; a score goes to attention's `.score`. [E-MASK-OPERAND]");
  }
  /// A mask from a program whose first root is boolean.
  explicit any_mask(const samite::program& lowered, std::string label = "mask");

  const std::shared_ptr<const samite::program>& shared_program() const { return program_; }
  const samite::program& program() const { return *program_; }
  const std::string& label() const { return label_; }
  any_mask labelled(std::string label) const;

  /// Hash of the structure: the same for masks that mean the same and differ only in arguments and table contents.
  std::uint64_t hash() const { return hash_; }
  bool uses(symbol_id id) const { return (uses_ >> unsigned(id) & 1u) != 0; }
  /// Whether the structure alone says that every pair is kept.
  bool is_full() const { return is_known(true); }
  bool is_none() const { return is_known(false); }

  /// Copies the program's nodes into another program.
  node_id lower(samite::program& p) const;
  /// The same with other nodes in the place of q and kv; no_node leaves a symbol as it is.
  node_id lower_with(samite::program& p, node_id q, node_id kv) const;

 private:
  bool is_known(bool value) const;

  void share(samite::program lowered, node_id root);

  std::shared_ptr<const samite::program> program_;
  std::string label_ = "mask";
  std::uint64_t hash_ = 0;
  unsigned uses_ = 0;
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/mask/any_mask_impl.hpp>
#endif
