// samite/mask/window.hpp: sliding-window masks.
#pragma once
#include <samite/expr/index.hpp>

namespace samite {

/// Keeps the `width` most recent keys of each query, itself included.
///
/// width    tokens, >= 1; window(1) is the diagonal. A run-time argument: another width is not another kernel
/// returns  a predicate over (q, kv), the same for every batch and head
/// errors   E-MASK-WINDOW if width < 1
/// cost     tiles outside the band are skipped: O(Q * width) work
/// source   Beltagy et al. 2020, arXiv:2004.05150, section 3.1
inline auto window(index_t width) {
  using namespace symbols;
  if (width < 1)
    raise("E-MASK-WINDOW", "window(width=", width, "): the width is a token count and must be >= 1; ",
          "use none() to hide every key");
  return q - kv >= 0 && q - kv < width;
}

/// The same with a width from an expression: a `scalar` that is set later, or a table such as `widths[h]`.
template <index_expr E>
auto window(E width) {
  using namespace symbols;
  return q - kv >= 0 && q - kv < std::move(width);
}

/// Keeps the keys from q - left to q + right, both included.
///
/// left, right  tokens, >= 0; a row in the middle sees left + right + 1 keys
/// errors       E-MASK-WINDOW if one of them is negative: there is no number for "open"
inline auto window(index_t left, index_t right) {
  using namespace symbols;
  if (left < 0 || right < 0)
    raise("E-MASK-WINDOW", "window(left=", left, ", right=", right, "): both are token counts and must be >= 0; for an open side leave its ",
          "comparison out, e.g. `q - kv <= ", left < 0 ? 0 : left, "`; for a shifted window write both comparisons");
  return q - kv <= left && kv - q <= right;
}

/// Keeps the first `sinks` keys and the `width` most recent ones, causally (StreamingLLM).
///
/// errors  E-MASK-WINDOW if width < 1 or sinks < 0
/// source  Xiao et al. 2023, arXiv:2309.17453
inline auto sink_window(index_t sinks, index_t width) {
  using namespace symbols;
  if (width < 1 || sinks < 0)
    raise("E-MASK-WINDOW", "sink_window(sinks=", sinks, ", width=", width, "): sinks must be >= 0 and the width >= 1 tokens");
  return kv <= q && (kv < sinks || q - kv < width);
}

/// Keeps exactly `width` keys around each query, shifted inwards at the ends (NATTEN, one dimension).
///
/// length  tokens of the axis, >= width
/// errors  E-MASK-WINDOW if width < 1 or length < width
/// source  Hassani et al. 2022, arXiv:2204.07143
inline auto neighborhood(index_t length, index_t width) {
  using namespace symbols;
  if (width < 1 || length < width)
    raise("E-MASK-WINDOW", "neighborhood(length=", length, ", width=", width, "): the width must be >= 1 and at most the length");
  const scalar w(width), half(width / 2), last(length - width);
  const auto start = clamp(q - half, 0, last);
  return kv >= start && kv < start + w;
}

// Near misses: counts with fractions, tables.
template <std::derived_from<table_tag> T>
detail::known_predicate window(const T&) {
  static_assert(detail::never<T>, "window(table): a table is no number, but its elements are. Look one up, e.g. `window(widths[h])`. [E-MASK-OPERAND]");
  return detail::known_predicate(true);
}
template <class T> requires detail::some_fraction<T> auto window(T) { return detail::refuse_token_fraction<T>(); }
template <class A, class B> requires detail::some_fraction<A, B> auto window(A, B) { return detail::refuse_token_fraction<A, B>(); }
template <class A, class B> requires detail::some_fraction<A, B> auto sink_window(A, B) { return detail::refuse_token_fraction<A, B>(); }
template <class A, class B> requires detail::some_fraction<A, B> auto neighborhood(A, B) { return detail::refuse_token_fraction<A, B>(); }

}  // namespace samite
