// Decodes held-out prompts plainly and speculatively and compares the two.
//
// Run:     speculate [--target FOLDER] [--drafter FOLDER] [--device cpu|cuda]
// Expect:  two continuations, then acceptance length, tokens a target forward, speed, and whether greedy speculative output
//          equals plain greedy output.
#include "decode_job.hpp"

int main(int argc, char** argv) {
  CLI::App app{"Speculative decoding with a DFlash drafter."};
  example::decode_settings s;
  std::string on = "cpu", used = "f32";
  app.add_option("--text", s.text, "prompts come from its held-out last tenth")->capture_default_str();
  app.add_option("--target", s.target, "folder of the target's checkpoint")->capture_default_str();
  app.add_option("--drafter", s.drafter, "folder of the drafter's checkpoint")->capture_default_str();
  app.add_option("--device", on, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--dtype", used, "f32 or bf16")->capture_default_str();
  app.add_option("--prompts", s.prompts)->capture_default_str()->check(example::count_between(1, 10000));
  app.add_option("--prompt-bytes", s.prompt_bytes)->capture_default_str()->check(example::count_between(1, 65536));
  app.add_option("--new-tokens", s.new_tokens)->capture_default_str()->check(example::count_between(1, 65536));
  app.add_option("--seed", s.seed)->capture_default_str()->check(example::any_seed());
  return example::run_program(app, argc, argv, [&] {
    s.on = example::device_named(on), s.used = example::dtype_named("--dtype", used);
    example::print_report(example::speculate(s));
  });
}
