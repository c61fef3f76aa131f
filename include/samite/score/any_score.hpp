// samite/score/any_score.hpp: a score function of any type, lowered: what attention and kernels take.
#pragma once
#include <string>

#include <samite/expr/score.hpp>

namespace samite {

/// A score function, lowered to a program over (score, b, h, q, kv) and the tensors that it reads.
///
/// A default-made one is the identity. Copies share the program.
/// threads  free-threaded, like the arguments and tables it reads
class any_score : public finished_score_tag {
 public:
  any_score() = default;
  // A moved-from score stays as it is: moving copies.
  any_score(const any_score&) = default;
  any_score& operator=(const any_score&) = default;

  /// heads  query heads that the expression is for, which attention compares with its own; 0 for any number
  template <score_expr E>
  any_score(const E& expression, std::string label = "score", index_t heads = 0) : label_(std::move(label)), heads_(heads) {
    score_builder b;
    const node_id root = expression.lower(b);
    finish(std::move(b), root);
  }
  /// errors  E-EXPR-SCORE at compile time: a mask is not a score
  template <predicate_expr E>
  any_score(const E&) {
    static_assert(detail::never<E>, "a score was expected, but this is a mask. Pass it as attention's `.mask`. [E-EXPR-SCORE]");
  }
  /// Sentences for what else is no score.
  template <class E>
    requires(index_expr<E> || std::is_arithmetic_v<E> || detail::score_condition<E> || std::is_function_v<E> || detail::foreign_operand<E>) && (!score_expr<E>)
  any_score(const E&, std::string = "score") {
    if constexpr (detail::score_condition<E>)
      static_assert(detail::never<E>, "a score was expected, but this is a condition. Choose by it, e.g. `select(score > 0, score, 2 * score)`. [E-EXPR-SCORE]");
    else if constexpr (index_expr<E> || std::is_arithmetic_v<E>)
      static_assert(detail::never<E>, "a score was expected, but this is an index or a number, in which the score does not occur. Say what becomes of it, e.g. `score - kv` or `2.0 * score`; "
                                      "to replace it write `real(kv)`. [E-EXPR-SCORE]");
    else
      static_assert(detail::never<E>, "a score was expected, but this is no expression over score, b, h, q and kv. Functions that make one are called, e.g. `softcap(50.0)`; a tensor of the "
                                      "graph is read through a table, e.g. `score + table(bias)(h, q, kv)`. [E-EXPR-SCORE]");
  }

  /// Null for the identity.
  const std::shared_ptr<const samite::program>& shared_program() const { return program_; }
  /// What slot i of the program's lookups reads.
  const std::vector<value>& tensors() const { return tensors_; }
  const std::string& label() const { return label_; }
  index_t heads() const { return heads_; }
  bool is_identity() const { return program_ == nullptr; }
  /// Hash of the structure: the same for scores that differ only in arguments, table contents and tensors.
  std::uint64_t hash() const { return program_ ? program_->hash() : 0; }

 private:
  void finish(score_builder b, node_id root);

  std::shared_ptr<const samite::program> program_;
  std::vector<value> tensors_;
  std::string label_ = "score";
  index_t heads_ = 0;
};

// Near misses: finished score functions as operands. Those beside score expressions are in expr/score.hpp.
namespace detail {
template <class L, class R>
concept finished_operands = (std::derived_from<L, finished_score_tag> && !score_expr<R>) || (!score_expr<L> && std::derived_from<R, finished_score_tag>);
}  // namespace detail

template <class L, class R> requires detail::finished_operands<L, R>
any_score operator+(const L&, const R&) { return detail::refuse_finished_score<L, R>(), any_score(); }
template <class L, class R> requires detail::finished_operands<L, R>
any_score operator-(const L&, const R&) { return detail::refuse_finished_score<L, R>(), any_score(); }
template <class L, class R> requires detail::finished_operands<L, R>
any_score operator*(const L&, const R&) { return detail::refuse_finished_score<L, R>(), any_score(); }

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/score/any_score_impl.hpp>
#endif
