// Trains a DFlash drafter against a frozen target.
//
// Run:     train_drafter [--target FOLDER] [--text FILE] [--output FOLDER] [--device cpu|cuda]
// Expect:  a picture of the training mask, a progress line, then the held-out accuracy of each drafted position. An
//          interrupted run continues where it was last saved.
#include "drafter_job.hpp"

int main(int argc, char** argv) {
  CLI::App app{"Trains a DFlash drafter against a frozen target."};
  example::drafter_settings s;
  std::string on = "cpu", used = "f32", loss = "teacher";
  app.add_option("--text", s.text, "text to learn from; the last tenth is held out")->capture_default_str();
  app.add_option("--target", s.target, "folder of the target's checkpoint")->capture_default_str();
  app.add_option("--output", s.output, "folder of the drafter's checkpoint")->capture_default_str()->check(example::given_name());
  app.add_option("--metrics", s.metrics, "file of JSON lines to append to");
  app.add_option("--device", on, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--dtype", used, "dtype of activations: f32 or bf16; masters are f32")->capture_default_str();
  app.add_option("--loss", loss, "text, teacher-argmax or teacher")->capture_default_str()->check(CLI::IsMember({"text", "teacher-argmax", "teacher"}));
  app.add_option("--layers", s.layers)->capture_default_str()->check(example::count_between(1, 64));
  app.add_option("--block", s.block_size, "tokens of a block")->capture_default_str()->check(example::count_between(2, 64));
  app.add_option("--taps", s.taps, "target layers read; left out: 3, or as many as a small target has")->check(example::count_between(1, 64));
  app.add_option("--anchors", s.anchors, "blocks a step")->capture_default_str()->check(example::count_between(1, 65536));
  app.add_option("--windows", s.windows, "windows packed into a row")->capture_default_str()->check(example::count_between(1, 4096));
  app.add_option("--window", s.window, "bytes a window")->capture_default_str()->check(example::count_between(8, 65536));
  app.add_option("--steps", s.steps)->capture_default_str()->check(example::count_between(1, 100000000));
  app.add_option("--rate", s.rate, "peak learning rate")->capture_default_str()->check(example::real_between(1e-9, 1e3));
  app.add_option("--gamma", s.gamma, "decay of slot weights")->capture_default_str()->check(example::real_between(1e-3, 1e6));
  app.add_flag("--warm-start,!--no-warm-start", s.warm_start, "start from copies of target layers")->capture_default_str();
  app.add_option("--start-layers", s.start_layers, "target layers, one a drafter layer, that training starts from")->delimiter(',')->check(example::count_between(0, 1023));
  app.add_option("--written", s.written, "windows that the target writes itself, a quarter of every batch; 0: real text alone")->capture_default_str()->check(example::count_between(0, 1000000));
  app.add_option("--written-prompt", s.written_prompt, "bytes of real text that each continues")->capture_default_str()->check(example::count_between(1, 65536));
  app.add_option("--noise", s.feature_noise, "uniform noise on the features")->capture_default_str()->check(example::real_between(0, 1e3));
  app.add_option("--seed", s.seed)->capture_default_str()->check(example::any_seed());
  app.add_option("--save-every", s.save_every, "steps between saved states")->capture_default_str()->check(example::count_between(1, 100000000));
  return example::run_program(app, argc, argv, [&] {
    s.on = example::device_named(on), s.used = example::dtype_named("--dtype", used);
    s.loss = loss == "text" ? samite::draft_target::text : loss == "teacher" ? samite::draft_target::teacher : samite::draft_target::teacher_argmax;
    const example::drafter_report report = example::train_drafter(s);
    std::printf("held-out accuracy by position:");
    for (double a : report.position_accuracy) std::printf(" %.3f", a);
    if (!report.position_agreement.empty()) std::printf("\nheld-out agreement with the target's choice by position:");
    for (double a : report.position_agreement) std::printf(" %.3f", a);
    std::printf("\nheld-out acceptance length against the text %.3f\n", report.acceptance_length);
  });
}
