// examples/program.hpp: what the examples with flags do around their own work: arguments, places to write to, exit status.
#pragma once
#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <string>
#include <system_error>
#include <type_traits>

#include <samite/samite.hpp>

#include "status.hpp"

namespace example {

inline samite::device device_named(const std::string& name) {
  if (name == "cpu") return samite::device::cpu();
  if (name.starts_with("cuda")) {
    const std::string index = name.size() > 5 && name[4] == ':' ? name.substr(5) : "0";
    if ((name == "cuda" || (name[4] == ':' && name.size() > 5)) && index.find_first_not_of("0123456789") == std::string::npos && index.size() < 4) return samite::device::cuda(std::stoi(index));
  }
  samite::raise("E-ARG-DEVICE", "--device ", name, " is no device; give cpu, cuda, or cuda:N with the number of a GPU, e.g. --device cuda:0");
}

inline samite::dtype dtype_named(const char* flag, const std::string& name) {
  if (name == "f32") return samite::f32;
  if (name == "bf16") return samite::bf16;
  samite::raise("E-ARG-DTYPE", flag, " ", name, " is not served; give ", flag, " f32 or ", flag, " bf16");
}

/// A check for CLI11: a finite number from `low` to `high`, a count in decimal digits if they are whole. CLI::Range lets NaN pass, and
/// takes 0x10 for 16.
template <class Number>
CLI::Validator number_between(Number low, Number high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        Number x = 0;
        const auto parsed = std::from_chars(text.data(), text.data() + text.size(), x);
        if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && x >= low && x <= high) return {};
        return samite::concat_text("Value ", text, std::is_integral_v<Number> ? " is no count from " : " is no number from ", low, " to ", high);
      },
      samite::concat_text(std::is_integral_v<Number> ? "COUNT in [" : "FLOAT in [", low, " - ", high, "]"));
}
inline CLI::Validator real_between(double low, double high) { return number_between(low, high); }
inline CLI::Validator count_between(samite::index_t low, samite::index_t high) { return number_between(low, high); }
/// Of 64 bits. CLI11 alone wraps negative numbers around, and takes the largest for those beyond.
inline CLI::Validator any_seed() { return number_between<std::uint64_t>(0, ~std::uint64_t(0)); }

/// A check for CLI11: a name that is not empty, as a script's unset variable gives it.
inline CLI::Validator given_name() {
  return CLI::Validator([](std::string& text) { return std::string(text.empty() ? "Value is empty, give a path" : ""); }, "");
}

/// Raises E-FILE-WRITE unless a file of this name can be written: asked before the work, not after it.
inline void check_writable(const std::string& path) {
  if (std::error_code ignored; std::filesystem::is_directory(path, ignored)) samite::raise("E-FILE-WRITE", "writing \"", path, "\": it is a folder; give the path of a file");
  samite::atomic_file probe(path);  // a temporary file beside it, removed again
}

/// Makes the folder for results, and raises E-FILE-WRITE unless files can be written there.
inline void prepare_folder(const std::string& folder) {
  samite::make_folder(folder);
  if (samite::file_exists(folder + "/model.safetensors")) std::printf("the model in \"%s\" will be replaced\n", folder.c_str());
  check_writable(folder + "/config.json");
}

/// Raises what is wrong with a text that is missing or shorter than `least_bytes` of it held out, without reading a long one.
inline void check_text(const std::string& path, samite::index_t least_bytes) {
  if (samite::index_t(samite::file_reader(path).bytes() / 10) < least_bytes) samite::load_corpus(path, least_bytes);
}

/// Whether every weight is a finite number: what may be saved.
inline bool all_finite(const samite::weight_map& weights) {
  for (const auto& [name, t] : weights)
    for (float x : t.values<float>())
      if (!std::isfinite(x)) return false;
  return true;
}

/// Raises E-DIVERGED unless the loss, the gradients and, when they are about to be saved, the weights are finite numbers.
inline void check_converging(const char* what, samite::trainer& run, double loss, double rate, bool saving) {
  const char* bad = !std::isfinite(loss) ? "loss is" : !std::isfinite(run.gradient_norm()) ? "gradients are" : saving && !all_finite(run.weights()) ? "weights are" : nullptr;
  if (bad != nullptr)
    samite::raise("E-DIVERGED", "training the ", what, ": at step ", run.step(), " the ", bad, " not finite, and nothing of it was saved; give a lower --rate than ", rate,
                  " and another --output");
}

/// While it lives, the first SIGTERM or SIGINT (unless ignored, as under nohup) only asks: the training loop saves at the end of its step and leaves. The second ends
/// the program as it would have without this, with 128 + the signal's number.
class stop_signals {
 public:
  stop_signals() {
    asked_ = 0;
    for (const int number : {SIGTERM, SIGINT})
      if (std::signal(number, note) == SIG_IGN) std::signal(number, SIG_IGN);
  }
  ~stop_signals() {
    for (const int number : {SIGTERM, SIGINT})
      if (std::signal(number, SIG_DFL) == SIG_IGN) std::signal(number, SIG_IGN);
  }
  stop_signals(const stop_signals&) = delete;

  bool asked() const { return asked_ != 0; }
  /// Raises E-PREEMPTED: the state of this step has been saved.
  void leave(const char* what, samite::index_t step, samite::index_t steps) const {
    samite::raise("E-PREEMPTED", "training the ", what, ": signal ", int(asked_), " after step ", step, " of ", steps, "; its state is saved, run the same command again to continue");
  }

 private:
  static void note(int number) {
    asked_ = number;
    std::signal(number, SIG_DFL);
  }
  static inline volatile std::sig_atomic_t asked_ = 0;
};

/// Parses the arguments, runs `work` and turns errors into one line on stderr and the exit status of docs/errors.md.
template <class Work>
int run_program(CLI::App& app, int argc, char** argv, Work work) {
  return end_with_status([&] {
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      if (e.get_exit_code() != 0) samite::raise("E-ARG", std::string(e.what()), "; run with --help for the flags and their values");
      app.exit(e);  // --help
      return;
    }
    work();
  });
}

}  // namespace example
