// samite/nn/decoder_layer.hpp: weights and parts of a Qwen3-style decoder layer.
#pragma once
#include <samite/nn/attention.hpp>
#include <samite/nn/layers.hpp>

namespace samite {

/// Sizes that a layer needs.
struct layer_sizes {
  index_t hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double norm_eps = 1e-6;
  bool attention_bias = false;
};

/// Declares parameters under a prefix, kept in one dtype and used in another: fp32 masters of a bf16 model.
struct weight_scope {
  graph& g;
  std::string prefix;
  dtype stored = dtype::f32, used = dtype::f32;

  value operator()(const std::string& name, shape dims) const { return cast(g.parameter(prefix + name, stored, std::move(dims)), used); }
  weight_scope in(const std::string& name) const { return {g, prefix + name, stored, used}; }
};

struct dense_weights {
  value weight, bias;  // [out, in]; bias [out] or none
};

inline dense_weights declare_dense(const weight_scope& w, const std::string& name, index_t out, index_t in, bool bias = false) {
  return {w(name + ".weight", {out, in}), bias ? w(name + ".bias", {out}) : value()};
}

inline value dense(const value& x, const dense_weights& w, std::string label = {}) {
  const value y = linear(x, w.weight, std::move(label));
  return w.bias ? let(y + w.bias) : y;
}

struct layer_weights {
  value input_norm, post_attention_norm, q_norm, k_norm;
  dense_weights q, k, v, o, gate, up, down;
};

/// Names and shapes of a layer's tensors as checkpoints have them.
inline layer_weights declare_layer(const weight_scope& w, const layer_sizes& n) {
  const index_t q = n.heads * n.head_dim, kv = n.kv_heads * n.head_dim;
  layer_weights l;
  l.input_norm = w("input_layernorm.weight", {n.hidden});
  l.post_attention_norm = w("post_attention_layernorm.weight", {n.hidden});
  l.q = declare_dense(w, "self_attn.q_proj", q, n.hidden, n.attention_bias);
  l.k = declare_dense(w, "self_attn.k_proj", kv, n.hidden, n.attention_bias);
  l.v = declare_dense(w, "self_attn.v_proj", kv, n.hidden, n.attention_bias);
  l.o = declare_dense(w, "self_attn.o_proj", n.hidden, q, n.attention_bias);
  l.q_norm = w("self_attn.q_norm.weight", {n.head_dim});
  l.k_norm = w("self_attn.k_norm.weight", {n.head_dim});
  l.gate = declare_dense(w, "mlp.gate_proj", n.intermediate, n.hidden);
  l.up = declare_dense(w, "mlp.up_proj", n.intermediate, n.hidden);
  l.down = declare_dense(w, "mlp.down_proj", n.hidden, n.intermediate);
  return l;
}

/// [.., heads * D] as [.., heads, D].
inline value split_heads(const value& x, index_t heads, index_t head_dim) {
  shape dims(x.dims().begin(), x.dims().end() - 1);
  dims.push_back(heads), dims.push_back(head_dim);
  return reshape(x, std::move(dims));
}

/// Queries [.., heads, D]: projected, normalised per head, rotated.
inline value project_queries(const value& x, const layer_weights& w, const layer_sizes& n, const rope_angles& angles) {
  return rope(rms_norm(split_heads(dense(x, w.q, "q"), n.heads, n.head_dim), w.q_norm, n.norm_eps, "q_norm"), angles, "q_rope");
}

/// Keys [.., kv_heads, D]: projected, normalised per head, rotated.
inline value project_keys(const value& x, const layer_weights& w, const layer_sizes& n, const rope_angles& angles) {
  return rope(rms_norm(split_heads(dense(x, w.k, "k"), n.kv_heads, n.head_dim), w.k_norm, n.norm_eps, "k_norm"), angles, "k_rope");
}

/// Values [.., kv_heads, D]: projected only.
inline value project_values(const value& x, const layer_weights& w, const layer_sizes& n) {
  return split_heads(dense(x, w.v, "v"), n.kv_heads, n.head_dim);
}

/// Attention over token-major heads. q [B,Q,H,D], k and v [B,K,G,D]; returns [B,Q,H*D].
inline value attend(const value& q, const value& k, const value& v, const any_mask& mask, std::string label = {}) {
  const auto heads_first = [](const value& x) { return transpose(x, {0, 2, 1, 3}); };
  const value out = heads_first(attention(heads_first(q), heads_first(k), heads_first(v), {.mask = mask, .label = std::move(label)}).out);
  return reshape(out, {out.extent(0), out.extent(1), out.extent(2) * out.extent(3).constant()});
}

/// x + down(silu(gate(n)) * up(n)) with n the normalised x.
inline value feed_forward(const value& x, const layer_weights& w, const layer_sizes& n) {
  const value normed = rms_norm(x, w.post_attention_norm, n.norm_eps, "mlp_norm");
  return let(x + dense(swiglu(dense(normed, w.gate, "gate"), dense(normed, w.up, "up"), "swiglu"), w.down, "down"), {.label = "mlp_residual"});
}

}  // namespace samite
