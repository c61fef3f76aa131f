// tests/support/chi_square.hpp: whether draws follow a distribution.
#pragma once
#include <cmath>
#include <cstddef>
#include <vector>

namespace samite_tests {

/// How far counts are from their distribution, relative to the value that the chi-square statistic passes in 1 of 10 000 runs:
/// above 1 they disagree. Cells that expect fewer than 5 draws are merged. A draw of probability 0 is infinitely far.
///
/// source  Pearson 1900; quantile after Wilson and Hilferty 1931
inline double chi_square_excess(const std::vector<double>& counts, const std::vector<double>& p) {
  double draws = 0, statistic = 0, rest_count = 0, rest_expected = 0;
  for (const double c : counts) draws += c;
  int cells = 0;
  const auto add = [&](double count, double expected) { statistic += (count - expected) * (count - expected) / expected, ++cells; };
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i] <= 0 && counts[i] > 0) return INFINITY;
    if (draws * p[i] >= 5) add(counts[i], draws * p[i]);
    else rest_count += counts[i], rest_expected += draws * p[i];
  }
  if (rest_expected > 0.5) add(rest_count, rest_expected);
  const double freedom = cells - 1, part = 2 / (9 * freedom), quantile = freedom * std::pow(1 - part + 3.719 * std::sqrt(part), 3);
  return cells < 2 ? 0 : statistic / quantile;
}

}  // namespace samite_tests
