// samite/mask/shared.hpp: tokens that several sequences see: shared prefixes, shared questions, global tokens, image spans.
#pragma once
#include <samite/mask/causal.hpp>

namespace samite {

/// Several answers to one question: causal, and an answer sees the question and itself but no other answer.
///
/// question  tokens of the question, which come first;  answers [S] or [B,S]: the answer of each token (any number in the question)
/// errors    E-MASK-LENGTHS if the question has a negative count of tokens
inline auto shared_question(scalar question, table_ref answers) {
  using namespace symbols;
  detail::check_tokens("shared_question", question.value());
  return kv <= q && (kv < std::move(question) || per_batch(answers, q) == per_batch(answers, kv));
}

/// Causal documents, each of which also sees all of one prefix document.
///
/// ids         [S] or [B,S]: the document of each token
/// prefix_ids  of the same shape: the document that the token's document continues; its own id if there is none
inline auto shared_prefix(table_ref ids, table_ref prefix_ids) {
  using namespace symbols;
  return kv <= q && (per_batch(ids, q) == per_batch(ids, kv) || per_batch(std::move(prefix_ids), q) == per_batch(ids, kv));
}

/// A band of `reach` keys on both sides, and tokens marked 1 in `globals` see and are seen by all.
///
/// globals  [S] or [B,S]
/// errors   E-MASK-WINDOW if reach < 0
/// source   Beltagy et al. 2020, arXiv:2004.05150, section 3.1
inline auto global_window(table_ref globals, index_t reach) {
  using namespace symbols;
  if (reach < 0) raise("E-MASK-WINDOW", "global_window(reach=", reach, "): the reach is a token count and must be >= 0");
  return abs(q - kv) <= reach || per_batch(globals, q) != 0 || per_batch(globals, kv) != 0;
}

/// Causal text with images whose tokens see one another: kv <= q or both in the same span.
///
/// spans   [S] or [B,S]: the number of a token's image, -1 for text
/// source  Zhou et al. 2024 (Transfusion), arXiv:2408.11039, section 3.2
inline auto image_spans(table_ref spans) {
  using namespace symbols;
  return kv <= q || (per_batch(spans, q) == per_batch(spans, kv) && per_batch(spans, q) != fixed(-1));
}

}  // namespace samite
