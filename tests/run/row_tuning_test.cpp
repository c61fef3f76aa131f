#include <doctest/doctest.h>

#include <samite/emit/row_kernel.hpp>
#include <samite/run/row_tuning.hpp>

using namespace samite;

TEST_CASE("row teams: the first candidate is the rule's own, and a thread alone is tried only where rows are short") {
  const auto names_of = [](index_t columns) {
    std::string names;
    for (const tuning_candidate& c : row_team_problem(columns, true, "d").candidates) names += c.name + " ";
    return names;
  };
  CHECK(names_of(4) == "team=1 team=32 team=256 ");
  CHECK(names_of(64) == "team=32 team=1 team=256 ");
  CHECK(names_of(1024) == "team=32 team=256 ");
  CHECK(names_of(5120) == "team=256 team=32 ");
  for (const index_t columns : {4, 1024, 5120}) CHECK(row_team_of(row_team_problem(columns, false, "d").candidates[0]) == row_team(columns));
}

TEST_CASE("row teams: columns are tuned in buckets, apart for programs that reduce") {
  CHECK(row_team_problem(3000, true, "d").shape == row_team_problem(4096, true, "d").shape);
  CHECK(row_team_problem(4096, true, "d").shape != row_team_problem(4096, false, "d").shape);
  CHECK(row_team_problem(4096, true, "d").shape != row_team_problem(4097, true, "d").shape);
}
