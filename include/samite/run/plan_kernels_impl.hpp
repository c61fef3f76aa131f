// samite/run/plan_kernels_impl.hpp: from a plan's nodes to kernel texts.
#pragma once
#include <algorithm>
#include <mutex>
#include <set>
#include <string_view>

#include <samite/core/env.hpp>
#include <samite/emit/attention.hpp>
#include <samite/emit/attention_decode.hpp>
#include <samite/emit/device_headers.hpp>
#include <samite/emit/row_kernel.hpp>
#include <samite/ir/build.hpp>
#include <samite/jit/precompile.hpp>
#include <samite/run/plan_kernels.hpp>
#include <samite/run/row_tuning.hpp>

namespace samite {
namespace detail {

SAMITE_IMPL attention_kernels attention_setting() {
  const std::string wanted = env_text("SAMITE_ATTENTION").value_or("auto");
  if (wanted == "auto") return attention_kernels::automatic;
  if (wanted == "portable") return attention_kernels::portable;
  if (wanted == "decode") return attention_kernels::decode;
  raise("E-ENV-VALUE", "environment variable SAMITE_ATTENTION=\"", wanted, "\": expected auto, portable or decode");
}

SAMITE_IMPL bool attention_is_deterministic() { return env_number("SAMITE_DETERMINISTIC", 0, 1).value_or(0) == 1; }

/// Makes each text once, node after node.
struct plan_kernels::maker {
  const graph& g;
  const std::string arch, device_class;
  const attention_kernels setting = attention_setting();
  const std::vector<std::string> compile_options = env_number("SAMITE_RACECHECK", 0, 1).value_or(0) == 1 ? std::vector<std::string>{"-DSAMITE_EVERY_THREAD_ARRIVES"} : std::vector<std::string>{};
  const bool portable = setting == attention_kernels::portable, deterministic = attention_is_deterministic();
  std::vector<kernel_use>* out = nullptr;  // of the node at hand
  std::map<std::string, std::shared_ptr<const kernel_source>> units{};  // by text
  std::map<std::string, kernel_text> rows{};                            // by text without a label
  std::map<std::pair<index_t, bool>, int> teams{};                      // as tuned
  const program identity = make_identity();

  static program make_identity() {
    program p;
    p.roots = {build_operand(p, 0, value_kind::real)};
    return p;
  }

  kernel_use& add(kernel_role role, const std::string& name, const std::string& label, const std::string& text, bool is_rare = false) {
    auto& unit = units[text];
    if (!unit) unit = std::make_shared<const kernel_source>(kernel_source{label, text, arch, compile_options, headers_of(text)});
    out->push_back({.role = role, .name = name, .unit = unit, .is_rare = is_rare});
    return out->back();
  }
  void add(kernel_role role, const attention_launch& kernel, const kernel_text& unit, index_t keys = 0, bool is_rare = false) {
    kernel_use& use = add(role, kernel.name, unit.name, unit.text, is_rare);
    use.threads = kernel.threads, use.shared_bytes = kernel.shared_bytes, use.block_rows = kernel.block_rows, use.block_keys = keys;
  }

  void add_rows(kernel_role role, const program& p, row_kernel_options options, const std::string& label, bool is_rare = false) {
    const std::string structure = emit_row_kernel(p, options).text;
    auto found = rows.find(structure);
    if (found == rows.end()) {
      options.label = label;
      found = rows.emplace(structure, emit_row_kernel(p, options)).first;
    }
    add(role, found->second.name, found->second.name, found->second.text, is_rare).block_rows = 256 / options.team;
  }

  int team_of(index_t columns, bool reduces) {
    if (device_class.empty()) return row_team(columns);
    const auto [team, is_new] = teams.try_emplace({columns, reduces});
    if (is_new) {
      const tuning_problem problem = row_team_problem(columns, reduces, device_class);
      team->second = row_team_of(problem.candidates[std::size_t(tuner::instance().choose(problem))]);
    }
    return team->second;
  }

  void fused(const graph_node& n, const fused_node& a) {
    row_kernel_options options{"", {}, {}, team_of(a.domain.empty() ? 1 : a.domain.back().capacity(), reduces_rows(*a.fn))};
    // What varies is a matter of the declared shapes: a run-time length of 1 is still a column axis.
    const bool one_column = a.domain.empty() || a.domain.back() == dim(1);
    const auto type_of = [&](const value_info& v) { return row_tensor_type{v.type, !one_column && !v.dims.empty() && !(v.dims.back() == dim(1))}; };
    for (const value_ref& in : n.inputs) options.operands.push_back(type_of(g.info(in)));
    for (const value_info& v : n.outputs) options.outputs.push_back(type_of(v));
    add_rows(kernel_role::rows, *a.fn, std::move(options), n.label);
  }

  void convert(kernel_role role, dtype from, dtype to, const shape& dims, bool is_rare = false) {
    add_rows(role, identity, {"", {{from, true}}, {{to, true}}, row_team(dims.empty() ? 1 : dims.back().capacity())}, "convert", is_rare);
  }

  void product(const graph_node& n) {
    const dtype x = g.info(n.inputs[0]).type, y = n.outputs[0].type;
    const bool half = x == dtype::bf16 || x == dtype::f16;
    if (y != x && !(half && y == dtype::f32)) convert(kernel_role::convert, half ? dtype::f32 : x, y, n.outputs[0].dims);
  }

  void copies() {
    index_t bytes = 1;
    for (int role = int(kernel_role::copy_1); role <= int(kernel_role::copy_16); ++role, bytes *= 2)
      add(kernel_role(role), concat_text("copy_", bytes), "copy", "#include \"copy.cuh\"\n");
  }

  void sum(const graph_node& n) {
    const dtype from = g.info(n.inputs[0]).type, to = n.outputs[0].type, total = from == dtype::f64 || to == dtype::f64 ? dtype::f64 : dtype::f32;
    if (!is_real(from) || !is_real(to)) return;  // its launch refuses it
    const std::string types = concat_text(name_of(from), ", ", name_of(total));
    const auto entry = [](const char* name, const std::string& function) {
      return concat_text("extern \"C\" __global__ void __launch_bounds__(sum_threads) ", name, "(const __grid_constant__ sum_parameters p) {\n  ", function, ">(p);\n}\n\n");
    };
    const std::string text = concat_text("// sum_to: ", name_of(from), " to ", name_of(to), ", summed in ", name_of(total), "\n#include \"sum_to.cuh\"\n\nnamespace samite {\n\n",
                                         entry("sum_by_thread", "sum_chunks_by_thread<" + types), entry("sum_by_block", "sum_chunks_by_block<" + types),
                                         entry("sum_partials", concat_text("sum_partials_in_order<", name_of(total), ", ", name_of(to))), "}  // namespace samite\n");
    add(kernel_role::sum_by_thread, "sum_by_thread", "sum_to", text);
    add(kernel_role::sum_by_block, "sum_by_block", "sum_to", text);
    add(kernel_role::sum_partials, "sum_partials", "sum_to", text);
  }

  void embedding(const char* name, const std::string& types) {
    add(kernel_role::embedding, name, name,
        concat_text("#include \"embedding.cuh\"\n\nnamespace samite {\n\nextern \"C\" __global__ void __launch_bounds__(embedding_threads) ", name,
                    "(const __grid_constant__ embedding_parameters p) {\n  ", name, "_rows<", types, ">(p);\n}\n\n}  // namespace samite\n"));
  }
  void embed(const graph_node& n) {
    const std::size_t bytes = size_of(g.info(n.inputs[0]).type);
    embedding("embedding", concat_text(name_of(g.info(n.inputs[1]).type), ", ", bytes == 2 ? "u16" : bytes == 4 ? "u32" : bytes == 8 ? "u64" : "u8"));
  }
  void embed_gradient(const graph_node& n) {
    if (n.outputs[0].type != dtype::f32 && n.outputs[0].type != dtype::f64) return;  // its launch refuses it
    embedding("embedding_gradient", concat_text(name_of(g.info(n.inputs[0]).type), ", ", name_of(g.info(n.inputs[1]).type), ", ", name_of(n.outputs[0].type)));
  }

  /// The kernels' options; what is too wide for them is refused by its launch.
  attention_kernel_options options_of(const graph_node& n, const attention_terms& a, std::size_t first_tensor) const {
    attention_kernel_options o{g.info(n.inputs[0]).type, g.info(n.inputs[0]).dims[3].capacity(), g.info(n.inputs[2]).dims[3].capacity(), a.mask.get(), a.score.get()};
    for (int i = 0; i < a.tensors; ++i) o.score_types.push_back(g.info(n.inputs[first_tensor + std::size_t(i)]).type);
    return o;
  }
  void convert_sink(const graph_node& n, const attention_terms& a, dtype sums) {
    if (a.has_sink) convert(kernel_role::convert_sink, g.info(n.inputs.back()).type, sums, g.info(n.inputs.back()).dims, g.info(n.inputs.back()).type == sums);
  }

  bool is_on_sm90(const attention_kernel_options& o, const attention_terms& a) const { return !portable && arch == "sm_90a" && serves_sm90(o) && a.scale > 0; }
  void add_bits(kernel_role role, const program& mask, index_t rows, index_t columns) {
    add(role, {"attention_bits", unsigned(2 * rows), 0, rows}, emit_attention_bits(mask, rows, columns, role == kernel_role::sm90_key_bits), columns);
  }

  /// The kernels for few queries. Whether all runs of the node take one of them.
  bool decode(const graph_node& n, const attention_kernel_options& o, const attention_terms& a) {
    const dim &Q = g.info(n.inputs[0]).dims[2], &K = g.info(n.inputs[1]).dims[2];
    const index_t group = g.info(n.inputs[0]).dims[1].capacity() / std::max<index_t>(1, g.info(n.inputs[1]).dims[1].capacity()), least = setting == attention_kernels::decode ? 1 : decode_least_keys;
    const index_t captured = (o.mask != nullptr ? index_t(mask_arguments_bytes(*o.mask)) : 8) + (o.score != nullptr ? index_t(score_arguments_bytes(*o.score, o.score_types.size())) : 8);
    const bool is_few = Q.is_constant() && Q.constant() <= attention_decode_queries;
    if (setting == attention_kernels::portable || !serves_decode(o) || !(is_few || !Q.is_constant()) || K.capacity() < least || captured > index_t(kernel_parameter_limit) - 1024) return false;
    if (Q == K && setting != attention_kernels::decode) return false;  // never many keys for few queries
    const bool is_rare = Q.capacity() > attention_decode_queries;  // a step of training, say, whose length varies
    const index_t most_rows = std::min(Q.capacity(), attention_decode_queries) * group, least_rows = (Q.is_constant() ? Q.constant() : 1) * group;
    const bool is_wide = std::max(o.head_dim, o.value_dim) > decode_few_channels, has_many = attention_decode_rows(most_rows) == 64;
    const bool on_sm90 = arch == "sm_90a" && serves_decode_sm90(o) && a.scale > 0 && (has_many || is_wide);
    const auto add_merge = [&](kernel_role role, const kernel_text& unit, bool rare) { add(role, {"attention_decode_merge", 128, 0, 1}, unit, 0, rare); };
    const auto add_rows = [&](index_t rows, kernel_role role, kernel_role merge, bool rare) {
      const kernel_text unit = emit_attention_decode(o, rows);
      add(role, attention_decode_launch(o, rows), unit, 0, rare), add_merge(merge, unit, rare);
    };
    if (on_sm90) {
      const kernel_text unit = emit_attention_decode_sm90(o);
      add(kernel_role::attention_decode_sm90, attention_decode_sm90_launch(o), unit, 0, is_rare), add_merge(kernel_role::attention_decode_sm90_merge, unit, is_rare);
    }
    // Beside that one for keys that TMA can't address.
    if (attention_decode_rows(least_rows) == 16) add_rows(16, kernel_role::attention_decode_few, kernel_role::attention_decode_few_merge, is_rare || (on_sm90 && is_wide));
    if (has_many) add_rows(64, kernel_role::attention_decode, kernel_role::attention_decode_merge, is_rare || on_sm90);
    return is_few && (!has_many || on_sm90) && K.is_constant() && K.constant() >= least;
  }

  void attention(const graph_node& n, const attention_node& a) {
    const attention_kernel_options o = options_of(n, a, 3);
    if (std::max(o.head_dim, o.value_dim) > attention_head_limit) return;
    convert_sink(n, a, o.type == dtype::f64 ? dtype::f64 : dtype::f32);
    const bool always_decodes = decode(n, o, a), on_sm90 = !always_decodes && is_on_sm90(o, a);
    if (on_sm90) {
      const attention_launch kernel = attention_sm90_launch(o);
      const index_t keys = attention_sm90_keys(o);
      add(kernel_role::attention_sm90, kernel, emit_attention_sm90(o), keys);
      if (a.mask) add_bits(kernel_role::attention_bits, *a.mask, kernel.block_rows, keys);
    }
    add(kernel_role::attention, attention_forward_launch(o), emit_attention_forward(o), 0, on_sm90 || always_decodes);
  }

  void attention_gradient(const graph_node& n, const attention_gradient_node& a) {
    const attention_kernel_options o = options_of(n, a, a.has_lse_gradient ? 7 : 6);
    if (std::max(o.head_dim, o.value_dim) > attention_head_limit) return;
    const dtype sums = o.type == dtype::f64 ? dtype::f64 : dtype::f32;
    convert_sink(n, a, sums);
    if (g.info(n.inputs[5]).type != o.type) convert(kernel_role::convert, g.info(n.inputs[5]).type, o.type, g.info(n.inputs[5]).dims);
    if (a.has_lse_gradient && g.info(n.inputs[6]).type != sums) convert(kernel_role::convert_lse, g.info(n.inputs[6]).type, sums, g.info(n.inputs[6]).dims);
    const bool on_sm90 = is_on_sm90(o, a) && serves_sm90_gradient(o);
    if (on_sm90) gradient_on_sm90(o, a);
    const bool fused = !deterministic && fuses_gradient(o);
    const kernel_text unit = emit_attention_gradient(o, fused);
    add(kernel_role::attention_prepare, "attention_prepare", unit.name, unit.text, on_sm90);
    add(kernel_role::attention_key_gradient, fused ? attention_fused_gradient_launch(o) : attention_key_gradient_launch(o), unit, 0, on_sm90);
    if (fused) add(kernel_role::attention_finish, "attention_finish", unit.name, unit.text, on_sm90);
    else add(kernel_role::attention_query_gradient, attention_query_gradient_launch(o), unit, 0, on_sm90);
    if (a.tensors > 0) add(kernel_role::attention_sums, "attention_sums", unit.name, unit.text, on_sm90);
    if (a.has_sink) add(kernel_role::attention_sink_gradient, "attention_sink_gradient", unit.name, unit.text, on_sm90);
  }

  void gradient_on_sm90(const attention_kernel_options& o, const attention_terms& a) {
    const bool fused = !deterministic && fuses_sm90_gradient(o);
    const kernel_text unit = emit_attention_sm90_gradient(o, fused);
    const index_t queries = attention_sm90_gradient_queries(o), keys = attention_sm90_keys(o);
    add(kernel_role::sm90_prepare, "attention_prepare_sm90", unit.name, unit.text);
    for (const sm90_gradient what : sm90_key_gradients(o, fused))
      add(what == sm90_gradient::values ? kernel_role::sm90_values : kernel_role::sm90_keys, attention_sm90_key_gradient_launch(o, what), unit, queries);
    if (fused) add(kernel_role::sm90_finish, "attention_finish_sm90", unit.name, unit.text);
    else add(kernel_role::sm90_queries, attention_sm90_query_gradient_launch(o), unit, keys);
    if (a.has_sink) add(kernel_role::sm90_sink_gradient, "attention_sink_gradient", unit.name, unit.text);
    if (a.tensors > 0) add(kernel_role::sm90_sums, "attention_sums", unit.name, unit.text);
    if (a.mask) add_bits(kernel_role::sm90_key_bits, *a.mask, 128, queries);
    if (a.mask && !fused) add_bits(kernel_role::attention_bits, *a.mask, 128, keys);
  }

  void node(const graph_node& n) {
    if (const auto* a = n.as<fused_node>()) return fused(n, *a);
    if (n.as<matmul_node>()) return product(n);
    if (const auto* a = n.as<attention_node>()) return attention(n, *a);
    if (const auto* a = n.as<attention_gradient_node>()) return attention_gradient(n, *a);
    if (n.as<embedding_node>()) return embed(n);
    if (n.as<embedding_gradient_node>()) return embed_gradient(n);
    if (n.as<sum_to_node>()) return sum(n);
    return copies();  // concat, pad, copy, assign, append
  }
};

SAMITE_IMPL plan_kernels::plan_kernels(const plan& p, std::string arch, std::string device_class) {
  maker m{p.source(), std::move(arch), std::move(device_class)};
  for (const int id : p.steps()) {
    m.out = &uses_[id];
    try {
      m.node(p.source().node(id));
    } catch (const error&) {
      failures_[id] = std::current_exception();
    }
  }
}

SAMITE_IMPL const std::vector<kernel_use>& plan_kernels::of(int node) const {
  if (const auto failure = failures_.find(node); failure != failures_.end()) std::rethrow_exception(failure->second);
  return uses_.at(node);
}

SAMITE_IMPL std::vector<kernel_source> plan_kernels::sources(bool with_rare) const {
  std::vector<kernel_source> out;
  std::set<const kernel_source*> taken;
  for (const auto& [node, uses] : uses_)
    for (const kernel_use& use : uses)
      if ((with_rare || !use.is_rare) && taken.insert(use.unit.get()).second) out.push_back(*use.unit);
  const auto bytes = [](const kernel_source& source) {
    std::size_t sum = source.text.size();
    for (const kernel_header& header : source.headers) sum += header.text.size();
    return sum;
  };
  std::stable_sort(out.begin(), out.end(), [&](const kernel_source& a, const kernel_source& b) { return bytes(a) > bytes(b); });
  return out;
}

struct compile_setting {
  std::mutex mutex;
  bool is_read = false, dry = false;
  std::string arch;
  kernel_cache* cache = nullptr;

  static compile_setting& instance() {
    static compile_setting setting;
    return setting;
  }
};

/// sm_80 and newer, with a or f behind it or not.
inline bool is_served_arch(std::string_view arch) {
  if (!arch.starts_with("sm_")) return false;
  arch.remove_prefix(3);
  if (!arch.empty() && (arch.back() == 'a' || arch.back() == 'f')) arch.remove_suffix(1);
  return (arch.size() == 2 || arch.size() == 3) && arch.find_first_not_of("0123456789") == arch.npos && (arch.size() == 3 ? arch[0] != '0' : arch[0] >= '8');
}

SAMITE_IMPL bool compile_beside(const plan& p) {
  compile_setting& s = compile_setting::instance();
  std::unique_lock lock(s.mutex);
  if (!std::exchange(s.is_read, true)) {
    s.arch = env_text("SAMITE_COMPILE_FOR").value_or("");
    if (!s.arch.empty() && !is_served_arch(s.arch))
      raise("E-ENV-VALUE", "environment variable SAMITE_COMPILE_FOR=\"", s.arch, "\": expected an arch from sm_80 on with its suffix, e.g. sm_90a");
  }
  const std::string arch = s.arch;
  kernel_cache* const cache = s.cache;
  const bool dry = s.dry;
  lock.unlock();
  if (arch.empty()) return false;
  precompilation(cache != nullptr ? *cache : kernel_cache::instance(), kernels_of(p, arch)).wait();
  return dry;
}

}  // namespace detail

SAMITE_IMPL std::vector<kernel_source> kernels_of(const plan& p, const std::string& arch) { return detail::plan_kernels(p, arch).sources(true); }

SAMITE_IMPL void compile_plans_for(std::string arch, kernel_cache& cache, bool dry) {
  if (!arch.empty() && !detail::is_served_arch(arch)) raise("E-ARG", "compile for \"", arch, "\": expected an arch from sm_80 on with its suffix, e.g. sm_90a");
  detail::compile_setting& s = detail::compile_setting::instance();
  const std::lock_guard lock(s.mutex);
  s.is_read = true, s.arch = std::move(arch), s.cache = &cache, s.dry = dry;
}

}  // namespace samite
