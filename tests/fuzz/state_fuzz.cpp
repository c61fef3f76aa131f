// Arbitrary bytes as a saved training state: refused with samite::error, the run unchanged, or read whole.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include <samite/expr/tensor.hpp>
#include <samite/train/trainer.hpp>

namespace {

std::string bytes_of(const samite::trainer& run) {
  const samite::weight_map weights = run.weights();
  const samite::tensor& w = weights.at("w");
  return {reinterpret_cast<const char*>(w.data<float>()), std::size_t(w.elements()) * sizeof(float)};
}

/// A file of its own, removed at the end of the process.
struct state_file {
  std::string path = (std::filesystem::temp_directory_path() / "samite-fuzz-XXXXXX").string();
  state_file() {
    if (mkstemp(path.data()) < 0) std::abort();
  }
  ~state_file() { std::remove(path.c_str()); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const state_file state;
  static samite::trainer run(samite::device::cpu(), {.contract = "c"}, [](samite::graph& g) {
    const samite::value w = g.parameter("w", samite::f32, {2});
    return samite::training_graph{samite::total(w * w), {w}};
  });
  std::FILE* file = std::fopen(state.path.c_str(), "wb");
  if (file == nullptr || std::fwrite(data, 1, size, file) != size) std::abort();
  std::fclose(file);
  const std::string before = bytes_of(run);
  const samite::index_t step = run.step();
  try {
    run.load(state.path);
    if (run.step() < 0) std::abort();
  } catch (const samite::error&) {
    if (run.step() != step || bytes_of(run) != before) std::abort();
  }
  return 0;
}
