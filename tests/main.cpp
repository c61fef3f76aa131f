// tests/main.cpp: the main of every test binary. Writes what run.sh counts into the file that SAMITE_TEST_REPORT names.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "support/skip.hpp"

namespace {

unsigned cases_run = 0, cases_failed = 0;

// Listens beside the usual console output, because doctest counts no test that decides at run time to skip itself.
struct counter : doctest::IReporter {
  explicit counter(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    cases_run = stats.numTestCasesPassingFilters;
    cases_failed = stats.numTestCasesFailed;
  }
  void test_case_start(const doctest::TestCaseData& data) override { samite_tests::current_title() = data.m_name; }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

}  // namespace

REGISTER_LISTENER("counter", 1, counter);

int main(int argc, char** argv) {
  const char* path = std::getenv("SAMITE_TEST_REPORT");
  if (path != nullptr) std::remove(path);  // a crash leaves no report, and run.sh counts that as a failure
  doctest::Context context(argc, argv);
  const int status = context.run();
  const auto& skipped = samite_tests::skipped_cases();
  if (path != nullptr) {
    if (std::FILE* report = std::fopen(path, "w")) {
      std::fprintf(report, "count %zu %u %zu\n", std::size_t(cases_run - cases_failed) - skipped.size(), cases_failed, skipped.size());
      for (const auto& [title, reason] : skipped) std::fprintf(report, "skip %s: %s\n", title.c_str(), reason.c_str());
      std::fclose(report);
    }
  }
  return status;
}
