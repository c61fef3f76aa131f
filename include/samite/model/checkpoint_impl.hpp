// samite/model/checkpoint_impl.hpp: reading, writing and binding weights.
#pragma once
#include <cstring>
#include <set>

#include <samite/core/random.hpp>
#include <samite/io/file.hpp>
#include <samite/io/safetensors.hpp>
#include <samite/model/checkpoint.hpp>

namespace samite {

SAMITE_IMPL std::vector<std::pair<std::string, extents>> parameter_shapes(const graph& g) {
  std::vector<std::pair<std::string, extents>> found;
  for (const graph_node& n : g.nodes())
    if (n.as<parameter_node>()) found.emplace_back(n.label, capacities(n.outputs[0].dims));
  return found;
}

namespace detail {

/// Place of the first infinity or NaN; -1 if there is none.
inline index_t first_not_finite(const tensor& t) {
  const auto scan = [&](auto word, auto exponent) -> index_t {  // all bits of the exponent set: not finite
    using bits = decltype(word);
    const auto* from = static_cast<const std::byte*>(t.raw());
    const std::size_t count = t.bytes() / sizeof(bits);
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(&word, from + i * sizeof(bits), sizeof(bits));
      if ((word & bits(exponent)) == bits(exponent)) return index_t(i);
    }
    return -1;
  };
  switch (t.type()) {
    case dtype::f64: return scan(std::uint64_t(), 0x7ff0000000000000u);
    case dtype::f32: return scan(std::uint32_t(), 0x7f800000u);
    case dtype::bf16: return scan(std::uint16_t(), 0x7f80u);
    case dtype::f16: return scan(std::uint16_t(), 0x7c00u);
    default: return -1;
  }
}

}  // namespace detail

SAMITE_IMPL weight_map load_weights(const std::string& folder, const std::vector<std::pair<std::string, extents>>& needed, dtype type, const std::set<std::string>& optional) {
  const safetensors_file file = safetensors_file::open(folder);
  std::map<std::string, std::string> spelled;  // checkpoint name without its prefix -> name in the file
  for (const std::string& name : file.names()) {
    spelled[name] = name;
    if (name.starts_with("model.") && !spelled.contains(name.substr(6))) spelled[name.substr(6)] = name;
  }
  weight_map weights;
  std::set<std::string> used;
  for (const auto& [name, dims] : needed) {
    const auto found = spelled.find(name);
    if (found == spelled.end()) raise("E-MODEL-TENSOR", folder, ": the tensor \"", name, "\" ", dims, " is missing; the files don't belong to this config");
    const safetensors_entry& entry = *file.find(found->second);
    if (entry.dims != dims) raise("E-MODEL-TENSOR", folder, ": the tensor \"", name, "\" is ", entry.dims, " but the config asks for ", dims);
    if (is_real(type) && entry.type && !is_real(*entry.type))
      raise("E-MODEL-TENSOR", folder, ": the tensor \"", name, "\" holds ", entry.type_name, " but the model's weights are real numbers; expected F64, F32, BF16 or F16");
    weights[name] = file.load(found->second).to_dtype(type);
    if (const index_t at = detail::first_not_finite(weights[name]); at >= 0)
      raise("E-MODEL-TENSOR", folder, ": the tensor \"", name, "\" ", dims, " has an infinity or NaN at element ", at, " as ", name_of(type),
            "; the file is damaged, its training diverged, or its numbers are too large for that dtype");
    used.insert(found->second);
  }
  for (const std::string& name : file.names())
    if (!used.contains(name) && !optional.contains(name) && !name.ends_with(".rotary_emb.inv_freq"))
      raise("E-MODEL-TENSOR", folder, ": the tensor \"", name, "\" is unknown to this kind of model; loading without it would give a different model");
  return weights;
}

SAMITE_IMPL weight_map initial_weights(const std::vector<std::pair<std::string, extents>>& needed, std::uint64_t seed, double range) {
  weight_map weights;
  for (const auto& [name, dims] : needed) {
    tensor t(f32, dims);
    counted_random random(seed, 0x1417, 0, std::uint32_t(hash_text(name)));
    const bool matrix = dims.size() > 1;
    const bool bias = name.ends_with(".bias");
    for (float& x : t.values<float>()) x = matrix ? float(random.normal() * range) : bias ? 0.0f : 1.0f;
    weights[name] = std::move(t);
  }
  return weights;
}

SAMITE_IMPL void bind_weights(executor& run, const weight_map& weights) {
  for (const graph_node& n : run.source().source().nodes())
    if (n.as<parameter_node>())
      if (const auto found = weights.find(n.label); found != weights.end()) run.bind(n.label, found->second);
}

SAMITE_IMPL void save_checkpoint(const std::string& folder, const std::string& config_json, const weight_map& weights, dtype type) {
  make_folder(folder);
  std::vector<std::pair<std::string, tensor>> list;
  for (const auto& [name, t] : weights) list.emplace_back(name, t.to_host().to_dtype(type));
  atomic_file config(folder + "/config.json");  // written before and named after the weights: a full disk leaves both as they were
  config.write(config_json);
  write_safetensors(folder + "/model.safetensors", list, {{"format", "pt"}});
  config.commit();
}

}  // namespace samite
