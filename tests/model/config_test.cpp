#include <doctest/doctest.h>

#include <samite/model/config.hpp>

#include "support/raised.hpp"

using namespace samite;
using samite_tests::unlike;

namespace {

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// As released checkpoints have it.
const std::string nested = R"({"architectures":["DFlashDraftModel"],"attention_bias":false,"dflash_config":{"block_size":16,"mask_token_id":151669,
"target_layer_ids":[1,9,17,25,33]},"head_dim":128,"hidden_act":"silu","hidden_size":2560,"intermediate_size":9728,"layer_types":["full_attention",
"full_attention"],"max_position_embeddings":40960,"model_type":"qwen3","num_attention_heads":32,"num_hidden_layers":2,"num_key_value_heads":8,
"num_target_layers":36,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000,"sliding_window":null,"use_sliding_window":false,"vocab_size":151936})";

drafter_config read(const std::string& text) { return read_drafter_config(parse_json(text, "config.json"), "config.json"); }

std::string sliding() {
  return replaced(replaced(nested, "[\"full_attention\",", "[\"sliding_attention\","), "\"sliding_window\":null,\"use_sliding_window\":false", "\"sliding_window\":2048,\"use_sliding_window\":true");
}

}  // namespace

TEST_CASE("a drafter's config is read with its draft keys nested or at the top level") {
  const drafter_config c = read(nested);
  CHECK(c.block_size == 16);
  CHECK(c.mask_token_id == 151669);
  CHECK(c.target_layer_ids == std::vector<index_t>{1, 9, 17, 25, 33});
  CHECK(c.sizes.hidden == 2560);
  CHECK(c.sizes.heads * c.sizes.head_dim == 4096);
  CHECK(c.rope_theta == 1e6);
  CHECK(c.layers() == 2);
  CHECK_FALSE(c.layer_types[0].window.has_value());
  CHECK_FALSE(c.layer_types[0].causal);
  CHECK(read(replaced(replaced(nested, "\"block_size\":16,", ""), "\"vocab_size\"", "\"block_size\":10,\"vocab_size\"")).block_size == 10);
  // Where both are there, the nested one counts.
  CHECK(read(replaced(nested, "\"vocab_size\"", "\"block_size\":10,\"vocab_size\"")).block_size == 16);
}

TEST_CASE("the rotary base is read from either place and never guessed for a drafter") {
  const std::string parameters = replaced(nested, "\"rope_scaling\":null,\"rope_theta\":1000000", R"("rope_parameters":{"rope_theta":10000000,"rope_type":"default"})");
  CHECK(read(parameters).rope_theta == 1e7);
  CHECK(unlike("E-MODEL-CONFIG", {"rope_theta"}, [&] { read(replaced(nested, "\"rope_theta\":1000000,", "")); }) == "");
  for (const char* theta : {"\"rope_theta\":0", "\"rope_theta\":-1e4"}) CHECK(unlike("E-MODEL-CONFIG", {"rope_theta is", "positive"}, [&] { read(replaced(nested, "\"rope_theta\":1000000", theta)); }) == "");
  CHECK(unlike("E-MODEL-CONFIG", {"\"yarn\""}, [&] { read(replaced(parameters, "\"default\"", "\"yarn\"")); }) == "");
}

TEST_CASE("windows and causality follow the reference's order of keys") {
  const drafter_config c = read(sliding());
  CHECK(c.layer_types[0].window == 2048);
  CHECK(c.layer_types[0].causal);
  CHECK_FALSE(c.layer_types[1].window.has_value());
  CHECK_FALSE(c.layer_types[1].causal);
  const drafter_config both_ways = read(replaced(sliding(), "\"vocab_size\"", "\"is_causal\":false,\"vocab_size\""));
  CHECK_FALSE(both_ways.layer_types[0].causal);
  CHECK(read(replaced(nested, "\"block_size\":16", "\"causal\":true,\"block_size\":16")).layer_types[1].causal);
  // is_causal comes before dflash_config.causal.
  CHECK_FALSE(read(replaced(replaced(nested, "\"block_size\":16", "\"causal\":true,\"block_size\":16"), "\"vocab_size\"", "\"is_causal\":false,\"vocab_size\"")).layer_types[1].causal);
  const drafter_config swa = read(replaced(nested, "\"block_size\":16", "\"use_swa\":true,\"swa_window_size\":512,\"causal\":false,\"block_size\":16"));
  CHECK(swa.layer_types[1].window == 512);
  CHECK_FALSE(swa.layer_types[1].causal);
}

TEST_CASE("a drafter's config that would be served wrongly is refused") {
  const auto refuses = [](const std::string& from, const std::string& to, std::initializer_list<const char*> parts, const std::string& text = nested) {
    return unlike("E-MODEL-CONFIG", parts, [&] { read(replaced(text, from, to)); });
  };
  CHECK(refuses("\"block_size\":16", "\"projector_type\":\"gru\",\"block_size\":16", {"projector_type"}) == "");
  CHECK(refuses("\"block_size\":16", "\"sample_from_anchor\":true,\"block_size\":16", {"sample_from_anchor"}) == "");
  CHECK(refuses("\"block_size\":16,", "", {"block_size", "dflash_config"}) == "");
  CHECK(refuses("\"block_size\":16", "\"block_size\":0", {"block_size is 0"}) == "");
  CHECK(refuses("[\"full_attention\",\n", "[", {"1 entries", "num_hidden_layers is 2"}) == "");
  CHECK(refuses("[\"full_attention\",", "[\"chunked_attention\",", {"chunked_attention"}) == "");
  CHECK(refuses("\"use_sliding_window\":true", "\"use_sliding_window\":false", {"layer 0", "use_sliding_window"}, sliding()) == "");
  CHECK(refuses("\"sliding_window\":2048", "\"sliding_window\":null", {"sliding_window"}, sliding()) == "");
  CHECK(refuses("\"sliding_window\":2048", "\"sliding_window\":0", {"window is 0"}, sliding()) == "");
  CHECK(refuses("\"sliding_window\":2048", "\"sliding_window\":15", {"window is 15", "block has 16"}, sliding()) == "");
  CHECK(refuses("25,33]", "25,36]", {"36", "0 to 35"}) == "");
  CHECK(refuses("[1,9,17,25,33]", "[]", {"empty"}) == "");
  CHECK(refuses("151669", "151936", {"mask_token_id"}) == "");
  CHECK(refuses("\"silu\"", "\"gelu\"", {"gelu"}) == "");
  CHECK(refuses("\"num_key_value_heads\":8", "\"num_key_value_heads\":5", {"multiple"}) == "");
  CHECK(refuses("\"hidden_size\":2560", "\"hidden_size\":-1", {"hidden_size"}) == "");
  CHECK(refuses("1e-06", "0.0", {"eps"}) == "");
  for (const char* layers : {"\"num_hidden_layers\":0", "\"num_hidden_layers\":-2", "\"num_hidden_layers\":10001", "\"num_hidden_layers\":2000000000"})
    CHECK(refuses("\"num_hidden_layers\":2", layers, {"num_hidden_layers is"}) == "");
  CHECK(unlike("E-JSON-TYPE", {"hidden_size"}, [&] { read(replaced(nested, "\"hidden_size\":2560", "\"hidden_size\":\"wide\"")); }) == "");
  CHECK(unlike("E-JSON-KEY", {"hidden_size"}, [&] { read(replaced(nested, "\"hidden_size\":2560,", "")); }) == "");
}

TEST_CASE("a drafter's config comes back from its text as it was") {
  for (const int kind : {0, 1, 2, 3}) {
    CAPTURE(kind);
    drafter_config c = read(nested);
    c.block_size = 10, c.rope_theta = 1e7, c.input_embedding_scale = 2.5, c.final_logit_softcapping = 30, c.target_hidden = 5120, c.sizes.attention_bias = true;
    if (kind == 1) c.layer_types = {{.window = 2048, .causal = true}, {}};
    if (kind == 2) c.layer_types = {{.window = 2048, .causal = false}, {.window = 2048, .causal = false}};
    if (kind == 3) c.layer_types = {{.window = {}, .causal = true}, {.window = {}, .causal = true}};
    const drafter_config d = read(to_json_text(c));
    CHECK(d.block_size == 10);
    CHECK(d.rope_theta == 1e7);
    CHECK(d.input_embedding_scale == 2.5);
    CHECK(d.output_multiplier == 1);
    CHECK(d.final_logit_softcapping == 30);
    CHECK(d.target_hidden == 5120);
    CHECK(d.sizes.attention_bias);
    CHECK(d.sizes.head_dim == 128);
    CHECK(d.target_layer_ids == c.target_layer_ids);
    CHECK(d.num_target_layers == 36);
    CHECK(d.max_positions == 40960);
    REQUIRE(d.layers() == c.layers());
    for (std::size_t i = 0; i < 2; ++i) CHECK((d.layer_types[i].window == c.layer_types[i].window && d.layer_types[i].causal == c.layer_types[i].causal));
  }
  drafter_config mixed = read(nested);
  mixed.layer_types = {{.window = 8, .causal = true}, {.window = 9, .causal = true}};
  CHECK(unlike("E-MODEL-CONFIG", {"different windows"}, [&] { to_json_text(mixed); }) == "");
}

TEST_CASE("a target's config comes back from its text as it was, and what is not served is refused") {
  decoder_config c;
  c.sizes = {.hidden = 96, .intermediate = 200, .heads = 6, .kv_heads = 3, .head_dim = 32, .norm_eps = 1e-5};
  c.vocab_size = 264, c.layers = 5, c.max_positions = 4096, c.rope_theta = 5e5, c.tied = true;
  const std::string text = to_json_text(c);
  const auto parse = [](const std::string& t) { return read_decoder_config(parse_json(t, "t"), "t"); };
  const decoder_config d = parse(text);
  CHECK(d.sizes.hidden == 96);
  CHECK(d.sizes.kv_heads == 3);
  CHECK(d.sizes.head_dim == 32);
  CHECK(d.sizes.norm_eps == 1e-5);
  CHECK(d.vocab_size == 264);
  CHECK(d.layers == 5);
  CHECK(d.max_positions == 4096);
  CHECK(d.rope_theta == 5e5);
  CHECK(d.tied);
  CHECK(unlike("E-MODEL-CONFIG", {"\"llama\""}, [&] { parse(replaced(text, "\"qwen3\"", "\"llama\"")); }) == "");
  CHECK(unlike("E-MODEL-CONFIG", {"use_sliding_window"}, [&] { parse(replaced(text, "\"use_sliding_window\":false", "\"use_sliding_window\":true")); }) == "");
}

TEST_CASE("the default target layers are those of released drafters") {
  using ids = std::vector<index_t>;
  CHECK(default_target_layers(5, 36) == ids{1, 9, 17, 25, 33});
  CHECK(default_target_layers(5, 32) == ids{1, 8, 15, 22, 29});
  CHECK(default_target_layers(5, 64) == ids{1, 16, 31, 46, 61});
  CHECK(default_target_layers(8, 40) == ids{1, 6, 11, 16, 22, 27, 32, 37});
  CHECK(default_target_layers(6, 60) == ids{1, 12, 23, 35, 46, 57});
  CHECK(default_target_layers(5, 24) == ids{1, 6, 11, 16, 21});
  CHECK(default_target_layers(1, 24) == ids{12});
  CHECK(unlike("E-MODEL-CONFIG", {"5 distinct"}, [] { default_target_layers(5, 6); }) == "");
  CHECK(default_target_layers(0, 24).empty());
}
