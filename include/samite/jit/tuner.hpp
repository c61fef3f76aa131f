// samite/jit/tuner.hpp: chooses between kernels of one meaning by measuring them; without it, or when it fails, the first candidate runs.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <samite/jit/cache.hpp>

namespace samite {

/// One way to run a kernel, e.g. "tile_q=128 stages=3". All candidates of a problem compute the same.
struct tuning_candidate {
  std::string name;
  std::uint64_t scratch_bytes = 0;  // device memory that measuring it needs
};

/// What is tuned. Lengths belong in as buckets (length_bucket), pointers and exact shapes not at all.
struct tuning_problem {
  std::string family;        // with its version: another text of the kernels is another family, e.g. "attn_fwd 3"
  std::string shape;         // "d=128 q<=4096 causal"
  std::string device_class;  // devices that run alike, e.g. "NVIDIA H200, 132 SMs"
  std::vector<tuning_candidate> candidates;  // the first is right and good on every device of the class
};

/// The smallest power of two that holds `tokens`, at least 64: at most 12 buckets up to 131072.
std::int64_t length_bucket(std::int64_t tokens);

/// A row of a rule table: the candidates of archs from `first_arch` on.
struct tuning_rule {
  int first_arch = 0;  // 80, 90, ...
  std::vector<tuning_candidate> candidates;
};

/// The candidates of the newest rule that serves `arch`. Raises E-JIT-TUNE if there is none.
const std::vector<tuning_candidate>& candidates_for(const std::vector<tuning_rule>& rules, int arch);

/// Runs candidates for the tuner, on buffers of its own: never on a caller's tensors.
///
/// Every call may raise: then the candidate is dropped and the others go on. E-CUDA-FAULT is passed on, since the device is lost.
/// threads  prepare() runs in a thread of its own, before any other call for that candidate
class tuning_launcher {
 public:
  virtual ~tuning_launcher() = default;
  /// Compiles, loads and allocates.
  virtual void prepare(const tuning_candidate& candidate) = 0;
  /// Runs it once, unmeasured, and says whether the result is that of the first candidate.
  virtual bool is_right(const tuning_candidate& candidate) = 0;
  /// One measurement, of as many launches as are needed to be exact.
  virtual double measure_us(const tuning_candidate& candidate) = 0;
};

enum class tuning_mode { off, read_only, on };

struct tuning_options {
  tuning_mode mode = tuning_mode::on;
  double problem_ms = 200, total_ms = 5000;  // time for measuring one problem, and for all tuning of the process
  int wait_ms = 120'000;      // for another process that measures the same problem; then the first candidate until that one is done
  int prepare_ms = 30'000;                   // a candidate that is not compiled by then is dropped; its thread ends when it ends
  std::uint64_t scratch_bytes = std::uint64_t(256) << 20;  // candidates that need more are dropped
  int rounds = 5;             // measurements of each candidate, in turn, so that a change of the clock meets all of them
  double noise = 0.02;        // a candidate must be better by this part to pass those before it
  double give_up_factor = 3;  // a candidate slower than the best by this factor is measured once
  std::function<double()> now_ms = {};                // default: a steady clock
  std::function<void(const std::string&)> say = {};   // takes lines; default: standard error
};

/// SAMITE_TUNE = off, ro or on (default), and SAMITE_TUNE_MS for total_ms. Raises E-ENV-VALUE.
tuning_options tuning_options_from_environment();

/// Tables of the best candidate by device class and problem.
///
/// Results are kept in a disk_cache with the kernels, each measurement as it is made: a killed run goes on where it was. A candidate under
/// way when a process died is not tried again. The same measurements always give the same choice.
/// threads  safe. One thread tunes a problem; others that ask meanwhile get the first candidate and do not wait
class tuner {
 public:
  explicit tuner(disk_cache& store, tuning_options options = {});
  ~tuner();

  /// The process's tuner, over its disk cache. errors  E-ENV-VALUE
  static tuner& instance();

  /// The index of the candidate to use now; never measures. 0 if nothing is known.
  int choose(const tuning_problem& problem);
  /// Measures, unless the answer is known, pinned, forbidden or under way in another thread. Gives the index to use.
  ///
  /// errors  E-CUDA-FAULT from the launcher; every other failure drops a candidate
  int tune(const tuning_problem& problem, const std::shared_ptr<tuning_launcher>& launcher);

  /// Fixes a choice. Raises E-JIT-TUNE if there is no such candidate.
  void pin(const tuning_problem& problem, std::string_view name);
  /// From now on choices do not change: runs that must be equal to the bit call it before the first step. A problem that a thread tunes
  /// at that moment keeps its first candidate here.
  void freeze();

  /// Every choice, a line each, between a first line with the format and a last one with their count and a checksum; import_table() of
  /// another process or rank takes it, and then chooses the same.
  std::string export_table() const;
  /// Takes all of a table or nothing.
  ///
  /// errors  E-JIT-TUNE, with the line and what is wrong there, if the text is no whole table of this version
  void import_table(std::string_view text);

  /// Changes whenever a choice does.
  std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  int tunings() const { return tunings_; }
  /// What happened to each candidate of the problems that were measured here, a line each.
  std::string explain() const;

 private:
  struct measured;
  std::string key_of(const tuning_problem& problem) const;
  int index_in(const tuning_problem& problem, const std::string& name) const;
  measured screen(const tuning_problem& problem, const tuning_candidate& candidate, const std::string& key,
                  const std::shared_ptr<tuning_launcher>& launcher);
  int measure_all(const tuning_problem& problem, const std::string& key, const std::shared_ptr<tuning_launcher>& launcher);
  struct choice {
    std::string name;
    bool is_under_way = false;  // then the first candidate's name
  };
  void keep(const std::string& key, const std::string& value);
  std::string recall(const std::string& key);
  int publish(const tuning_problem& problem, const std::string& key, const std::string& name);
  void say(const std::string& text) const;
  double now_ms() const;

  disk_cache& store_;
  tuning_options options_;
  mutable std::mutex mutex_;  // guards the maps; never held while something runs
  std::map<std::string, choice> choices_;  // by key
  std::string explained_;
  bool has_said_full_ = false;
  double used_ms_ = 0;
  std::atomic<bool> frozen_{false};
  std::atomic<std::uint64_t> generation_{1};
  std::atomic<int> tunings_{0};
};

/// A choice remembered at a call site: no key is built and nothing is allocated while no choice changes.
///
/// threads  safe
class tuned_choice {
 public:
  tuned_choice(tuner& from, tuning_problem problem) : tuner_(from), problem_(std::move(problem)) {}
  int index() {
    const std::uint64_t generation = tuner_.generation(), seen = seen_.load(std::memory_order_acquire);
    if (seen >> 16 == generation) return int(seen & 0xffff);
    const int found = tuner_.choose(problem_);
    seen_.store(generation << 16 | std::uint64_t(found), std::memory_order_release);
    return found;
  }
  const tuning_problem& problem() const { return problem_; }

 private:
  tuner& tuner_;
  const tuning_problem problem_;
  std::atomic<std::uint64_t> seen_{0};
};

}  // namespace samite

#ifndef SAMITE_SPLIT
#include <samite/jit/tuner_impl.hpp>
#endif
