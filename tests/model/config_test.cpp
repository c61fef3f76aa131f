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
  CHECK(read(replaced(nested, "\"vocab_size\"", "\"block_size\":16,\"vocab_size\"")).block_size == 16);
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

TEST_CASE("a drafter's config that says two things is refused, naming both places") {
  const auto refuses = [](const std::string& from, const std::string& to, std::initializer_list<const char*> parts) { return unlike("E-MODEL-CONFIG", parts, [&] { read(replaced(nested, from, to)); }); };
  const std::string top = "\"vocab_size\"";
  CHECK(refuses(top, "\"block_size\":10," + top, {"block_size is 16 in dflash_config but 10 at the top level"}) == "");
  CHECK(refuses(top, "\"block_size\":-16," + top, {"-16"}) == "");
  CHECK(refuses(top, "\"mask_token_id\":3," + top, {"mask_token_id is 151669"}) == "");
  CHECK(refuses(top, "\"target_layer_ids\":[1]," + top, {"target_layer_ids"}) == "");
  CHECK(refuses("\"block_size\":16", "\"num_target_layers\":40,\"block_size\":16", {"num_target_layers is 40 in dflash_config but 36"}) == "");
  CHECK(refuses("\"num_target_layers\":36", "\"num_target_layers\":0", {"num_target_layers is 0"}) == "");
  CHECK(refuses("[1,9,17,25,33]", "[1,17,9,25,33]", {"9 after 17", "ascending"}) == "");
  CHECK(refuses("[1,9,17,25,33]", "[1,9,9,25,33]", {"9 after 9"}) == "");
  CHECK(refuses("[1,9,", "[-1,9,", {"-1", "0 to 35"}) == "");
  CHECK(refuses("\"rope_scaling\":null", R"("rope_parameters":{"rope_theta":10000,"rope_type":"default"})", {"rope_parameters.rope_theta is 10000", "rope_theta is 1e+06"}) == "");
  CHECK(refuses("\"block_size\":16", "\"rope_theta\":5e5,\"block_size\":16", {"dflash_config.rope_theta is 5e+05"}) == "");
  CHECK(read(replaced(nested, "\"rope_scaling\":null", R"("rope_parameters":{"rope_theta":1e6,"rope_type":"default"})")).rope_theta == 1e6);
}

TEST_CASE("scaled rotary embeddings are refused in either spelling and place") {
  for (const char* kind : {"yarn", "linear", "dynamic", "llama3"})
    for (const char* key : {"type", "rope_type"})
      for (const bool parameters : {false, true}) {
        CAPTURE(kind);
        CAPTURE(key);
        std::string rope = concat_text("\"rope_scaling\":{\"", key, "\":\"", kind, "\",\"factor\":4.0}");
        if (parameters) rope += R"(,"rope_parameters":{"rope_theta":1e6,"rope_type":"default"})";
        CHECK(unlike("E-MODEL-CONFIG", {"rope_scaling", kind}, [&] { read(replaced(nested, "\"rope_scaling\":null", rope)); }) == "");
      }
  CHECK(unlike("E-MODEL-CONFIG", {"yarn"}, [] { read(replaced(nested, "\"rope_scaling\":null", R"("rope_scaling":{"rope_type":"default","type":"yarn"})")); }) == "");
  CHECK(unlike("E-MODEL-CONFIG", {"factor"}, [] { read(replaced(nested, "\"rope_scaling\":null", R"("rope_scaling":{"factor":2.0})")); }) == "");
  CHECK(read(replaced(nested, "\"rope_scaling\":null", R"("rope_scaling":{"type":"default"})")).rope_theta == 1e6);
  CHECK(unlike("E-MODEL-CONFIG", {"rope_parameters.rope_theta is -1", "positive"}, [] { read(replaced(nested, "\"rope_scaling\":null", R"("rope_parameters":{"rope_theta":-1})")); }) == "");
}

TEST_CASE("a target's layer types must be full attention, one a layer") {
  decoder_config c;
  c.sizes = {.hidden = 8, .intermediate = 16, .heads = 2, .kv_heads = 1, .head_dim = 4};
  c.vocab_size = 16, c.layers = 2, c.max_positions = 64, c.rope_theta = 1e4;
  const auto with = [&](const std::string& types) { return read_decoder_config(parse_json(replaced(to_json_text(c), "\"vocab_size\"", "\"layer_types\":" + types + ",\"vocab_size\""), "t"), "t"); };
  CHECK(with(R"(["full_attention","full_attention"])").layers == 2);
  CHECK(unlike("E-MODEL-CONFIG", {"layer_types[1]", "linear_attention"}, [&] { with(R"(["full_attention","linear_attention"])"); }) == "");
  CHECK(unlike("E-MODEL-CONFIG", {"layer_types[0]", "sliding"}, [&] { with(R"(["sliding_attention","full_attention"])"); }) == "");
  CHECK(unlike("E-MODEL-CONFIG", {"1 entries"}, [&] { with(R"(["full_attention"])"); }) == "");
}

TEST_CASE("a config of a wrong kind is refused with file, key, found and expected") {
  CHECK(unlike("E-JSON-TYPE", {"config.json", "object", "an array of 0"}, [] { read("[]"); }) == "");
  CHECK(unlike("E-JSON-TYPE", {"config.json", "\"target_layer_ids\"", "an array", "text \"x\""}, [] { read(replaced(nested, "[1,9,17,25,33]", "\"x\"")); }) == "");
  CHECK(unlike("E-JSON-TYPE", {"config.json", "target_layer_ids[1]", "a whole number", "text \"x\""}, [] { read(replaced(nested, "[1,9,", "[1,\"x\",")); }) == "");
  CHECK(unlike("E-JSON-TYPE", {"config.json", "\"hidden_size\"", "a whole number", "text \"32\""}, [] { read(replaced(nested, "\"hidden_size\":2560", "\"hidden_size\":\"32\"")); }) == "");
  CHECK(unlike("E-JSON-TYPE", {"config.json", "\"dflash_config\"", "an object"}, [] { read(R"({"dflash_config":3})"); }) == "");
}
