// samite/model/config_impl.hpp: reading and writing config.json.
#pragma once
#include <algorithm>
#include <cmath>

#include <samite/model/config.hpp>

namespace samite {
namespace detail {

inline const json_value* find_set(const json_value& json, std::string_view key) {
  const json_value* found = json.find(key);
  return found != nullptr && !found->is_null() ? found : nullptr;
}

/// The rotary base, wherever it stands; places that disagree, and other kinds of scaling, are refused.
///
/// nested  dflash_config, if there is one
inline double read_rope_theta(const json_value& json, const json_value* nested, const std::string& path, bool required) {
  std::optional<double> theta;
  std::string place;
  const auto take = [&](const json_value& holder, const std::string& name) {
    if (!find_set(holder, "rope_theta")) return;
    const double found = holder.number("rope_theta");
    if (!(found > 0) || std::isinf(found)) raise("E-MODEL-CONFIG", path, ": ", name, " is ", found, "; expected a positive number");
    if (theta && *theta != found) raise("E-MODEL-CONFIG", path, ": ", place, " is ", *theta, " but ", name, " is ", found, "; keep the one that the model was trained with");
    theta = found, place = name;
  };
  if (nested != nullptr) take(*nested, "dflash_config.rope_theta");
  for (const std::string key : {"rope_parameters", "rope_scaling"}) {
    const json_value* rope = json.find_object(key);
    if (rope == nullptr) continue;
    bool typed = false;
    for (const char* word : {"rope_type", "type"})  // checkpoints have either spelling, and some have both
      if (find_set(*rope, word)) {
        typed = true;
        const std::string kind = rope->text(word);
        if (kind != "default") raise("E-MODEL-CONFIG", path, ": ", key, " asks for rope type \"", kind, "\"; only \"default\" is served");
      }
    if (!typed && find_set(*rope, "factor")) raise("E-MODEL-CONFIG", path, ": ", key, " has a factor but no rope_type; only unscaled rotary embeddings are served");
    take(*rope, key + ".rope_theta");
  }
  take(json, "rope_theta");
  if (!theta && required) raise("E-MODEL-CONFIG", path, ": neither rope_theta nor rope_parameters.rope_theta is there; a guessed base would silently spoil every position");
  return theta.value_or(10000.0);
}

/// The layer kinds of `layer_types`; empty without the key.
inline std::vector<std::string> read_layer_types(const json_value& json, const std::string& path, index_t layers) {
  std::vector<std::string> kinds;
  if (!find_set(json, "layer_types")) return kinds;
  for (const json_value& item : json.items("layer_types")) {
    const std::string kind = item.is_text() ? item.as_text() : "";
    if (kind != "full_attention" && kind != "sliding_attention")
      raise("E-MODEL-CONFIG", path, ": layer_types[", kinds.size(), "] is ", item.describe(), "; expected full_attention or sliding_attention");
    kinds.push_back(kind);
  }
  if (index_t(kinds.size()) != layers) raise("E-MODEL-CONFIG", path, ": layer_types has ", kinds.size(), " entries but num_hidden_layers is ", layers);
  return kinds;
}

inline void check_is_object(const json_value& json, const std::string& path) {
  if (!json.is_object()) raise("E-JSON-TYPE", path, ": a config must be an object, found ", json.describe());
}

inline index_t positive(const json_value& json, const std::string& path, std::string_view key, std::optional<index_t> otherwise = {}) {
  const index_t found = json.integer(key, otherwise);
  if (found < 1 || found > (index_t(1) << 31)) raise("E-MODEL-CONFIG", path, ": ", key, " is ", found, "; expected a whole number from 1 to 2^31");
  return found;
}

/// Layers of the largest models in use are some hundreds; a number beyond 10000 is a damaged file.
inline index_t layer_count(const json_value& json, const std::string& path) {
  const index_t layers = positive(json, path, "num_hidden_layers");
  if (layers > 10000) raise("E-MODEL-CONFIG", path, ": num_hidden_layers is ", layers, "; expected 1 to 10000");
  return layers;
}

inline layer_sizes read_sizes(const json_value& json, const std::string& path) {
  layer_sizes n;
  n.hidden = positive(json, path, "hidden_size");
  n.intermediate = positive(json, path, "intermediate_size");
  n.heads = positive(json, path, "num_attention_heads");
  n.kv_heads = positive(json, path, "num_key_value_heads", n.heads);
  n.head_dim = positive(json, path, "head_dim", std::max<index_t>(1, n.hidden / n.heads));
  n.norm_eps = json.number("rms_norm_eps", 1e-6);
  n.attention_bias = json.boolean("attention_bias", false);
  if (n.heads % n.kv_heads != 0 || n.head_dim % 2 != 0 || !(n.norm_eps > 0))
    raise("E-MODEL-CONFIG", path, ": ", n.heads, " query heads, ", n.kv_heads, " key heads, head size ", n.head_dim, ", eps ", n.norm_eps,
          "; the query heads must be a multiple of the key heads, the head size even and eps positive");
  if (const std::string act = json.text("hidden_act", "silu"); act != "silu") raise("E-MODEL-CONFIG", path, ": hidden_act is \"", act, "\"; only \"silu\" is served");
  return n;
}

inline std::vector<json_value::member> size_members(const layer_sizes& n) {
  return {{"attention_bias", n.attention_bias}, {"attention_dropout", 0.0}, {"head_dim", n.head_dim}, {"hidden_act", "silu"}, {"hidden_size", n.hidden},
          {"initializer_range", 0.02}, {"intermediate_size", n.intermediate}, {"model_type", "qwen3"}, {"num_attention_heads", n.heads},
          {"num_key_value_heads", n.kv_heads}, {"rms_norm_eps", n.norm_eps}, {"use_cache", true}};
}

inline bool is_known_draft_key(std::string_view key) {
  static constexpr std::string_view known[] = {"mask_token_id", "target_layer_ids", "block_size", "num_target_layers", "mask_token", "causal", "use_swa", "swa_window_size",
                                               "sliding_window", "input_embedding_scale", "output_multiplier", "final_logit_softcapping", "use_aux_hidden_state", "target_hidden_size",
                                               "rope_theta", "is_causal", "sample_from_anchor", "causal_head", "attention_sink_bias", "attention_value_scale"};
  return std::find(std::begin(known), std::end(known), key) != std::end(known);
}

}  // namespace detail

SAMITE_IMPL std::vector<index_t> default_target_layers(index_t count, index_t target_layers) {
  std::vector<index_t> ids;
  if (count == 1) ids.push_back(target_layers / 2);
  else
    for (index_t i = 0; i < count; ++i) {
      const double exact = 1.0 + double(i * (target_layers - 4)) / double(count - 1);
      const double low = std::floor(exact);
      const bool up = exact - low > 0.5 || (exact - low == 0.5 && std::fmod(low, 2.0) != 0);
      ids.push_back(index_t(low) + (up ? 1 : 0));
    }
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= target_layers - 1 || (i > 0 && ids[i] <= ids[i - 1]))
      raise("E-MODEL-CONFIG", "default_target_layers(", count, ", ", target_layers, "): a target of ", target_layers, " layers has no ", count, " distinct layers from 1 to ", target_layers - 3, "; name the layers yourself");
  return ids;
}

SAMITE_IMPL decoder_config read_decoder_config(const json_value& json, const std::string& path) {
  detail::check_is_object(json, path);
  if (const std::string type = json.text("model_type", "qwen3"); type != "qwen3") raise("E-MODEL-CONFIG", path, ": model_type is \"", type, "\"; only \"qwen3\" is served");
  decoder_config c;
  c.sizes = detail::read_sizes(json, path);
  c.vocab_size = detail::positive(json, path, "vocab_size");
  c.layers = detail::layer_count(json, path);
  c.max_positions = detail::positive(json, path, "max_position_embeddings", 32768);
  c.rope_theta = detail::read_rope_theta(json, nullptr, path, false);
  const std::vector<std::string> kinds = detail::read_layer_types(json, path, c.layers);
  for (std::size_t i = 0; i < kinds.size(); ++i)
    if (kinds[i] != "full_attention") raise("E-MODEL-CONFIG", path, ": layer_types[", i, "] is \"", kinds[i], "\"; sliding targets are not served");
  c.tied = json.boolean("tie_word_embeddings", false);
  if (json.boolean("use_sliding_window", false)) raise("E-MODEL-CONFIG", path, ": use_sliding_window is true; sliding targets are not served");
  return c;
}

SAMITE_IMPL drafter_config read_drafter_config(const json_value& json, const std::string& path) {
  detail::check_is_object(json, path);
  const json_value* nested = json.find_object("dflash_config");
  if (nested != nullptr)
    for (const auto& [key, unused] : nested->members())
      if (!detail::is_known_draft_key(key))
        raise("E-MODEL-CONFIG", path, ": dflash_config holds the key \"", key, "\", which DFlash drafters don't have; Domino, DSpark and DFlash 2 drafters are not served");
  // Where a draft key is: dflash_config first, then the top level.
  const auto holder = [&](std::string_view key) -> const json_value* {
    if (nested != nullptr && detail::find_set(*nested, key)) return nested;
    return detail::find_set(json, key) ? &json : nullptr;
  };
  const auto whole = [&](std::string_view key, std::optional<index_t> otherwise) -> index_t {
    const json_value* from = holder(key);
    if (from == nullptr && !otherwise) raise("E-MODEL-CONFIG", path, ": ", key, " is neither in dflash_config nor at the top level");
    return from ? from->integer(key) : *otherwise;
  };
  const auto real = [&](std::string_view key, double otherwise) {
    const json_value* from = holder(key);
    return from ? from->number(key) : otherwise;
  };
  const auto flag = [&](std::string_view key) -> std::optional<bool> {
    const json_value* from = holder(key);
    return from ? std::optional<bool>(from->boolean(key)) : std::nullopt;
  };

  // Loaders differ in which place they read, so a file that says two things is no model.
  if (nested != nullptr)
    for (const char* key : {"block_size", "mask_token_id", "num_target_layers", "target_layer_ids"}) {
      const json_value *inner = detail::find_set(*nested, key), *outer = detail::find_set(json, key);
      if (inner != nullptr && outer != nullptr && to_json(*inner) != to_json(*outer))
        raise("E-MODEL-CONFIG", path, ": ", key, " is ", to_json(*inner), " in dflash_config but ", to_json(*outer), " at the top level; remove the wrong one");
    }

  drafter_config c;
  c.sizes = detail::read_sizes(json, path);
  c.vocab_size = detail::positive(json, path, "vocab_size");
  c.max_positions = detail::positive(json, path, "max_position_embeddings", 40960);
  c.block_size = whole("block_size", {});
  c.mask_token_id = whole("mask_token_id", {});
  c.num_target_layers = whole("num_target_layers", {});
  c.target_hidden = whole("target_hidden_size", c.sizes.hidden);
  c.input_embedding_scale = real("input_embedding_scale", 1);
  c.output_multiplier = real("output_multiplier", 1);
  c.final_logit_softcapping = real("final_logit_softcapping", 0);
  c.rope_theta = detail::read_rope_theta(json, nested, path, true);
  for (const char* key : {"sample_from_anchor", "attention_sink_bias", "causal_head"})
    if (flag(key).value_or(false)) raise("E-MODEL-CONFIG", path, ": ", key, " is true; drafters with it are not served");
  if (c.block_size < 1 || c.block_size > 1024) raise("E-MODEL-CONFIG", path, ": block_size is ", c.block_size, "; expected 1 to 1024");
  if (c.mask_token_id < 0 || c.mask_token_id >= c.vocab_size)
    raise("E-MODEL-CONFIG", path, ": mask_token_id is ", c.mask_token_id, " but the vocabulary has ", c.vocab_size, " tokens; it must be a row of the target's embedding");

  const json_value* taps = holder("target_layer_ids");
  if (taps == nullptr) raise("E-MODEL-CONFIG", path, ": target_layer_ids is neither in dflash_config nor at the top level");
  if (c.num_target_layers < 1 || c.num_target_layers > 10000) raise("E-MODEL-CONFIG", path, ": num_target_layers is ", c.num_target_layers, "; expected 1 to 10000");
  for (const json_value& id : taps->items("target_layer_ids")) {
    if (!id.is_integer()) raise("E-JSON-TYPE", path, ": target_layer_ids[", c.target_layer_ids.size(), "]: expected a whole number, found ", id.describe());
    const index_t tap = id.as_integer();
    if (!c.target_layer_ids.empty() && tap <= c.target_layer_ids.back())
      raise("E-MODEL-CONFIG", path, ": target_layer_ids holds ", tap, " after ", c.target_layer_ids.back(), "; expected ascending layers, each once: the columns of fc are in that order");
    c.target_layer_ids.push_back(tap);
    if (tap < 0 || tap >= c.num_target_layers)
      raise("E-MODEL-CONFIG", path, ": target_layer_ids holds ", tap, " but the target has layers 0 to ", c.num_target_layers - 1);
  }
  if (c.target_layer_ids.empty()) raise("E-MODEL-CONFIG", path, ": target_layer_ids is empty; a drafter reads at least one target layer");

  // Window and causality, resolved as the reference implementation does.
  const index_t layers = detail::layer_count(json, path);
  const std::vector<std::string> kinds = detail::read_layer_types(json, path, layers);
  const std::optional<bool> causal = flag("is_causal") ? flag("is_causal") : flag("causal");
  const bool all_sliding = flag("use_swa").value_or(false);
  for (index_t i = 0; i < layers; ++i) {
    draft_layer layer;
    const bool sliding = all_sliding || (!kinds.empty() && kinds[std::size_t(i)] == "sliding_attention");
    layer.causal = causal.value_or(sliding);
    if (sliding) {
      const bool has_swa = holder("swa_window_size") != nullptr;
      if (!has_swa && !json.boolean("use_sliding_window", holder("sliding_window") == nested && nested != nullptr && detail::find_set(*nested, "sliding_window")))
        raise("E-MODEL-CONFIG", path, ": layer ", i, " is sliding but use_sliding_window is not true and dflash_config has no swa_window_size; set one of them, or mark the layer full_attention");
      const index_t window = has_swa ? whole("swa_window_size", {}) : whole("sliding_window", {});
      if (window < 1) raise("E-MODEL-CONFIG", path, ": the window is ", window, " tokens; expected at least 1");
      if (window < c.block_size)
        raise("E-MODEL-CONFIG", path, ": the window is ", window, " tokens but a block has ", c.block_size, "; implementations differ in what such a window hides, so it must be at least as long as the block");
      layer.window = window;
    }
    c.layer_types.push_back(layer);
  }
  return c;
}

SAMITE_IMPL void check_positions(const char* operation, const decoder_config& config, index_t length) {
  if (length > config.max_positions)
    raise("E-MODEL-POSITIONS", operation, ": ", length, " tokens, but the model was made for sequences of up to ", config.max_positions, " (max_position_embeddings); ask for shorter ones, or raise that number in its config.json");
}

SAMITE_IMPL std::string to_json_text(const decoder_config& c) {
  std::vector<json_value::member> m = detail::size_members(c.sizes);
  m.insert(m.begin(), {"architectures", json_value::array{"Qwen3ForCausalLM"}});
  m.insert(m.end(), {{"max_position_embeddings", c.max_positions},
                     {"num_hidden_layers", c.layers},
                     {"rope_parameters", json_value::object({{"rope_theta", c.rope_theta}, {"rope_type", "default"}})},
                     {"tie_word_embeddings", c.tied},
                     {"use_sliding_window", false},
                     {"vocab_size", c.vocab_size}});
  return to_json(json_value::object(std::move(m))) + "\n";
}

SAMITE_IMPL std::string to_json_text(const drafter_config& c) {
  std::vector<json_value::member> m = detail::size_members(c.sizes);
  json_value::array taps, types;
  for (index_t id : c.target_layer_ids) taps.emplace_back(id);
  std::optional<index_t> window;
  std::optional<bool> causal;
  bool by_type = true;  // causality follows from the layer types
  for (const draft_layer& l : c.layer_types) {
    types.emplace_back(l.window ? "sliding_attention" : "full_attention");
    if (l.window) window = l.window;
    by_type = by_type && l.causal == l.window.has_value();
    causal = l.causal;
  }
  for (const draft_layer& l : c.layer_types)
    if ((l.window && l.window != window) || (!by_type && l.causal != *causal))
      raise("E-MODEL-CONFIG", "drafter config: layers with different windows, or with a causality that is neither one for all nor that of their type, have no place in the format");
  std::vector<json_value::member> draft = {{"block_size", c.block_size}, {"mask_token_id", c.mask_token_id}, {"target_layer_ids", json_value(std::move(taps))}};
  if (c.target_hidden != c.sizes.hidden) draft.emplace_back("target_hidden_size", c.target_hidden);
  if (c.input_embedding_scale != 1) draft.emplace_back("input_embedding_scale", c.input_embedding_scale);
  if (c.output_multiplier != 1) draft.emplace_back("output_multiplier", c.output_multiplier);
  if (c.final_logit_softcapping != 0) draft.emplace_back("final_logit_softcapping", c.final_logit_softcapping);
  m.insert(m.begin(), {"architectures", json_value::array{"DFlashDraftModel"}});
  m.insert(m.end(), {{"dflash_config", json_value::object(std::move(draft))},
                     {"layer_types", json_value(std::move(types))},
                     {"max_position_embeddings", c.max_positions},
                     {"num_hidden_layers", c.layers()},
                     {"num_target_layers", c.num_target_layers},
                     {"rope_parameters", json_value::object({{"rope_theta", c.rope_theta}, {"rope_type", "default"}})},
                     {"sliding_window", window ? json_value(*window) : json_value()},
                     {"tie_word_embeddings", false},
                     {"use_sliding_window", window.has_value()},
                     {"vocab_size", c.vocab_size}});
  if (!by_type) m.emplace_back("is_causal", *causal);
  return to_json(json_value::object(std::move(m))) + "\n";
}

}  // namespace samite
