// samite/score/any_score.hpp: a score function of any type, lowered: what attention and kernels take.
#pragma once
#include <string>

#include <samite/expr/score.hpp>

namespace samite {

/// A score function, lowered to a program over (score, b, h, q, kv) and the tensors that it reads.
///
/// A default-made one is the identity. Copies share the program.
/// threads  free-threaded, like the arguments and tables it reads
class any_score {
 public:
  any_score() = default;

  template <score_expr E>
  any_score(const E& expression, std::string label = "score") : label_(std::move(label)) {
    score_builder b;
    const node_id root = expression.lower(b);
    finish(std::move(b), root);
  }
  /// errors  E-EXPR-SCORE at compile time: a mask is not a score
  template <predicate_expr E>
  any_score(const E&) {
    static_assert(detail::never<E>, "a score was expected, but this is a mask. Pass it as attention's `.mask`. [E-EXPR-SCORE]");
  }

  /// Null for the identity.
  const std::shared_ptr<const samite::program>& shared_program() const { return program_; }
  /// What slot i of the program's lookups reads.
  const std::vector<value>& tensors() const { return tensors_; }
  const std::string& label() const { return label_; }
  bool is_identity() const { return program_ == nullptr; }
  /// Hash of the structure: the same for scores that differ only in arguments, table contents and tensors.
  std::uint64_t hash() const { return program_ ? program_->hash() : 0; }

 private:
  void finish(score_builder b, node_id root);

  std::shared_ptr<const samite::program> program_;
  std::vector<value> tensors_;
  std::string label_ = "score";
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/score/any_score_impl.hpp>
#endif
