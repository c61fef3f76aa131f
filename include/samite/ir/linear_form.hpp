// samite/ir/linear_form.hpp: sums of factors times atoms, which the canonical form and the bounds both work on.
#pragma once
#include <numeric>
#include <vector>

#include <samite/ir/folding.hpp>
#include <samite/ir/interval.hpp>

namespace samite::detail {

/// Sum of factor * atom, plus a constant. Factors are not 0 and atoms differ; what an atom is, the user of the form says. A form
/// whose numbers are too large to fold is not valid, and nothing else in it counts then.
struct linear_form {
  struct term {
    int atom;
    index_t factor;
    friend bool operator==(const term&, const term&) = default;
  };
  std::vector<term> terms;
  index_t constant = 0;
  bool valid = true;
};

/// x + factor * y, for a factor that is not 0.
inline linear_form joined(linear_form x, const linear_form& y, index_t factor) {
  x.valid = x.valid && y.valid && is_foldable(__int128(x.constant) + __int128(y.constant) * factor);
  if (!x.valid) return x;
  x.constant += y.constant * factor;
  for (const linear_form::term& t : y.terms) {
    std::size_t at = 0;
    while (at < x.terms.size() && x.terms[at].atom != t.atom) ++at;
    const __int128 total = __int128(t.factor) * factor + (at == x.terms.size() ? 0 : x.terms[at].factor);
    x.valid = is_foldable(total);
    if (!x.valid) return x;
    if (at == x.terms.size()) x.terms.push_back({t.atom, index_t(total)});
    else if (total == 0) x.terms.erase(x.terms.begin() + std::ptrdiff_t(at));
    else x.terms[at].factor = index_t(total);
  }
  return x;
}

/// factor * x.
inline linear_form scaled(const linear_form& x, index_t factor) { return factor == 0 && x.valid ? linear_form{} : joined({}, x, factor); }

/// Divides varying + rest <= 0 (or == 0) by the common factor of what varies; false if an equality has no solution.
inline bool reduce(linear_form& varying, linear_form& rest, bool inequality) {
  index_t common = 0;
  for (const auto& t : varying.terms) common = std::gcd(common, t.factor);
  for (const auto& t : rest.terms)
    if (t.factor % common != 0) return true;
  if (!inequality && rest.constant % common != 0) return false;
  if (common <= 1) return true;
  for (auto& t : varying.terms) t.factor /= common;
  for (auto& t : rest.terms) t.factor /= common;
  rest.constant = -floor_div(-rest.constant, common);
  return true;
}

}  // namespace samite::detail
