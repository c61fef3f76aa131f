// Trains a byte-level target model from scratch on a text.
//
// Run:     train_target [--text FILE] [--output FOLDER] [--device cpu|cuda]
// Expect:  a progress line, then the held-out bits per byte beside those of a Witten-Bell byte model. An interrupted run
//          continues where it was last saved.
#include "target_job.hpp"

int main(int argc, char** argv) {
  CLI::App app{"Trains a byte-level target model."};
  example::target_settings s;
  std::string on = "cpu", used = "f32", stored = "f32";
  app.add_option("--text", s.text, "text to learn; the last tenth is held out")->capture_default_str();
  app.add_option("--output", s.output, "folder of the checkpoint")->capture_default_str()->check(example::given_name());
  app.add_option("--metrics", s.metrics, "file of JSON lines to append to");
  app.add_option("--device", on, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--dtype", used, "dtype of activations: f32 or bf16; masters are f32")->capture_default_str();
  app.add_option("--stored", stored, "dtype of the checkpoint: f32 or bf16")->capture_default_str();
  app.add_option("--hidden", s.hidden)->capture_default_str()->check(example::count_between(1, 65536));
  app.add_option("--layers", s.layers)->capture_default_str()->check(example::count_between(1, 1024));
  app.add_option("--heads", s.heads)->capture_default_str()->check(example::count_between(1, 4096));
  app.add_option("--kv-heads", s.kv_heads)->capture_default_str()->check(example::count_between(1, 4096));
  app.add_option("--head-dim", s.head_dim)->capture_default_str()->check(example::count_between(1, 4096));
  app.add_option("--intermediate", s.intermediate)->capture_default_str()->check(example::count_between(1, 262144));
  app.add_option("--steps", s.steps)->capture_default_str()->check(example::count_between(1, 100000000));
  app.add_option("--batch", s.batch, "windows a step")->capture_default_str()->check(example::count_between(1, 65536));
  app.add_option("--window", s.window, "bytes a window")->capture_default_str()->check(example::count_between(2, 65536));
  app.add_option("--rate", s.rate, "peak learning rate")->capture_default_str()->check(example::real_between(1e-9, 1e3));
  app.add_option("--weight-decay", s.weight_decay)->capture_default_str()->check(example::real_between(0, 1e3));
  app.add_option("--seed", s.seed)->capture_default_str()->check(example::any_seed());
  app.add_option("--save-every", s.save_every, "steps between saved states")->capture_default_str()->check(example::count_between(1, 100000000));
  return example::run_program(app, argc, argv, [&] {
    s.on = example::device_named(on), s.used = example::dtype_named("--dtype", used), s.stored = example::dtype_named("--stored", stored);
    example::train_target(s);
    const samite::byte_corpus corpus = samite::load_corpus(s.text, s.window + 1);
    const example::loaded_target t = example::load_target(s.output);
    samite::graph g;
    samite::declare_decoder(g, t.config, samite::f32, samite::f32);
    samite::index_t parameters = 0;
    for (const auto& [name, dims] : samite::parameter_shapes(g)) parameters += samite::count(dims);
    const double bits = samite::bits_per_byte(t.config, example::on_device(t.weights, s.on), s.on, samite::f32, corpus.held_out(), s.window);
    std::printf("%lld parameters; held-out bits per byte %.4f; Witten-Bell of orders 0-2 %.4f, 0-4 %.4f\n", static_cast<long long>(parameters), bits,
                samite::byte_model(corpus.training(), 2).bits_per_byte(corpus.held_out()), samite::byte_model(corpus.training(), 4).bits_per_byte(corpus.held_out()));
  });
}
