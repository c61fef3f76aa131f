// samite/run/executor_impl.hpp: binding, lengths, views and the step loop.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>

#include <samite/core/env.hpp>
#include <samite/core/renamed_error.hpp>
#include <samite/run/cpu_backend.hpp>
#include <samite/run/cuda_backend.hpp>
#include <samite/run/executor.hpp>
#include <samite/run/plan_kernels.hpp>

namespace samite {

SAMITE_IMPL std::shared_ptr<backend> make_backend(const device& target) {
  env_number("SAMITE_TF32", 0, 1);  // a value that means nothing is said on every device, not only where it would count
  if (target.type == device::kind::cpu) return make_cpu_backend();
  return make_cuda_backend(target.index);
}

SAMITE_IMPL executor::executor(plan p, std::shared_ptr<backend> on)
    : plan_(std::move(p)), backend_(on ? std::move(on) : make_backend(plan_.target())), profiling_(env_number("SAMITE_PROFILE", 0, 1).value_or(0) == 1) {
  is_dry_ = plan_.target().type == device::kind::cpu && detail::compile_beside(plan_);
  memories_ = backend_->prepare(plan_);
  arena_ = backend_->make_tensor(dtype::u8, {index_t(plan_.arena_bytes())});
  const graph& g = plan_.source();
  for (std::size_t i = 0; i < g.nodes().size(); ++i) {
    const constant_node* c = g.nodes()[i].as<constant_node>();
    if (c == nullptr || !plan_.uses(int(i))) continue;
    const value_info& info = g.nodes()[i].outputs[0];
    tensor numbers(dtype::f64, capacities(info.dims));
    std::copy(c->data.begin(), c->data.end(), numbers.data<double>());
    tensor here = backend_->make_tensor(info.type, capacities(info.dims));
    here.copy_from(numbers.to_dtype(info.type));
    bound_[int(i)] = std::move(here);
  }
}

SAMITE_IMPL int executor::find_source(const std::string& name) const {
  const graph& g = plan_.source();
  for (std::size_t i = 0; i < g.nodes().size(); ++i) {
    const graph_node& n = g.nodes()[i];
    if (n.label == name && (n.as<input_node>() || n.as<parameter_node>() || n.as<state_node>())) return int(i);
  }
  std::string known;
  for (const graph_node& n : g.nodes())
    if (n.as<input_node>() || n.as<parameter_node>() || n.as<state_node>()) known += (known.empty() ? "" : ", ") + n.label;
  raise("E-RUN-NAME", "bind(\"", name, "\"): the graph has no input, parameter or state of that name; it had ", known.empty() ? "none" : known, " when the plan was made");
}

SAMITE_IMPL void executor::bind(const std::string& name, tensor t) {
  const int id = find_source(name);
  const graph_node& n = plan_.source().node(id);
  const value_info& info = n.outputs[0];
  if (t.is_empty()) raise("E-RUN-UNBOUND", "bind(\"", name, "\"): the tensor holds nothing; make one of the declared shape ", to_text(info.dims), " first");
  if (t.type() != info.type)
    raise("E-RUN-DTYPE", "bind(\"", name, "\"): the tensor is ", name_of(t.type()), " but the graph declares ", name_of(info.type), "; convert it with to_dtype");
  const auto wrong_shape = [&] {
    raise("E-RUN-SHAPE", "bind(\"", name, "\"): the tensor is ", t.dims(), " but the graph declares ", to_text(info.dims), "; bind a tensor of that shape, or declare the input with this one");
  };
  if (t.dims().size() != info.dims.size()) wrong_shape();
  for (std::size_t a = 0; a < info.dims.size(); ++a) {
    if (info.dims[a].is_constant() && t.dims()[a] != info.dims[a].constant()) wrong_shape();
    if (t.dims()[a] > info.dims[a].capacity())
      raise("E-RUN-CAPACITY", "bind(\"", name, "\"): axis ", a, " holds ", t.dims()[a], " elements but the plan was made for at most ", info.dims[a].capacity(),
            "; raise the capacity of ", to_text({info.dims[a]}));
  }
  const bool on_host = t.is_host(), wants_host = plan_.target().type == device::kind::cpu;
  if (on_host != wants_host && !(on_host && n.as<input_node>()))
    raise("E-RUN-DEVICE", "bind(\"", name, "\"): the tensor lies on ", on_host ? "the host" : "a GPU", " but the plan runs on ", plan_.target().name(),
          "; move it with tensor::to or tensor::to_host");
  auto found = bound_.find(id);
  // Another host tensor of the same extents changes no address on a device that keeps a copy of its own.
  const bool same_place = found != bound_.end() && ((on_host && !wants_host && found->second.is_host()) || found->second.raw() == t.raw());
  if (found == bound_.end() || found->second.dims() != t.dims() || !same_place) invalidate();
  bound_[id] = std::move(t);
}

SAMITE_IMPL void executor::set_length(const dim& length, index_t value) {
  if (length.terms().size() != 1 || length.terms()[0].factor != 1 || length.constant() != 0)
    raise("E-SHAPE-LENGTH", "set_length(", to_text({length}), "): name a single run-time length, as tokens() made it");
  const length_symbol* symbol = length.terms()[0].symbol.get();
  if (value < 0) raise("E-RUN-CAPACITY", "set_length(\"", symbol->name, "\", ", value, "): a length is at least 0 and at most ", symbol->capacity);
  if (value > symbol->capacity)
    raise("E-RUN-CAPACITY", "set_length(\"", symbol->name, "\", ", value, "): the plan was made for 0 to ", symbol->capacity, "; raise the capacity of tokens()");
  const auto found = fixed_lengths_.find(symbol);
  if (found == fixed_lengths_.end() || found->second != value) invalidate();
  fixed_lengths_[symbol] = value;
}

SAMITE_IMPL void executor::resolve_lengths() {
  const graph& g = plan_.source();
  lengths_ = fixed_lengths_;
  for (std::size_t i = 0; i < g.nodes().size(); ++i) {
    const graph_node& n = g.nodes()[i];
    if (!plan_.uses(int(i)) || !detail::is_source(n)) continue;
    const auto bound = bound_.find(int(i));
    if (bound == bound_.end())
      raise("E-RUN-UNBOUND", n.type_name(), " \"", n.label, "\" ", name_of(n.outputs[0].type), " ", to_text(n.outputs[0].dims), " has no tensor; call bind(\"", n.label, "\", t) before step()");
    for (std::size_t a = 0; a < n.outputs[0].dims.size(); ++a) {
      const dim& d = n.outputs[0].dims[a];
      if (d.terms().size() != 1) continue;
      const index_t rest = bound->second.dims()[a] - d.constant();
      const index_t factor = d.terms()[0].factor;
      const length_symbol* symbol = d.terms()[0].symbol.get();
      if (rest < 0 || rest % factor != 0)
        raise("E-RUN-SHAPE", "bind(\"", n.label, "\"): axis ", a, " holds ", bound->second.dims()[a], " elements, which is not of the form ", to_text({d}), "; pad or cut the axis to the nearest such count");
      const auto [known, fresh] = lengths_.emplace(symbol, rest / factor);
      if (!fresh && known->second != rest / factor)
        raise("E-RUN-LENGTH", "run-time length \"", symbol->name, "\" is ", rest / factor, " by axis ", a, " of \"", n.label, "\" but ", known->second, " by what was bound or set before; tensors that share a length must agree");
    }
  }
  // Extents with several lengths can only be checked once all are known.
  for (const auto& [id, t] : bound_) {
    const value_info& info = g.node(id).outputs[0];
    if (plan_.uses(id) && evaluate(info.dims, lengths_) != t.dims())
      raise("E-RUN-SHAPE", "bind(\"", g.node(id).label, "\"): the tensor is ", t.dims(), " but with the lengths of this run ", to_text(info.dims), " is ", evaluate(info.dims, lengths_), "; bind tensors that agree on their lengths, or set_length() the right one");
  }
}

SAMITE_IMPL const tensor_view& executor::view_of(value_ref ref) {
  auto& cached = views_[std::size_t(ref.node)];
  if (cached.empty()) cached.resize(plan_.source().node(ref.node).outputs.size());
  if (!cached[std::size_t(ref.output)]) cached[std::size_t(ref.output)] = compute_view(ref);
  return *cached[std::size_t(ref.output)];
}

SAMITE_IMPL tensor_view executor::compute_view(value_ref ref) {
  const graph_node& n = plan_.source().node(ref.node);
  const value_info& info = n.outputs[std::size_t(ref.output)];
  tensor_view v;
  v.type = info.type;
  v.dims = evaluate(info.dims, lengths_);
  for (index_t extent : v.dims)
    if (extent < 0) raise("E-SHAPE-SLICE", "\"", n.label, "\": shape ", to_text(info.dims), " is ", v.dims, " with the lengths of this run; no extent may be negative");
  const auto not_negative = [&](const char* what, const dim& d) {
    if (const index_t now = evaluate(d, lengths_); now < 0)
      raise("E-SHAPE-SLICE", "\"", n.label, "\" (", n.type_name(), "): ", what, " ", to_text({d}), " is ", now, " with the lengths of this run; it must be at least 0");
  };
  if (const auto* a = n.as<append_node>()) not_negative("the first row", a->at);
  if (const auto* a = n.as<pad_node>()) not_negative("the count of zeros before", a->before), not_negative("the count of zeros after", a->after);
  if (n.is_view()) {
    const tensor_view base = view_of(n.inputs[0]);
    v.data = base.data;
    if (n.as<reshape_node>()) v.strides = row_major_strides(v.dims);
    else if (const auto* t = n.as<transpose_node>())
      for (int axis : t->axes) v.strides.push_back(base.strides[std::size_t(axis)]);
    else v.strides = base.strides;
    index_t begin = 0;
    int axis = 0;
    if (const auto* s = n.as<slice_node>()) begin = evaluate(s->begin, lengths_), axis = s->axis;
    if (const auto* s = n.as<append_node>()) axis = s->axis;
    if (n.as<slice_node>() || n.as<append_node>()) {
      if (begin < 0 || begin + v.dims[std::size_t(axis)] > base.dims[std::size_t(axis)])
        raise("E-SHAPE-SLICE", "\"", n.label, "\" (", n.type_name(), "): elements ", begin, " to ", begin + v.dims[std::size_t(axis)] - 1, " of axis ", axis, " of a tensor ", base.dims, " don't all exist");
      v.data += begin * base.strides[std::size_t(axis)] * index_t(size_of(v.type));
    }
    return v;
  }
  const storage& at = plan_.storage_of(ref);
  if (at.where == storage::place::arena) {
    v.data = arena_.raw() + at.offset;
    v.strides.resize(v.dims.size());
    index_t step = 1;
    for (std::size_t i = info.order.size(); i-- > 0;) {
      v.strides[std::size_t(info.order[i])] = step;
      step *= v.dims[std::size_t(info.order[i])];
    }
    return v;
  }
  const tensor& bound = bound_.at(at.node);
  const bool staged = bound.is_host() && plan_.target().type != device::kind::cpu;
  v.data = (staged ? staged_.at(at.node) : bound).raw();
  v.strides = row_major_strides(v.dims);
  return v;
}

namespace detail {
// What is refused of a mask or a score function when it meets its sizes says which one it is, and of which attention.
inline error named_by_node(const error& e, const graph_node& n) {
  const auto* forward = n.as<attention_node>();
  const attention_terms* a = forward;
  if (a == nullptr) a = n.as<attention_gradient_node>();
  if (a == nullptr || (!e.code().starts_with("E-MASK-") && !e.code().starts_with("E-SCORE-"))) return e;
  const error named = renamed(e, "mask", titled("mask", a->mask_label));
  if (n.label.empty()) return named;
  const std::string place = titled("attention", n.label);
  const error replaced = renamed(named, "attention: ", place + ": ");
  return std::string_view(replaced.what()).find(place) != std::string_view::npos ? replaced : renamed(named, "", place + ": ");
}
}  // namespace detail

SAMITE_IMPL void executor::step() {
  const graph& g = plan_.source();
  if (!views_ready_) {
    resolve_lengths();
    for (const auto& [id, t] : bound_)  // host inputs get device memory once, at capacity
      if (t.is_host() && plan_.target().type != device::kind::cpu && !staged_.contains(id))
        staged_[id] = backend_->make_tensor(t.type(), capacities(g.node(id).outputs[0].dims));
    views_.assign(g.nodes().size(), {});
    steps_.clear();
    for (int id : plan_.steps()) {
      prepared p{id, {}, {}};
      for (const value_ref& in : g.node(id).inputs) p.inputs.push_back(view_of(in));
      for (std::size_t o = 0; o < g.node(id).outputs.size(); ++o) p.outputs.push_back(view_of({id, int(o)}));
      steps_.push_back(std::move(p));
    }
    views_ready_ = true, ++views_made_;
  }
  if (is_dry_) return;
  for (const auto& [id, copy] : staged_)
    if (const tensor& t = bound_.at(id); t.is_host()) backend_->upload(t, copy.raw());
  backend_->begin_step();
  for (const prepared& p : steps_) {
    const auto start = std::chrono::steady_clock::now();
    try {
      backend_->run({g, g.node(p.node), p.inputs, p.outputs, lengths_, memories_.empty() ? nullptr : memories_[std::size_t(p.node)].get(), views_made_});
    } catch (const error& e) {
      throw detail::named_by_node(e, g.node(p.node));
    }
    if (!profiling_) continue;
    backend_->synchronize();
    const graph_node& n = g.node(p.node);
    seconds_[std::string(n.type_name()) + " " + n.label.substr(0, n.label.find_first_of("0123456789"))] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
}

SAMITE_IMPL std::string executor::profile() const {
  std::vector<std::pair<double, std::string>> rows;
  double total = 0;
  for (const auto& [name, seconds] : seconds_) rows.emplace_back(seconds, name), total += seconds;
  std::sort(rows.rbegin(), rows.rend());
  std::string out;
  for (const auto& [seconds, name] : rows) {
    char line[160];
    std::snprintf(line, sizeof line, "%9.3f s %5.1f %%  %s\n", seconds, 100 * seconds / total, name.c_str());
    out += line;
  }
  return out;
}

SAMITE_IMPL tensor_view executor::output_view(const std::string& name) {
  if (!views_ready_) raise("E-RUN-UNBOUND", "output(\"", name, "\"): nothing has run yet with the tensors and lengths as they are; call step() first");
  for (const auto& [known, ref] : plan_.source().outputs())
    if (known == name) return view_of(ref);
  raise("E-RUN-NAME", "output(\"", name, "\"): the plan has no output of that name; mark it with graph::output before make_plan");
}

SAMITE_IMPL tensor executor::output(const std::string& name) {
  const tensor_view v = output_view(name);
  backend_->synchronize();
  if (v.strides != row_major_strides(v.dims))
    raise("E-RUN-LAYOUT", "output(\"", name, "\"): the result is a strided view; mark contiguous(x) as the output instead");
  return backend_->to_host(v);
}

}  // namespace samite
