// What can be known of a process from outside: run_status and crash_report.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include <samite/jit/crash_report.hpp>
#include <samite/jit/precompile.hpp>
#include <samite/jit/run_status.hpp>
#include <samite/jit/tuner.hpp>
#include <samite/runtime/thread_pool.hpp>

#include "support/jit_faults.hpp"
#include "support/raised.hpp"

using namespace samite;
using namespace samite_tests;
using state = run_report::state;

namespace {

/// The standard error of a child.
template <class Work>
std::pair<int, std::string> words_of_child(Work work) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = start_child([&] {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]), ::close(ends[1]);
    return work();
  });
  ::close(ends[1]);
  std::string text;
  char part[512];
  for (ssize_t got; (got = ::read(ends[0], part, sizeof part)) > 0;) text.append(part, std::size_t(got));
  ::close(ends[0]);
  return {end_of_child(child), text};
}

}  // namespace

TEST_CASE("a run killed in any phase is known to have died there; one that ends leaves its status; one that lives is alive") {
  const temporary_folder folder;
  CHECK(read_run_status(folder / "none").now == state::absent);
  for (const char* phase : {"load", "compile", "tune", "step", "save"}) {
    const std::string place = folder / phase;
    const pid_t child = start_child([&] {
      run_status run(place, "test");
      run.beat("load", 0);
      run.beat(phase, 7);
      for (;;) ::pause();
      return 0;
    });
    while (read_run_status(place).phase != phase) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(read_run_status(place).now == state::running);
    CHECK(read_run_status(place).process == child);
    ::kill(child, SIGKILL);
    CHECK(end_of_child(child) == -SIGKILL);
    const run_report report = read_run_status(place);
    CHECK(report.now == state::died);
    CHECK(report.phase == phase);
    CHECK(report.step == (std::string(phase) == "load" ? 0 : 7));
    CHECK(report.id == "test");
    CHECK(report.text().find(std::string("phase ") + phase) != std::string::npos);
  }
  {
    run_status run(folder / "load");  // the folder of the one that died
    CHECK(read_run_status(folder / "load").now == state::running);
    CHECK(run.line("loss 3.1") == "[" + run.id() + "] loss 3.1");
    CHECK(unlike("E-FILE-WRITE", {"another run is alive there", "alive"}, [&] { run_status second(folder / "load"); }) == "");
    run.finish(6);
  }
  CHECK(read_run_status(folder / "load").now == state::ended);
  CHECK(read_run_status(folder / "load").exit_status == 6);
}

TEST_CASE("a child that a run forked does not keep it alive, and still has its own files") {
  const temporary_folder folder;
  waiting_family family([&] { return run_status(folder / "r"); });
  REQUIRE(family.child() > 0);
  CHECK(read_run_status(folder / "r").now == state::running);
  CHECK(family.kill_parent() == -SIGKILL);
  CHECK(::kill(family.child(), 0) == 0);
  CHECK(read_run_status(folder / "r").now == state::died);
}

TEST_CASE("heartbeats are written when the phase changes, and else at most once a second") {
  const temporary_folder folder;
  run_status run(folder / "r");
  run.beat("step", 1);
  run.beat("step", 2);
  CHECK(read_run_status(folder / "r").step == 1);
  run.beat("save", 3);
  CHECK(read_run_status(folder / "r").step == 3);
}

TEST_CASE("case 89: a process that dies of a signal inside a compile or a tuning says which kernel, and dies of that signal") {
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE}) {
    const auto [status, text] = words_of_child([&] {
      const rlimit none{0, 0};
      setrlimit(RLIMIT_CORE, &none);
      install_crash_handler();
      disk_cache disk("", disk_cache::mode::off);
      kernel_cache cache(disk, [&](const kernel_source&) -> compiled_kernel {
        ::raise(signal);
        return {};
      }, one_build);
      cache.get({.label = "attn_fwd.causal_d128", .text = "x", .arch = "sm_90a"});
      return 0;
    });
    CHECK(status == -signal);
    CHECK(text.find("the process dies of signal " + std::to_string(signal)) != std::string::npos);
    CHECK(text.find("> ") != std::string::npos);
    CHECK(text.find("compile attn_fwd.causal_d128 for sm_90a") != std::string::npos);
  }
}

TEST_CASE("case 89: what a process did when it was killed without a word stands in its file") {
  const temporary_folder folder;
  const int status = status_of_child([&] {
    install_crash_handler(folder / "last");
    const activity step("step", "12");
    { const activity done("load", "model.safetensors"); }
    struct : tuning_launcher {
      void prepare(const tuning_candidate&) override {}
      bool is_right(const tuning_candidate&) override { return ::raise(SIGKILL) == 0; }
      double measure_us(const tuning_candidate&) override { return 1; }
    } launcher;
    disk_cache disk("", disk_cache::mode::off);
    tuner t(disk);
    t.tune({.family = "attn_fwd 1", .shape = "q<=64", .device_class = "H200", .candidates = {{"tile_q=64"}, {"tile_q=128"}}},
           std::shared_ptr<tuning_launcher>(&launcher, [](tuning_launcher*) {}));
    return 0;
  });
  CHECK(status == -SIGKILL);
  const std::string text = read_file(folder / "last");
  const auto line_with = [&](const std::string& what) {
    const std::size_t found = text.find(what);
    if (found == std::string::npos) return std::string("no line");
    const std::size_t begin = text.rfind('\n', found);
    return text.substr(begin == std::string::npos ? 0 : begin + 1, 2);
  };
  CHECK(line_with("step 12") == "> ");
  CHECK(line_with("load model.safetensors") == "  ");
  CHECK(line_with("tune attn_fwd 1 q<=64: tile_q=64") == "> ");
}

TEST_CASE("a file of activities that is mapped, or says where a run died, is left alone: it stays as <file>.before") {
  const temporary_folder folder;
  const std::string file = folder / "new folder/last";
  const auto note = [&](const char* what) {
    return status_of_child([&] {
      install_crash_handler(file);
      const activity step("step", what);
      if (std::string_view(what) == "first") {
        const int second = status_of_child([&] {
          install_crash_handler(file);
          return 0;
        });
        if (second != 0) return 1;
        for (int i = 0; i < 100; ++i) const activity later("step", "after it");  // into pages that are still there
      }
      return 0;
    });
  };
  CHECK(note("first") == 0);
  CHECK(read_file(file + ".before").find("step after it") != std::string::npos);
  CHECK(note("next") == 0);
  CHECK(read_file(file).find("step next") != std::string::npos);
}

TEST_CASE("what is no regular file is not moved out of the way of a file of activities") {
  const temporary_folder folder;
  std::filesystem::create_directories(folder / "folder/inside");
  std::filesystem::create_directories(folder / "kept.before");
  std::filesystem::create_symlink(folder / "target", folder / "link");
  write_file(folder / "target", "mine");
  write_file(folder / "kept", "mine");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const char* name : {"folder", "folder/", "link", "pipe", "kept"}) {
    CAPTURE(name);
    CHECK(unlike("E-FILE-WRITE", {name}, [&] { install_crash_handler(folder / name); }) == "");
    CHECK(std::filesystem::exists(std::filesystem::symlink_status(folder / name)));
  }
  CHECK(read_file(folder / "kept") == "mine");
  CHECK(read_file(folder / "link") == "mine");
  CHECK(std::filesystem::is_directory(folder / "folder/inside"));
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / ".")) entries += entry.path().string().find(".new-") == std::string::npos ? 1 : 100;
  CHECK(entries == 6);
}

TEST_CASE("of threads that crash at once one reports, and the process ends after it") {
  for (int round = 0; round < 5; ++round) {
    const auto [status, text] = words_of_child([] {
      const rlimit none{0, 0};
      setrlimit(RLIMIT_CORE, &none);
      install_crash_handler();
      std::atomic<int> ready = 0;
      std::vector<std::thread> threads;
      for (int i = 0; i < 30; ++i)
        threads.emplace_back([&ready, i] {
          const activity work("work", std::to_string(i));
          ++ready;
          while (ready < 30) std::this_thread::yield();
          ::raise(i % 2 == 0 ? SIGSEGV : SIGABRT);
        });
      for (std::thread& thread : threads) thread.join();
      return 0;
    });
    CHECK((status == -SIGSEGV || status == -SIGABRT));
    const std::size_t first = text.find("the process dies of signal");
    CHECK(first != std::string::npos);
    CHECK(text.find("the process dies of signal", first + 1) == std::string::npos);
    for (int i = 0; i < 30; ++i) CHECK(text.find("work " + std::to_string(i) + "\n") != std::string::npos);
  }
}

TEST_CASE("a stack that overflows is reported on samite's own threads too") {
  // The compiler must not turn the recursion into a loop.
  struct endless {
    static int run(volatile char* above) {
      volatile char here[4096];
      here[0] = above[0];
      if (here[0] == 0) return 0;  // never, but the compiler can't know
      return run(here) + here[0];
    }
  };
  for (const bool in_pool : {true, false}) {
    const auto [status, text] = words_of_child([&] {
      const rlimit none{0, 0};
      setrlimit(RLIMIT_CORE, &none);
      install_crash_handler();
      volatile char start[1] = {1};
      if (in_pool) {
        const thread_limit two(2);
        const std::thread::id self = std::this_thread::get_id();
        for (int i = 0; i < 1000; ++i) parallel_for(64, [&](index_t) { std::this_thread::get_id() != self ? void(endless::run(start)) : void(::usleep(100)); });
        return 0;  // no helper came
      }
      disk_cache disk("", disk_cache::mode::off);
      kernel_cache cache(disk, [&](const kernel_source&) -> compiled_kernel { return {.cubin = std::string(1, char(endless::run(start))), .log = ""}; }, one_build);
      precompilation(cache, {{.label = "k", .text = "x", .arch = "sm_90a"}}).wait();
      return 0;
    });
    CHECK(status == -SIGSEGV);
    CHECK(text.find("the process dies of signal 11") != std::string::npos);
  }
}

TEST_CASE("what is no exit status is none, and what is asked while a run starts does not stop it") {
  const temporary_folder folder;
  for (const char* text : {"garbage", "999999999999999999999", " 8\n", "4294967296\n", "0", ""}) {
    CAPTURE(text);
    { run_status run(folder / "s"); }
    write_file(folder / "s/exit_status", text);
    CHECK(read_run_status(folder / "s").now == run_report::state::died);
  }
  std::atomic<bool> done = false;
  std::thread asks([&] {
    while (!done) (void)read_run_status(folder / "s");
  });
  for (int i = 0; i < 300; ++i) CHECK_NOTHROW(run_status(folder / "s"));
  done = true;
  asks.join();
  { run_status odd(folder / "odd", "evil\nprocess 1\nphase done"); }
  CHECK(read_run_status(folder / "odd").id == "evil?process 1?phase done");
}

TEST_CASE("the activities of 100 threads, nested and long, are kept as far as there is room") {
  std::vector<std::thread> threads;
  for (int i = 0; i < 100; ++i)
    threads.emplace_back([] {
      for (int k = 0; k < 50; ++k) {
        const activity outer("outer", std::string(1000, 'x'));
        const activity inner("inner", "two\nlines");
      }
    });
  for (std::thread& thread : threads) thread.join();
  const activity here("here", "now");
  const std::string text = recent_activities();
  CHECK(text.starts_with("> "));
  CHECK(text.find("here now") != std::string::npos);
  CHECK(text.find("two\nlines") == std::string::npos);
}

TEST_CASE("while a run lives, the library's lines on standard error bear its id") {
  const temporary_folder folder;
  const auto [status, words] = words_of_child([&] {
    {
      const run_status run(folder / "r", "night-7");
      say("first");
    }
    say("second");
    return 0;
  });
  CHECK(status == 0);
  CHECK(words == "samite: [night-7] first\nsamite: second\n");
}
