// samite/runtime/cublaslt.hpp: matrix products on the GPU, through a cuBLASLt opened when first needed.
#pragma once
#include <dlfcn.h>

#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include <samite/core/env.hpp>
#include <samite/runtime/cuda_driver.hpp>

namespace samite {

/// A row-major product C = alpha * op(A) * op(B) + beta * C in device memory. Strides are elements from row to row.
struct device_matmul {
  dtype type = bf16;  // of A, B and C: bf16, f16, f32 or f64. Sums are fp32, fp64 for f64
  bool trans_a = false, trans_b = false;
  index_t m = 0, n = 0, k = 0;
  double alpha = 1;
  device_address a = 0;
  index_t lda = 0;
  device_address b = 0;
  index_t ldb = 0;
  double beta = 0;
  device_address c = 0;
  index_t ldc = 0;
  dtype output = dtype::u8;  // C's type if it is not `type`: f32 beside bf16 or f16. u8 means `type`
};

/// One device's handle with a 32 MiB workspace and the algorithms chosen so far, one per problem.
///
/// errors   E-CUBLAS-OPEN without the library (SAMITE_CUBLASLT_PATH names one), E-CUBLAS-CALL if no algorithm serves
/// stream   matmul() puts the product on the given stream and does not block; use one handle for each stream at a time, since
///          the workspace is shared. f32 computes in true fp32; SAMITE_TF32=1 allows TF32 (about 1e-3 relative error, faster)
/// threads  one at a time
class cublas_lt {
 public:
  explicit cublas_lt(const cuda_device& device);
  ~cublas_lt();
  cublas_lt(const cublas_lt&) = delete;
  cublas_lt& operator=(const cublas_lt&) = delete;

  void matmul(const cuda_stream& stream, const device_matmul& problem);

 private:
  struct choice;
  // Everything the choice depends on; addresses enter by their alignment.
  using problem_key = std::tuple<int, int, bool, bool, index_t, index_t, index_t, index_t, index_t, index_t, unsigned, bool>;
  static problem_key key_of(const device_matmul& p);
  const choice& choose(const problem_key& key, const device_matmul& p);

  cuda_device device_;
  detail::cuda_handle handle_ = nullptr;
  cuda_buffer workspace_;
  bool allow_tf32_;
  std::map<problem_key, choice> choices_;
};

namespace detail {

// Values of the 13.0 headers; tests/runtime/cublaslt_test.cpp compares them where the headers are installed.
inline constexpr int cublas_compute_32f = 68, cublas_compute_32f_tf32 = 77, cublas_compute_64f = 70;
inline constexpr int cublas_real_32f = 0, cublas_real_64f = 1, cublas_real_16f = 2, cublas_real_16bf = 14;
inline constexpr int cublas_desc_trans_a = 3, cublas_desc_trans_b = 4, cublas_preference_workspace = 1;
inline constexpr int cublas_op_n = 0, cublas_op_t = 1;
inline constexpr std::size_t cublas_workspace_bytes = std::size_t(32) << 20;

struct cublas_algorithm {
  std::uint64_t data[8];
};
struct cublas_heuristic {
  cublas_algorithm algorithm;
  std::size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

struct cublas_lt_api {
  int (*create)(cuda_handle*);
  int (*destroy)(cuda_handle);
  int (*matmul)(cuda_handle, cuda_handle, const void*, const void*, cuda_handle, const void*, cuda_handle, const void*, const void*,
                cuda_handle, void*, cuda_handle, const cublas_algorithm*, void*, std::size_t, cuda_handle);
  int (*desc_create)(cuda_handle*, int, int);
  int (*desc_destroy)(cuda_handle);
  int (*desc_set)(cuda_handle, int, const void*, std::size_t);
  int (*layout_create)(cuda_handle*, int, std::uint64_t, std::uint64_t, std::int64_t);
  int (*layout_destroy)(cuda_handle);
  int (*preference_create)(cuda_handle*);
  int (*preference_destroy)(cuda_handle);
  int (*preference_set)(cuda_handle, int, const void*, std::size_t);
  int (*heuristic)(cuda_handle, cuda_handle, cuda_handle, cuda_handle, cuda_handle, cuda_handle, cuda_handle, int, cublas_heuristic*,
                   int*);
};

struct cublas_lt_state {
  const cublas_lt_api* api = nullptr;
  std::string reason;
};

/// Opens `path`, or looks for the library under its usual names if it is empty.
inline cublas_lt_state open_cublas_lt(const std::string& path) {
  cublas_lt_state state;
  void* library = nullptr;
  const std::string usual[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
  for (const std::string& name : path.empty() ? std::span<const std::string>(usual) : std::span<const std::string>(&path, 1)) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    const char* text = dlerror();
    state.reason += (state.reason.empty() ? "" : "; ") + std::string(text != nullptr ? text : name);
  }
  if (library == nullptr) return state;
  static cublas_lt_api api{};
  const struct {
    void* slot;
    const char* name;
  } symbols[] = {
      {&api.create, "cublasLtCreate"},
      {&api.destroy, "cublasLtDestroy"},
      {&api.matmul, "cublasLtMatmul"},
      {&api.desc_create, "cublasLtMatmulDescCreate"},
      {&api.desc_destroy, "cublasLtMatmulDescDestroy"},
      {&api.desc_set, "cublasLtMatmulDescSetAttribute"},
      {&api.layout_create, "cublasLtMatrixLayoutCreate"},
      {&api.layout_destroy, "cublasLtMatrixLayoutDestroy"},
      {&api.preference_create, "cublasLtMatmulPreferenceCreate"},
      {&api.preference_destroy, "cublasLtMatmulPreferenceDestroy"},
      {&api.preference_set, "cublasLtMatmulPreferenceSetAttribute"},
      {&api.heuristic, "cublasLtMatmulAlgoGetHeuristic"},
  };
  for (const auto& s : symbols) {
    void* const found = dlsym(library, s.name);
    if (found == nullptr) {
      state.reason = concat_text("the library has no ", s.name);
      return state;
    }
    *static_cast<void**>(s.slot) = found;
  }
  state.api = &api;
  state.reason.clear();
  return state;
}

inline const cublas_lt_api& require_cublas_lt(const cublas_lt_state& state) {
  if (state.api == nullptr)
    raise("E-CUBLAS-OPEN", "cuBLASLt can't be opened: ", state.reason,
          "; install CUDA 12 or 13's cuBLAS or set SAMITE_CUBLASLT_PATH to libcublasLt.so");
  return *state.api;
}

inline const cublas_lt_api& cublas_lt_functions() {
  static const cublas_lt_state state = open_cublas_lt(env_text("SAMITE_CUBLASLT_PATH").value_or(""));
  return require_cublas_lt(state);
}

inline void check_cublas(int result, const char* purpose) {
  if (result != 0) [[unlikely]]
    raise("E-CUBLAS-CALL", purpose, " failed with cuBLAS status ", result,
          result == 13 ? ": execution failed; an earlier kernel may have faulted" : result == 15 ? ": no algorithm for this problem" : "");
}

inline int cublas_type(dtype type) {
  switch (type) {
    case dtype::f64: return cublas_real_64f;
    case dtype::f32: return cublas_real_32f;
    case dtype::bf16: return cublas_real_16bf;
    case dtype::f16: return cublas_real_16f;
    default: raise("E-CUBLAS-CALL", "matmul of ", name_of(type), " matrices: bf16, f16, f32 and f64 are served; convert with to_dtype()");
  }
}

/// A descriptor, layout or preference that is destroyed with its scope or owner.
class cublas_object {
 public:
  cublas_object() = default;
  cublas_object(cuda_handle handle, int (*destroy)(cuda_handle)) : handle_(handle), destroy_(destroy) {}
  cublas_object(cublas_object&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}
  cublas_object& operator=(cublas_object&& other) noexcept {
    std::swap(handle_, other.handle_), std::swap(destroy_, other.destroy_);
    return *this;
  }
  ~cublas_object() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  cuda_handle get() const { return handle_; }

 private:
  cuda_handle handle_ = nullptr;
  int (*destroy_)(cuda_handle) = nullptr;
};

}  // namespace detail

struct cublas_lt::choice {
  detail::cublas_object desc, layout_a, layout_b, layout_c;
  detail::cublas_algorithm algorithm{};
  std::size_t workspace_bytes = 0;
};

inline cublas_lt::cublas_lt(const cuda_device& device)
    : device_(device), workspace_(device, detail::cublas_workspace_bytes), allow_tf32_(env_number("SAMITE_TF32", 0, 1).value_or(0) == 1) {
  device_.make_current();
  detail::check_cublas(detail::cublas_lt_functions().create(&handle_), "creating a cuBLASLt handle");
}

inline cublas_lt::~cublas_lt() {
  choices_.clear();
  detail::cuda_driver().api->context_set(device_.context());
  if (handle_ != nullptr) detail::cublas_lt_functions().destroy(handle_);
}

inline cublas_lt::problem_key cublas_lt::key_of(const device_matmul& p) {
  const auto alignment = [](device_address address) { return unsigned(address & 255u) == 0 ? 0u : unsigned(address & (~address + 1)); };
  const unsigned alignments = alignment(p.a) | alignment(p.b) << 8 | alignment(p.c) << 16;
  return {int(p.type), int(p.output), p.trans_a, p.trans_b, p.m, p.n, p.k, p.lda, p.ldb, p.ldc, alignments, p.beta == 0};
}

inline const cublas_lt::choice& cublas_lt::choose(const problem_key& key, const device_matmul& p) {
  if (const auto found = choices_.find(key); found != choices_.end()) return found->second;
  const detail::cublas_lt_api& api = detail::cublas_lt_functions();
  const dtype output = p.output == dtype::u8 ? p.type : p.output;
  const int type = detail::cublas_type(p.type), output_type = detail::cublas_type(output);
  const bool wide = p.type == f64;
  const int compute = wide ? detail::cublas_compute_64f
                      : p.type == f32 && allow_tf32_ ? detail::cublas_compute_32f_tf32 : detail::cublas_compute_32f;
  choice made;
  detail::cuda_handle handle = nullptr;
  detail::check_cublas(api.desc_create(&handle, compute, wide ? detail::cublas_real_64f : detail::cublas_real_32f), "describing a matmul");
  made.desc = {handle, api.desc_destroy};
  // cuBLAS thinks in columns: a row-major [m,n] is a column-major [n,m], so C^T = op(B)^T op(A)^T is asked, with B first.
  const int first = p.trans_b ? detail::cublas_op_t : detail::cublas_op_n, second = p.trans_a ? detail::cublas_op_t : detail::cublas_op_n;
  detail::check_cublas(api.desc_set(handle, detail::cublas_desc_trans_a, &first, sizeof first), "setting a matmul's transposition");
  detail::check_cublas(api.desc_set(handle, detail::cublas_desc_trans_b, &second, sizeof second), "setting a matmul's transposition");
  const auto layout = [&](int element, index_t rows, index_t columns, index_t stride) {
    detail::cuda_handle made_layout = nullptr;
    detail::check_cublas(api.layout_create(&made_layout, element, std::uint64_t(columns), std::uint64_t(rows), stride),
                         "describing a matrix");
    return detail::cublas_object(made_layout, api.layout_destroy);
  };
  made.layout_a = p.trans_b ? layout(type, p.n, p.k, p.ldb) : layout(type, p.k, p.n, p.ldb);
  made.layout_b = p.trans_a ? layout(type, p.k, p.m, p.lda) : layout(type, p.m, p.k, p.lda);
  made.layout_c = layout(output_type, p.m, p.n, p.ldc);

  detail::check_cublas(api.preference_create(&handle), "making a search preference");
  const detail::cublas_object preference(handle, api.preference_destroy);
  const std::size_t limit = detail::cublas_workspace_bytes;
  detail::check_cublas(api.preference_set(preference.get(), detail::cublas_preference_workspace, &limit, sizeof limit),
                       "setting the workspace limit");
  const auto set_alignment = [&](int attribute, device_address address) {
    const std::uint32_t alignment = (address & 255u) == 0 ? 256u : std::uint32_t(address & (~address + 1));
    detail::check_cublas(api.preference_set(preference.get(), attribute, &alignment, sizeof alignment), "setting an alignment");
  };
  set_alignment(5, p.b), set_alignment(6, p.a), set_alignment(7, p.c), set_alignment(8, p.c);
  detail::cublas_heuristic best{};
  int found = 0;
  const int result = api.heuristic(handle_, made.desc.get(), made.layout_a.get(), made.layout_b.get(), made.layout_c.get(),
                                   made.layout_c.get(), preference.get(), 1, &best, &found);
  if (result != 0 || found == 0 || best.status != 0)
    raise("E-CUBLAS-CALL", "matmul ", name_of(p.type), " m=", p.m, " n=", p.n, " k=", p.k, " lda=", p.lda, " ldb=", p.ldb, " ldc=", p.ldc,
          ": cuBLASLt offers no algorithm (status ", result != 0 ? result : best.status, "); row strides must be at least the row's length");
  made.algorithm = best.algorithm;
  made.workspace_bytes = best.workspace_bytes;
  return choices_.emplace(key, std::move(made)).first->second;
}

inline void cublas_lt::matmul(const cuda_stream& stream, const device_matmul& p) {
  if (p.m < 0 || p.n < 0 || p.k < 0) raise("E-CUBLAS-CALL", "matmul: m=", p.m, ", n=", p.n, ", k=", p.k, ": extents can't be negative");
  if (p.m == 0 || p.n == 0) return;
  device_.make_current();
  if (p.k == 0) {
    const std::size_t element = size_of(p.output == dtype::u8 ? p.type : p.output);
    if (p.beta != 0 && p.beta != 1) raise("E-CUBLAS-CALL", "matmul with k = 0 and beta=", p.beta, ": only beta 0 or 1 is served");
    for (index_t row = 0; row < p.m && p.beta == 0; ++row)
      detail::check_cuda(detail::cuda().fill_bytes_async(p.c + std::size_t(row * p.ldc) * element, 0, std::size_t(p.n) * element,
                                                         stream.handle()),
                         "zeroing an empty product");
    return;
  }
  const choice& chosen = choose(key_of(p), p);
  const float alpha = float(p.alpha), beta = float(p.beta);
  const void* alpha_address = p.type == f64 ? static_cast<const void*>(&p.alpha) : &alpha;
  const void* beta_address = p.type == f64 ? static_cast<const void*>(&p.beta) : &beta;
  const auto pointer = [](device_address address) { return reinterpret_cast<void*>(address); };
  detail::check_cublas(
      detail::cublas_lt_functions().matmul(handle_, chosen.desc.get(), alpha_address, pointer(p.b), chosen.layout_a.get(), pointer(p.a),
                                           chosen.layout_b.get(), beta_address, pointer(p.c), chosen.layout_c.get(), pointer(p.c),
                                           chosen.layout_c.get(), &chosen.algorithm, pointer(workspace_.address()),
                                           chosen.workspace_bytes, stream.handle()),
      "starting a matmul");
}

}  // namespace samite
