#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <samite/io/file.hpp>
#include <samite/io/safetensors.hpp>
#include <samite/model/checkpoint.hpp>
#include <samite/model/decoder.hpp>
#include <samite/model/drafter.hpp>

#include "support/full_disk.hpp"
#include "support/raised.hpp"
#include "support/temporary_folder.hpp"

using namespace samite;
using samite_tests::temporary_folder;
using samite_tests::unlike;

namespace {

drafter_config small() {
  drafter_config c;
  c.sizes = {.hidden = 16, .intermediate = 24, .heads = 4, .kv_heads = 2, .head_dim = 6};
  c.vocab_size = 40, c.target_hidden = 16, c.block_size = 4, c.mask_token_id = 39, c.num_target_layers = 6, c.target_layer_ids = {1, 3};
  c.layer_types = {draft_layer{.window = 8, .causal = true}, draft_layer{}};
  return c;
}

std::vector<std::pair<std::string, extents>> needed(const drafter_config& c) {
  graph g;
  declare_drafter(g, c, f32, f32);
  return parameter_shapes(g);
}

std::vector<std::uint8_t> bytes_of(const tensor& t) {
  const auto* from = reinterpret_cast<const std::uint8_t*>(t.raw());
  return {from, from + t.bytes()};
}

}  // namespace

TEST_CASE("a drafter has the tensors of released checkpoints: 11 a layer and 3") {
  const auto shapes = needed(small());
  CHECK(shapes.size() == 25);
  const std::map<std::string, extents> by_name(shapes.begin(), shapes.end());
  CHECK(by_name.at("fc.weight") == extents{16, 32});
  CHECK(by_name.at("hidden_norm.weight") == extents{16});
  CHECK(by_name.at("layers.1.self_attn.q_proj.weight") == extents{24, 16});
  CHECK(by_name.at("layers.1.self_attn.o_proj.weight") == extents{16, 24});
  CHECK(by_name.at("layers.0.self_attn.k_norm.weight") == extents{6});
  CHECK(by_name.at("layers.0.mlp.down_proj.weight") == extents{16, 24});
  // L (2H + 2 H nh hd + 2 H nkv hd + 2 hd + 3 H F) + C H^2 + 2H for the released Qwen3-4B drafter.
  drafter_config released;
  released.sizes = {.hidden = 2560, .intermediate = 9728, .heads = 32, .kv_heads = 8, .head_dim = 128};
  released.vocab_size = 151936, released.target_hidden = 2560, released.target_layer_ids = {1, 9, 17, 25, 33}, released.layer_types.resize(5);
  index_t parameters = 0;
  for (const auto& [name, dims] : needed(released)) parameters += count(dims);
  CHECK(parameters == 537427200);
}

TEST_CASE("a checkpoint is read back byte for byte in f32, rounded once in bf16") {
  const temporary_folder folder;
  const drafter_config c = small();
  const weight_map weights = initial_weights(needed(c), 5, 0.3);
  save_checkpoint(folder.path(), to_json_text(c), weights, f32);
  const drafter_config read = read_drafter_config(read_json(folder / "config.json"), "config.json");
  const weight_map back = load_weights(folder.path(), needed(read), f32);
  REQUIRE(back.size() == weights.size());
  for (const auto& [name, t] : weights) CHECK(bytes_of(back.at(name)) == bytes_of(t));
  save_checkpoint(folder.path(), to_json_text(c), weights, bf16);  // over the old one
  const weight_map rounded = load_weights(folder.path(), needed(read), bf16);
  for (const auto& [name, t] : weights) CHECK(bytes_of(rounded.at(name)) == bytes_of(t.to_dtype(bf16)));
  CHECK(folder.entry_count() == 2);
}

TEST_CASE("names may have the prefix of the whole model") {
  const temporary_folder folder;
  const drafter_config c = small();
  weight_map prefixed;
  for (const auto& [name, t] : initial_weights(needed(c), 5)) prefixed["model." + name] = t;
  save_checkpoint(folder.path(), to_json_text(c), prefixed, f32);
  CHECK(load_weights(folder.path(), needed(c), f32).size() == 25);
}

TEST_CASE("tensors that are missing, unknown or of another shape are refused") {
  const temporary_folder folder;
  const drafter_config c = small();
  const weight_map good = initial_weights(needed(c), 5);
  const auto refuses = [&](const weight_map& w, std::initializer_list<const char*> parts) {
    save_checkpoint(folder.path(), to_json_text(c), w, f32);
    return unlike("E-MODEL-TENSOR", parts, [&] { load_weights(folder.path(), needed(c), f32); });
  };
  weight_map w = good;
  w["fc.weight"] = tensor(f32, {16, 48});
  CHECK(refuses(w, {"\"fc.weight\"", "[16,48]", "[16,32]"}) == "");
  w = good, w["prefix_gru.weight"] = tensor(f32, {2});
  CHECK(refuses(w, {"prefix_gru.weight", "unknown"}) == "");
  w = good, w.erase("layers.1.self_attn.q_norm.weight");
  CHECK(refuses(w, {"layers.1.self_attn.q_norm.weight", "missing"}) == "");
  w = good, w["lm_head.weight"] = tensor(f32, {2});
  save_checkpoint(folder.path(), to_json_text(c), w, f32);
  CHECK(load_weights(folder.path(), needed(c), f32, {"lm_head.weight"}).size() == 25);
}

TEST_CASE("a truncated or missing weights file is refused") {
  const temporary_folder folder;
  const drafter_config c = small();
  save_checkpoint(folder.path(), to_json_text(c), initial_weights(needed(c), 5), f32);
  const std::string whole = read_file(folder / "model.safetensors");
  for (const std::size_t size : {whole.size() - 1, whole.size() / 2, std::size_t(100), std::size_t(7), std::size_t(0)}) {
    CAPTURE(size);
    write_file(folder / "model.safetensors", whole.substr(0, size));
    std::string code;
    try {
      load_weights(folder.path(), needed(c), f32);
    } catch (const error& e) {
      code = e.code();
    }
    CHECK(code.starts_with("E-SAFETENSORS-"));
  }
  CHECK(unlike("E-FILE-OPEN", {}, [&] { load_weights(folder / "nowhere", needed(c), f32); }) == "");
}

TEST_CASE("initial weights depend on seed and name alone; norms are ones, biases zeros, matrices have the deviation") {
  drafter_config c = small();
  c.sizes.attention_bias = true;
  const weight_map a = initial_weights(needed(c), 5), b = initial_weights(needed(c), 6);
  auto reversed = needed(c);
  std::reverse(reversed.begin(), reversed.end());
  const weight_map again = initial_weights(reversed, 5);
  for (const auto& [name, t] : a) {
    CHECK(bytes_of(again.at(name)) == bytes_of(t));
    CHECK((bytes_of(b.at(name)) == bytes_of(t)) == (t.rank() == 1));
  }
  CHECK(a.at("norm.weight").data<float>()[3] == 1);
  CHECK(a.at("layers.0.self_attn.q_proj.bias").data<float>()[3] == 0);
  double squares = 0;
  for (const float x : a.at("fc.weight").values<float>()) squares += double(x) * double(x);
  CHECK(std::sqrt(squares / 512) == doctest::Approx(0.02).epsilon(0.16));  // 5 standard errors
}

TEST_CASE("a checkpoint that meets a full disk is E-FILE-WRITE with exit status 8, and the older one stays as it was") {
  const temporary_folder folder;
  const drafter_config c = small();
  const weight_map weights = initial_weights(needed(c), 5);
  save_checkpoint(folder.path(), to_json_text(c), weights, f32);
  const std::string old_weights = read_file(folder / "model.safetensors"), old_config = read_file(folder / "config.json");
  for (const std::size_t room : {std::size_t(100), std::size_t(4000)}) {  // not enough for the config; enough for it, not for the weights
    int status = 0;
    try {
      const samite_tests::full_disk full(room);
      save_checkpoint(folder.path(), to_json_text(c) + " ", initial_weights(needed(c), 6), f32);
    } catch (const error& e) {
      CHECK(e.code() == "E-FILE-WRITE");
      status = e.exit_status();
    }
    CHECK(status == 8);
    CHECK(read_file(folder / "model.safetensors") == old_weights);
    CHECK(read_file(folder / "config.json") == old_config);
    CHECK(folder.entry_count() == 2);
  }
}

TEST_CASE("weights that are integers, infinite or NaN are refused in every dtype") {
  const temporary_folder folder;
  const drafter_config c = small();
  const weight_map good = initial_weights(needed(c), 5);
  std::vector<std::pair<std::string, tensor>> list(good.begin(), good.end());
  const auto place = std::find_if(list.begin(), list.end(), [](const auto& item) { return item.first == "norm.weight"; });
  REQUIRE(place != list.end());
  const auto refuses = [&](const tensor& t, dtype loaded, std::initializer_list<const char*> parts) {
    place->second = t;
    write_safetensors(folder / "model.safetensors", list);
    return unlike("E-MODEL-TENSOR", parts, [&] { load_weights(folder.path(), needed(c), loaded); });
  };
  for (const dtype type : {i32, i64, u8}) CHECK(refuses(tensor(type, {16}), f32, {"\"norm.weight\"", "real numbers"}) == "");
  tensor t(f32, {16});
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    t.values<float>()[3] = bad;
    for (const dtype type : {f64, f32, bf16, f16})
      for (const dtype loaded : {f32, bf16}) CHECK(refuses(t.to_dtype(type), loaded, {"\"norm.weight\"", "element 3"}) == "");
  }
  t.values<float>()[3] = 1e5f;
  CHECK(refuses(t, f16, {"element 3 as f16", "too large"}) == "");
  t.values<float>()[3] = 65504;
  place->second = t;
  write_safetensors(folder / "model.safetensors", list);
  CHECK(load_weights(folder.path(), needed(c), f16).size() == 25);
}
