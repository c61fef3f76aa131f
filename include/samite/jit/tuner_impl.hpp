// samite/jit/tuner_impl.hpp: screening, measuring in turn, the rule for the winner, and what is kept on disk.
#pragma once
#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cmath>
#include <limits>
#include <thread>

#include <samite/core/env.hpp>
#include <samite/core/say.hpp>
#include <samite/jit/crash_report.hpp>
#include <samite/jit/tuner.hpp>
#include <samite/runtime/crash_stack.hpp>

namespace samite {

/// A candidate's time, or why it is out of the race.
struct tuner::measured {
  double us = std::numeric_limits<double>::infinity(), compile_ms = 0;
  std::string dropped;
};

SAMITE_IMPL std::int64_t length_bucket(std::int64_t tokens) { return std::int64_t(std::bit_ceil(std::uint64_t(std::max<std::int64_t>(tokens, 64)))); }

SAMITE_IMPL const std::vector<tuning_candidate>& candidates_for(const std::vector<tuning_rule>& rules, int arch) {
  const tuning_rule* best = nullptr;
  for (const tuning_rule& rule : rules)
    if (rule.first_arch <= arch && !rule.candidates.empty() && (best == nullptr || rule.first_arch > best->first_arch)) best = &rule;
  if (best == nullptr) raise("E-JIT-TUNE", "no rule gives candidates for arch ", arch, "; add one for the oldest arch that is served");
  return best->candidates;
}

SAMITE_IMPL tuning_options tuning_options_from_environment() {
  tuning_options options;
  const std::string wanted = env_text("SAMITE_TUNE").value_or("on");
  if (wanted != "off" && wanted != "ro" && wanted != "on") raise("E-ENV-VALUE", "environment variable SAMITE_TUNE=\"", wanted, "\": expected off, ro or on");
  options.mode = wanted == "off" ? tuning_mode::off : wanted == "ro" ? tuning_mode::read_only : tuning_mode::on;
  if (const auto ms = env_number("SAMITE_TUNE_MS", 0, 86'400'000)) options.total_ms = double(*ms);
  return options;
}

SAMITE_IMPL tuner::tuner(disk_cache& store, tuning_options options) : store_(store), options_(std::move(options)) {}
SAMITE_IMPL tuner::~tuner() = default;

SAMITE_IMPL tuner& tuner::instance() {
  static tuner& made = *new tuner(disk_cache::instance(), tuning_options_from_environment());
  return made;
}

SAMITE_IMPL double tuner::now_ms() const {
  if (options_.now_ms) return options_.now_ms();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

SAMITE_IMPL void tuner::say(const std::string& text) const {
  if (options_.say) options_.say(text);
  else samite::say(text);
}

// One line without tabs: it is a field of export_table() too. All that a stored choice depends on is in it.
SAMITE_IMPL std::string tuner::key_of(const tuning_problem& problem) const {
  if (problem.candidates.empty()) raise("E-JIT-TUNE", "family \"", problem.family, "\" has no candidates; give at least the one that always works");
  std::string key = concat_text("samite tuning 1, ", SAMITE_VERSION, " | ", problem.device_class, " | ", problem.family, " | ", problem.shape, " |");
  for (const tuning_candidate& candidate : problem.candidates) key += " [" + candidate.name + "]";
  std::replace_if(key.begin(), key.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return key;
}

SAMITE_IMPL int tuner::index_in(const tuning_problem& problem, const std::string& name) const {
  for (std::size_t i = 0; i < problem.candidates.size(); ++i)
    if (problem.candidates[i].name == name) return int(i);
  return 0;
}

SAMITE_IMPL void tuner::keep(const std::string& key, const std::string& value) { store_.store(key, {.cubin = value, .log = "", .label = key.substr(0, 200)}); }

SAMITE_IMPL std::string tuner::recall(const std::string& key) {
  const auto found = store_.find(key);
  return found ? found->cubin : "";
}

// Gives the choice that holds from now on: frozen, it is the one before.
SAMITE_IMPL int tuner::publish(const tuning_problem& problem, const std::string& key, const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (frozen_) {
    const auto found = choices_.find(key);
    return found == choices_.end() ? 0 : index_in(problem, found->second.name);
  }
  choices_[key] = {name};
  ++generation_;
  return index_in(problem, name);
}

SAMITE_IMPL void tuner::freeze() {
  const std::lock_guard lock(mutex_);
  frozen_ = true;
  for (auto& [key, chosen] : choices_) chosen.is_under_way = false;
}

SAMITE_IMPL int tuner::choose(const tuning_problem& problem) {
  const std::string key = key_of(problem);
  if (options_.mode == tuning_mode::off) return 0;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = choices_.find(key); found != choices_.end()) return index_in(problem, found->second.name);
    if (frozen_) return 0;
  }
  const std::string stored = recall(key);
  const std::lock_guard lock(mutex_);
  const auto found = stored.empty() || frozen_ ? choices_.find(key) : choices_.try_emplace(key, choice{stored}).first;
  return found == choices_.end() ? 0 : index_in(problem, found->second.name);
}

SAMITE_IMPL void tuner::pin(const tuning_problem& problem, std::string_view name) {
  if (frozen_) raise("E-JIT-TUNE", "pin(): the choices are frozen; pin before freeze()");
  for (const tuning_candidate& candidate : problem.candidates)
    if (candidate.name == name) return (void)publish(problem, key_of(problem), candidate.name);
  raise("E-JIT-TUNE", "family \"", problem.family, "\" has no candidate \"", name, "\"; its candidates: ", key_of(problem));
}

SAMITE_IMPL int tuner::tune(const tuning_problem& problem, const std::shared_ptr<tuning_launcher>& launcher) {
  const std::string key = key_of(problem);
  if (options_.mode == tuning_mode::off) return 0;
  if (const int known = choose(problem); known != 0 || options_.mode != tuning_mode::on || frozen_ || problem.candidates.size() == 1) return known;
  {
    const std::lock_guard lock(mutex_);
    if (frozen_ || !choices_.try_emplace(key, choice{problem.candidates[0].name, true}).second) return 0;  // known to be the first, or another thread is at it
    if (used_ms_ >= options_.total_ms) {
      choices_.erase(key);
      return 0;
    }
  }
  double start = now_ms();
  ++tunings_;
  const auto end = [&] {
    const std::lock_guard lock(mutex_);
    used_ms_ += now_ms() - start;
  };
  try {
    // One process measures, the others wait and take its choice: else what one tries looks to another like what one died of.
    const int silent_ms = std::min(options_.wait_ms, 5000);
    disk_cache::compile_right right = store_.wait_for_right(key, silent_ms);
    if (right.is_elsewhere() && options_.wait_ms > silent_ms) {
      say(concat_text("another process tunes ", problem.family, " for ", problem.shape, ": waiting for its choice"));
      right = store_.wait_for_right(key, options_.wait_ms - silent_ms);
    }
    start = now_ms();  // another's time is not ours
    if (const std::string stored = recall(key); !stored.empty()) return publish(problem, key, stored);
    if (right.is_elsewhere()) {  // not known here, so that a later call takes the other's choice
      const std::lock_guard lock(mutex_);
      if (!frozen_) choices_.erase(key);
      return 0;
    }
    const int best = measure_all(problem, key, launcher);
    end();
    return publish(problem, key, problem.candidates[std::size_t(best)].name);
  } catch (...) {
    end();
    publish(problem, key, problem.candidates[0].name);
    throw;
  }
}

// Compiles, compares and measures once. What it finds is on disk before the next candidate runs, and what it is about to run is on disk
// before it runs: after a crash the next process knows what not to try.
SAMITE_IMPL tuner::measured tuner::screen(const tuning_problem& problem, const tuning_candidate& candidate, const std::string& key,
                                          const std::shared_ptr<tuning_launcher>& launcher) {
  measured out;
  const std::string own_key = key + " -> " + candidate.name;
  const bool is_default = &candidate == &problem.candidates[0];
  const activity note("tune", concat_text(problem.family, " ", problem.shape, ": ", candidate.name));
  const std::string before = recall(own_key);
  if (before.starts_with("trying") && !is_default) out.dropped = "a process died while it ran";
  else if (before.starts_with("dropped ") && !is_default) out.dropped = before.substr(8);
  else if (candidate.scratch_bytes > options_.scratch_bytes)
    out.dropped = concat_text("it needs ", candidate.scratch_bytes, " bytes of scratch memory, more than the ", options_.scratch_bytes, " allowed");
  if (!out.dropped.empty()) return out;
  struct preparation {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
    std::exception_ptr failure;
  };
  const auto shared = std::make_shared<preparation>();
  const double begin = now_ms();
  try {
    // In a thread that can be left behind: a compile can't be stopped, and some take half an hour.
    std::thread worker([shared, launcher, candidate] {
      std::exception_ptr failure;
      try {
        const detail::crash_stack stack;
        launcher->prepare(candidate);
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(shared->mutex);
      shared->is_done = true, shared->failure = failure;
      shared->changed.notify_all();
    });
    {
      std::unique_lock lock(shared->mutex);
      const bool is_done = shared->changed.wait_for(lock, std::chrono::milliseconds(options_.prepare_ms), [&] { return shared->is_done; });
      if (is_done) {
        lock.unlock();
        worker.join();
        if (shared->failure) std::rethrow_exception(shared->failure);
      } else {
        worker.detach();
        out.dropped = concat_text("it was not compiled after ", options_.prepare_ms, " ms");
      }
    }
    out.compile_ms = now_ms() - begin;
    if (out.dropped.empty()) {
      // A time found by an earlier process, which also compared the result. The first candidate runs all the same: it is what others are
      // compared with.
      double known = 0;
      const bool is_known = before.starts_with("us ") && std::from_chars(before.data() + 3, before.data() + before.size(), known).ec == std::errc();
      if (!is_known) keep(own_key, "trying");
      if ((is_default || !is_known) && !launcher->is_right(candidate) && !is_default) out.dropped = "its result is wrong";
      if (is_known) {
        out.us = known;
        return out;
      }
      if (out.dropped.empty()) {
        (void)launcher->measure_us(candidate);  // the first one may load, allocate, or find a cold clock
        out.us = launcher->measure_us(candidate);
        if (!(out.us > 0) || !std::isfinite(out.us)) out.dropped = "its time can't be measured";
      }
    }
  } catch (const error& e) {
    if (e.code() == "E-CUDA-FAULT") throw;  // "trying" stays: the next process knows
    out.dropped = e.what();
  } catch (const std::exception& e) {
    out.dropped = e.what();
  }
  // Memory may be there the next time; whatever else dropped it will do so again.
  const bool may_pass = out.dropped.find("[E-CUDA-MEMORY]") != std::string::npos || out.dropped.find("not compiled after") != std::string::npos;
  if (out.dropped.empty()) keep(own_key, concat_text("us ", out.us));
  else if (!may_pass) keep(own_key, "dropped " + out.dropped);
  else store_.remove(own_key);
  return out;
}

SAMITE_IMPL int tuner::measure_all(const tuning_problem& problem, const std::string& key, const std::shared_ptr<tuning_launcher>& launcher) {
  const std::size_t count = problem.candidates.size();
  std::vector<measured> results(count);
  const double begin = now_ms();
  double said = begin, compile_ms = 0, best = std::numeric_limits<double>::infinity(), allowed = options_.total_ms;
  {
    const std::lock_guard lock(mutex_);
    allowed -= used_ms_;
  }
  const auto is_out_of_time = [&] {
    const double now = now_ms();
    if (now - said >= 5000) {
      said = now;
      say(concat_text("tuning ", problem.family, " for ", problem.shape, ": ", std::int64_t(now - begin) / 1000, " s"));
    }
    return now - begin - compile_ms >= options_.problem_ms || now - begin >= allowed;
  };
  std::size_t screened = 0;
  for (; screened < count && (screened == 0 || !is_out_of_time()); ++screened) {
    results[screened] = screen(problem, problem.candidates[screened], key, launcher);
    compile_ms += results[screened].compile_ms;
    best = std::min(best, results[screened].us);
    if (screened == 0 && !results[0].dropped.empty()) {  // nothing to compare with
      screened = 1;
      break;
    }
  }
  for (int round = 1; round < options_.rounds; ++round)
    for (std::size_t i = 0; i < screened; ++i) {
      measured& result = results[i];
      if (!result.dropped.empty() || result.us > best * options_.give_up_factor || is_out_of_time()) continue;
      try {
        result.us = std::min(result.us, launcher->measure_us(problem.candidates[i]));
        best = std::min(best, result.us);
      } catch (const error& e) {
        if (e.code() == "E-CUDA-FAULT") throw;
        result.dropped = e.what();
      }
    }
  best = std::numeric_limits<double>::infinity();
  for (const measured& result : results)
    if (result.dropped.empty()) best = std::min(best, result.us);
  // The first that is as good as the best, but for noise: equal candidates give the same choice everywhere, and the rule table's order decides.
  int chosen = 0;
  for (std::size_t i = 0; i < screened; ++i)
    if (results[i].dropped.empty() && results[i].us <= best * (1 + options_.noise)) {
      chosen = int(i);
      break;
    }
  if (!results[0].dropped.empty()) chosen = 0;  // whoever runs it meets its error
  // Where there are no locks another process may have been at it too, and what it stored first holds.
  if (const std::string stored = recall(key); !stored.empty()) chosen = index_in(problem, stored);
  else if (screened == count) keep(key, problem.candidates[std::size_t(chosen)].name);  // else the next process goes on from here
  std::string lines = concat_text(problem.family, " for ", problem.shape, " on ", problem.device_class, ": ", problem.candidates[std::size_t(chosen)].name, "\n");
  std::string full;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& why = results[i].dropped;
    lines += concat_text("  ", problem.candidates[i].name, ": ");
    if (i >= screened) lines += "no time was left\n";
    else if (why.empty()) lines += concat_text(std::round(results[i].us * 10) / 10, " us\n");
    else lines += "dropped: " + why + "\n";
    if (full.empty() && why.find("[E-CUDA-MEMORY]") != std::string::npos) full = why;
  }
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    explained_ += lines;
    is_new = !full.empty() && !has_said_full_;
    has_said_full_ = has_said_full_ || is_new;
  }
  if (is_new) say("tuning went on without the candidates for which the device has no memory: " + full);
  return chosen;
}

SAMITE_IMPL std::string tuner::explain() const {
  const std::lock_guard lock(mutex_);
  return explained_;
}

SAMITE_IMPL std::string tuner::export_table() const {
  const std::lock_guard lock(mutex_);
  std::string out = "samite choices 2\n";
  int count = 0;
  for (const auto& [key, chosen] : choices_)
    if (!chosen.is_under_way) out += concat_text(key, "\t", chosen.name, "\n"), ++count;
  return out + concat_text("end ", count, " ", detail::hash_key(out), "\n");
}

SAMITE_IMPL void tuner::import_table(std::string_view text) {
  std::map<std::string, choice> found;
  int line_number = 0;
  const auto refuse = [&](const auto&... why) { raise("E-JIT-TUNE", "import_table(): line ", line_number, ": ", why..., "; give what export_table() returned, unchanged"); };
  const std::string_view whole = text;
  bool has_end = false;
  const std::string start = concat_text("samite tuning 1, ", SAMITE_VERSION, " | ");
  for (std::size_t at = 0; at < whole.size() && !has_end;) {
    ++line_number;
    const std::size_t end = std::min(whole.find('\n', at), whole.size());
    const std::string_view line = whole.substr(at, end - at);
    if (line.ends_with('\r')) refuse("it ends in a carriage return, so something on the way changed the ends of lines");
    if (line_number == 1) {
      if (line == "samite choices 1") refuse("the table is of an older samite, and has no checksum; export it anew");
      if (line != "samite choices 2") refuse("it is not \"samite choices 2\", so this is no table");
    } else if (line.starts_with("end ")) {
      if (end == whole.size()) refuse("the table was cut inside of its last line");
      if (line != concat_text("end ", found.size(), " ", detail::hash_key(whole.substr(0, at)))) refuse("the count or the checksum is another's than that of the ", found.size(), " choices before it, so a line was changed, lost or added");
      if (end + 1 != whole.size()) refuse("the table ends here, but not the text");
      has_end = true;
    } else {
      if (end == whole.size()) refuse("the table was cut inside of it");
      const std::size_t tab = line.find('\t');
      if (tab == line.npos || tab == 0 || tab + 1 == line.size()) refuse("\"", line, "\" is no key and candidate with a tab between them");
      const std::string key(line.substr(0, tab)), name(line.substr(tab + 1));
      if (!key.starts_with(start)) refuse("the choice is for another version than ", start.substr(0, start.size() - 3), ", which does not look for it");
      if (key.find(" [" + name + "]") == key.npos) refuse("\"", name, "\" is none of the candidates that its key lists");
      if (!found.try_emplace(key, choice{name}).second) refuse("its key was in a line before");
    }
    at = end + 1;
  }
  if (!has_end) {
    ++line_number;
    refuse("the last line, \"end\" with the count and a checksum, is missing: the table was cut, or is empty");
  }
  const std::lock_guard lock(mutex_);
  if (frozen_) raise("E-JIT-TUNE", "import_table(): the choices are frozen; import before freeze()");
  for (auto& [key, chosen] : found) choices_[key] = std::move(chosen);
  ++generation_;
}

}  // namespace samite
