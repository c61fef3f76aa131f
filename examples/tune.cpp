// Tunes kernels on a GPU, in processes of its own: what a candidate breaks there, no training run meets.
//
// Run:     tune [INDEX]        the choices go to the kernel cache (SAMITE_CACHE_DIR); every later run of that cache uses them
//          tune --self-test    shows that candidates that abort or never end are found, recorded and left out; needs no GPU and leaves nothing
// Expect:  a line a problem and a line a candidate. Ranks of a job that share the cache's folder choose alike; where they don't, tune once
//          and ship it with `cache_tool export`.
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <samite/run/row_tuning.hpp>

#include "status.hpp"

extern char** environ;

namespace {

using namespace samite;

constexpr int hard_limit_s = 60;  // of one problem; its soft limits are the tuner's own
constexpr int columns_tuned[] = {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};

struct task {
  index_t columns = 0;
  bool reduces = false;
};

std::vector<task> all_tasks() {
  std::vector<task> tasks;
  for (const int columns : columns_tuned)
    for (const bool reduces : {false, true}) tasks.push_back({columns, reduces});
  return tasks;
}

/// Candidates that end as the worst kernels do, without a GPU.
struct self_test_launcher : tuning_launcher {
  void prepare(const tuning_candidate&) override {}
  bool is_right(const tuning_candidate& c) override {
    if (c.name == "aborts") std::raise(SIGKILL);
    while (c.name == "never ends") std::this_thread::sleep_for(std::chrono::seconds(1));
    return true;
  }
  double measure_us(const tuning_candidate& c) override { return c.name == "fast" ? 5 : 10; }
};
tuning_problem self_test_problem() { return {.family = "self-test 1", .shape = "any", .device_class = "host", .candidates = {{"first"}, {"aborts"}, {"never ends"}, {"fast"}}}; }

/// One problem, in the process that may die of it.
void tune_one(const std::string& number) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // who watches over the limit has gone
  const bool is_task = number.find_first_not_of("0123456789 ") == std::string::npos && number.find(' ') != std::string::npos && number.find(' ') > 0 && number.back() != ' ' && number.size() < 12;
  if (number != "self-test" && !is_task) raise("E-ARG", "--one \"", number, "\" is what tune calls itself with; run tune [INDEX]");
  tuning_options options = tuning_options_from_environment();
  options.problem_ms = 5000, options.total_ms = 30'000, options.wait_ms = 1000 * (hard_limit_s - 15);
  tuner t(disk_cache::instance(), options);
  if (number == "self-test") {
    t.tune(self_test_problem(), std::make_shared<self_test_launcher>());
  } else {
    const auto space = number.find(' ');
    const cuda_device device = cuda_device::open(std::stoi(number.substr(space + 1)));
    const task now = all_tasks().at(std::stoul(number));
    t.tune(row_team_problem(now.columns, now.reduces, device_class_of(device)), make_row_team_launcher(kernel_cache::instance(), device, now.columns, now.reduces));
  }
  std::printf("%s", t.explain().c_str());
}

/// Runs this program for one problem. Gives its status, or -1 if it was ended at the limit or died.
int run_child(const std::string& number, int limit_s) {
  std::string self = "/proc/self/exe", flag = "--one", text = number;
  char* arguments[] = {self.data(), flag.data(), text.data(), nullptr};
  pid_t child = 0;
  if (::posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments, environ) != 0) raise("E-JIT-TUNE", "tune can't start itself from /proc/self/exe; is /proc mounted?");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(limit_s);
  for (int status = 0;;) {
    if (::waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (std::chrono::steady_clock::now() > end) ::kill(child, SIGKILL);  // what it was running is on disk, and is not tried again
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

/// What can be known before a folder is made.
void check_setting() {
  const activity note("tune", "");  // or each process of the job would find a wrong SAMITE_NVTX
  if (disk_cache::instance().access() != disk_cache::mode::read_write)
    raise("E-JIT-CACHE", "tune stores what it finds: set SAMITE_CACHE=rw, and SAMITE_CACHE_DIR to a folder of yours");
}

void check_cache() {
  check_setting();
  if (disk_cache::instance().writable_folder("00").empty())
    raise("E-JIT-CACHE", "tune needs a kernel cache that it can write: set SAMITE_CACHE_DIR to a folder of yours, and SAMITE_CACHE=rw");
}

void tune_all(const std::vector<std::string>& numbers, int limit_s, std::size_t most_candidates) {
  check_cache();
  for (const std::string& number : numbers) {
    int status = -1;
    // Each round loses at most one candidate for good, so there is an end.
    for (std::size_t round = 0; status != 0 && round <= most_candidates; ++round) {
      status = run_child(number, limit_s);
      if (status != 0) std::printf("problem %s: the process %s; what it was running is left out from now on\n", number.c_str(), status < 0 ? "died or was ended at its limit" : "failed");
      std::fflush(stdout);
    }
    if (status != 0) raise("E-JIT-TUNE", "problem ", number, " was not tuned: even its first candidate fails on this device; the last lines say how");
  }
}

/// With a cache of its own: nothing of it is for the user's.
void self_test() {
  struct temporary_folder {
    std::string path = example::make_temporary_folder("samite-tune");
    ~temporary_folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } const folder;
  ::setenv("SAMITE_CACHE_DIR", folder.path.c_str(), 1), ::setenv("SAMITE_CACHE", "rw", 1), ::setenv("SAMITE_TUNE", "on", 1), ::unsetenv("SAMITE_TUNE_MS");  // before the cache is first used; children see it too
  const tuning_problem problem = self_test_problem();
  tune_all({"self-test"}, 2, problem.candidates.size());
  const std::string& chosen = problem.candidates[std::size_t(tuner(disk_cache::instance()).choose(problem))].name;
  ensure(chosen == "fast", "the candidates that end their process are left out, and the best of the others is chosen");
}

void run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "--one") return tune_one(arguments[1]);
  if (arguments.size() > 1) raise("E-ARG", "tune takes one device number at most; see the head of examples/tune.cpp");
  if (arguments.size() == 1 && (arguments[0] == "--help" || arguments[0] == "-h")) return void(std::puts("tune [INDEX] tunes the row kernels on that GPU; tune --self-test checks the program itself, without one"));
  if (arguments.size() == 1 && arguments[0] == "--self-test") {
    self_test();
    return;
  }
  const std::string index = arguments.empty() ? "0" : arguments[0];
  if (index.empty() || index.size() > 3 || index.find_first_not_of("0123456789") != std::string::npos) raise("E-ARG", "\"", index, "\" is no number of a GPU; run with --help");
  check_setting();
  const std::string device_class = device_class_of(cuda_device::open(std::stoi(index)));
  check_cache();
  std::printf("tuning for %s\n", device_class.c_str());
  std::fflush(stdout);
  std::vector<std::string> numbers;
  for (std::size_t i = 0; i < all_tasks().size(); ++i) numbers.push_back(concat_text(i, " ", index));
  tune_all(numbers, hard_limit_s, 4);
}

}  // namespace

int main(int argc, char** argv) {
  return example::end_with_status([&] { run(std::vector<std::string>(argv + 1, argv + argc)); });
}
