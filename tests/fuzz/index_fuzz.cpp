// Arbitrary text as the index of a checkpoint of two shards. Only samite::error may come out, and nothing outside the folder is opened.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include <samite/io/safetensors.hpp>

namespace {

void put(const std::string& path, std::string_view text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file) != text.size()) std::abort();
  std::fclose(file);
}

/// A folder with the shards a.safetensors and b.safetensors, removed at the end of the process.
struct shards {
  std::string folder = (std::filesystem::temp_directory_path() / "samite-fuzz-XXXXXX").string();
  shards() {
    if (mkdtemp(folder.data()) == nullptr) std::abort();
    for (const char* name : {"a", "b"}) {
      samite::tensor t(samite::f32, {2});
      samite::write_safetensors(folder + "/" + name + ".safetensors", {{name, t}}, {});
    }
  }
  ~shards() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const shards two;
  const std::string path = two.folder + "/model.safetensors.index.json";
  put(path, {reinterpret_cast<const char*>(data), size});
  try {
    const samite::safetensors_file file = samite::safetensors_file::open(two.folder);
    for (const std::string& name : file.names()) {
      if (name != "a" && name != "b") std::abort();
      if (file.load(name).elements() != 2) std::abort();
    }
  } catch (const samite::error&) {
  }
  return 0;
}
