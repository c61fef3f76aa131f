// A training run beside whose steps everything goes wrong that goes wrong with kernel caches and tuners.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include <samite/core/random.hpp>
#include <samite/jit/tuner.hpp>
#include <samite/run/plan_kernels.hpp>
#include <samite/train/language_model.hpp>

#include "support/jit_faults.hpp"
#include "support/tiny_models.hpp"

using namespace samite;
using namespace samite_tests;
using mode = disk_cache::mode;
namespace fs = std::filesystem;

namespace {

constexpr index_t windows = 2, window = 24, updates = 44;

std::unique_ptr<trainer> make_trainer() {
  trainer_options o;
  o.schedule = {.peak = 1e-2, .steps = updates, .warmup_steps = 2}, o.contract = "beside faults";
  const decoder_config c = tiny_target({.hidden = 16, .intermediate = 24, .heads = 2, .kv_heads = 1, .head_dim = 8}, byte_vocabulary, 1);
  return std::make_unique<trainer>(device::cpu(), o, [&](graph& g) { return language_model_graph(g, c, windows, window, f32); });
}

void update(trainer& run) {
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 500; ++i) text.push_back(std::uint8_t('a' + (i * i + i / 7) % 26));
  bind_windows(run.inputs(), choose_windows(text, windows, window + 1, 1, run.step()));
  run.accumulate();
  run.update(windows * window);
}

std::string bytes_of(const weight_map& weights) {
  std::string all;
  for (const auto& [name, t] : weights) all.append(reinterpret_cast<const char*>(t.raw()), t.bytes());
  return all;
}

weight_map first_weights(trainer& run) { return initial_weights(parameter_shapes(run.inputs().source().source()), 4, 0.1); }

/// One cache folder, and a fault at each turn.
struct troubled_cache {
  temporary_folder folder;
  faulty_calls calls;
  std::string path = folder / "c";
  counted_random random;
  std::optional<disk_cache> disk;
  std::optional<kernel_cache> cache;
  std::vector<std::string> deck;   // of the faults to come
  std::map<std::string, int> met;  // how often each fault was injected
  std::optional<samite::detail::descriptor> held;
  std::atomic<int> compiles_to_fail = 0;
  int slow_ms = 0;

  explicit troubled_cache(std::uint64_t seed) : random(seed, 0xfa17) {}

  std::uint32_t below(std::uint32_t n) { return std::uint32_t(random.below(n)); }
  std::vector<fs::path> entries() const {
    std::vector<fs::path> found;
    std::error_code ignored;
    for (auto it = fs::recursive_directory_iterator(path, ignored); it != fs::recursive_directory_iterator(); it.increment(ignored))
      if (it->path().extension() == ".kernel") found.push_back(it->path());
    std::sort(found.begin(), found.end());
    return found;
  }
  template <class Change> void change_entry(Change change) {
    const auto all = entries();
    if (all.empty()) return;
    const std::string file = all[below(std::uint32_t(all.size()))].string();
    if (!fs::is_regular_file(fs::symlink_status(file))) return;
    std::string text = read_file(file);
    if (!text.empty()) change(text), write_file(file, text);
  }

  /// Puts the next fault in place and opens the cache anew, as the next process would.
  void next() {
    calls.fault = [](file_step, int) { return 0; };
    calls.calls = 0, calls.write_limit = std::size_t(-1), calls.clock_shift_s = 0;
    compiles_to_fail = 0, slow_ms = 0;
    held.reset();
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) fs::remove(path, ignored);
    if (fs::exists(path, ignored)) fs::permissions(path, fs::perms::owner_all, ignored);
    std::string build = one_build(), library = SAMITE_VERSION;
    std::uint64_t limit_bytes = std::uint64_t(1) << 30;
    bool other_process = false;
    constexpr int errnos[] = {EIO, ENOSPC, EACCES, EROFS, EDQUOT, ESTALE, EBUSY, ENOENT, EMFILE};
    const char* const faults[] = {"a call fails", "every call fails", "short writes", "a flipped bit", "a cut entry", "an empty entry", "a foreign entry", "another key's entry", "an entry that is a link",
                                  "a folder that others write", "a folder taken away", "a lock held", "leftovers", "a clock that jumps", "compiles that fail", "slow compiles", "another process, killed",
                                  "another toolkit", "another library", "no room", "a file in the folder's place", "nothing"};
    if (deck.empty()) {  // each once in a random order, then all again
      deck.assign(std::begin(faults), std::end(faults));
      for (std::size_t i = deck.size(); i > 1; --i) std::swap(deck[i - 1], deck[below(std::uint32_t(i))]);
    }
    const std::string fault = deck.back();
    deck.pop_back();
    ++met[fault];
    if (fault == "a call fails") {
      const int at = int(below(60)), cause = errnos[below(std::size(errnos))];
      calls.fault = [at, cause](file_step, int n) { return n == at ? cause : 0; };
    } else if (fault == "every call fails") {
      const auto step = file_step(below(9));
      const int cause = errnos[below(std::size(errnos))];
      calls.fault = [step, cause](file_step s, int) { return s == step ? cause : 0; };
    } else if (fault == "short writes") {
      calls.write_limit = 1 + below(900);
    } else if (fault == "a flipped bit") {
      change_entry([&](std::string& text) { text[below(std::uint32_t(text.size()))] ^= char(1 << below(8)); });
    } else if (fault == "a cut entry") {
      change_entry([&](std::string& text) { text.resize(below(std::uint32_t(text.size()))); });
    } else if (fault == "an empty entry") {
      change_entry([](std::string& text) { text.clear(); });
    } else if (fault == "a foreign entry") {
      change_entry([](std::string& text) { text.replace(0, std::min<std::size_t>(8, text.size()), "NOTMINE!"); });
    } else if (fault == "another key's entry") {
      const auto all = entries();
      if (all.size() > 1) fs::copy_file(all[below(std::uint32_t(all.size()))], all[0], fs::copy_options::overwrite_existing, ignored);
    } else if (fault == "an entry that is a link") {
      const auto all = entries();
      if (!all.empty()) fs::rename(all[0], folder / "elsewhere", ignored), fs::create_symlink(folder / "elsewhere", all[0], ignored);
    } else if (fault == "a folder that others write") {
      fs::permissions(path, fs::perms::all, ignored);
    } else if (fault == "a folder taken away") {
      fs::remove_all(path, ignored);
    } else if (fault == "a lock held") {
      const auto all = entries();
      if (!all.empty()) {
        const std::string lock = fs::path(all[0]).replace_extension(".lock").string();
        held.emplace(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        ::flock(held->get(), LOCK_EX);
        fs::remove(all[0], ignored);
      }
    } else if (fault == "leftovers") {
      fs::create_directories(path + "/00", ignored);
      write_file(path + "/00/.tmp-1-2-3", "half an entry"), write_file(path + "/00/" + std::string(30, '0') + ".lock", "");
    } else if (fault == "a clock that jumps") {
      calls.clock_shift_s = (below(2) == 0 ? -1 : 1) * std::int64_t(10) * 365 * 86400;
    } else if (fault == "compiles that fail") {
      compiles_to_fail = 1 + int(below(4));
      fs::remove_all(path, ignored);
    } else if (fault == "slow compiles") {
      slow_ms = 1;
    } else if (fault == "another process, killed") {
      other_process = true;
    } else if (fault == "another toolkit") {
      build = "13.1 7";
    } else if (fault == "another library") {
      library = "99";
    } else if (fault == "no room") {
      limit_bytes = 200'000;
    } else if (fault == "a file in the folder's place") {
      fs::remove_all(path, ignored);
      write_file(path, "a file");
    }
    cache.reset(), disk.reset();
    disk.emplace(path, mode::read_write, disk_cache_options{.limit_bytes = limit_bytes, .lock_wait_ms = 20, .warn = [](const std::string&) {}, .calls = &calls});
    cache.emplace(
        *disk,
        [this](const kernel_source& source) {
          if (slow_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(slow_ms));
          if (compiles_to_fail.fetch_sub(1) > 0) raise("E-MEMORY-HOST", "compile of \"", source.label, "\" ran out of host memory");
          return echo(source);
        },
        [build] { return build; }, library);
    if (!other_process) return;
    const pid_t child = start_child([&] {
      disk_cache own(path, mode::read_write, {.warn = [](const std::string&) {}});
      kernel_cache filler(own, echo, one_build);
      for (int i = 0;; ++i) filler.get(source_of("other " + std::to_string(i % 50)));
      return 0;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(500 + below(3000)));
    ::kill(child, SIGKILL);
    end_of_child(child);
  }

  /// A tuning over the same folder, with candidates that fail, are wrong, are slow, or find no memory.
  void tune(int turn) {
    struct launcher : tuning_launcher {
      void prepare(const tuning_candidate& c) override {
        if (c.name == "fails") raise("E-JIT-COMPILE", "compile failed");
        if (c.name == "full") raise("E-CUDA-MEMORY", "no memory");
      }
      bool is_right(const tuning_candidate& c) override { return c.name != "wrong"; }
      double measure_us(const tuning_candidate& c) override { return c.name == "slow" ? 100 : c.name == "fast" ? 5 : 10; }
    };
    tuner t(*disk, {.say = [](const std::string&) {}});
    const tuning_problem problem{.family = "f 1", .shape = std::to_string(turn % 7), .device_class = "stub", .candidates = {{"first"}, {"fails"}, {"wrong"}, {"slow"}, {"full"}, {"fast"}}};
    const int chosen = t.tune(problem, std::make_shared<launcher>());
    CHECK((chosen == 0 || chosen == 5));
  }
};

}  // namespace

TEST_CASE("a training run beside which every fault of the cache and the tuner is injected at random ends with the weights of an undisturbed one") {
  constexpr std::uint64_t seed = 20261130;
  MESSAGE("seed ", seed);
  auto calm = make_trainer();
  calm->set_weights(first_weights(*calm));
  for (index_t i = 0; i < updates; ++i) update(*calm);

  troubled_cache trouble(seed);
  const std::string state = trouble.folder / "state.safetensors";
  std::unique_ptr<trainer> run;
  int restarts = 0;
  std::string wrong;
  for (index_t i = 0; i < updates; ++i) {
    if (run) run->save(state);
    run.reset();  // the next process, which continues from what is saved
    trouble.next();
    compile_plans_for("sm_90a", *trouble.cache);
    for (int attempt = 0; !run && attempt < 10; ++attempt) {  // who was refused by a compile starts again
      try {
        run = make_trainer();
      } catch (const samite::error& e) {
        if (e.code() != "E-MEMORY-HOST") throw;
        ++restarts;
      }
    }
    REQUIRE(run != nullptr);
    if (file_exists(state)) run->load(state);
    else run->set_weights(first_weights(*run));
    update(*run);
    for (const kernel_source& source : kernels_of(run->inputs().source(), "sm_90a"))
      if (trouble.cache->get(source)->cubin != source.arch + source.text) wrong = source.label;
    trouble.tune(int(i));
  }
  compile_plans_for("", *trouble.cache);
  CHECK(wrong == "");
  CHECK(trouble.met.size() == 22);
  for (const auto& fault : trouble.met) CHECK(fault.second == 2);
  CHECK(restarts > 0);
  CHECK(bytes_of(run->weights()) == bytes_of(calm->weights()));
}
