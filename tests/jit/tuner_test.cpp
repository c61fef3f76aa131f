#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include <samite/core/random.hpp>
#include <samite/jit/cuda_launcher.hpp>
#include <samite/jit/tuner.hpp>

#include "allocations.hpp"
#include "support/jit_faults.hpp"

using namespace samite;
using namespace samite_tests;
using mode = disk_cache::mode;

namespace {

/// Candidates by name: how long each takes, and what goes wrong with it.
struct fake_launcher : tuning_launcher {
  std::map<std::string, double> us;
  std::map<std::string, std::function<void()>> on_prepare, on_run;
  std::set<std::string> wrong;
  double first_launch_us = 0;
  std::atomic<double>* clock_ms = nullptr;  // moved by what runs
  std::atomic<int> prepared{0}, runs{0};
  std::set<std::string> launched;

  void prepare(const tuning_candidate& candidate) override {
    ++prepared;
    if (const auto found = on_prepare.find(candidate.name); found != on_prepare.end()) found->second();
  }
  double run(const tuning_candidate& candidate) {
    ++runs;
    if (const auto found = on_run.find(candidate.name); found != on_run.end()) found->second();
    const double first = launched.insert(candidate.name).second ? first_launch_us : 0;
    const double time = us.at(candidate.name) + first;
    if (clock_ms != nullptr) *clock_ms = *clock_ms + time / 1000;
    return time;
  }
  bool is_right(const tuning_candidate& candidate) override {
    run(candidate);
    return !wrong.contains(candidate.name);
  }
  double measure_us(const tuning_candidate& candidate) override { return run(candidate); }
};

std::shared_ptr<fake_launcher> launcher_with(std::map<std::string, double> us) {
  auto launcher = std::make_shared<fake_launcher>();
  launcher->us = std::move(us);
  return launcher;
}

tuning_problem problem_of(std::vector<tuning_candidate> candidates, std::string shape = "q<=4096", std::string device = "H200, 132 SMs") {
  return {.family = "attn_fwd 1", .shape = std::move(shape), .device_class = std::move(device), .candidates = std::move(candidates)};
}
const std::vector<tuning_candidate> three = {{"a"}, {"b"}, {"c"}};

struct bench {
  temporary_folder folder;
  disk_cache disk{folder / "c", mode::read_write};
  warning_list lines;
  tuning_options options() { return {.say = lines.take()}; }
};

}  // namespace

TEST_CASE("the fastest candidate is chosen, from then on, by other tuners over the same cache too") {
  bench b;
  tuner first(b.disk, b.options());
  const auto problem = problem_of(three);
  CHECK(first.choose(problem) == 0);
  CHECK(first.tune(problem, launcher_with({{"a", 10}, {"b", 7}, {"c", 9}})) == 1);
  CHECK(first.choose(problem) == 1);
  tuner next(b.disk, b.options());
  CHECK(next.choose(problem) == 1);
  CHECK(next.tune(problem, nullptr) == 1);
  CHECK(next.tunings() == 0);
  CHECK(first.explain().find("  b: 7 us\n") != std::string::npos);
}

TEST_CASE("candidates within the noise of the best are equal, and the first of them is chosen") {
  bench b;
  tuner t(b.disk, b.options());
  CHECK(t.tune(problem_of(three, "1"), launcher_with({{"a", 10}, {"b", 9.9}, {"c", 9.85}})) == 0);
  CHECK(t.tune(problem_of(three, "2"), launcher_with({{"a", 10}, {"b", 9.0}, {"c", 8.9}})) == 1);
  CHECK(t.tune(problem_of(three, "3"), launcher_with({{"a", 10}, {"b", 10}, {"c", 10}})) == 0);
}

TEST_CASE("candidates that don't compile, are wrong, need too much or don't get their memory are dropped, and the others win") {
  bench b;
  tuner t(b.disk, b.options());
  auto launcher = launcher_with({{"a", 10}, {"bad text", 1}, {"wrong", 1}, {"too large", 1}, {"no memory", 1}, {"no registers", 1}, {"nan", NAN}, {"good", 8}});
  launcher->on_prepare["bad text"] = [] { raise("E-JIT-COMPILE", "compile failed"); };
  launcher->on_prepare["no memory"] = [] { raise("E-CUDA-MEMORY", "allocating 1000 bytes failed"); };
  launcher->on_run["no registers"] = [] { raise("E-CUDA-CALL", "launching failed: too many resources (701)"); };
  launcher->wrong = {"wrong"};
  const auto problem = problem_of({{"a"}, {"bad text"}, {"wrong"}, {"too large", std::uint64_t(1) << 40}, {"no memory"}, {"no registers"}, {"nan"}, {"good"}});
  CHECK(t.tune(problem, launcher) == 7);
  const std::string explained = t.explain();
  for (const char* line : {"bad text: dropped: samite: compile failed", "wrong: dropped: its result is wrong", "too large: dropped: it needs",
                           "no memory: dropped: samite: allocating", "no registers: dropped: samite: launching failed", "nan: dropped: its time"})
    CHECK(explained.find(line) != std::string::npos);
  CHECK(b.lines.texts.size() == 1);  // of the memory, which may be there the next time
}

TEST_CASE("if the first candidate fails, it stays the choice, and whoever runs it meets its error") {
  bench b;
  tuner t(b.disk, b.options());
  auto launcher = launcher_with({{"a", 10}, {"b", 1}, {"c", 1}});
  launcher->on_prepare["a"] = [] { raise("E-JIT-COMPILE", "compile failed"); };
  CHECK(t.tune(problem_of(three), launcher) == 0);
  CHECK(launcher->prepared == 1);
}

TEST_CASE("a candidate that faults the device ends tuning with its error, and no later process tries it again") {
  bench b;
  auto launcher = launcher_with({{"a", 10}, {"b", 1}, {"c", 5}});
  launcher->on_run["b"] = [] { raise("E-CUDA-FAULT", "illegal address"); };
  tuner t(b.disk, b.options());
  CHECK_THROWS_WITH_AS(t.tune(problem_of(three), launcher), doctest::Contains("E-CUDA-FAULT"), samite::error);
  CHECK(t.choose(problem_of(three)) == 0);
  tuner next(b.disk, b.options());
  launcher->on_run.clear();
  CHECK(next.tune(problem_of(three), launcher) == 2);
  CHECK(next.explain().find("b: dropped: a process died while it ran") != std::string::npos);
}

TEST_CASE("off measures nothing and knows nothing, read-only measures nothing, a pin beats a measurement, freeze() keeps choices") {
  bench b;
  const auto problem = problem_of(three);
  const auto launcher = launcher_with({{"a", 10}, {"b", 7}, {"c", 9}});
  tuner(b.disk, b.options()).tune(problem, launcher);
  const int runs = launcher->runs;
  tuner off(b.disk, {.mode = tuning_mode::off}), read_only(b.disk, {.mode = tuning_mode::read_only}), pinned(b.disk, b.options()), frozen(b.disk, b.options());
  CHECK(off.tune(problem, launcher) == 0);
  CHECK(read_only.tune(problem, launcher) == 1);
  CHECK(read_only.tune(problem_of(three, "other"), launcher) == 0);
  pinned.pin(problem, "c");
  CHECK(pinned.tune(problem, launcher) == 2);
  CHECK_THROWS_WITH_AS(pinned.pin(problem, "d"), doctest::Contains("E-JIT-TUNE"), samite::error);
  frozen.freeze();
  CHECK(frozen.tune(problem, launcher) == 0);
  CHECK_THROWS_WITH_AS(frozen.pin(problem, "c"), doctest::Contains("frozen"), samite::error);
  CHECK(launcher->runs == runs);
}

TEST_CASE("SAMITE_TUNE is off, ro or on, another value is E-ENV-VALUE; SAMITE_TUNE_MS is the time for all") {
  setenv("SAMITE_TUNE", "ro", 1);
  setenv("SAMITE_TUNE_MS", "70", 1);
  CHECK(tuning_options_from_environment().mode == tuning_mode::read_only);
  CHECK(tuning_options_from_environment().total_ms == 70);
  setenv("SAMITE_TUNE", "yes", 1);
  CHECK_THROWS_WITH_AS(tuning_options_from_environment(), doctest::Contains("expected off, ro or on"), samite::error);
  unsetenv("SAMITE_TUNE");
  unsetenv("SAMITE_TUNE_MS");
}

TEST_CASE("the candidates of an arch are those of the newest rule that serves it") {
  const std::vector<tuning_rule> rules = {{90, {{"tma"}}}, {80, {{"ldmatrix"}}}, {100, {}}};
  CHECK(candidates_for(rules, 86)[0].name == "ldmatrix");
  CHECK(candidates_for(rules, 120)[0].name == "tma");
  CHECK_THROWS_WITH_AS(candidates_for(rules, 75), doctest::Contains("E-JIT-TUNE"), samite::error);
}

TEST_CASE("one rank's table gives every rank its choices; a text that is no table is refused whole") {
  bench b;
  disk_cache none("", mode::off);
  tuner first(b.disk, b.options()), rank(none, b.options());
  const auto problem = problem_of(three);
  first.tune(problem, launcher_with({{"a", 10}, {"b", 7}, {"c", 9}}));
  rank.import_table(first.export_table());
  CHECK(rank.choose(problem) == 1);
  CHECK(rank.tune(problem, nullptr) == 1);
  CHECK(rank.export_table() == first.export_table());
  for (const char* text : {"", "no table\n", "samite choices 2\nno tab\n", "samite choices 2\nkey\t\n"})
    CHECK_THROWS_WITH_AS(rank.import_table(text), doctest::Contains("E-JIT-TUNE"), samite::error);
  CHECK(rank.choose(problem) == 1);
  tuner empty(none, b.options());
  CHECK_NOTHROW(rank.import_table(empty.export_table()));
  CHECK(rank.choose(problem) == 1);
}

TEST_CASE("a table that was cut, changed or made by another version is E-JIT-TUNE with the line and the reason, and nothing of it is taken") {
  disk_cache none("", mode::off);
  tuner from(none, {}), to(none, {});
  for (const char* shape : {"1", "2", "3"}) from.pin(problem_of(three, shape), "c");
  const std::string table = from.export_table();
  const auto refused = [&](const std::string& text, const std::string& line, const std::string& why) {
    std::string message;
    try {
      to.import_table(text);
    } catch (const error& e) {
      message = e.what();
    }
    CAPTURE(message);
    CAPTURE(why);
    CHECK(message.find("E-JIT-TUNE") != std::string::npos);
    CHECK(message.find("line " + line + ": ") != std::string::npos);
    CHECK(message.find(why) != std::string::npos);
    CHECK(to.choose(problem_of(three, "1")) == 0);
  };
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string text = table;
    REQUIRE(text.find(what) != std::string::npos);
    return text.replace(text.find(what), what.size(), instead);
  };
  for (std::size_t size = 0; size < table.size(); ++size) CHECK_THROWS_WITH_AS(to.import_table(table.substr(0, size)), doctest::Contains("E-JIT-TUNE"), samite::error);
  refused("samite choices 2\n", "2", "is missing");
  refused(table.substr(0, table.find('\n', 20) + 1), "3", "is missing");
  refused(table.substr(0, table.find('\n', 20) - 1), "2", "was cut inside of it");
  refused(table.substr(0, table.size() - 3), "5", "was cut inside of its last line");
  std::string windows = table;
  for (std::size_t at = 0; (at = windows.find('\n', at)) != std::string::npos; at += 2) windows.insert(at, "\r");
  refused(windows, "1", "carriage return");
  refused(with("\tc\n", "\td\n"), "2", "\"d\" is none of the candidates");
  refused(with("\tc\n", "\tb\n"), "5", "the checksum is another's");
  refused(with("choices 2", "choices 1"), "1", "older samite");
  refused(with("samite tuning 1, ", "samite tuning 1, 0."), "2", "another version");
  refused(table.substr(0, table.find("end ")) + table.substr(table.find('\n') + 1), "5", "in a line before");
  refused(table + table, "5", "ends here, but not the text");
  to.import_table(table);
  CHECK(to.choose(problem_of(three, "1")) == 2);
}

TEST_CASE("choices are frozen in the middle of a tuning: it gives the choice that holds, and the table has it") {
  bench b;
  tuner t(b.disk, b.options()), other(b.disk, b.options());
  const auto problem = problem_of(three);
  auto launcher = launcher_with({{"a", 10}, {"b", 7}, {"c", 9}});
  int while_tuned = -1;
  launcher->on_run["c"] = [&] {
    if (while_tuned < 0) t.freeze();
    while_tuned = t.choose(problem);
  };
  CHECK(t.tune(problem, launcher) == 0);
  CHECK(while_tuned == 0);
  CHECK(t.choose(problem) == 0);
  CHECK(other.choose(problem) == 1);  // what was measured is not lost for others
  disk_cache none("", mode::off);
  tuner rank(none, {});
  rank.import_table(t.export_table());
  other.import_table(t.export_table());
  CHECK(rank.choose(problem) == 0);
  CHECK(other.choose(problem) == 0);
}

TEST_CASE("a process that finds another at its problem waits and takes its choice, or, out of patience, measures nothing and takes it later") {
  bench b;
  const auto problem = problem_of(three);
  int gate[2];
  REQUIRE(::pipe(gate) == 0);
  const pid_t child = start_child([&] {
    auto launcher = launcher_with({{"a", 10}, {"b", 9}, {"c", 5}});
    launcher->on_run["a"] = [&] {
      static bool once = ::write(gate[1], "x", 1) == 1;
      (void)once;
      ::usleep(60'000);
    };
    tuner t(b.disk, {.problem_ms = 1e6, .total_ms = 1e6});
    return t.tune(problem, launcher);
  });
  char byte;
  REQUIRE(::read(gate[0], &byte, 1) == 1);  // it measures
  ::close(gate[0]), ::close(gate[1]);
  tuning_options hasty_options = b.options();
  hasty_options.wait_ms = 1;
  tuner hasty(b.disk, hasty_options), patient(b.disk, b.options());
  auto launcher = launcher_with({{"a", 10}, {"b", 5}, {"c", 9}});
  CHECK(hasty.tune(problem, launcher) == 0);
  CHECK(patient.tune(problem, launcher) == 2);
  CHECK(launcher->runs == 0);
  CHECK(hasty.choose(problem) == 2);
  CHECK(end_of_child(child) == 2);
}

TEST_CASE("where there are no locks, what another process stored first holds") {
  bench b;
  faulty_calls calls;
  calls.fault = [](file_step step, int) { return step == file_step::lock ? ENOLCK : 0; };
  disk_cache lockless(b.folder / "c", mode::read_write, {.calls = &calls});
  tuner first(b.disk, b.options()), second(lockless, b.options());
  const auto problem = problem_of(three);
  auto launcher = launcher_with({{"a", 10}, {"b", 5}, {"c", 9}});
  launcher->on_run["c"] = [&] { (void)first.tune(problem, launcher_with({{"a", 10}, {"b", 9}, {"c", 5}})); };
  const int chosen = second.tune(problem, launcher);
  CHECK(chosen == first.choose(problem));
}

TEST_CASE("case 46: 4 threads, one a device, that ask for 12 new keys each, in 50 rounds: no error, and each key is tuned once a device class") {
  disk_cache none("", mode::off);
  std::atomic<int> wrong = 0;
  for (int round = 0; round < 50; ++round) {
    tuner t(none, {.problem_ms = 1e9, .total_ms = 1e9});
    std::atomic<int> ready = 0;
    std::vector<std::thread> threads;
    for (int device = 0; device < 4; ++device)
      threads.emplace_back([&, device] {
        ++ready;
        while (ready < 4) std::this_thread::yield();
        for (int key = 0; key < 12; ++key) {
          const auto problem = problem_of(three, std::to_string(key), device % 2 == 0 ? "H100" : "H200");
          const int chosen = t.tune(problem, launcher_with({{"a", 10}, {"b", 9}, {"c", 5}}));
          wrong += chosen != 2 && chosen != 0;  // 0 while the other thread of the class measures
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(t.tunings() == 24);
    for (int key = 0; key < 12; ++key) wrong += t.choose(problem_of(three, std::to_string(key), "H100")) != 2;
  }
  CHECK(wrong == 0);
}

TEST_CASE("case 65: 10000 random lengths up to 131072 are at most 12 tunings and compile nothing after them") {
  disk_cache none("", mode::off);
  tuner t(none, {.problem_ms = 1e9, .total_ms = 1e9});
  const auto launcher = launcher_with({{"a", 10}, {"b", 9}, {"c", 5}});
  constexpr std::uint64_t seed = 65;
  MESSAGE("seed ", seed);
  counted_random random(seed, 0);
  const auto tune = [&] {
    const std::int64_t tokens = 1 + random.below(131072), bucket = length_bucket(tokens);
    CHECK(bucket >= tokens);
    CHECK((bucket < 2 * tokens || bucket == 64));
    t.tune(problem_of(three, "q<=" + std::to_string(bucket)), launcher);
  };
  for (std::int64_t tokens = 1; tokens <= 131072; tokens *= 2) t.tune(problem_of(three, "q<=" + std::to_string(length_bucket(tokens))), launcher);
  const int compiles = launcher->prepared;
  for (int i = 0; i < 10'000; ++i) tune();
  CHECK(t.tunings() == 12);
  CHECK(launcher->prepared == compiles);
}

TEST_CASE("case 66: 8 shapes with 100 candidates each stay within the time for one problem and for all") {
  disk_cache none("", mode::off);
  std::atomic<double> clock_ms = 0;
  std::vector<tuning_candidate> hundred;
  std::map<std::string, double> us;
  for (int i = 0; i < 100; ++i) hundred.push_back({std::to_string(i)}), us[hundred.back().name] = 20'000 - i;
  const auto launcher = launcher_with(us);
  launcher->clock_ms = &clock_ms;
  tuner t(none, {.problem_ms = 200, .total_ms = 1000, .now_ms = [&] { return clock_ms.load(); }, .say = [](const std::string&) {}});
  for (int shape = 0; shape < 8; ++shape) {
    const double before = clock_ms;
    t.tune(problem_of(hundred, std::to_string(shape)), launcher);
    CHECK(clock_ms - before <= 200 + 60);  // what ran when the time was over, ran to its end
  }
  CHECK(clock_ms <= 1000 + 60);
  CHECK(t.tunings() == 5);
}

TEST_CASE("case 70: a candidate whose compile does not end in time is dropped, and the others win") {
  bench b;
  auto release = std::make_shared<std::atomic<bool>>(false);
  auto ended = std::make_shared<std::atomic<int>>(0);
  auto launcher = launcher_with({{"a", 10}, {"sleeps", 1}, {"spins", 1}, {"good", 8}});
  launcher->on_prepare["sleeps"] = [=] {
    while (!*release) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++*ended;
  };
  launcher->on_prepare["spins"] = [=] {
    while (!*release) std::this_thread::yield();
    ++*ended;
  };
  tuning_options options = b.options();
  options.prepare_ms = 50, options.problem_ms = options.total_ms = 1e9;
  tuner t(b.disk, options);
  CHECK(t.tune(problem_of({{"a"}, {"sleeps"}, {"spins"}, {"good"}}), launcher) == 3);
  CHECK(t.explain().find("sleeps: dropped: it was not compiled after 50 ms") != std::string::npos);
  *release = true;
  while (*ended < 2) std::this_thread::yield();
}

TEST_CASE("processes that tune one problem at the same time choose alike: one measures, and what it tries is no death to the others") {
  const temporary_folder folder;
  const auto problem = problem_of({{"first"}, {"fast"}, {"mid"}});
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(::fork());
    if (ranks.back() != 0) continue;
    ::usleep(useconds_t(rank) * 30000);
    disk_cache disk(folder / "c", mode::read_write);
    auto launcher = launcher_with({{"first", 10}, {"fast", 1}, {"mid", 5}});
    launcher->on_prepare["fast"] = [] { ::usleep(150000); };
    ::_exit(tuner(disk, {}).tune(problem, launcher));
  }
  for (const pid_t rank : ranks) {
    int status = 0;
    ::waitpid(rank, &status, 0);
    CHECK(WEXITSTATUS(status) == 1);
  }
}

TEST_CASE("case 71: a tuning that is killed half way goes on with what it had measured; a long one says so every 5 s") {
  const temporary_folder folder;
  std::vector<tuning_candidate> ten;
  std::map<std::string, double> us;
  for (int i = 0; i < 10; ++i) ten.push_back({std::string(1, char('a' + i))}), us[ten.back().name] = 20 - i;
  const auto problem = problem_of(ten);
  CHECK(status_of_child([&] {
          disk_cache disk(folder / "c", mode::read_write);
          auto launcher = launcher_with(us);
          launcher->on_prepare["f"] = [] { ::raise(SIGKILL); };
          tuner(disk, {}).tune(problem, launcher);
          return 0;
        }) == -SIGKILL);
  disk_cache disk(folder / "c", mode::read_write);
  std::atomic<double> clock_ms = 0;
  const auto launcher = launcher_with(us);
  launcher->clock_ms = &clock_ms;
  launcher->us["j"] = 6e6;  // 6 s
  warning_list lines;
  tuner t(disk, {.problem_ms = 1e9, .total_ms = 1e9, .rounds = 1, .now_ms = [&] { return clock_ms.load(); }, .say = lines.take()});
  CHECK(t.tune(problem, launcher) == 8);
  for (const char* name : {"b", "c", "d", "e"}) CHECK_FALSE(launcher->launched.contains(name));  // their times were known
  CHECK(launcher->runs == 1 + 5 * 3);  // the first one is what the others are compared with
  CHECK(lines.texts.empty());  // there was no candidate after the long one; a second problem goes on behind it
  launcher->us["a"] = 6e6;
  t.tune(problem_of(ten, "other"), launcher);
  REQUIRE(lines.texts.size() >= 1);
  CHECK(lines.texts[0].find("tuning attn_fwd 1 for other: 1") != std::string::npos);
}

TEST_CASE("case 77: the first launch of a candidate, which loads it, has no effect on the choice") {
  bench b;
  tuner t(b.disk, {.problem_ms = 1e9, .total_ms = 1e9});
  auto launcher = launcher_with({{"a", 10}, {"b", 7}, {"c", 9}});
  launcher->first_launch_us = 5000;
  CHECK(t.tune(problem_of(three), launcher) == 1);
  CHECK(t.explain().find("  b: 7 us\n") != std::string::npos);
}

TEST_CASE("case 78: ranks whose clocks differ choose alike when one rank's table is given to all") {
  disk_cache none("", mode::off);
  std::vector<std::unique_ptr<tuner>> ranks;
  for (int i = 0; i < 4; ++i) ranks.push_back(std::make_unique<tuner>(none));
  const auto problem = problem_of(three);
  ranks[0]->tune(problem, launcher_with({{"a", 10}, {"b", 7}, {"c", 9}}));
  for (int i = 1; i < 4; ++i) {
    ranks[std::size_t(i)]->import_table(ranks[0]->export_table());
    CHECK(ranks[std::size_t(i)]->tune(problem, launcher_with({{"a", 10}, {"b", 9}, {"c", 1.0 * i}})) == 1);
  }
}

TEST_CASE("case 62: a rank on which a candidate fails, or whose disk is slow, chooses as the others do") {
  bench b;
  faulty_calls calls;
  calls.fault = [](file_step step, int) { return step == file_step::write ? ENOSPC : 0; };
  disk_cache broken(b.folder / "broken", mode::read_write, {.warn = [](const std::string&) {}, .calls = &calls});
  tuner first(b.disk, b.options()), second(broken, b.options());
  const auto problem = problem_of(three);
  first.tune(problem, launcher_with({{"a", 10}, {"b", 7}, {"c", 9}}));
  second.import_table(first.export_table());
  auto failing = launcher_with({{"a", 10}, {"b", 7}, {"c", 9}});
  failing->on_prepare["b"] = [] { raise("E-JIT-COMPILE", "compile failed"); };
  CHECK(second.tune(problem, failing) == 1);
  CHECK(failing->prepared == 0);
}

TEST_CASE("case 79: 8 devices tune at the same time") {
  disk_cache none("", mode::off);
  tuner t(none, {.problem_ms = 1e9, .total_ms = 1e9, .rounds = 1});
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int device = 0; device < 8; ++device)
    threads.emplace_back([&, device] {
      auto launcher = launcher_with({{"a", 10}, {"b", 9}, {"c", 5}});
      launcher->on_prepare["b"] = [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };
      t.tune(problem_of(three, "q<=64", "device " + std::to_string(device)), launcher);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(t.tunings() == 8);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(1500));  // one after the other: 2400
}

TEST_CASE("case 81: two device classes have two tables") {
  bench b;
  tuner t(b.disk, b.options());
  CHECK(t.tune(problem_of(three, "s", "H100"), launcher_with({{"a", 10}, {"b", 7}, {"c", 9}})) == 1);
  CHECK(t.tune(problem_of(three, "s", "H200"), launcher_with({{"a", 10}, {"b", 9}, {"c", 7}})) == 2);
  CHECK(t.choose(problem_of(three, "s", "H100")) == 1);
  CHECK(t.choose(problem_of(three, "s", "A100")) == 0);
}

TEST_CASE("case 82: a stored winner that is no candidate any more is not used; the others are measured again") {
  bench b;
  tuner(b.disk, b.options()).tune(problem_of(three), launcher_with({{"a", 10}, {"b", 7}, {"c", 9}}));
  tuner next(b.disk, b.options());
  const auto without = problem_of({{"a"}, {"c"}});
  CHECK(next.choose(without) == 0);
  CHECK(next.tune(without, launcher_with({{"a", 10}, {"c", 9}})) == 1);
  CHECK(next.choose(problem_of(three)) == 1);
}

TEST_CASE("case 85: a resolved launch costs no allocation and less than 0.3 us of its own") {
  CHECK(status_of_child([&] {
          void* const driver = ::dlopen(SAMITE_STUB_CUDA, RTLD_NOW);
          if (driver == nullptr) return 1;
          const int* const launches = static_cast<int*>(::dlsym(driver, "stub_launches"));
          disk_cache disk("", mode::off);
          kernel_cache cache(disk, echo, one_build);
          tuner t(disk, {});
          tuned_choice choice(t, problem_of(three));
          const cuda_device device = cuda_device::open(1);
          const cuda_stream stream(device);
          const cuda_function function = cache.function(device, source_of("x"), "k");
          choice.index();
          void* arguments[] = {nullptr};
          const long long before = allocations_of_thread();
          const auto start = std::chrono::steady_clock::now();
          for (int i = 0; i < 1'000'000; ++i) function.launch(stream, {.grid_x = unsigned(choice.index()) + 1, .block_x = 32}, arguments);
          const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 1e6;
          if (*launches != 1'000'000 || allocations_of_thread() != before) return 2;
          return us <= 0.3 ? 0 : 3;
        }) == 0);
}

TEST_CASE("case 86: a call site uses a new table at its next call, and keeps its choice when choices are frozen") {
  disk_cache none("", mode::off);
  tuner t(none, {}), other(none, {});
  const auto problem = problem_of(three);
  tuned_choice here(t, problem);
  CHECK(here.index() == 0);
  other.pin(problem, "c");
  t.import_table(other.export_table());
  CHECK(here.index() == 2);
  other.pin(problem, "b");
  t.freeze();
  CHECK_THROWS_WITH_AS(t.import_table(other.export_table()), doctest::Contains("frozen"), samite::error);
  CHECK(here.index() == 2);
}

TEST_CASE("on a device the launcher takes buffers within its limit, measures by events, and leaves nothing behind") {
  CHECK(status_of_child([&] {
          void* const driver = ::dlopen(SAMITE_STUB_CUDA, RTLD_NOW);
          if (driver == nullptr) return 1;
          auto* const bytes = static_cast<std::size_t*>(::dlsym(driver, "stub_bytes"));
          auto* const limit = static_cast<std::size_t*>(::dlsym(driver, "stub_limit_bytes"));
          const auto* const modules = static_cast<int*>(::dlsym(driver, "stub_modules"));
          disk_cache none("", mode::off);
          kernel_cache cache(none, [](const kernel_source& source) { return compiled_kernel{.cubin = source.text, .log = ""}; }, one_build);
          const cuda_device device = cuda_device::open(1);
          std::size_t largest = 0;
          const cuda_launcher_setting setting{
              .kernel_of = [](const tuning_candidate& candidate) {
                const bool is_number = candidate.name[0] >= '0' && candidate.name[0] <= '9';
                return tuned_kernel{source_of(candidate.name + " text"), "k", {.grid_x = is_number ? unsigned(std::stoi(candidate.name)) : 1}};
              },
              .input_bytes = 1000, .output_bytes = 24,
              .arguments_of = [&](device_address input, device_address output) {
                largest = std::max(largest, *bytes);
                return std::vector<std::uint64_t>{input, output, 24};
              },
              .rotated_bytes = 10'240, .scratch_bytes = 1 << 20};
          const auto problem = problem_of({{"40"}, {"bad"}, {"large"}, {"10"}, {"20"}}, "s", device_class_of(device));
          warning_list lines;
          tuner t(none, {.say = lines.take()});
          if (t.tune(problem, std::make_shared<cuda_launcher>(cache, device, setting)) != 3) return 2;
          if (t.explain().find("  10: 10 us") == std::string::npos || t.explain().find("bad: dropped") == std::string::npos) return 3;
          if (largest != 10 * 1024 || *bytes != 0 || *modules != 0) return 4;
          *limit = 5000;  // the device is full: the first candidate remains, one line, and later calls work
          if (t.tune(problem_of(problem.candidates, "other", "full"), std::make_shared<cuda_launcher>(cache, device, setting)) != 0) return 5;
          if (lines.texts.size() != 1 || *bytes != 0 || *modules != 0) return 6;
          *limit = std::size_t(1) << 30;
          return t.tune(problem_of(problem.candidates, "third", "s"), std::make_shared<cuda_launcher>(cache, device, setting)) == 3 ? 0 : 7;
        }) == 0);
}
