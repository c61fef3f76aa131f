// samite/mask/any_mask.hpp: a mask of any type, lowered: what attention, tile maps and kernels take.
#pragma once
#include <string>

#include <samite/expr/table.hpp>

namespace samite {

namespace detail {
template <class E>
constexpr void refuse_mask() {
  refuse_function<E>();
  if constexpr (std::derived_from<E, score_condition_tag>)
    static_assert(never<E>,
                  "a mask was expected, but this compares real numbers: a mask decides by b, h, q, kv and integer tables alone. Compare whole numbers, e.g. `2 * q < 5 * kv` for "
                  "`q / 2.5 < kv` (E-EXPR-FLOAT); what depends on the score is select(score > x, ..., ...) inside the score function, and a mask's tables are of integers on the host, table(std::vector), not tensors of the graph. [E-EXPR-SCORE]");
  else if constexpr (std::derived_from<E, score_tag>)
    static_assert(never<E>, "a mask was expected, but this is a score, which is a number and no condition. It goes to attention's `.score`. [E-EXPR-SCORE]");
  else if constexpr (std::is_arithmetic_v<E>)
    static_assert(never<E>,
                  "a mask was expected, but this is a number or a truth value of C++. If it is a comparison, a local variable hides a symbol: rename it, or write "
                  "`symbols::kv <= symbols::q`. Every pair is full(), no pair none(), and masks are called: `!causal()`. [E-MASK-OPERAND]");
  else if constexpr (std::derived_from<E, index_tag> || std::derived_from<E, table_tag>)
    static_assert(never<E>, "a mask was expected, but this is no condition over b, h, q and kv: compare it with something, e.g. `x != 0`. [E-MASK-OPERAND]");
  else if constexpr (!std::is_function_v<E>)
    static_assert(never<E>,
                  "a mask was expected, but this is neither a mask nor a condition over b, h, q and kv. Functions of C++ and lambdas are no masks: write an expression, e.g. "
                  "`kv <= q`; a tensor or list of bits is dense_mask(...) or a table that a condition reads. [E-MASK-OPERAND]");
}
}  // namespace detail

/// A predicate over (b, h, q, kv), lowered to a canonical program that nobody changes any more.
///
/// A default-made mask keeps every pair. Copies share the program. It is a predicate itself and combines with others.
/// threads  free-threaded, like the arguments and tables it reads
class any_mask : public predicate_tag {
 public:
  any_mask();
  // A moved-from mask stays as it is: moving copies.
  any_mask(const any_mask&);
  any_mask& operator=(const any_mask&);
  ~any_mask();

  /// Lowers the expression. errors: E-EXPR-DIVISOR, E-MASK-TABLE-RANK
  template <predicate_expr E>
    requires(!std::same_as<E, any_mask>)
  any_mask(const E& expression, std::string label = "mask") : label_(std::move(label)) {
    samite::program lowered;
    const node_id root = expression.lower(lowered);
    share(std::move(lowered), root);
  }
  /// Sentences for what is no mask.
  template <class E>
    requires(!predicate_expr<E> && !std::same_as<E, samite::program>)
  any_mask(const E&, std::string = "mask") {
    detail::refuse_mask<E>();
  }
  /// A mask from a program whose first root is boolean. errors: E-MASK-OPERAND
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
