// The whole thread: a frozen target, a drafter trained against it, and speculative decoding with the two.
//
// Run:     ./examples/quickstart.sh [--device cpu|cuda] [--text FILE] [--train-target] [--report FILE]
// Expect:  the training mask, progress lines, two continuations and a report; trained models stay in --output.
//
//          With --kernels-for sm_90a --kernels FOLDER it compiles every kernel of the job into FOLDER instead, on a machine without a
//          GPU; where there is one, SAMITE_CACHE=ro SAMITE_CACHE_DIR=FOLDER then runs the same flags with 0 compiles.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include <samite/run/plan_kernels.hpp>

#include "decode_job.hpp"
#include "drafter_job.hpp"

namespace {

/// The job in small, a step of each kind and nothing computed: plans are made for capacities and not for step counts, so it meets all.
struct kernel_export {
  std::string arch, folder;
  std::string work = {};  // a folder of its own for models that nobody wants
  int output = -1;        // the standard output, while the job's own is not shown

  kernel_export() = default;
  kernel_export(const kernel_export&) = delete;
  ~kernel_export() { clean_up(); }

  void begin() {
    if (!arch.starts_with("sm_")) samite::raise("E-ARG", "--kernels-for \"", arch, "\": give an arch with its suffix, e.g. --kernels-for sm_90a");
    if (folder.empty() || folder.front() != '/') samite::raise("E-ARG", "--kernels \"", folder, "\": --kernels-for needs a folder for the kernels, as an absolute path, e.g. --kernels $PWD/kernels");
    ::setenv("SAMITE_CACHE_DIR", folder.c_str(), 1), ::setenv("SAMITE_CACHE", "rw", 1);  // before the cache is first used
    samite::compile_plans_for(arch, samite::kernel_cache::instance(), true);
    work = example::make_temporary_folder("samite-kernels");
    show_output(false);  // nothing is computed, so what the job prints of losses and texts means nothing
  }
  void show_output(bool shown) {
    std::cout.flush(), std::fflush(stdout);
    if (shown && output >= 0) {
      ::dup2(output, STDOUT_FILENO), ::close(output);
      output = -1;
    } else if (!shown && output < 0) {
      output = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
      const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
      if (nothing >= 0) ::dup2(nothing, STDOUT_FILENO), ::close(nothing);
    }
  }
  void clean_up() {
    std::error_code ignored;
    if (!work.empty()) std::filesystem::remove_all(work, ignored);
    work.clear();
    show_output(true);
  }
  void end() {
    clean_up();
    const auto counts = samite::kernel_cache::instance().counters();
    const samite::disk_cache& disk = samite::disk_cache::instance();
    if (disk.evictions() > 0) samite::raise("E-JIT-CACHE", "the kernels do not fit into \"", folder, "\": ", disk.evictions(), " were removed for room; raise SAMITE_CACHE_MB");
    if (disk.store_failures() > 0 || disk.access() != samite::disk_cache::mode::read_write) samite::raise("E-FILE-WRITE", "writing kernels into \"", folder, "\" failed; choose a folder of yours on a disk with room");
    std::printf("%d kernels for %s in %s: %d compiled in %.1f s, %d were there\n", counts.compiles + counts.disk_hits, arch.c_str(), folder.c_str(), counts.compiles,
                samite::kernel_cache::instance().compile_ms() / 1000, counts.disk_hits);
  }
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Draws the training mask, trains a drafter against a frozen target and decodes with both."};
  std::string on = "cpu", used = "f32", text = "examples/data/austen.txt", target = "examples/data/target", output = "build/quickstart", report_file;
  bool train_target = false, large = false;
  example::index_t steps = 0, target_steps = 0, prompts = 20;
  app.add_option("--device", on, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--dtype", used, "dtype of activations: f32 or bf16")->capture_default_str();
  // The script gives its own defaults before the user's, so the last one counts.
  app.add_option("--text", text, "text to learn and to continue; the last tenth is held out")->capture_default_str()->take_last();
  app.add_option("--target", target, "folder of the frozen target")->capture_default_str()->take_last();
  app.add_option("--output", output, "folder for what is trained")->capture_default_str()->take_last()->check(example::given_name());
  app.add_flag("--train-target", train_target, "train a target from scratch first");
  app.add_flag("--large", large, "a 36 M target and blocks of 16: for a GPU, with --train-target");
  app.add_option("--steps", steps, "training steps of the drafter; 0 chooses by size")->check(example::count_between(0, 100000000));
  app.add_option("--target-steps", target_steps, "training steps of the target; 0 chooses by size")->check(example::count_between(0, 100000000));
  app.add_option("--prompts", prompts, "held-out prompts to decode")->capture_default_str()->check(example::count_between(1, 10000));
  app.add_option("--report", report_file, "write the report as one JSON object");
  kernel_export exported;
  app.add_option("--kernels-for", exported.arch, "compile the job's kernels for GPUs of this arch, e.g. sm_90a, instead of running it; needs no GPU");
  app.add_option("--kernels", exported.folder, "the folder that --kernels-for fills");
  return example::run_program(app, argc, argv, [&] {
    using namespace samite;
    const auto start = std::chrono::steady_clock::now();
    device where = example::device_named(on);
    const dtype compute = example::dtype_named("--dtype", used);
    const bool exporting = !exported.arch.empty();
    if (!exporting && !exported.folder.empty()) raise("E-ARG", "--kernels \"", exported.folder, "\" is filled for one arch: add --kernels-for, e.g. --kernels-for sm_90a");
    if (exporting) {
      exported.begin();
      where = device::cpu(), output = exported.work, report_file.clear();
      steps = target_steps = prompts = 1;
    }
    // What can't work is said before anything is trained or written.
    make_backend(where);
    const byte_corpus corpus = load_corpus(text, large ? 257 : 129);
    constexpr index_t large_taps = 5;
    if (!train_target) {
      const index_t layers = example::load_target(target).config.layers;
      if (large && layers <= large_taps)
        raise("E-ARG-TAPS", "--large reads ", large_taps, " layers of the target below its last, and the one in \"", target, "\" has ", layers, "; add --train-target to train one of 12, or give a --target of ", large_taps + 1, " layers or more");
    }
    example::prepare_folder(output);
    if (!report_file.empty()) example::check_writable(report_file);
    const std::string metrics = output + "/metrics.jsonl";
    example::watch_run(output + "/status");

    example::target_settings ts{.text = text, .output = output + "/target", .metrics = metrics, .on = where, .used = compute};
    if (large) ts.hidden = 512, ts.layers = 12, ts.heads = 8, ts.kv_heads = 4, ts.head_dim = 64, ts.intermediate = 1408, ts.steps = 2000, ts.batch = 64, ts.window = 256, ts.rate = 1e-3;
    if (target_steps > 0) ts.steps = target_steps;
    if (train_target) example::train_target(ts), target = ts.output;

    example::drafter_settings ds{.text = text, .target = target, .output = output + "/drafter", .metrics = metrics, .on = where, .used = compute};
    if (large) ds.layers = 3, ds.block_size = 16, ds.taps = large_taps, ds.anchors = 512, ds.windows = 32, ds.window = 256, ds.steps = 3000, ds.rate = 2e-3, ds.gamma = 7, ds.written = 4096;
    if (steps > 0) ds.steps = steps;
    if (exporting) ds.written = std::min<example::index_t>(ds.written, 64);  // one batch of the decoder that writes
    const example::drafter_report drafted = example::train_drafter(ds);
    const example::decode_report decoded =
        example::speculate({.text = text, .target = target, .drafter = ds.output, .on = where, .used = compute, .prompts = prompts});

    const example::loaded_target t = example::load_target(target);
    const double bits = bits_per_byte(t.config, example::on_device(t.weights, where), where, f32, corpus.held_out(), ts.window);
    if (exporting) return exported.end();
    const double baseline = byte_model(corpus.training(), 2).bits_per_byte(corpus.held_out());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    std::printf("\n=== report ===\n");
    example::print_line("target, held-out bits per byte", concat_text(example::fixed(bits, 3), "  (Witten-Bell of orders 0-2: ", example::fixed(baseline, 3), ", 0-4: ",
                                                                      example::fixed(byte_model(corpus.training(), 4).bits_per_byte(corpus.held_out()), 3), ")"));
    const auto print_by_position = [](const char* name, const std::vector<double>& shares) {
      std::string values;
      for (double share : shares) values += (values.empty() ? "" : " ") + example::fixed(share, 3);
      example::print_line(name, values);
    };
    print_by_position("draft accuracy by position", drafted.position_accuracy);
    if (!drafted.position_agreement.empty()) print_by_position("draft agreement with the target", drafted.position_agreement);
    example::print_report(decoded);
    example::print_line("models", target + ", " + ds.output);
    example::print_line("seconds", example::fixed(seconds, 1));
    const kernel_cache::counts kernels = where.type == device::kind::cuda ? kernel_cache::instance().counters() : kernel_cache::counts{};
    if (where.type == device::kind::cuda)
      example::print_line("kernels", concat_text(kernels.compiles, " compiled in ", example::fixed(kernel_cache::instance().compile_ms() / 1000, 1), " s, ", kernels.disk_hits, " from disk"));
    if (report_file.empty()) return;
    const auto list = [](const std::vector<double>& shares) { return json_value(json_value::array(shares.begin(), shares.end())); };
    write_file(report_file, to_json(json_value::object({{"bits_per_byte", bits},
                                                        {"baseline_bits_per_byte", baseline},
                                                        {"position_accuracy", list(drafted.position_accuracy)},
                                                        {"position_agreement", list(drafted.position_agreement)},
                                                        {"acceptance_length", decoded.acceptance},
                                                        {"acceptance_length_t1", decoded.acceptance_t1},
                                                        {"distinct_4gram", decoded.distinct_4gram},
                                                        {"block_size", decoded.block_size},
                                                        {"prompts", decoded.prompts},
                                                        {"identical_prompts", decoded.identical},
                                                        {"looping_prompts", decoded.loops},
                                                        {"tokens_per_forward", decoded.tokens_per_forward},
                                                        {"plain_tokens_per_s", decoded.plain_tokens_per_s},
                                                        {"speculative_tokens_per_s", decoded.speculative_tokens_per_s},
                                                        {"device", where.name()},
                                                        {"kernels_compiled", kernels.compiles},
                                                        {"kernels_from_disk", kernels.disk_hits},
                                                        {"seconds", seconds}})) + "\n");
  });
}
